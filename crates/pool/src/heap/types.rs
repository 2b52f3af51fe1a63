//! The numbers that go into a heap and come out of it.

/// A kind of free memory. Each tag has bins of its own, and only neighbours of one tag merge. In a
/// pool the tag is the slot of the stream that freed the memory.
pub type Tag = u16;

/// The tag of complete memory: the host has seen that the device is past its last use.
pub const COMPLETE: Tag = 0;

/// The number of a block in its heap, which finds the block again.
pub type Node = u32;

/// A piece of address space outside of any heap, or on its way between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of the upstream block that it is part of. Pieces of two upstream blocks never join.
    pub upstream_block: u32,
    pub address: u64,
    /// In bytes, a multiple of the unit.
    pub bytes: u64,
    /// The epoch of its free, on the clock of its tag.
    pub stamp: usize,
}

/// A block of free memory, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeBlock {
    pub node: Node,
    pub tag: Tag,
    pub address: u64,
    pub bytes: u64,
    pub stamp: usize,
}

impl FreeBlock {
    pub fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

/// A block that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub node: Node,
    pub address: u64,
    /// The stamp of the free memory it was cut from.
    pub stamp: usize,
}

/// What lies right above a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Above {
    /// Where the block ends.
    pub start: u64,
    /// Where the free memory above it ends.
    pub end: u64,
    /// The number of their upstream block, if the heap has nothing behind them.
    pub open: Option<u32>,
}

/// The error of this node: it is no live block of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotLive(pub Node);

/// Sizes and counts of a heap, exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub live_bytes: u64,
    pub live_blocks: usize,
}
