//! The heap against a naive model of it, at its edges, and by its figures.

mod capacity;
mod edges;
mod measure;
mod model;
mod random;
mod structure;

use super::{COMPLETE, Heap, Piece};

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
