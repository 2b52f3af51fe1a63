//! Address arithmetic: which parts of some address ranges are free, and with which tag. Pure: no
//! locks, no driver, no memory behind the addresses.
//!
//! Operations take constant time unless their comment names another cost. See [`Heap`].
//!
//! | file | what is in it |
//! | --- | --- |
//! | `address_map.rs` | hash tables by address |
//! | `types.rs` | the numbers that go in and come out |
//! | `nodes.rs` | a slab of nodes, one for each block |
//! | `bins.rs`, `tag_bins.rs` | free blocks by size; which tag has which |
//! | `merge.rs` | blocks that go into lists and out of them, and merge |
//! | `spans.rs` | where the heap's address ranges begin and end |
//! | `allocate.rs`, `moves.rs`, `resize.rs` | [`Heap`]: allocate and free; memory that comes, leaves or changes its tag; blocks that change their size |

mod address_map;
mod allocate;
mod bins;
mod merge;
mod moves;
mod nodes;
mod resize;
mod spans;
mod tag_bins;
mod types;

#[cfg(test)]
mod tests;

pub use address_map::{AddressHasher, AddressMap};
pub use allocate::Heap;
pub use types::{COMPLETE, FreeBlock, Node, NotLive, Piece, Tag, Taken};
