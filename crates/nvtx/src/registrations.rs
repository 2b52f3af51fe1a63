//! What is registered with a tool that takes the memory extension.
//!
//! | call | effect |
//! | --- | --- |
//! | `heap_register` | a heap begins; or a block of a pool below ceases to be a region |
//! | `region_register` | old regions there end, and a region begins; or the regions stay, and their gaps become regions |
//! | `region_unregister` | a region ends |
//! | `heap_unregister` | old regions there end, then the heap |
//!
//! - INV-1. Heaps do not overlap, nor do regions.
//! - INV-2. All pools share one table, since tools know memory by address alone.

use crate::memory::{HeapHandle, MemoryExtension};
use aquifer_sync::trusted::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

/// Heaps and regions that are registered, by address.
#[derive(Debug)]
pub struct Registrations {
    heaps: BTreeMap<u64, RegisteredHeap>,
    regions: BTreeMap<u64, RegisteredRegion>,
}

/// The table is locked over calls of the tool, which so sees the events of an address in order. It is never locked over
/// calls of the driver.
pub static REGISTRATIONS: Mutex<Registrations> =
    Mutex::new(Registrations { heaps: BTreeMap::new(), regions: BTreeMap::new() });

#[derive(Debug)]
struct RegisteredHeap {
    bytes: usize,
    handle: HeapHandle,
    /// The number of its pool.
    pool: u64,
}

#[derive(Debug)]
struct RegisteredRegion {
    bytes: usize,
    /// The number of its pool. No other pool ends it by a free.
    pool: u64,
    /// The block was allocated in a capture, so the region outlives the free.
    captured: bool,
    /// Later blocks overlap it, without regions of their own.
    shared: bool,
}

fn range(address: u64, bytes: usize) -> Range<u64> {
    address..address.saturating_add(bytes as u64)
}

impl Registrations {
    fn overlapping(&self, range: &Range<u64>) -> Vec<u64> {
        let ends_after = |(start, region): &(&u64, &RegisteredRegion)| {
            start.saturating_add(region.bytes as u64) > range.start
        };
        // By INV-1 regions end in the order in which they begin.
        self.regions.range(..range.end).rev().take_while(ends_after).map(|(at, _)| *at).collect()
    }

    fn heap_of(&self, address: u64) -> Option<HeapHandle> {
        let (start, heap) = self.heaps.range(..=address).next_back()?;
        (address - start < heap.bytes as u64).then_some(heap.handle)
    }

    fn register(&mut self, tool: &MemoryExtension, at: u64, name: &str, region: RegisteredRegion) {
        if let Some(heap) = self.heap_of(at) {
            tool.region_register(heap, at, region.bytes);
            tool.region_name(at, name);
            self.regions.insert(at, region);
        }
    }

    fn unregister(&mut self, tool: &MemoryExtension, at: u64) -> Option<RegisteredRegion> {
        let region = self.regions.remove(&at)?;
        tool.region_unregister(at);
        Some(region)
    }

    /// Ends the regions in this range. Of shared regions it ends the part in the range.
    fn unregister_range(&mut self, tool: &MemoryExtension, ended: &Range<u64>) {
        for at in self.overlapping(ended) {
            let Some(RegisteredRegion { bytes, pool, shared, .. }) = self.unregister(tool, at)
            else {
                continue;
            };
            let rests = [at..ended.start, ended.end..range(at, bytes).end];
            for rest in rests.into_iter().filter(|rest| shared && !rest.is_empty()) {
                let bytes = (rest.end - rest.start) as usize;
                let region = RegisteredRegion { bytes, pool, captured: true, shared };
                self.register(tool, rest.start, &format!("aquifer pool {pool}, kept"), region);
            }
        }
    }

    /// Registers the gaps between the regions in this range, which all stay.
    fn register_gaps(&mut self, tool: &MemoryExtension, all: &Range<u64>, name: &str, pool: u64) {
        let mut gaps = Vec::new();
        let mut from = all.start;
        for at in self.overlapping(all).into_iter().rev() {
            let Some(region) = self.regions.get_mut(&at) else { continue };
            region.captured = true;
            region.shared |= range(at, region.bytes) != *all;
            gaps.push(from..at);
            from = range(at, region.bytes).end;
        }
        gaps.push(from..all.end);
        for gap in gaps.into_iter().filter(|gap| !gap.is_empty()) {
            let (bytes, shared) = ((gap.end - gap.start) as usize, gap != *all);
            let region = RegisteredRegion { bytes, pool, captured: true, shared };
            self.register(tool, gap.start, name, region);
        }
    }

    /// Whether a region lies in this range, in part at least.
    pub fn has_regions(&self, address: u64, bytes: usize) -> bool {
        !self.overlapping(&range(address, bytes)).is_empty()
    }

    /// Whether the region at an address ends when this pool's block there is freed.
    pub fn ends_by_free(&self, address: u64, pool: u64) -> bool {
        self.regions.get(&address).is_some_and(|region| region.pool == pool && !region.captured)
    }

    /// Begins a heap of a pool. Memory in a heap of a pool below ceases to be a region there.
    pub fn heap_register(&mut self, tool: &MemoryExtension, address: u64, bytes: usize, pool: u64) {
        if self.heap_of(address).is_some() {
            return self.unregister_range(tool, &range(address, bytes));
        }
        let name = format!("aquifer pool {pool}, chunk");
        if let Some(handle) = tool.heap_register(address, bytes, &name) {
            self.heaps.insert(address, RegisteredHeap { bytes, handle, pool });
        }
    }

    /// Ends the regions in a range, and the heap there if it is the pool's.
    pub fn heap_unregister(
        &mut self,
        tool: &MemoryExtension,
        address: u64,
        bytes: usize,
        pool: u64,
    ) {
        self.unregister_range(tool, &range(address, bytes));
        if self.heaps.get(&address).is_some_and(|heap| heap.pool == pool)
            && let Some(heap) = self.heaps.remove(&address)
        {
            tool.heap_unregister(heap.handle);
        }
    }

    /// Begins the region of a block. `captured` is for a block of a capture, whose region outlives its free.
    pub fn region_register(
        &mut self,
        tool: &MemoryExtension,
        block: (u64, usize),
        name: &str,
        pool: u64,
        captured: bool,
    ) {
        let (address, bytes) = block;
        self.unregister_range(tool, &range(address, bytes));
        let region = RegisteredRegion { bytes, pool, captured, shared: false };
        self.register(tool, address, name, region);
    }

    /// As [`region_register`](Self::region_register), where work may still use the regions there, which stay.
    pub fn region_share(
        &mut self,
        tool: &MemoryExtension,
        block: (u64, usize),
        name: &str,
        pool: u64,
    ) {
        let (address, bytes) = block;
        self.register_gaps(tool, &range(address, bytes), name, pool);
        if let Some(region) = self.regions.get_mut(&address)
            && region.bytes == bytes
        {
            region.pool = pool;
            tool.region_name(address, name);
        }
    }

    /// Ends the region at an address.
    pub fn region_unregister(&mut self, tool: &MemoryExtension, address: u64) {
        self.unregister(tool, address);
    }
}
