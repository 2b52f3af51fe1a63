//! The free memory of a pool of page-locked memory, in *one* heap over all of its slabs.
//!
//! A slab is one allocation of upstream. Blocks are cut from any slab, and free neighbours of one slab
//! merge. The pool keeps the heap under one lock, which threads take when their caches have nothing
//! that fits.

use super::batch::UNIT_SHIFT;
use super::pool_statistics::PinnedPoolStatistics;
use crate::heap::{AddressMap, COMPLETE, Heap, Node, Piece, Tag, Taken};
use std::collections::BTreeMap;

/// The tag of a slab while its first block is cut.
const FRESH: Tag = COMPLETE + 1;

/// The heap of a pool, and the slabs under it. INV-PINNED-5 says which blocks are free.
#[derive(Debug)]
pub(super) struct SlabHeap {
    pub(super) heap: Heap,
    /// The blocks that are not in the heap, by address. These are live, cached and quarantined ones.
    nodes: AddressMap<usize, Node>,
    /// The slabs by [`Slab::start`].
    pub(super) slabs: BTreeMap<usize, Slab>,
    /// The numbers that change under the lock. They are the growths, the returns, the peak, and the bytes of the slabs
    /// and of those that threads are asking upstream for.
    pub(super) statistics: PinnedPoolStatistics,
    /// Threads that are asking upstream.
    pub(super) growing: usize,
}

/// One allocation of upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slab {
    /// The address and the size that upstream has it by.
    pub(super) base: usize,
    pub(super) bytes: usize,
    /// The part that blocks are cut from, which is whole pages.
    pub(super) start: usize,
    pub(super) length: usize,
    /// Its number in the heap, which puts it there.
    pub(super) range: u32,
}

impl SlabHeap {
    pub(super) fn new() -> Self {
        Self {
            heap: Heap::new(UNIT_SHIFT, COMPLETE),
            nodes: AddressMap::default(),
            slabs: BTreeMap::new(),
            statistics: PinnedPoolStatistics::default(),
            growing: 0,
        }
    }

    /// Takes a block in constant time. It may overlook one in a bin of nearly its size.
    pub(super) fn allocate(&mut self, units: u32, align: usize) -> Option<usize> {
        let taken = self.heap.allocate(COMPLETE, units, align as u64, usize::MAX)?;
        Some(self.record_taken(taken))
    }

    /// Like [`allocate`](Self::allocate), but looks at every block before it says that none fits.
    pub(super) fn allocate_exhaustive(&mut self, units: u32, align: usize) -> Option<usize> {
        let taken = self.heap.allocate_exhaustive(COMPLETE, units, align as u64, usize::MAX)?;
        Some(self.record_taken(taken))
    }

    fn record_taken(&mut self, Taken { node, address, .. }: Taken) -> usize {
        self.nodes.insert(address as usize, node);
        address as usize
    }

    /// The size of a block that is not free.
    pub(super) fn block_units(&self, address: usize) -> Option<u32> {
        let node = *self.nodes.get(&address)?;
        self.heap.live(node).ok().map(|(_, units)| units)
    }

    /// Puts a block back. `false` if it was free already.
    pub(super) fn free(&mut self, address: usize) -> bool {
        let Some(node) = self.nodes.remove(&address) else { return false };
        self.heap.free(node, COMPLETE, 0).is_ok()
    }

    /// Takes out slabs all of which is free, as long as the others have `keep` bytes.
    pub(super) fn remove_free_slabs(&mut self, keep: usize) -> Vec<Slab> {
        let length: usize = self.slabs.values().map(|slab| slab.length).sum();
        let mut more = length.saturating_sub(keep);
        let is_free = |_: &usize, slab: &mut Slab| {
            let (start, length) = (slab.start as u64, slab.length as u64);
            let is_taken =
                slab.length <= more && self.heap.extract_complete_block(slab.range, start, length);
            more -= if is_taken { slab.length } else { 0 };
            is_taken
        };
        let removed: Vec<Slab> = self.slabs.extract_if(.., is_free).map(|(_, slab)| slab).collect();
        self.statistics.returns += removed.len();
        removed
    }

    /// Puts a slab in and takes its first block, of the units and alignment of `first`. Returns that
    /// block's address. Taken from the whole heap, the block might come from another slab or be
    /// overlooked among many of nearly its size, and the growth be in vain.
    pub(super) fn insert_slab(
        &mut self,
        mut slab: Slab,
        first: Option<(u32, usize)>,
    ) -> Option<usize> {
        let statistics = &mut self.statistics;
        statistics.growths += 1;
        statistics.peak_reserved = statistics.peak_reserved.max(statistics.reserved);
        slab.range = statistics.growths as u32;
        let Slab { start, length, range, .. } = slab;
        let (address, bytes) = (start as u64, length as u64);
        self.heap.add(FRESH, Piece { upstream_block: range, address, bytes, stamp: 0 });
        let taken = first
            .and_then(|(units, align)| self.heap.allocate(FRESH, units, align as u64, usize::MAX));
        self.heap.retag(FRESH, usize::MAX, COMPLETE, 0);
        self.slabs.insert(start, slab);
        taken.map(|taken| self.record_taken(taken))
    }
}
