//! Hooks that register a pool's memory with a tool that takes NVTX's memory extension, as compute-sanitizer does.
//! Blocks of upstream are *heaps*, and users' blocks are *regions* of them. To the tool all else in a heap is
//! forbidden.
//!
//! | event | hook | effect |
//! |---|---|---|
//! | the pool grows | `heap_register` | a heap begins, or a block of a pool below ceases to be a region |
//! | a block is allocated | `region_register` | old regions there end, the block's region begins |
//! | a block is freed | `region_unregister` | waits for the stream, then the region ends |
//! | the pool returns memory | `heap_unregister` | old regions there end, then the heap |
//!
//! - INV-1. A region covers its block from before the device's first access until after the last one. So each block
//!   takes the cold path in and out, and a free waits for its stream.
//! - INV-2. If INV-1 cannot be waited for, in a capture or after a driver's error, the region stays until its memory is
//!   allocated again or returned to upstream, since each launch of a graph may use it.
//! - INV-3. Heaps do not overlap, nor do regions.
//! - INV-4. All pools share one table, since tools know memory by address alone. A pool over a pool has the addresses
//!   of the lower one. So it registers no heaps, and its blocks are regions of the lower one's.

use crate::debug_log::{HeapHandle, MemoryExtension, memory_extension};
use crate::device::Device;
use crate::driver::is_forked_child;
use crate::stream::Stream;
use crate::sync::OnceLock;
use crate::sync::trusted::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

/// One pool's hooks.
pub(super) struct SanitizerHooks {
    tool: &'static MemoryExtension,
    device: Device,
    /// The pool's number, which it gets after its driver is made.
    pool: OnceLock<u64>,
}

/// Heaps and regions that are registered, by address.
struct Registrations {
    heaps: BTreeMap<u64, RegisteredHeap>,
    regions: BTreeMap<u64, RegisteredRegion>,
}

/// The table is locked over calls of the tool, which so sees the events of an address in order. It is never locked over
/// calls of the driver.
static REGISTRATIONS: Mutex<Registrations> =
    Mutex::new(Registrations { heaps: BTreeMap::new(), regions: BTreeMap::new() });

struct RegisteredHeap {
    bytes: usize,
    handle: HeapHandle,
    /// The number of its pool.
    pool: u64,
}

struct RegisteredRegion {
    bytes: usize,
    /// The number of its pool. No other pool ends it by a free.
    pool: u64,
    /// The block was allocated in a capture, so the region outlives the free (INV-2).
    captured: bool,
    /// Later blocks overlap it, without regions of their own.
    shared: bool,
}

fn range(address: u64, bytes: usize) -> Range<u64> {
    address..address.saturating_add(bytes as u64)
}

/// Waits until the device has done all that the stream was given. `false` for a stream in capture, or
/// if the driver refuses.
fn wait_for(stream: &Stream) -> bool {
    // Not `synchronize`, which runs other owners' destructors: they may allocate from another pool,
    // whose locks the caller may have.
    matches!(stream.is_capturing(), Ok(false)) && stream.synchronize_uncaptured().is_ok()
}

impl Registrations {
    fn overlapping(&self, range: &Range<u64>) -> Vec<u64> {
        let ends_after = |(start, region): &(&u64, &RegisteredRegion)| {
            start.saturating_add(region.bytes as u64) > range.start
        };
        // By INV-3 regions end in the order in which they begin.
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
}

impl SanitizerHooks {
    /// `None` if no tool takes the memory extension.
    pub(super) fn find(device: &Device) -> Option<Self> {
        let (device, pool) = (device.clone(), OnceLock::new());
        memory_extension().map(|tool| Self { tool, device, pool })
    }

    /// Sets the pool's number.
    pub(super) fn set_pool(&self, number: u64) {
        let _ = self.pool.set(number);
    }

    fn pool(&self) -> u64 {
        self.pool.get().copied().unwrap_or(0)
    }

    /// Runs `body` with the device's context current, without which the tool refuses memory. It does nothing in the
    /// child of a fork, where the lock may be held for good, and if the driver refuses.
    fn with_registrations(&self, body: impl FnOnce(&mut Registrations)) {
        if is_forked_child() {
            return;
        }
        let mut body = Some(body);
        let _ = self.device.driver().with_current(&mut || {
            if let Some(body) = body.take() {
                body(&mut REGISTRATIONS.lock());
            }
        });
    }

    /// A block of upstream is the pool's from now on.
    pub(super) fn heap_register(&self, address: u64, bytes: usize) {
        self.with_registrations(|registered| {
            if registered.heap_of(address).is_some() {
                // INV-4: a block of a pool below, which is no region as a whole any more.
                return registered.unregister_range(self.tool, &range(address, bytes));
            }
            let pool = self.pool();
            let name = format!("aquifer pool {pool}, chunk");
            if let Some(handle) = self.tool.heap_register(address, bytes, &name) {
                registered.heaps.insert(address, RegisteredHeap { bytes, handle, pool });
            }
        });
    }

    /// A block of upstream is about to go back, in the order of `stream`.
    pub(super) fn heap_unregister(&self, stream: Option<&Stream>, address: u64, bytes: usize) {
        if is_forked_child() {
            return;
        }
        let range = range(address, bytes);
        let has_regions = !REGISTRATIONS.lock().overlapping(&range).is_empty();
        if has_regions {
            // Their last work is complete, or in the order of the stream. They end even if the wait
            // fails: the memory has another owner next.
            let _ = stream.is_some_and(wait_for);
        }
        self.with_registrations(|registered| {
            registered.unregister_range(self.tool, &range);
            // INV-4: the heap at this address may be that of a pool below.
            if registered.heaps.get(&address).is_some_and(|heap| heap.pool == self.pool())
                && let Some(heap) = registered.heaps.remove(&address)
            {
                self.tool.heap_unregister(heap.handle);
            }
        });
    }

    /// A block is about to be a user's, for work on `stream`.
    pub(super) fn region_register(&self, stream: &Stream, address: u64, bytes: usize) {
        if is_forked_child() {
            return;
        }
        let captured = !matches!(stream.is_capturing(), Ok(false));
        let pool = self.pool();
        let name = format!("aquifer pool {pool}, stream {}", stream.id());
        let range = range(address, bytes);
        let has_regions = !REGISTRATIONS.lock().overlapping(&range).is_empty();
        // The stream is ordered after all that used this memory.
        let is_over = !has_regions || wait_for(stream);
        // Looked up again: another thread, with another part of the same old block, may have replaced
        // that one's region meanwhile.
        self.with_registrations(|registered| {
            if is_over {
                registered.unregister_range(self.tool, &range);
                let region = RegisteredRegion { bytes, pool, captured, shared: false };
                return registered.register(self.tool, address, &name, region);
            }
            // INV-2: the former use may go on.
            registered.register_gaps(self.tool, &range, &name, pool);
            if let Some(region) = registered.regions.get_mut(&address)
                && region.bytes == bytes
            {
                region.pool = pool;
                self.tool.region_name(address, &name);
            }
        });
    }

    /// A block is freed, after what `stream` was given so far.
    pub(super) fn region_unregister(&self, stream: &Stream, address: u64) {
        let ends = |region: &RegisteredRegion| region.pool == self.pool() && !region.captured;
        let ends = REGISTRATIONS.lock().regions.get(&address).is_some_and(ends);
        if ends && wait_for(stream) {
            self.with_registrations(|registered| {
                registered.unregister(self.tool, address);
            });
        }
    }
}
