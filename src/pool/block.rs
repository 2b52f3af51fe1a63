//! A block as it is handed out, and its token.

use crate::heap::Node;

/// The number of a stream's slot. In a heap it is the tag of what the stream freed.
pub(super) type SlotId = crate::heap::Tag;

/// The slot of the heap that all streams share, and the tag of complete memory.
pub(super) const SHARED: SlotId = crate::heap::COMPLETE;

/// log2 of the bytes of a unit.
pub(super) const UNIT_SHIFT: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Block {
    pub address: u64,
    /// From the low end: 32 bits of the node, 16 of the slot that owns the block, 15 of the pool's
    /// number, and [`GRAPH_BIT`].
    pub token: u64,
    pub bytes: usize,
}

const OWNER_SHIFT: u32 = 32;
pub(super) const POOL_SHIFT: u32 = 48;
pub(super) const POOL_BITS: u64 = 0x7fff;

/// Set in the token of a block that belongs to a graph.
pub(super) const GRAPH_BIT: u64 = 1 << 63;

#[inline]
pub(super) fn token_of(pool_mark: u16, owner: SlotId, node: Node) -> u64 {
    u64::from(pool_mark) << POOL_SHIFT | u64::from(owner) << OWNER_SHIFT | u64::from(node)
}

/// The slot whose heap the block is of.
#[inline]
pub(super) fn owner_of(token: u64) -> SlotId {
    (token >> OWNER_SHIFT) as SlotId
}

#[inline]
pub(super) fn node_of(token: u64) -> Node {
    token as Node
}
