//! What a pool of page-locked memory keeps under its lock: one heap over all slabs, and the way from
//! a block's address to its node.

use super::lane::UNIT_SHIFT;
use crate::heap::{COMPLETE, Heap, Node, Piece, Tag, Taken};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// The tag of a slab that has just come.
const FRESH: Tag = COMPLETE + 1;

/// The heap of a pool, and the slabs under it.
#[derive(Debug)]
pub(super) struct State {
    pub(super) heap: Heap,
    /// Live blocks by address.
    nodes: HashMap<usize, Node, BuildHasherDefault<AddressHasher>>,
    /// By their first byte.
    pub(super) slabs: BTreeMap<usize, Extent>,
    /// Bytes of the slabs, and of those that are being asked for.
    pub(super) reserved: usize,
    pub(super) peak_reserved: usize,
    /// Threads that are asking upstream.
    pub(super) growing: usize,
    pub(super) next_range: u32,
    pub(super) growths: usize,
    pub(super) returns: usize,
}

/// Where a slab lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// As upstream has it.
    pub(super) base: usize,
    pub(super) bytes: usize,
    /// Where blocks begin, and how far they reach.
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) range: u32,
}

/// Spreads addresses of multiples of 64.
#[derive(Debug, Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let spread = (value >> UNIT_SHIFT).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ (spread >> 32);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            heap: Heap::new(UNIT_SHIFT),
            nodes: HashMap::default(),
            slabs: BTreeMap::new(),
            reserved: 0,
            peak_reserved: 0,
            growing: 0,
            next_range: 0,
            growths: 0,
            returns: 0,
        }
    }

    pub(super) fn allocate(&mut self, units: u32, align: usize) -> Option<usize> {
        let taken = self.heap.allocate(COMPLETE, units, align as u64, usize::MAX)?;
        let address = taken.address as usize;
        self.nodes.insert(address, taken.node);
        Some(address)
    }

    /// What a block holds, if it is live.
    pub(super) fn holds(&self, address: usize) -> Option<u32> {
        let node = *self.nodes.get(&address)?;
        self.heap.live(node).ok().map(|(_, units)| units)
    }

    /// Whether the block was live.
    pub(super) fn free(&mut self, address: usize) -> bool {
        let Some(node) = self.nodes.remove(&address) else { return false };
        self.heap.free(node, COMPLETE, 0).is_ok()
    }

    /// Takes a slab out, if all of it is free.
    pub(super) fn cut(&mut self, start: usize) -> Option<Extent> {
        let slab = self.slabs.get(&start)?;
        let whole = self.heap.cut_exactly(slab.range, slab.start as u64, slab.length as u64);
        if whole { self.slabs.remove(&start) } else { None }
    }

    pub(super) fn enter(&mut self, slab: Extent) {
        self.enter_and_allocate(slab, 0, 1);
    }

    /// Takes a slab in, and of it a block. Asked of the whole heap, the block might be taken from
    /// elsewhere or be overlooked among many of nearly its size, and the growth be in vain.
    pub(super) fn enter_and_allocate(
        &mut self,
        slab: Extent,
        units: u32,
        align: usize,
    ) -> Option<usize> {
        let Extent { start, length, range, .. } = slab;
        let (address, bytes) = (start as u64, length as u64);
        self.heap.add(FRESH, Piece { range, address, bytes, stamp: 0 });
        let taken = self.heap.allocate(FRESH, units, align as u64, usize::MAX);
        self.heap.retag(FRESH, usize::MAX, COMPLETE, 0);
        self.slabs.insert(start, slab);
        self.growths += 1;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
        let Taken { node, address, .. } = taken?;
        self.nodes.insert(address as usize, node);
        Some(address as usize)
    }
}
