//! Time of an operation. Always runs, small; prints figures with `AQUIFER_MEASURE=1`:
//! `AQUIFER_MEASURE=1 cargo test --release --lib heap::tests::measure -- --nocapture`.

use super::structure::walk;
use super::{heap_of, measuring};
use crate::heap::{COMPLETE, Heap, Node};
use fastrand::Rng;
use std::hint::black_box;
use std::time::Instant;

const ANY: usize = usize::MAX;

fn take(heap: &mut Heap, units: u32) -> Node {
    heap.allocate(COMPLETE, black_box(units), 256, ANY).unwrap().node
}

/// What slices of a run took for a pair, in nanoseconds: the least and the median. Others use the
/// machine too, so the least is nearer to what the heap takes by itself.
struct Figures(Vec<f64>);

impl Figures {
    fn of<T>(slices: &[&[T]], mut pair: impl FnMut(&T)) -> Self {
        let slice = |steps: &&[T]| {
            let start = Instant::now();
            steps.iter().for_each(&mut pair);
            start.elapsed().as_nanos() as f64 / steps.len() as f64
        };
        let mut taken: Vec<f64> = slices.iter().map(slice).collect();
        taken.sort_by(f64::total_cmp);
        Self(taken)
    }

    fn print(&self, workload: &str) {
        println!("{workload},{:.1},{:.1}", self.0[0], self.0[self.0.len() / 2]);
    }
}

/// Frees a random one of `live` blocks and allocates another, of 1 to 4096 units.
fn replace(live: usize, pairs: usize) -> Figures {
    let mut heap = heap_of((live as u64 * 2048 * 3 / 2).max(1 << 16));
    let mut random = Rng::with_seed(42);
    let size = |random: &mut Rng| random.u32(1..=4096);
    let mut nodes: Vec<Node> = (0..live).map(|_| take(&mut heap, size(&mut random))).collect();
    // What is random is made in advance. Both fit a `u32`.
    let steps: Vec<(u32, u32)> =
        (0..pairs).map(|_| (random.u32(..live as u32), size(&mut random))).collect();
    let mut pair = |&(at, units): &(u32, u32)| {
        let node = &mut nodes[at as usize];
        heap.free(*node, COMPLETE, 0).unwrap();
        *node = take(&mut heap, units);
    };
    // Old enough to be in its steady state first.
    let (before, measured) = steps.split_at(pairs / 2);
    before.iter().for_each(&mut pair);
    let slices: Vec<_> = measured.chunks(20_000).collect();
    let figures = Figures::of(&slices, pair);
    assert_eq!(heap.stats().live_blocks, live);
    walk(&heap);
    figures
}

/// Allocates and frees one block.
fn single(pairs: usize) -> Figures {
    let mut heap = heap_of(1 << 20);
    let steps = vec![4096; pairs];
    let slices: Vec<_> = steps.chunks(20_000).collect();
    let figures = Figures::of(&slices, |&units| {
        let node = take(&mut heap, units);
        heap.free(black_box(node), COMPLETE, 0).unwrap();
    });
    assert_eq!(heap.free_blocks(), 1);
    figures
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
    println!("workload,least ns per pair,median");
    single(4_000_000).print("one block");
    if std::env::var("ONE").is_ok() {
        for _ in 0..10 {
            single(4_000_000).print("one block");
        }
        return;
    }
    for live in [1, 256, 4096, 65_536] {
        replace(live, 4_000_000).print(&format!("replace one of {live}"));
    }
}
