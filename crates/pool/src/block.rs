//! A block as it is handed out, and its token.

use super::magazine::Cached;
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
    /// number, and `GRAPH_BIT`.
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

/// The sizes of a pool's blocks: whole multiples of its alignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSizes {
    /// One less than the alignment.
    mask: u64,
    largest: u64,
}

impl BlockSizes {
    /// By the alignment, a power of two from a unit.
    pub(super) fn new(alignment: u64) -> Self {
        let mask = alignment - 1;
        Self { mask, largest: (u64::from(u32::MAX) << UNIT_SHIFT) & !mask }
    }

    /// Bytes of the largest block that a heap can have.
    pub(super) fn largest(self) -> u64 {
        self.largest
    }

    /// The units of a request. `None` if no heap has them.
    #[inline(always)]
    pub(super) fn aligned_units(self, bytes: usize) -> Option<u32> {
        if bytes as u64 > self.largest {
            return None;
        }
        // Up to the largest size there is nothing that could wrap.
        Some((((bytes as u64 + self.mask) & !self.mask) >> UNIT_SHIFT) as u32)
    }
}

impl Cached {
    /// A block that leaves a magazine's class of this size.
    #[inline(always)]
    pub(super) fn into_block(self, units: u32) -> Block {
        Block { address: self.address, bytes: (units as usize) << UNIT_SHIFT, token: self.token }
    }
}

/// A block as a magazine takes it: of the pool that has this mark, and of no graph.
#[inline(always)]
pub(super) fn cacheable(pool_mark: u16, block: &Block) -> Option<(u32, Cached)> {
    let Block { address, bytes, token } = *block;
    // A block of a pool has the size that it was handed out with: a multiple of the unit.
    let units = (bytes >> UNIT_SHIFT) as u32;
    ((token >> POOL_SHIFT) as u16 == pool_mark).then_some((units, Cached { address, token }))
}
