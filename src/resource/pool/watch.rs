//! What a tool that watches memory is told of a pool: its blocks of upstream as heaps, and the blocks
//! that users have as regions of them. All else in a heap is forbidden.
//!
//! A region has to be there before the first access that the device makes, and until the last. So each
//! block comes and goes the slow way, and a free waits for its stream. What may be used later still
//! keeps its region until its memory is handed out again or goes back upstream: blocks of a graph, and
//! blocks whose stream cannot be waited for.
//!
//! Tools know heaps and regions by their addresses, which a pool over a pool shares with the one below.
//! So there is one table for all pools, and its regions are the blocks that nobody cuts further: a pool
//! over a pool has no heaps, and its blocks are regions of the lowest one's.

use crate::backend::is_forked_child;
use crate::debug_log::{HeapHandle, Memory, memory};
use crate::device::Device;
use crate::stream::Stream;
use crate::sync::OnceLock;
use crate::sync::trusted::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

/// A pool, as a tool sees it.
pub(super) struct Watch {
    tool: &'static Memory,
    device: Device,
    /// The pool's, which it has not yet when its ground is laid.
    number: OnceLock<u64>,
}

/// What the tool knows, by address. Heaps never overlap, nor do regions.
struct Told {
    heaps: BTreeMap<u64, Chunk>,
    regions: BTreeMap<u64, Region>,
}

/// Held over calls of the tool, so that it hears of an address in order; never over the driver's.
static TOLD: Mutex<Told> = Mutex::new(Told { heaps: BTreeMap::new(), regions: BTreeMap::new() });

struct Chunk {
    bytes: usize,
    handle: HeapHandle,
    /// The number of its pool.
    pool: u64,
}

struct Region {
    bytes: usize,
    /// The number of its pool: another one takes nothing back that is not its own.
    pool: u64,
    /// The block was handed out to a capture: each launch of the graph uses it, freed or not.
    captured: bool,
    /// Later blocks lie in it that have no region of their own.
    shared: bool,
}

fn range(address: u64, bytes: usize) -> Range<u64> {
    address..address.saturating_add(bytes as u64)
}

/// Waits until the device has done all that the stream was given. `false` if that cannot be known: the
/// stream is in capture, or the driver refused.
fn wait_for(stream: &Stream) -> bool {
    // Past `Stream::synchronize`, which also drops what strangers left behind: another pool may have
    // its locks in hand, and such a drop may ask it for memory.
    matches!(stream.is_capturing(), Ok(false))
        && stream.device().driver().stream_synchronize(stream.raw()).is_ok()
}

impl Told {
    fn overlapping(&self, range: &Range<u64>) -> Vec<u64> {
        let ends_after = |(start, region): &(&u64, &Region)| {
            start.saturating_add(region.bytes as u64) > range.start
        };
        // Since regions do not overlap, they end in the order in which they begin.
        self.regions.range(..range.end).rev().take_while(ends_after).map(|(at, _)| *at).collect()
    }

    fn heap_of(&self, address: u64) -> Option<HeapHandle> {
        let (start, chunk) = self.heaps.range(..=address).next_back()?;
        (address - start < chunk.bytes as u64).then_some(chunk.handle)
    }

    fn begin(&mut self, tool: &Memory, range: Range<u64>, name: &str, region: Region) {
        if let Some(heap) = self.heap_of(range.start) {
            tool.region_register(heap, range.start, region.bytes);
            tool.region_name(range.start, name);
            self.regions.insert(range.start, region);
        }
    }

    /// Ends the regions in this range; of those that later blocks lie in, what is in the range.
    fn end(&mut self, tool: &Memory, ended: &Range<u64>) {
        for at in self.overlapping(ended) {
            let Some(Region { bytes, pool, shared, .. }) = self.forget(tool, at) else { continue };
            let rests = [at..ended.start, ended.end..range(at, bytes).end];
            for rest in rests.into_iter().filter(|rest| shared && !rest.is_empty()) {
                let bytes = (rest.end - rest.start) as usize;
                let region = Region { bytes, pool, captured: true, shared };
                self.begin(tool, rest, &format!("aquifer pool {pool}, kept"), region);
            }
        }
    }

    /// Makes regions of what no region covers in this range, and keeps the others.
    fn fill(&mut self, tool: &Memory, filled: &Range<u64>, name: &str, pool: u64) {
        let mut gaps = Vec::new();
        let mut from = filled.start;
        for at in self.overlapping(filled).into_iter().rev() {
            let Some(region) = self.regions.get_mut(&at) else { continue };
            region.captured = true;
            region.shared |= range(at, region.bytes) != *filled;
            gaps.push(from..at);
            from = range(at, region.bytes).end;
        }
        gaps.push(from..filled.end);
        for gap in gaps.into_iter().filter(|gap| !gap.is_empty()) {
            let (bytes, shared) = ((gap.end - gap.start) as usize, gap != *filled);
            self.begin(tool, gap, name, Region { bytes, pool, captured: true, shared });
        }
    }

    fn forget(&mut self, tool: &Memory, region: u64) -> Option<Region> {
        let known = self.regions.remove(&region)?;
        tool.region_unregister(region);
        Some(known)
    }
}

impl Watch {
    /// `None` if no tool watches memory.
    pub(super) fn find(device: &Device) -> Option<Self> {
        memory().map(|tool| Self { tool, device: device.clone(), number: OnceLock::new() })
    }

    /// Tells the pool's number.
    pub(super) fn name(&self, number: u64) {
        let _ = self.number.set(number);
    }

    fn number(&self) -> u64 {
        self.number.get().copied().unwrap_or(0)
    }

    /// Lets `body` tell the tool, which looks for memory in the calling thread's current context and
    /// refuses where there is none. Where the driver refuses that, the tool hears nothing.
    fn tell(&self, body: impl FnOnce(&mut Told)) {
        // The lock may have been held by a thread that is not there.
        if is_forked_child() {
            return;
        }
        let mut body = Some(body);
        let _ = self.device.driver().with_current(&mut || {
            if let Some(body) = body.take() {
                body(&mut TOLD.lock());
            }
        });
    }

    /// A block of upstream is the pool's from now on.
    pub(super) fn open(&self, address: u64, bytes: usize) {
        self.tell(|told| {
            if told.heap_of(address).is_some() {
                // A block of a pool below, which is not to be used as a whole any more.
                return told.end(self.tool, &range(address, bytes));
            }
            let pool = self.number();
            let name = format!("aquifer pool {pool}, chunk");
            if let Some(handle) = self.tool.heap_register(address, bytes, &name) {
                told.heaps.insert(address, Chunk { bytes, handle, pool });
            }
        });
    }

    /// A block of upstream is about to go back, in the order of `stream`.
    pub(super) fn close(&self, stream: Option<&Stream>, address: u64, bytes: usize) {
        if is_forked_child() {
            return;
        }
        let range = range(address, bytes);
        let is_stale = !TOLD.lock().overlapping(&range).is_empty();
        if is_stale {
            // What they are used for is in the order of the stream. Without one it is over. If it
            // cannot be waited for they end now all the same: somebody else's memory begins.
            let _ = stream.is_some_and(wait_for);
        }
        self.tell(|told| {
            told.end(self.tool, &range);
            // The heap at this address may be a pool's below.
            if told.heaps.get(&address).is_some_and(|chunk| chunk.pool == self.number())
                && let Some(chunk) = told.heaps.remove(&address)
            {
                self.tool.heap_unregister(chunk.handle);
            }
        });
    }

    /// A block is about to be a user's, for work on `stream`.
    pub(super) fn hand_out(&self, stream: &Stream, address: u64, bytes: usize) {
        if is_forked_child() {
            return;
        }
        let captured = !matches!(stream.is_capturing(), Ok(false));
        let pool = self.number();
        let name = format!("aquifer pool {pool}, stream {}", stream.id());
        let range = range(address, bytes);
        let is_stale = !TOLD.lock().overlapping(&range).is_empty();
        // The stream comes after all that used this memory.
        let is_over = !is_stale || wait_for(stream);
        // What is there is looked up again: meanwhile another thread, which got another part of the
        // same old block, may have ended that one's region and begun its own.
        self.tell(|told| {
            if is_over {
                told.end(self.tool, &range);
                let region = Region { bytes, pool, captured, shared: false };
                return told.begin(self.tool, range, &name, region);
            }
            // The former use may go on: let none of it be forbidden.
            told.fill(self.tool, &range, &name, pool);
            if let Some(region) = told.regions.get_mut(&address).filter(|it| it.bytes == bytes) {
                region.pool = pool;
                self.tool.region_name(address, &name);
            }
        });
    }

    /// A block is a user's no more, after what `stream` was given so far.
    pub(super) fn take_back(&self, stream: &Stream, address: u64) {
        let ends = |region: &Region| region.pool == self.number() && !region.captured;
        let ends = TOLD.lock().regions.get(&address).is_some_and(ends);
        if ends && wait_for(stream) {
            self.tell(|told| {
                told.forget(self.tool, address);
            });
        }
    }
}
