//! Time of an operation. Always runs, small; prints figures with `AQUIFER_MEASURE=1`:
//! `AQUIFER_MEASURE=1 cargo test --release --lib heap::tests::measure -- --nocapture`.

use super::structure::walk;
use super::{below, heap_of, measuring};
use crate::heap::{COMPLETE, Heap, Node};
use std::hint::black_box;
use std::time::Instant;

const ANY: usize = usize::MAX;

fn take(heap: &mut Heap, units: u32) -> Node {
    heap.allocate(COMPLETE, black_box(units), 256, ANY).unwrap().node
}

/// Frees a random one of `live` blocks and allocates another, of 1 to 4096 units: nanoseconds for a
/// pair.
fn replace(live: usize, pairs: usize) -> f64 {
    let mut heap = heap_of((live as u64 * 2048 * 3 / 2).max(1 << 16));
    let mut state = 42;
    let size = |state: &mut u64| 1 + below(state, 4096) as u32;
    let mut nodes: Vec<Node> = (0..live).map(|_| take(&mut heap, size(&mut state))).collect();
    // What is random is made in advance. Both fit a `u32`.
    let steps: Vec<(u32, u32)> =
        (0..pairs).map(|_| (below(&mut state, live as u64) as u32, size(&mut state))).collect();
    let mut run = |steps: &[(u32, u32)]| {
        let start = Instant::now();
        for &(at, units) in steps {
            let node = &mut nodes[at as usize];
            heap.free(*node, COMPLETE, 0).unwrap();
            *node = take(&mut heap, units);
        }
        start.elapsed().as_nanos() as f64 / steps.len() as f64
    };
    // Old enough to be in its steady state first.
    run(&steps[..pairs / 2]);
    let taken = run(&steps[pairs / 2..]);
    assert_eq!(heap.account().live_blocks, live);
    walk(&heap);
    taken
}

/// Allocates and frees one block.
fn single(pairs: usize) -> f64 {
    let mut heap = heap_of(1 << 20);
    let start = Instant::now();
    for _ in 0..pairs {
        let node = take(&mut heap, 4096);
        heap.free(black_box(node), COMPLETE, 0).unwrap();
    }
    let taken = start.elapsed().as_nanos() as f64 / pairs as f64;
    assert_eq!(heap.account().free_blocks, 1);
    taken
}

fn median(mut of: impl FnMut() -> f64) -> f64 {
    let mut figures = [(); 5].map(|()| of());
    figures.sort_by(f64::total_cmp);
    figures[2]
}

#[test]
fn an_operation_takes_about_the_same_however_many_blocks_live() {
    if !measuring() {
        single(1000);
        for live in [1, 256, 4096] {
            replace(live, 2 * live);
        }
        return;
    }
    println!("workload,ns per pair");
    println!("one block,{:.1}", median(|| single(10_000_000)));
    for live in [1, 256, 4096, 65_536] {
        println!("replace one of {live},{:.1}", median(|| replace(live, 4_000_000)));
    }
}
