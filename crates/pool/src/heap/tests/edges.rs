//! Edges that random calls seldom meet: huge sizes, many tags, one size for all.

use super::heap_of;
use super::structure::walk;
use crate::heap::bins::{bin_of, largest_of};
use crate::heap::nodes::BlockNode;
use crate::heap::{COMPLETE, Heap, NotLive, Piece};
use fastrand::Rng;

const ANY: usize = usize::MAX;

#[test]
fn a_block_costs_40_bytes() {
    assert_eq!(size_of::<BlockNode>(), 40);
}

#[test]
fn every_size_lies_in_the_bin_that_says_so() {
    let mut random = Rng::with_seed(7);
    let edges = (0..32).flat_map(|bit| [(1u32 << bit) - 1, 1 << bit, (1 << bit) + 1]);
    let sizes = edges.chain(1..5000).chain([u32::MAX, u32::MAX - 1]);
    let others = (0..5000).map(|_| random.u32(..) >> random.u32(..32));
    for units in sizes.chain(others) {
        if units == 0 {
            continue;
        }
        let bin = bin_of(units);
        assert!(units <= largest_of(bin), "{units}");
        assert!(bin == 0 || units > largest_of(bin - 1), "{units}");
    }
    assert_eq!(largest_of(bin_of(u32::MAX)), u32::MAX);
}

#[test]
fn sizes_and_alignments_that_are_too_large_are_refused_without_a_change() {
    let mut heap = heap_of(1000);
    let before = heap.stats();
    for units in [1001, u32::MAX - 1, u32::MAX] {
        for align in [1, 256, 512, 1 << 40, 1 << 63] {
            assert_eq!(heap.allocate(COMPLETE, units, align, ANY), None);
        }
    }
    assert_eq!(heap.allocate(COMPLETE, 0, 1, ANY), None);
    assert_eq!(heap.allocate(COMPLETE, 1, 1 << 63, ANY), None);
    assert_eq!(heap.allocate(COMPLETE, 0, 4096, ANY), None);
    assert_eq!(heap.allocate(COMPLETE, 1, 3 << 20, ANY), None, "no power of two");
    assert_eq!(heap.stats(), before);
    walk(&heap);
}

#[test]
fn the_only_aligned_place_is_found() {
    // 2 MiB at 2 MiB: no room to spare, so only the block itself can say that it lies right.
    let mut heap = Heap::new(8, COMPLETE);
    heap.add(COMPLETE, Piece { upstream_block: 0, address: 2 << 20, bytes: 2 << 20, stamp: 0 });
    let taken = heap.allocate(COMPLETE, 8192, 2 << 20, ANY).unwrap();
    assert_eq!((taken.address, heap.stats().free_bytes), (2 << 20, 0));
    heap.free(taken.node, COMPLETE, 1).unwrap();
    // One unit less in front, and it is not there any more.
    heap.allocate(COMPLETE, 1, 1, ANY).unwrap();
    assert_eq!(heap.allocate(COMPLETE, 8191, 2 << 20, ANY), None);
    let taken = heap.allocate(COMPLETE, 4096, 1 << 20, ANY).unwrap();
    assert_eq!(taken.address, 3 << 20);
    walk(&heap);
}

#[test]
fn a_piece_larger_than_one_block_can_count_is_several() {
    let mut heap = Heap::new(6, COMPLETE);
    let bytes = (3u64 << 32) << 6;
    let piece = Piece { upstream_block: 9, address: 0, bytes, stamp: 4 };
    heap.add(COMPLETE, piece);
    assert_eq!(heap.stats().total_bytes, bytes);
    assert_eq!(heap.largest_free(), u64::from(u32::MAX) << 6);
    assert_eq!(heap.largest_bound(COMPLETE), u32::MAX);
    walk(&heap);
    let taken: Vec<_> = std::iter::from_fn(|| heap.allocate(COMPLETE, u32::MAX, 1, ANY)).collect();
    assert_eq!(taken.len(), 3);
    assert_eq!(heap.stats().free_bytes, 3 << 6);
    walk(&heap);
    for taken in taken {
        heap.free(taken.node, COMPLETE, 5).unwrap();
        walk(&heap);
    }
    assert!(!heap.extract_complete_block(9, 0, bytes - 64));
    assert!(heap.extract_complete_block(9, 0, bytes));
    assert_eq!(heap.stats(), Default::default());
    // The same, out by units and in again.
    heap.add(COMPLETE, piece);
    let mut pieces = Vec::new();
    heap.extract_all(COMPLETE, ANY, &mut pieces);
    assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u64>(), bytes);
    for piece in pieces.into_iter().rev() {
        heap.add(COMPLETE, piece);
        walk(&heap);
    }
    assert!(heap.extract_complete_block(9, 0, bytes));
}

#[test]
fn the_highest_addresses_are_no_different() {
    let mut heap = Heap::new(8, COMPLETE);
    let start = u64::MAX - 0xffff;
    heap.add(COMPLETE, Piece { upstream_block: 0, address: start, bytes: 0xff00, stamp: 0 });
    walk(&heap);
    assert_eq!(heap.allocate(COMPLETE, 2, 1 << 20, ANY), None);
    let taken = heap.allocate(COMPLETE, 2, 1 << 12, ANY).unwrap();
    assert_eq!(taken.address % (1 << 12), 0);
    walk(&heap);
}

#[test]
fn a_token_that_is_no_live_block_changes_nothing() {
    let mut heap = heap_of(64);
    let first = heap.allocate(COMPLETE, 8, 1, ANY).unwrap();
    let second = heap.allocate(COMPLETE, 8, 1, ANY).unwrap();
    let third = heap.allocate(COMPLETE, 8, 1, ANY).unwrap();
    heap.free(first.node, 1, 1).unwrap();
    heap.free(second.node, 1, 2).unwrap();
    let before = (heap.stats(), walk(&heap));
    // A free block, one that merged away, the border, one never used, none at all.
    for node in (0..third.node).chain(third.node + 1..100).chain([u32::MAX]) {
        assert_eq!(heap.free(node, COMPLETE, 9), Err(NotLive(node)));
        assert_eq!(heap.live(node), Err(NotLive(node)));
    }
    assert_eq!((heap.stats(), walk(&heap)), before);
    assert_eq!(heap.free(third.node, 1, 0), Ok(8));
}

#[test]
fn many_tags_take_turns_with_few_bins() {
    let mut heap = heap_of(5000);
    let mut blocks = Vec::new();
    for turn in 0..3usize {
        for tag in 1..=4000u16 {
            blocks.push(heap.allocate(COMPLETE, 1, 1, ANY).unwrap().node);
            heap.free(blocks.pop().unwrap(), tag, turn).unwrap();
            assert_eq!(heap.tags().filter(|&other| other != COMPLETE).collect::<Vec<_>>(), [tag]);
            assert_eq!(heap.largest_bound(tag), 1);
            assert_eq!(heap.retag(tag, turn, COMPLETE, 0), 1);
            assert_eq!((heap.largest_bound(tag), heap.latest_bound(tag)), (0, 0));
        }
    }
    assert_eq!(heap.free_blocks(), 1);
    walk(&heap);
}

#[test]
fn the_lists_of_a_tag_grow_and_shrink_with_its_blocks() {
    let mut heap = heap_of(600);
    let nodes: Vec<_> =
        (0..600).map(|_| heap.allocate(COMPLETE, 1, 1, ANY).unwrap().node).collect();
    // Every second one, so that none merges.
    for (stamp, node) in nodes.iter().step_by(2).enumerate() {
        heap.free(*node, 7, stamp).unwrap();
        walk(&heap);
    }
    assert_eq!((heap.oldest_bound(7), heap.latest_bound(7)), (0, 299));
    // What is left behind is known to be later than what went.
    assert_eq!(heap.retag(7, 99, 8, 5), 100);
    assert_eq!((heap.oldest_bound(7), heap.oldest_bound(8), heap.latest_bound(8)), (100, 5, 5));
    let mut again = Vec::new();
    for tag in [7, 8] {
        while let Some(taken) = heap.allocate(tag, 1, 1, ANY) {
            again.push(taken.node);
            walk(&heap);
        }
    }
    assert_eq!((again.len(), heap.tags().count()), (300, 0));
    for node in nodes.iter().skip(1).step_by(2).chain(&again) {
        heap.free(*node, COMPLETE, 0).unwrap();
    }
    assert!(heap.nodes.capacity() > 600);
    assert!(heap.extract_complete_block(0, 1 << 40, 600 << 8));
    assert!(heap.nodes.capacity() <= 16, "a heap without memory keeps its nodes");
}

#[test]
fn restamping_a_tag_moves_no_block() {
    let mut heap = heap_of(100);
    heap.add(3, Piece { upstream_block: 5, address: 0, bytes: 2560, stamp: 7 });
    heap.add(3, Piece { upstream_block: 6, address: 2560, bytes: 2560, stamp: 9 });
    assert_eq!(heap.retag(3, 7, 3, 8), 1);
    let stamps: Vec<_> = walk(&heap).0.iter().map(|block| (block.3, block.4)).collect();
    assert_eq!(stamps, [(3, 8), (3, 9), (COMPLETE, 0)]);
}

#[test]
fn one_size_between_the_bins_leaves_no_memory_unused() {
    // Sizes that are never a bin's smallest: a search above the floor bin alone finds no freed
    // block again.
    for units in [67u32, 131, 1030, 1061, 4099, 65_537] {
        let total = u64::from(units) * 700 + u64::from(units) / 2;
        let mut heap = heap_of(total);
        let mut random = Rng::with_seed(u64::from(units));
        let mut live: Vec<u32> = Vec::new();
        for round in 0..20_000 {
            if random.u32(..100) < 60 {
                live.extend(heap.allocate(COMPLETE, units, 1, ANY).map(|taken| taken.node));
            } else if !live.is_empty() {
                let node = live.swap_remove(random.usize(..live.len()));
                heap.free(node, COMPLETE, round).unwrap();
            }
        }
        // Every second goes and comes back, so that each hole has the very size.
        let mut gone = 0;
        for at in (0..live.len()).rev().step_by(2) {
            heap.free(live.swap_remove(at), COMPLETE, 0).unwrap();
            gone += 1;
        }
        let back = std::iter::from_fn(|| heap.allocate(COMPLETE, units, 1, ANY)).count();
        assert!(back >= gone);
        let used = heap.stats().live_bytes as f64 / heap.stats().total_bytes as f64;
        assert!(used >= 0.99, "{units} units: {used}");
        walk(&heap);
    }
}

/// Live blocks of these units, with a live one of one unit after each; the rest is taken, too.
fn fenced(units: &[u32]) -> (Heap, Vec<u32>) {
    let mut heap = heap_of(units.iter().map(|&units| u64::from(units) + 1).sum());
    let mut take = |units| heap.allocate(COMPLETE, units, 1, ANY).unwrap().node;
    let nodes = units.iter().map(|&units| (take(units), take(1)).0).collect();
    assert_eq!(heap.stats().free_bytes, 0);
    (heap, nodes)
}

#[test]
fn a_hole_of_the_very_size_goes_before_a_larger_one() {
    // 1030 is not the smallest size of its bin, so a search from the next one up misses it.
    let (mut heap, nodes) = fenced(&[1030, 1100, 4000, 1030, 9000]);
    for &node in &nodes {
        heap.free(node, COMPLETE, 0).unwrap();
    }
    for left in [4, 3] {
        heap.allocate(COMPLETE, 1030, 1, ANY).unwrap();
        assert_eq!(heap.free_blocks(), left, "a larger one was split");
    }
    // And the block that is kept apart goes last.
    for (units, left) in [(1100, 2), (4000, 1), (9000, 0)] {
        heap.allocate(COMPLETE, units, 1, ANY).unwrap();
        assert_eq!(heap.free_blocks(), left);
    }
}

#[test]
fn a_hole_that_serves_is_found_behind_many_that_do_not() {
    // All of one bin, and the one that serves the longest ago.
    let mut units = vec![1050];
    units.extend([1030; 100]);
    assert_eq!(bin_of(1050), bin_of(1030));
    // A larger one is kept apart; then it is taken.
    units.push(2000);
    let (mut heap, nodes) = fenced(&units);
    for &node in nodes.last().iter().copied().chain(&nodes[..nodes.len() - 1]) {
        heap.free(node, COMPLETE, 0).unwrap();
    }
    heap.allocate(COMPLETE, 2000, 1, ANY).unwrap();
    heap.allocate(COMPLETE, 1050, 1, ANY).unwrap();
    assert_eq!(heap.allocate(COMPLETE, 1031, 1, ANY), None);
}

/// However many stand before it, with and without an alignment.
#[test]
fn a_search_misses_no_block_that_serves() {
    // The one that serves is freed first, so that it is looked at last; but for a larger one that is
    // kept apart, and then taken. It alone lies at 2^40.
    let mut sizes = vec![1050];
    sizes.extend([1030; 1000]);
    sizes.push(2000);
    for (units, align) in [(1050, 1), (1030, 1 << 30), (1030, 1 << 40)] {
        let (mut heap, nodes) = fenced(&sizes);
        for &node in nodes.last().iter().copied().chain(&nodes[..nodes.len() - 1]) {
            heap.free(node, COMPLETE, 0).unwrap();
        }
        heap.allocate(COMPLETE, 2000, 1, ANY).unwrap();
        assert_eq!(heap.allocate(COMPLETE, units, align, ANY), None, "the test is about this");
        for (tag, units) in [(COMPLETE, 1051), (COMPLETE, 0), (1, 1050)] {
            assert_eq!(heap.allocate_exhaustive(tag, units, align, ANY), None);
        }
        assert_eq!(heap.allocate_exhaustive(COMPLETE, units, align, ANY).unwrap().address, 1 << 40);
        walk(&heap);
    }
}

#[test]
fn a_search_finds_the_one_block_that_is_early_enough() {
    let sizes: Vec<u32> = (0..40).flat_map(|step| [1000 + 40 * step; 20]).collect();
    let (mut heap, nodes) = fenced(&sizes);
    for (at, &node) in nodes.iter().enumerate() {
        heap.free(node, COMPLETE, if at == 500 { 3 } else { 9 }).unwrap();
    }
    assert_eq!(heap.allocate(COMPLETE, 900, 1, 3), None, "the test is about this");
    assert_eq!(heap.allocate_exhaustive(COMPLETE, 900, 1, 2), None);
    assert_eq!(heap.allocate_exhaustive(COMPLETE, 900, 1, 3).unwrap().stamp, 3);
    walk(&heap);
}
