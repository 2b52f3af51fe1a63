//! Address arithmetic: which parts of some ranges are free, and of what kind. Pure: no locks, no
//! driver, no memory behind the addresses.
//!
//! Everything is constant time but for what says otherwise. See [`Heap`].

mod bins;
mod blocks;
mod moves;
mod nodes;
mod pieces;
mod shelf;
mod tagged;

#[cfg(test)]
mod tests;

pub(crate) use blocks::Heap;

/// What kind of free memory a block is: each has bins of its own, and only neighbours of one tag
/// merge. The pool's tags are the streams that freed (their slot's number); 0 is memory that the
/// host has seen complete.
pub(crate) type Tag = u16;

/// The tag of memory that nobody uses any more.
pub(crate) const COMPLETE: Tag = 0;

/// A block's number in its heap: the token that finds it again.
pub(crate) type Node = u32;

/// A piece of address space that lies outside of any heap, or moves between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Which of the owner's ranges it is part of: pieces join only with pieces of the same range.
    pub(crate) range: u32,
    pub(crate) address: u64,
    /// In bytes, a multiple of the unit.
    pub(crate) bytes: u64,
    /// When it was freed, in its tag's own time.
    pub(crate) stamp: usize,
}

/// A block that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) node: Node,
    pub(crate) address: u64,
    /// The stamp of the free memory it was cut from.
    pub(crate) stamp: usize,
}

/// What `free` was given is no live block of this heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotLive;

/// Sizes and counts of a heap, exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) live_blocks: usize,
    pub(crate) free_blocks: usize,
}
