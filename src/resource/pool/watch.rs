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
use crate::stream::Stream;
use crate::sync::OnceLock;
use crate::sync::trusted::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

/// A pool, as a tool sees it.
pub(super) struct Watch {
    tool: &'static Memory,
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

    fn forget(&mut self, tool: &Memory, region: u64) {
        if self.regions.remove(&region).is_some() {
            tool.region_unregister(region);
        }
    }
}

impl Watch {
    /// `None` if no tool watches memory.
    pub(super) fn find() -> Option<Self> {
        memory().map(|tool| Self { tool, number: OnceLock::new() })
    }

    /// Tells the pool's number.
    pub(super) fn name(&self, number: u64) {
        let _ = self.number.set(number);
    }

    fn number(&self) -> u64 {
        self.number.get().copied().unwrap_or(0)
    }

    /// A block of upstream is the pool's from now on.
    pub(super) fn open(&self, address: u64, bytes: usize) {
        let mut told = TOLD.lock();
        if told.heap_of(address).is_some() {
            // A block of a pool below, which is not to be used as a whole any more.
            for region in told.overlapping(&range(address, bytes)) {
                told.forget(self.tool, region);
            }
            return;
        }
        let pool = self.number();
        let name = format!("aquifer pool {pool}, chunk");
        if let Some(handle) = self.tool.heap_register(address, bytes, &name) {
            told.heaps.insert(address, Chunk { bytes, handle, pool });
        }
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
        let mut told = TOLD.lock();
        for region in told.overlapping(&range) {
            told.forget(self.tool, region);
        }
        // The heap at this address may be a pool's below.
        if told.heaps.get(&address).is_some_and(|chunk| chunk.pool == self.number())
            && let Some(chunk) = told.heaps.remove(&address)
        {
            self.tool.heap_unregister(chunk.handle);
        }
    }

    /// A block is about to be a user's, for work on `stream`.
    pub(super) fn hand_out(&self, stream: &Stream, address: u64, bytes: usize) {
        let captured = !matches!(stream.is_capturing(), Ok(false));
        let pool = self.number();
        let name = format!("aquifer pool {pool}, stream {}", stream.id());
        let stale = TOLD.lock().overlapping(&range(address, bytes));
        // The stream comes after all that used this memory.
        let is_over = stale.is_empty() || wait_for(stream);
        let mut told = TOLD.lock();
        let same = told.regions.get_mut(&address).filter(|region| region.bytes == bytes);
        if let Some(region) = same.filter(|_| !is_over) {
            // Its former use may go on: let it not be forbidden for a moment.
            (region.pool, region.captured) = (pool, captured);
            return self.tool.region_name(address, &name);
        }
        for region in stale {
            told.forget(self.tool, region);
        }
        if let Some(heap) = told.heap_of(address) {
            self.tool.region_register(heap, address, bytes);
            self.tool.region_name(address, &name);
            told.regions.insert(address, Region { bytes, pool, captured });
        }
    }

    /// A block is a user's no more, after what `stream` was given so far.
    pub(super) fn take_back(&self, stream: &Stream, address: u64) {
        let ends = |region: &Region| region.pool == self.number() && !region.captured;
        let ends = TOLD.lock().regions.get(&address).is_some_and(ends);
        if ends && wait_for(stream) {
            TOLD.lock().forget(self.tool, address);
        }
    }
}
