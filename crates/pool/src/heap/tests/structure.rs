//! What always holds inside of a heap, read from its rings and bins.

use crate::heap::bins::{all, bin_of, down, list, up};
use crate::heap::nodes::{BINS, BORDER, BlockNode, LIVE, NO_NODE};
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
        assert_eq!(heap.nodes[span.border].bin, BORDER);
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
            if block.is_free() {
                assert_eq!(usize::from(block.bin), bin_of(block.units));
                free.push((span.upstream_block, address, bytes, block.tag, block.stamp));
                if let Some(last) = last.filter(BlockNode::is_free) {
                    let fits = last.units.checked_add(block.units).is_some();
                    assert!(last.tag != block.tag || !fits, "neighbours that did not merge");
                }
            } else {
                assert_eq!(block.bin, LIVE, "no block in a ring");
                live.push((span.upstream_block, address, bytes));
            }
            last = Some(block);
            address += bytes;
            at = node;
        }
        assert_eq!(address, span.end, "a ring ends before its span does");
    }
    lists(heap, &free);
    let account = heap.stats();
    let (free_bytes, live_bytes) =
        (free.iter().map(|block| block.2).sum::<u64>(), live.iter().map(|block| block.2).sum());
    assert_eq!((account.free_bytes, account.live_bytes), (free_bytes, live_bytes));
    assert_eq!((heap.free_blocks(), account.live_blocks), (free.len(), live.len()));
    assert_eq!(account.total_bytes, free_bytes + live_bytes);
    assert_eq!(heap.largest_free(), free.iter().map(|block| block.2).max().unwrap_or(0));
    (free, live)
}

/// The lists hold the free blocks and nothing else, and their bitmaps say so.
fn lists(heap: &Heap, free: &[Free]) {
    let tags: BTreeSet<Tag> = free.iter().map(|block| block.3).collect();
    let said: Vec<Tag> = heap.tags().collect();
    assert_eq!(said.len(), tags.len(), "a tag twice, or without blocks");
    assert_eq!(said.into_iter().collect::<BTreeSet<_>>(), tags);
    for &tag in &tags {
        let lists = heap.tag_bins.get(tag).unwrap();
        let mut count = 0;
        let filled: Vec<usize> = up(lists, 0).collect();
        for at in 0..BINS {
            let has = filled.contains(&at);
            if lists.list_of(BINS - 1) >= at {
                assert_eq!(lists.head(at) != NO_NODE, has, "a bit that is wrong");
                assert_eq!(lists.at_or_below(at) == Some(at), has);
            }
            let mut newer = NO_NODE;
            for (node, block) in
                has.then(|| list(heap.nodes.all(), lists.head(at))).into_iter().flatten()
            {
                assert_eq!((block.tag, block.newer), (tag, newer));
                assert_eq!(lists.list_of(bin_of(block.units)), at);
                assert!((heap.oldest_bound(tag)..=heap.latest_bound(tag)).contains(&block.stamp));
                assert!(block.units <= heap.largest_bound(tag));
                newer = node;
                count += 1;
            }
        }
        assert!(down(lists).eq(filled.into_iter().rev()));
        assert_eq!((count, all(lists, heap.nodes.all()).count()), (lists.blocks() as usize, count));
        assert_eq!(count, free.iter().filter(|block| block.3 == tag).count());
    }
    let none =
        (heap.largest_bound(Tag::MAX), heap.oldest_bound(Tag::MAX), heap.latest_bound(Tag::MAX));
    assert_eq!(none, (0, usize::MAX, 0));
}
