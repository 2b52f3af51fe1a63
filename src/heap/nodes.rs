//! The slab of nodes: one for each block, live or free, and one for each piece's border.

use super::types::{NotLive, Tag};

/// No node: the end of the list of spare ones.
const NO_NODE: u32 = u32::MAX;

/// # State table
///
/// | state | `units` | `prev`, `next` | next states |
/// | --- | --- | --- | --- |
/// | `Spare` | - | `next`: the next spare node | `Live` (taken from the slab), `Border` |
/// | `Live` | of the block | the neighbours | `Free` (freed), `Spare` (merged into a neighbour) |
/// | `Free` | of the block | the neighbours | `Live` (allocated whole), `Spare` (merged, or cut out) |
/// | `Border` | 0 | the last and the first block of its span | `Spare` (its span is gone, or joined another) |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    /// Stands for no block; is in the slab's list of spare nodes.
    Spare,
    /// A block that was handed out.
    Live,
    /// A block in a bin.
    Free,
    /// Stands before the first block of a piece and after its last: the blocks of a piece are a
    /// ring through it, so that every block has neighbours and none is looked for.
    Border,
}

/// Two share a cache line, and none lies on two.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct BlockNode {
    pub(super) address: u64,
    pub(super) units: u32,
    /// The neighbour at the lower address. Of the same piece, as `next` is.
    pub(super) prev: u32,
    /// The neighbour at the higher address; of a spare node, the next spare one.
    pub(super) next: u32,
    /// Of a free block: where it stands in its bin. Its stamp stands there, too.
    pub(super) position: u32,
    /// Of a free block.
    pub(super) tag: Tag,
    pub(super) state: NodeState,
}

impl BlockNode {
    #[inline]
    pub(super) fn live(address: u64, units: u32, prev: u32, next: u32) -> Self {
        Self { address, units, prev, next, position: 0, tag: 0, state: NodeState::Live }
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
        self.blocks.len().checked_add(more).is_some_and(|len| len <= NO_NODE as usize)
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

    #[cold]
    fn grow(&mut self, block: BlockNode) -> u32 {
        let node = self.blocks.len() as u32;
        self.blocks.push(block);
        node
    }

    /// The block behind a token from outside, which may be anything.
    #[inline]
    pub(super) fn live(&self, node: u32) -> Result<&BlockNode, NotLive> {
        self.blocks
            .get(node as usize)
            .filter(|block| block.state == NodeState::Live)
            .ok_or(NotLive(node))
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
    blocks: &'a mut [BlockNode],
    spare: &'a mut u32,
}

impl View<'_> {
    #[inline]
    pub(super) fn release(&mut self, node: u32) {
        let spare = *self.spare;
        let block = &mut self[node];
        block.state = NodeState::Spare;
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
