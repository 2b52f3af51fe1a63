//! A part of the table of outstanding blocks.

use crate::adaptor::call_stack::CallStack;
use crate::heap::AddressMap;
use std::thread::ThreadId;

/// An outstanding block, as its allocation left it.
#[derive(Clone)]
pub(super) struct TrackedBlock {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) number: u64,
    pub(super) stream_id: u64,
    pub(super) thread_id: ThreadId,
    pub(super) ticks: u64,
    pub(super) backtrace: Option<CallStack>,
}

/// The bytes and the backtrace of a [`TrackedBlock`] that left the table. The drop of the backtrace
/// frees host memory, so the caller drops it outside the table.
pub(super) type Removed = (usize, Option<CallStack>);

/// The smallest capacity of a shard with entries.
const MIN_CAPACITY: usize = 32;

/// Outstanding blocks by address. An insertion allocates no host memory. The caller checks for
/// [room](Self::has_room), and brings a larger map if there is none.
#[derive(Default)]
pub(super) struct TrackingShard {
    blocks: AddressMap<u64, TrackedBlock>,
    bytes: usize,
    /// The number of the next block that [`add`](Self::add) inserts.
    pub(super) next_number: u64,
}

impl TrackingShard {
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.blocks.len() < self.blocks.capacity()
    }

    /// The capacity that [`grow_into`](Self::grow_into) needs before the next
    /// insertion, or 0 if there is room.
    pub(super) fn needed_capacity(&self) -> usize {
        if self.has_room() { 0 } else { (2 * self.blocks.len()).max(MIN_CAPACITY) }
    }

    /// Moves the blocks to `larger`, which is empty and has the [capacity](Self::needed_capacity), and
    /// leaves the old map in it.
    pub(super) fn grow_into(&mut self, larger: &mut AddressMap<u64, TrackedBlock>) {
        larger.extend(self.blocks.drain());
        std::mem::swap(&mut self.blocks, larger);
    }

    /// Numbers the block, and inserts it.
    #[inline]
    pub(super) fn add(&mut self, mut block: TrackedBlock) -> Option<Removed> {
        block.number = self.next_number;
        self.next_number += 1;
        self.insert(block)
    }

    /// Inserts a block where there [is room](Self::has_room), and gives the one that it replaces.
    #[inline]
    pub(super) fn insert(&mut self, block: TrackedBlock) -> Option<Removed> {
        // Wraps for the blocks of an upstream that lies about sizes; a removal takes the same off.
        self.bytes = self.bytes.wrapping_add(block.bytes);
        let before = self.blocks.insert(block.address, block)?;
        self.bytes = self.bytes.wrapping_sub(before.bytes);
        Some((before.bytes, before.backtrace))
    }

    #[inline]
    pub(super) fn remove(&mut self, address: u64) -> Option<Removed> {
        let block = self.blocks.remove(&address)?;
        // The bytes that were added: a wrong size of the free's caller cannot underflow the sum.
        self.bytes = self.bytes.wrapping_sub(block.bytes);
        Some((block.bytes, block.backtrace))
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = &TrackedBlock> {
        self.blocks.values()
    }

    /// Removes all blocks.
    pub(super) fn take(&mut self) -> impl Iterator<Item = TrackedBlock> + use<> {
        self.bytes = 0;
        std::mem::take(&mut self.blocks).into_values()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// An empty map of a capacity.
pub(super) fn map_with_capacity(capacity: usize) -> AddressMap<u64, TrackedBlock> {
    AddressMap::with_capacity_and_hasher(capacity, Default::default())
}

#[cfg(test)]
mod tests;
