//! The slab of nodes: one for each block, live or free, and one for each piece's border.

use super::types::{NotLive, Tag};

/// No node: the end of a list.
pub(super) const NO_NODE: u32 = u32::MAX;

/// How many bins there are.
pub(super) const BINS: usize = 1024;

/// What `bin` says of a node that is in none.
///
/// # State table
///
/// | `bin` | `units` | `prev`, `next` | next states |
/// | --- | --- | --- | --- |
/// | `SPARE` | - | `next`: the next spare node | `LIVE` (taken from the slab), `BORDER` |
/// | `LIVE` | of the block | the neighbours | a bin (freed), `SPARE` (merged into a neighbour) |
/// | a bin | of the block | the neighbours | `LIVE` (allocated whole), `SPARE` (merged, or cut out) |
/// | `BORDER` | 0 | the last and the first block of its span | `SPARE` (its span is gone, or joined another) |
pub(super) const LIVE: u16 = BINS as u16;
/// Stands before the first block of a piece and after its last: the blocks of a piece are a ring
/// through it, so that every block has neighbours and none is looked for.
pub(super) const BORDER: u16 = LIVE + 1;
/// Stands for no block; is in the slab's list of spare nodes.
const SPARE: u16 = LIVE + 2;

/// Nodes that a heap without memory keeps.
const LEAST: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct BlockNode {
    pub(super) address: u64,
    /// Of a free block.
    pub(super) stamp: usize,
    pub(super) units: u32,
    /// The neighbour at the lower address. Of the same piece, as `next` is.
    pub(super) prev: u32,
    /// The neighbour at the higher address; of a spare node, the next spare one.
    pub(super) next: u32,
    /// Of a free block: the ones before and after it in its list.
    pub(super) newer: u32,
    pub(super) older: u32,
    /// Of a free block.
    pub(super) tag: Tag,
    /// Of a free block: the bin of its size. Else its state.
    pub(super) bin: u16,
}

impl BlockNode {
    #[inline]
    pub(super) fn live(address: u64, units: u32, prev: u32, next: u32) -> Self {
        let (newer, older) = (NO_NODE, NO_NODE);
        Self { address, stamp: 0, units, prev, next, newer, older, tag: 0, bin: LIVE }
    }

    #[inline]
    pub(super) fn is_free(&self) -> bool {
        usize::from(self.bin) < BINS
    }
}

#[derive(Debug)]
pub(super) struct Nodes {
    blocks: Vec<BlockNode>,
    spare: u32,
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::new(), spare: NO_NODE }
    }

    /// Whether so many more nodes can be taken: fewer than 2^32 exist.
    #[inline]
    pub(super) fn room_for(&self, more: usize) -> bool {
        self.blocks.len() <= NO_NODE as usize - more
    }

    /// A node. The caller has asked whether there is room for one.
    #[inline]
    pub(super) fn take(&mut self, block: BlockNode) -> u32 {
        if let Some(slot) = self.blocks.get_mut(self.spare as usize) {
            let node = self.spare;
            self.spare = slot.next;
            *slot = block;
            return node;
        }
        self.grow(block)
    }

    /// As [`take`](Self::take), for a live block that is cut from one with this stamp. `None` if there is
    /// no room.
    #[inline(always)]
    pub(super) fn take_live(
        &mut self,
        (address, units): (u64, u32),
        stamp: usize,
        prev: u32,
        next: u32,
    ) -> Option<u32> {
        if let Some(slot) = self.blocks.get_mut(self.spare as usize) {
            let node = self.spare;
            self.spare = slot.next;
            // What else a free block has is not read before it is free.
            (slot.address, slot.units, slot.stamp) = (address, units, stamp);
            (slot.prev, slot.next, slot.bin) = (prev, next, LIVE);
            return Some(node);
        }
        let block = BlockNode { stamp, ..BlockNode::live(address, units, prev, next) };
        self.room_for(1).then(|| self.grow(block))
    }

    #[cold]
    fn grow(&mut self, block: BlockNode) -> u32 {
        let count = self.blocks.len();
        if count == self.blocks.capacity() {
            // Doubling would leave up to a half unused.
            self.blocks.reserve_exact((count / 4).max(LEAST));
        }
        self.blocks.push(block);
        count as u32
    }

    /// Forgets all nodes, none of which stands for anything.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.blocks.shrink_to(LEAST);
        self.spare = NO_NODE;
    }

    /// The block behind a token from outside, which may be anything.
    #[inline]
    pub(super) fn live(&self, node: u32) -> Result<&BlockNode, NotLive> {
        self.blocks.get(node as usize).filter(|block| block.bin == LIVE).ok_or(NotLive(node))
    }

    #[inline]
    pub(super) fn all(&self) -> &[BlockNode] {
        &self.blocks
    }

    /// The nodes while none is made: the compiler need not read their place again after each write.
    #[inline]
    pub(super) fn view(&mut self) -> View<'_> {
        View { blocks: &mut self.blocks, spare: &mut self.spare }
    }

    /// Makes two nodes neighbours.
    pub(super) fn link(&mut self, low: u32, high: u32) {
        self.view().link(low, high);
    }

    pub(super) fn release(&mut self, node: u32) {
        self.view().release(node);
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.blocks.capacity()
    }
}

impl std::ops::Index<u32> for Nodes {
    type Output = BlockNode;

    #[inline]
    fn index(&self, node: u32) -> &BlockNode {
        &self.blocks[node as usize]
    }
}

/// See [`Nodes::view`].
pub(super) struct View<'a> {
    pub(super) blocks: &'a mut [BlockNode],
    spare: &'a mut u32,
}

impl View<'_> {
    #[inline]
    pub(super) fn release(&mut self, node: u32) {
        let spare = *self.spare;
        let block = &mut self[node];
        block.bin = SPARE;
        block.next = spare;
        *self.spare = node;
    }

    #[inline]
    pub(super) fn link(&mut self, low: u32, high: u32) {
        self[low].next = high;
        self[high].prev = low;
    }
}

impl std::ops::Index<u32> for View<'_> {
    type Output = BlockNode;

    #[inline]
    fn index(&self, node: u32) -> &BlockNode {
        &self.blocks[node as usize]
    }
}

impl std::ops::IndexMut<u32> for View<'_> {
    #[inline]
    fn index_mut(&mut self, node: u32) -> &mut BlockNode {
        &mut self.blocks[node as usize]
    }
}
