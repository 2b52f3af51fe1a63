//! What always holds inside of a heap, read from its rings and bins.

use crate::heap::bins::{bin_of, largest_of};
use crate::heap::merge::place_of;
use crate::heap::nodes::{BlockNode, NodeState};
use crate::heap::{Heap, Tag};
use std::collections::BTreeSet;

/// A free block: range, address, bytes, tag and stamp.
pub(super) type Free = (u32, u64, u64, Tag, usize);
/// A live block: range, address, bytes.
pub(super) type Live = (u32, u64, u64);

/// Walks all of a heap, asserts that its parts agree, and returns its blocks by address.
pub(super) fn walk(heap: &Heap) -> (Vec<Free>, Vec<Live>) {
    let (mut free, mut live) = (Vec::new(), Vec::new());
    let mut end_of_last = 0;
    for (start, span) in heap.spans.all() {
        assert!(start >= end_of_last, "spans overlap");
        assert!(start < span.end, "an empty span");
        end_of_last = span.end;
        assert_eq!(heap.nodes[span.border].state, NodeState::Border);
        let (mut address, mut at) = (start, span.border);
        let mut last: Option<BlockNode> = None;
        loop {
            let node = heap.nodes[at].next;
            let block = heap.nodes[node];
            assert_eq!(block.prev, at, "a ring's links disagree");
            if node == span.border {
                break;
            }
            let bytes = u64::from(block.units) << heap.unit_shift;
            assert_eq!(block.address, address, "a gap or an overlap in a ring");
            assert_ne!(bytes, 0, "an empty block");
            match block.state {
                NodeState::Live => live.push((span.upstream_block, address, bytes)),
                NodeState::Free => {
                    let tag = block.tag;
                    let entry = heap.tag_bins.get(tag).unwrap().entry(place_of(&block));
                    assert_eq!((entry.node, entry.units), (node, block.units));
                    free.push((span.upstream_block, address, bytes, tag, entry.stamp));
                    if let Some(last) = last.filter(|last| last.state == NodeState::Free) {
                        let fits = last.units.checked_add(block.units).is_some();
                        assert!(last.tag != tag || !fits, "neighbours that did not merge");
                    }
                }
                state => panic!("a {state:?} node in a ring"),
            }
            last = Some(block);
            address += bytes;
            at = node;
        }
        assert_eq!(address, span.end, "a ring ends before its span does");
    }
    bins(heap, &free);
    let account = heap.stats();
    let (free_bytes, live_bytes) =
        (free.iter().map(|block| block.2).sum::<u64>(), live.iter().map(|block| block.2).sum());
    assert_eq!((account.free_bytes, account.live_bytes), (free_bytes, live_bytes));
    assert_eq!((account.free_blocks, account.live_blocks), (free.len(), live.len()));
    assert_eq!(account.total_bytes, free_bytes + live_bytes);
    assert_eq!(heap.largest_free(), free.iter().map(|block| block.2).max().unwrap_or(0));
    (free, live)
}

/// The bins hold the free blocks and nothing else, and their bitmaps say so.
fn bins(heap: &Heap, free: &[Free]) {
    let tags: BTreeSet<Tag> = free.iter().map(|block| block.3).collect();
    let said: Vec<Tag> = heap.tags().collect();
    assert_eq!(said.len(), tags.len(), "a tag twice, or without blocks");
    assert_eq!(said.into_iter().collect::<BTreeSet<_>>(), tags);
    for &tag in &tags {
        let bins = heap.tag_bins.get(tag).unwrap();
        assert_eq!(bins.tag, tag);
        for entry in bins.entries() {
            assert_eq!(heap.nodes[entry.node].tag, tag);
            assert!(entry.stamp <= heap.latest_bound(tag));
            assert!(entry.units <= heap.largest_bound(tag));
        }
        let mut count = bins.victim().into_iter().count();
        let mut bin = 0;
        let last = bin_of(u32::MAX);
        while let Some(at) = bins.at_or_above(bin) {
            assert!((bin..at).all(|bin| bins.in_bin(bin).is_empty()), "a bin without its bit");
            assert_eq!(bins.at_or_below(at), Some(at));
            assert!(!bins.in_bin(at).is_empty(), "a bit without blocks");
            for entry in bins.in_bin(at) {
                assert_eq!(bin_of(entry.units), at);
                count += 1;
            }
            bin = at + 1;
        }
        assert!((bin..=last).all(|bin| bins.in_bin(bin).is_empty()));
        let top = bins.top().map_or(0, largest_of);
        assert_eq!(heap.largest_bound(tag), bins.victim().map_or(top, |kept| top.max(kept.units)));
        assert_eq!((count, bins.blocks()), (bins.blocks(), bins.entries().count()));
        assert_eq!(count, free.iter().filter(|block| block.3 == tag).count());
    }
    assert_eq!((heap.largest_bound(Tag::MAX), heap.latest_bound(Tag::MAX)), (0, 0));
}
