//! The heap against a naive model of it, at its edges, and by its figures.

mod capacity;
mod edges;
mod measure;
mod model;
mod random;
mod structure;

use super::{COMPLETE, Heap, Piece};

/// One step of SplitMix64, and what it gives.
pub(super) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

pub(super) fn below(state: &mut u64, bound: u64) -> u64 {
    next(state) % bound
}

/// Whether figures were asked for: the full measurements run then.
pub(super) fn measuring() -> bool {
    std::env::var("AQUIFER_MEASURE").is_ok_and(|value| value == "1")
}

/// A heap of 256 B units with one free range of complete memory.
pub(super) fn heap_of(units: u64) -> Heap {
    let mut heap = Heap::new(8, COMPLETE);
    heap.add(COMPLETE, Piece { upstream_block: 0, address: 1 << 40, bytes: units << 8, stamp: 0 });
    heap
}
