//! The numbers that go into a heap and come out of it.

/// A kind of free memory. Each tag has bins of its own, and only neighbours of one tag merge. In a
/// pool the tag is the slot of the stream that freed the memory.
pub(crate) type Tag = u16;

/// The tag of complete memory: the host has seen that the device is past its last use.
pub(crate) const COMPLETE: Tag = 0;

/// The number of a block in its heap, which finds the block again.
pub(crate) type Node = u32;

/// A piece of address space outside of any heap, or on its way between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The number of the upstream block that it is part of. Pieces of two upstream blocks never join.
    pub(crate) upstream_block: u32,
    pub(crate) address: u64,
    /// In bytes, a multiple of the unit.
    pub(crate) bytes: u64,
    /// The epoch of its free, on the clock of its tag.
    pub(crate) stamp: usize,
}

/// A block of free memory, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeBlock {
    pub(crate) node: Node,
    pub(crate) tag: Tag,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) stamp: usize,
}

impl FreeBlock {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

/// A block that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) node: Node,
    pub(crate) address: u64,
    /// The stamp of the free memory it was cut from.
    pub(crate) stamp: usize,
}

/// What lies right above a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Above {
    /// Where the block ends.
    pub(crate) start: u64,
    /// Where the free memory above it ends.
    pub(crate) end: u64,
    /// The number of their upstream block, if the heap has nothing behind them.
    pub(crate) open: Option<u32>,
}

/// The error of this node: it is no live block of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotLive(pub(crate) Node);

/// Sizes and counts of a heap, exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeapStats {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) live_blocks: usize,
}
