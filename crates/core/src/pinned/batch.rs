//! Sizes and freed blocks of a pool of page-locked memory, and the batches that blocks move in.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// log2 of the bytes of a unit, to which sizes are rounded up. A unit is a cache line.
pub(super) const UNIT_SHIFT: u32 = 6;

/// Blocks of a full batch.
pub(super) const BATCH_BLOCKS: usize = 64;

/// The units of a block of `size` bytes. `None` for no bytes, and for more than a pool's block holds.
#[inline(always)]
pub(super) fn units_of(size: usize) -> Option<u32> {
    // No overflow: a layout's size is at most `isize::MAX`.
    let units = size.wrapping_add((1 << UNIT_SHIFT) - 1) >> UNIT_SHIFT;
    if units == 0 { None } else { u32::try_from(units).ok() }
}

pub(super) fn bytes_of(units: u64) -> usize {
    (units << UNIT_SHIFT) as usize
}

/// A pointer to memory whose address was exposed when it came into the address map.
#[inline(always)]
pub(super) fn exposed_pointer(address: usize) -> Option<NonNull<u8>> {
    Some(NonNull::with_exposed_provenance(NonZeroUsize::new(address)?))
}

/// A block that its user has freed, by address. The pool's heap finds its node by that.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreedBlock {
    pub(super) address: usize,
    /// The size that its user freed it with. The block holds as much, or more where it was shrunk
    /// in place.
    pub(super) units: u32,
}

impl FreedBlock {
    /// A block that was freed with this size in bytes. `None` if no pool has blocks of it.
    #[inline(always)]
    pub(super) fn new(address: usize, bytes: usize) -> Option<Self> {
        Some(Self { address, units: units_of(bytes)? })
    }

    /// A block on its way to the heap, which knows its size.
    pub(super) fn without_size(address: usize) -> Self {
        Self { address, units: 0 }
    }
}

/// Freed blocks that move as one between a thread, the quarantine and the heap. A full batch has [`BATCH_BLOCKS`] of
/// them. It is Bonwick's magazine, with blocks of any size.
#[derive(Debug, Default)]
pub(super) struct Batch {
    units: u64,
    blocks: Vec<FreedBlock>,
}

impl Batch {
    /// The units of all its blocks.
    pub(super) fn units(&self) -> u64 {
        self.units
    }

    pub(super) fn blocks(&self) -> &[FreedBlock] {
        &self.blocks
    }

    /// Adds a block. Returns whether the batch is full now, of blocks or of `limit` units.
    #[inline(always)]
    pub(super) fn push(&mut self, block: FreedBlock, limit: u64) -> bool {
        self.blocks.push(block);
        self.units += u64::from(block.units);
        self.blocks.len() >= BATCH_BLOCKS || self.units >= limit
    }

    /// Takes the last block of this size whose address has none of the bits of `mask`.
    #[inline(always)]
    pub(super) fn take(&mut self, units: u32, mask: usize) -> Option<usize> {
        let block = *self.blocks.last()?;
        if block.units == units && block.address & mask == 0 {
            self.blocks.pop();
            self.units -= u64::from(units);
            return Some(block.address);
        }
        self.take_by_search(units, mask)
    }

    #[cold]
    fn take_by_search(&mut self, units: u32, mask: usize) -> Option<usize> {
        let fits = |block: &FreedBlock| block.units == units && block.address & mask == 0;
        let at = self.blocks.iter().rposition(fits)?;
        self.units -= u64::from(units);
        Some(self.blocks.swap_remove(at).address)
    }
}

#[cfg(test)]
mod tests;
