//! The inside of a pool of page-locked memory: slabs from upstream, one heap over all of them, and
//! the blocks that wait for a fence.

use super::blocks;
use super::ground::{Extent, State};
use super::lane::{self, Batch, Block, Key, UNIT_SHIFT, bytes_of, pointer_to};
use super::pending::Pending;
use super::source::{Fence, HostSource, PAGE, too_large};
use crate::backend::is_forked_child;
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::layout::align_up;
use crate::pool::local::{self, Leave};
use crate::pool::magazine::{Limits, Magazine};
use crate::sync::trusted::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, unique};
use crate::sync::{Arc, OnceLock, Weak};
use std::alloc::Layout;

/// The most that a pool takes from upstream at once unless more is asked.
const LARGEST_STEP: usize = 256 << 20;

/// What a pool was built with, checked.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) fenced: bool,
    /// A multiple of the page.
    pub(super) maximum: usize,
    /// Not 0.
    pub(super) growth_step: usize,
    pub(super) quarantine_bytes: usize,
    pub(super) magazine_entries: usize,
    pub(super) magazine_bytes: usize,
}

/// A pool without its handle. Kept by the handle, and by each slab that has a block which lives.
#[derive(Debug)]
pub(super) struct Core {
    key: Key,
    pub(super) source: Arc<HostSource>,
    pub(super) settings: Settings,
    this: Weak<Core>,
    state: Mutex<State>,
    /// The magazines of all threads. Held by whoever goes through them.
    lanes: Mutex<Vec<Arc<Magazine>>>,
    /// Freed where no magazine was at hand.
    strays: Mutex<Option<Box<Batch>>>,
    pub(super) waiting: Pending<Box<Batch>, Numbered>,
    /// Of all that is in `waiting`.
    pub(super) waiting_units: AtomicU64,
    /// Whether a batch came in that no fence was made for yet.
    pub(super) news: AtomicBool,
    /// The handle is gone: nobody allocates any more.
    closed: AtomicBool,
    /// Upstream had no room when it was last asked.
    pub(super) crowded: AtomicBool,
    pub(super) fences: AtomicUsize,
    /// Bytes that the pool should have, for the batches that threads fill.
    pub(super) planned: AtomicUsize,
    /// The length of `lanes`, without the lock.
    magazines: AtomicUsize,
}

/// A fence, and the how-manieth of its pool it is.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) number: usize,
    pub(super) fence: Fence,
}

/// A block of upstream, on the process's map.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) core: Arc<Core>,
    pub(super) extent: Extent,
    /// Of the base, once asked.
    pub(super) device_address: OnceLock<u64>,
}

/// What came of asking upstream.
#[derive(Debug)]
pub(super) enum Growth {
    Block(usize),
    /// The maximum leaves no room, now.
    Full,
    /// As above, while another thread is asking, who may not get what he asked for.
    Busy,
}

/// What a pool holds, in bytes and blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) reserved: usize,
    pub(super) peak_reserved: usize,
    pub(super) live: usize,
    pub(super) cached: usize,
    pub(super) waiting: usize,
    pub(super) largest_free: usize,
    pub(super) slabs: usize,
    pub(super) growths: usize,
    pub(super) returns: usize,
}

impl Core {
    pub(super) fn new(source: Arc<HostSource>, settings: Settings) -> Arc<Self> {
        let key = Key { number: unique(), fenced: settings.fenced };
        Arc::new_cyclic(|this| Self {
            key,
            source,
            settings,
            this: this.clone(),
            state: Mutex::new(State::new()),
            lanes: Mutex::new(Vec::new()),
            strays: Mutex::new(None),
            waiting: Pending::default(),
            waiting_units: AtomicU64::new(0),
            news: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            crowded: AtomicBool::new(false),
            planned: AtomicUsize::new(0),
            magazines: AtomicUsize::new(0),
            fences: AtomicUsize::new(0),
        })
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// The calling thread's magazine, made if need be. `None` while the thread goes away, and of a
    /// pool that is closed.
    pub(super) fn own(&self) -> Option<Arc<Magazine>> {
        local::find_or_make(self.key.number, 0, || {
            let limit = (self.settings.magazine_bytes >> UNIT_SHIFT) as u64;
            let home = lane::claim(limit)?;
            let entries = self.settings.magazine_entries.min(usize::from(u8::MAX)) as u8;
            let magazine = Arc::new(Magazine::new(Limits { entries, units: limit }, home));
            let mut lanes = self.lanes.lock();
            // Under the lock: who closes the pool sees the magazine, or it is not made.
            if self.closed.load(Ordering::Relaxed) {
                drop(lanes);
                // SAFETY: nobody else has seen the magazine.
                unsafe { lane::release(home) };
                return None;
            }
            lanes.push(magazine.clone());
            self.magazines.store(lanes.len(), Ordering::Relaxed);
            let owner: Weak<dyn Leave> = self.this.clone();
            Some((magazine, owner))
        })
    }

    /// Threads that have a magazine.
    pub(super) fn threads(&self) -> usize {
        self.magazines.load(Ordering::Relaxed).max(1)
    }

    /// Units of a batch of which each thread can have four.
    pub(super) fn share(&self) -> u64 {
        let bytes = self.planned.load(Ordering::Relaxed) / (4 * self.threads());
        (bytes >> UNIT_SHIFT) as u64
    }

    pub(super) fn take_free(&self, units: u32, align: usize) -> Option<usize> {
        self.state.lock().allocate(units, align)
    }

    /// Complete blocks go back to the heap.
    pub(super) fn settle<'a>(&self, blocks: impl IntoIterator<Item = &'a Block>) {
        let mut unknown = 0;
        let mut state = self.state.lock();
        for block in blocks {
            unknown += usize::from(!state.free(block.address));
        }
        drop(state);
        if unknown > 0 {
            crate::debug_log::event!(
                error,
                unknown,
                "page-locked blocks were freed twice: ignored"
            );
        }
    }

    /// What a block holds, if it is live.
    pub(super) fn holds(&self, address: usize) -> Option<u32> {
        self.state.lock().holds(address)
    }

    /// Takes a block back on a thread whose table has no magazine of this pool, or no room in it.
    ///
    /// # Safety
    ///
    /// The block is live, of this pool, and given up. Where `fenced` is false no device work may use
    /// it any more.
    pub(super) unsafe fn give_back(&self, block: Block, fenced: bool) {
        if is_forked_child() {
            return;
        }
        if let Some(magazine) = self.own() {
            // SAFETY: this thread's magazine; the rest is the caller's promise.
            match unsafe { lane::put_in(&magazine, block, fenced) } {
                lane::Put::Done => return,
                lane::Put::Full(batch) => return self.queue(batch),
                lane::Put::NotHere => {}
            }
        }
        if !fenced && !self.is_closed() {
            self.settle([&block]);
            // The handle may have gone meanwhile.
            if self.is_closed() {
                self.give_slabs_back();
            }
            return;
        }
        let full = {
            let mut strays = self.strays.lock();
            let batch = strays.get_or_insert_default();
            batch.push(block);
            batch.is_full().then(|| strays.take()).flatten()
        };
        match full {
            Some(batch) => self.queue(batch),
            None if self.is_closed() => self.give_slabs_back(),
            None => self.news.store(true, Ordering::Relaxed),
        }
    }

    /// Takes a batch in that waits for a fence.
    pub(super) fn queue(&self, batch: Box<Batch>) {
        self.waiting_units.fetch_add(batch.units(), Ordering::Relaxed);
        self.waiting.push(batch);
        self.news.store(true, Ordering::Relaxed);
        if self.is_closed() {
            self.give_slabs_back();
        }
    }

    pub(super) fn queue_strays(&self) {
        let strays = self.strays.lock().take();
        if let Some(batch) = strays {
            self.queue(batch);
        }
    }

    /// After a lock that its closer took too: one of the two sees the other.
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Gathers what the magazines of all threads hold.
    pub(super) fn reclaim(&self) {
        let mut ready = Vec::new();
        let mut batches = Vec::new();
        let lanes = self.lanes.lock();
        self.empty_all(&lanes, &mut ready, &mut batches);
        drop(lanes);
        self.sort(&ready, batches);
    }

    fn empty_all(
        &self,
        lanes: &[Arc<Magazine>],
        ready: &mut Vec<Block>,
        batches: &mut Vec<[Option<Box<Batch>>; 2]>,
    ) {
        // SAFETY: the caller holds the lock of the magazines, which whoever reclaims takes.
        unsafe {
            Magazine::reclaim(lanes.iter().map(|magazine| &**magazine), |magazine, shelves| {
                shelves.drain(|cached| ready.push(Block::at(cached.address as usize)));
                // SAFETY: the reclaimer is inside.
                batches.extend(lane::with_lane(magazine.home(), lane::Lane::empty));
            });
        }
    }

    fn sort(&self, ready: &[Block], batches: Vec<[Option<Box<Batch>>; 2]>) {
        let mut complete = Vec::new();
        for [freed, back] in batches {
            complete.extend(back);
            freed.into_iter().for_each(|batch| self.queue(batch));
        }
        self.settle(complete.iter().flat_map(|batch| batch.blocks()).chain(ready));
        if self.is_closed() {
            self.give_slabs_back();
        }
    }

    /// Units that the magazines hold: freed and not fenced, and ready.
    pub(super) fn in_magazines(&self) -> [u64; 2] {
        let lanes = self.lanes.lock();
        let mut sums = [0; 2];
        // SAFETY: under the lock of the magazines, which whoever reclaims takes.
        unsafe {
            Magazine::reclaim(lanes.iter().map(|magazine| &**magazine), |magazine, shelves| {
                let [freed, ready] = lane::counts(magazine.home());
                sums[0] += freed;
                sums[1] += ready + shelves.contents().1;
            });
        }
        sums
    }

    /// Asks upstream for memory in which a block of `units` fits, and takes that block. `align` is
    /// a power of two.
    pub(super) fn grow(&self, units: u32, align: usize) -> Result<Growth> {
        let block = bytes_of(u64::from(units));
        // A larger alignment than a page is found inside.
        let padding = align.saturating_sub(PAGE);
        let least = block.checked_add(padding).and_then(|bytes| align_up(bytes, PAGE));
        let Some(least) = least.filter(|bytes| *bytes <= self.settings.maximum) else {
            return Ok(Growth::Full);
        };
        let wanted = {
            let mut state = self.state.lock();
            let room = self.settings.maximum - state.reserved;
            if least > room {
                return Ok(if state.growing > 0 { Growth::Busy } else { Growth::Full });
            }
            let step = state.reserved.min(LARGEST_STEP).max(self.settings.growth_step);
            let step = align_up(step, PAGE).unwrap_or(step).min(room);
            state.growing += 1;
            state.reserved += step.max(least);
            step.max(least)
        };
        // Dropped after the lock below.
        let mut asking = Asking { core: self, bytes: wanted };
        let (slab, short) = match self.take_slab(wanted) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && wanted > least => {
                (self.take_slab(least), wanted - least)
            }
            answer => (answer, 0),
        };
        let mut state = self.state.lock();
        self.crowded.store(short > 0 || slab.is_err(), Ordering::Relaxed);
        let slab = slab?;
        state.reserved -= short;
        asking.bytes = 0;
        // There is room by what was asked.
        let block = state.enter_and_allocate(slab, units, align);
        Ok(block.map_or(Growth::Full, Growth::Block))
    }

    /// Takes `bytes` from upstream as the pool's first memory.
    pub(super) fn start(&self, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let slab = self.take_slab(bytes)?;
        let mut state = self.state.lock();
        state.reserved += bytes;
        // No block of it yet.
        state.enter(slab);
        Ok(())
    }

    /// A slab of whole pages, on the map and not in the heap.
    fn take_slab(&self, bytes: usize) -> Result<Extent> {
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| too_large(bytes, PAGE))?;
        let range = {
            let mut state = self.state.lock();
            state.next_range = state.next_range.wrapping_add(1);
            state.next_range
        };
        let block = self.source.allocate(layout)?;
        let (start, length) = (block.cast::<u8>().addr().get(), block.len());
        let adopted = self.this.upgrade().and_then(|core| {
            blocks::adopt(start, |base, bytes| Slab {
                core,
                extent: Extent { base, bytes, start, length, range },
                device_address: OnceLock::new(),
            })
        });
        // The caller's handle keeps the core, and the block is on the map but in a forked child.
        let forked = || Error::from(DriverError::new("cuMemHostAlloc", DriverError::FORKED));
        adopted.map(|slab| slab.extent).ok_or_else(forked)
    }

    /// Takes whole slabs out of the heap and the map, until `enough` bytes are out.
    fn cut_slabs(&self, enough: usize) -> Vec<Extent> {
        let mut state = self.state.lock();
        let starts: Vec<usize> = state.slabs.keys().copied().collect();
        let mut cut = Vec::new();
        let mut bytes = 0;
        // The latest first: growth makes them larger.
        for start in starts.into_iter().rev() {
            if bytes >= enough {
                break;
            }
            if let Some(slab) = state.cut(start) {
                bytes += slab.length;
                state.returns += 1;
                cut.push(slab);
            }
        }
        drop(state);
        cut.iter().for_each(|slab| blocks::remove_slab(slab.base));
        cut
    }

    /// Unpins whole slabs, which are complete, until `enough` bytes are free. Returns how many.
    pub(super) fn unpin(&self, enough: usize) -> usize {
        let cut = self.cut_slabs(enough);
        let bytes = cut.iter().map(|slab| slab.length).sum();
        for slab in cut {
            if let Some(base) = pointer_to(slab.base) {
                // SAFETY: all blocks of the slab were complete when they came into the heap, and
                // the slab is on no map.
                unsafe { self.source.free_complete(base, slab.bytes) };
            }
        }
        // After the driver has them back: the maximum is never passed.
        let mut state = self.state.lock();
        state.reserved -= bytes;
        self.crowded.store(false, Ordering::Relaxed);
        bytes
    }

    /// Whether `bytes` more could be had within the maximum if every whole slab went back.
    pub(super) fn room_if_unpinned(&self, bytes: usize) -> bool {
        let state = self.state.lock();
        let free = state.heap.account().free_bytes as usize;
        bytes <= (self.settings.maximum - state.reserved).saturating_add(free)
    }

    /// The handle is gone. Blocks that live stay valid, and go back to a pool that hands nothing out:
    /// each slab goes upstream when its last block came in, and waits there for a fence of its own,
    /// which covers all that its blocks waited for.
    pub(super) fn close(&self) {
        if is_forked_child() {
            return;
        }
        let mut ready = Vec::new();
        let mut batches = Vec::new();
        let mut lanes = self.lanes.lock();
        self.closed.store(true, Ordering::Relaxed);
        // SAFETY: the lock of the magazines is held.
        lanes.iter().for_each(|magazine| unsafe { magazine.retire() });
        self.empty_all(&lanes, &mut ready, &mut batches);
        for magazine in lanes.drain(..) {
            // SAFETY: retired and emptied.
            unsafe { lane::release(magazine.home()) };
        }
        drop(lanes);
        self.sort(&ready, batches);
    }

    /// What waits in a closed pool needs no fence of its own.
    fn give_slabs_back(&self) {
        let strays = self.strays.lock().take();
        let passed =
            self.waiting.collect(|| Ok(Numbered { number: 0, fence: Fence::none() }), |_| Ok(true));
        let units = passed.free.iter().map(|batch| batch.units()).sum();
        self.waiting_units.fetch_sub(units, Ordering::Relaxed);
        let batches = passed.free.iter().chain(&strays);
        self.settle(batches.flat_map(|batch| batch.blocks()));
        for slab in self.cut_slabs(usize::MAX) {
            if let Some(base) = pointer_to(slab.base) {
                self.source.take_back(base, slab.bytes);
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let [freed, ready] = self.in_magazines();
        let strays = self.strays.lock().as_ref().map_or(0, |batch| batch.units());
        let waiting = self.waiting_units.load(Ordering::Relaxed) + freed + strays;
        let state = self.state.lock();
        let account = state.heap.account();
        let (cached, waiting) = (bytes_of(ready), bytes_of(waiting));
        Counts {
            reserved: state.reserved,
            peak_reserved: state.peak_reserved,
            live: (account.live_bytes as usize).saturating_sub(cached + waiting),
            cached,
            waiting,
            largest_free: state.heap.largest_free() as usize,
            slabs: state.slabs.len(),
            growths: state.growths,
            returns: state.returns,
        }
    }
}

/// A thread that asks upstream. Others wait for what it gets, so it says when it is done, and gives up
/// the bytes that it did not get: also when a subscriber of [`tracing`] unwinds on the way.
struct Asking<'a> {
    core: &'a Core,
    bytes: usize,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.growing -= 1;
        state.reserved -= self.bytes;
    }
}

impl Leave for Core {
    fn leave(&self, magazine: &Arc<Magazine>) {
        if is_forked_child() {
            return;
        }
        let mut ready = Vec::new();
        let mut lanes = self.lanes.lock();
        // SAFETY: on the owner's thread, which is not inside.
        let emptied = unsafe {
            magazine.enter(|shelves| {
                shelves.drain(|cached| ready.push(Block::at(cached.address as usize)));
                // SAFETY: inside the magazine.
                lane::with_lane(magazine.home(), lane::Lane::empty)
            })
        };
        let place = lanes.iter().position(|other| Arc::ptr_eq(other, magazine));
        if let Some(place) = place {
            lanes.swap_remove(place);
            self.magazines.store(lanes.len(), Ordering::Relaxed);
            // SAFETY: the thread is leaving, reclaimers no longer find the magazine, and the lane is
            // empty: only one that is closing keeps the owner out, and it takes the list.
            unsafe { lane::release(magazine.home()) };
        }
        drop(lanes);
        self.sort(&ready, emptied.flatten().into_iter().collect());
    }
}
