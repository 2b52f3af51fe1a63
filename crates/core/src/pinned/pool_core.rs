//! The core of a pool of page-locked memory. It has slabs from upstream, one heap over all of them, a cache for each
//! thread, and the quarantine of freed blocks.
//!
//! # Locks and words
//!
//! | word | what it guards or says | who writes it |
//! | --- | --- | --- |
//! | `heap` | the free blocks of all slabs, the list of slabs, and the sizes that the maximum limits | threads on the slow path |
//! | `thread_caches` | the list of caches; holding it gives the right to flush them | a thread that makes its cache or ends; flushing; closing |
//! | `quarantine` | freed blocks in batches: its own lock | a thread whose batch is full, which has no cache, or whose cache another thread flushes; collecting |
//! | `quarantined_units` | the units in `quarantine` | `quarantine`, before a batch comes in; collecting, after batches went out |
//! | `needs_fence` | a hint: blocks were freed that no fence covers | set where a batch enters `quarantine`; taken by the next allocation on the slow path |
//! | `closed` | the handle is gone | `close`, once, under `thread_caches` |
//! | `upstream_full` | a hint: upstream had no room when it was last asked | growing and unpinning, under `heap` |
//! | `batch_limit` | a hint: the units at which a thread's batch is full | `set_batch_limit_and_is_below_target` |
//! | `lost_units` | the units of *lost* blocks | collecting |
//! | `fences` | how many fences were recorded | collecting |
//! | `in_transit` | nothing: shared by threads that move blocks from one list to another, or take out slabs to unpin; exclusive for the last look of a miss, which overlooks nothing then | |
//!
//! `in_transit` comes before the others, of which no thread holds two. None is held while a device is waited
//! for, and `in_transit` alone over other calls of the driver. Under `thread_caches` a thread goes into
//! magazines.
//!
//! # State table of a block
//!
//! | state | where it lies | next state |
//! | --- | --- | --- |
//! | free | `heap` | *live* by an allocation; gone with its slab |
//! | live | at its user | *freed* in a fenced pool; *ready* in an unfenced pool whose cache has room, else *free*; what is freed as a `DeviceResource`'s is *freed* in both |
//! | freed | `ThreadCache::freed`; with a thread that flushes the cache; on a thread without a cache, in a batch of its own | *quarantined*: its batch is full, or was flushed |
//! | quarantined | `quarantine` | *ready* or *free* when its fence has passed; *lost* with the device |
//! | ready | `ThreadCache::ready`; in an unfenced pool a size class of the magazine | *live*; *free* when it is flushed, or another batch or size takes its place |
//! | lost | nowhere: it is leaked, and its slab with it | none |
//!
//! # State table of a slab
//!
//! | state | next state |
//! | --- | --- |
//! | asked for: counted in `reserved`, in no heap | *in use*, or given up if upstream has no room |
//! | in use: in the heap and in the address map | *removed*, if all of it is free |
//! | removed | unpinned at once in a pool that is open; in upstream's quarantine after that |
//!
//! # State table of a pool
//!
//! | state | allocations | frees | slabs |
//! | --- | --- | --- | --- |
//! | open | as above | as above | go back by `trim`, or when another size is short of memory |
//! | closed: the last handle was dropped | none can be made | `quarantine` (not of an unfenced pool), and at once to `heap`, without a fence of the pool's | each goes to upstream's quarantine with its last block, and waits for a fence there, which covers all uses of its blocks |
//! | gone: the last slab was removed | | | |
//!
//! # Invariants
//!
//! - INV-PINNED-5. No device work uses a free block of an open pool. A fence that was recorded after the free has
//!   passed. Or the pool is [unfenced](crate::pinned::PinnedPoolOptions::unfenced), and the user vouched for it by the
//!   free, unless the block was a [`DeviceResource`](crate::DeviceResource)'s. A free block of a closed pool is never
//!   allocated again, and upstream's fence covers its uses before it is unpinned.
//! - INV-PINNED-6. `reserved` grows to the maximum at most, with the slabs that are being asked for.
//! - INV-PINNED-7 (`thread_cache.rs`). A cache is reached from inside of its magazine alone.
//! - INV-PINNED-8. A free past the cache and `close` take one lock in common. The free takes it *before* it looks at
//!   `closed`, and `close` *after* it has set it. A free into a cache finds its magazine retired. So either `close`
//!   finds the block or the free finds the pool closed.
//! - INV-PINNED-9. A slab is in the address map before a block of it is live and until none is.

use super::address_map::{self, SlabOwner};
use super::batch::{Batch, FreedBlock, UNIT_SHIFT, bytes_of, exposed_pointer};
use super::fence::Fence;
use super::pool_options::{NO_MAXIMUM, PinnedPoolOptions};
use super::pool_statistics::PinnedPoolStatistics;
use super::quarantine::Quarantine;
use super::slab_heap::{Slab, SlabHeap};
use super::source::{HostSource, PAGE, is_idle};
use super::thread_cache::{self, NotCached, PoolKey, ThreadCache};
use crate::debug_log::{DeferEvents, defer_events, deferred_event};
use crate::driver::is_forked_child;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{align_up, impossible};
use crate::pool::local::{self, OnThreadExit, PoolId};
use crate::pool::magazine::{Limits, Magazine, SizeClasses};
use crate::resource::external;
use crate::stream::deferred::holds_buffers;
use crate::sync::trusted::{
    AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, RwLock, RwLockReadGuard,
};
use crate::sync::{Arc, Weak};
use std::alloc::Layout;
use std::ptr::NonNull;

/// The most that a pool takes from upstream at once unless more is asked.
const LARGEST_DOUBLING: usize = 256 << 20;

/// A pool without its handle. The handle keeps it, and so does each slab, which stays while a block of
/// it is live.
#[derive(Debug)]
pub(super) struct PoolCore {
    pub(super) key: PoolKey,
    pub(super) options: PinnedPoolOptions,
    this: Weak<PoolCore>,
    heap: Mutex<SlabHeap>,
    thread_caches: Mutex<Vec<Arc<Magazine>>>,
    pub(super) quarantine: Quarantine<Batch, NumberedFence>,
    pub(super) quarantined_units: AtomicU64,
    /// The units of blocks that were leaked, since their device was lost.
    pub(super) lost_units: AtomicU64,
    pub(super) in_transit: RwLock<()>,
    pub(super) needs_fence: AtomicBool,
    closed: AtomicBool,
    pub(super) upstream_full: AtomicBool,
    pub(super) fences: AtomicUsize,
    pub(super) batch_limit: AtomicU64,
    maximum_size: AtomicUsize,
    release_threshold: AtomicUsize,
}

/// A fence, and its number among the fences of its pool.
#[derive(Clone, Debug)]
pub(super) struct NumberedFence {
    pub(super) number: usize,
    /// The fence, which threads that wait for it share.
    pub(super) fence: Arc<Fence>,
}

/// The answer to a request for another slab.
#[derive(Debug)]
pub(super) enum Grown {
    /// A block of the new slab.
    Block(usize),
    /// The maximum leaves no room.
    AtMaximum,
    /// The maximum leaves no room while another thread is asking upstream. That thread may not get
    /// what it asked for.
    Busy,
}

/// Blocks that were flushed from the caches of threads.
#[derive(Default)]
struct Flushed {
    /// The blocks for the heap.
    ready: Vec<FreedBlock>,
    /// The batches for the quarantine.
    freed: Vec<Batch>,
}

impl Flushed {
    /// Empties a magazine and its cache.
    ///
    /// # Safety
    ///
    /// The conditions of [`ThreadCache::of`].
    unsafe fn take(&mut self, classes: &mut SizeClasses) {
        // SAFETY: this function's contract.
        let [freed, ready] = unsafe { ThreadCache::of(classes) }.take_freed_and_ready();
        if freed.units() > 0 {
            self.freed.push(freed);
        }
        self.ready.extend(ready.blocks());
        classes.drain(|block| self.ready.push(FreedBlock::without_size(block.address as usize)));
    }
}

type ThreadCaches<'a> = MutexGuard<'a, Vec<Arc<Magazine>>>;

impl PoolCore {
    /// `options` were checked.
    pub(super) fn new(options: PinnedPoolOptions) -> Arc<Self> {
        let key = PoolKey { id: PoolId::new(), fenced: options.fenced };
        let maximum_size = AtomicUsize::new(options.maximum_size);
        let release_threshold = AtomicUsize::new(options.release_threshold);
        Arc::new_cyclic(|this| Self {
            key,
            options,
            this: this.clone(),
            heap: Mutex::new(SlabHeap::new()),
            thread_caches: Mutex::default(),
            quarantine: Quarantine::default(),
            quarantined_units: AtomicU64::new(0),
            lost_units: AtomicU64::new(0),
            in_transit: RwLock::new(()),
            needs_fence: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            upstream_full: AtomicBool::new(false),
            fences: AtomicUsize::new(0),
            batch_limit: AtomicU64::new(0),
            maximum_size,
            release_threshold,
        })
    }

    /// The most bytes that the pool takes from upstream. Relaxed: a limit, which orders nothing.
    pub(super) fn maximum_size(&self) -> usize {
        self.maximum_size.load(Ordering::Relaxed)
    }

    pub(super) fn set_maximum_size(&self, bytes: usize) {
        // Under the lock, so that no thread that grows has computed with the one before.
        let _heap = self.heap.lock();
        self.maximum_size.store(bytes, Ordering::Relaxed);
    }

    /// The bytes that the pool keeps when more is free. Relaxed, as above.
    pub(super) fn release_threshold(&self) -> usize {
        self.release_threshold.load(Ordering::Relaxed)
    }

    pub(super) fn set_release_threshold(&self, bytes: usize) {
        self.release_threshold.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn source(&self) -> &Arc<HostSource> {
        self.options.upstream.source()
    }

    /// The calling thread's magazine, made if need be. `None` while the thread ends, and of a pool
    /// that is closed.
    pub(super) fn thread_magazine(&self) -> Option<Arc<Magazine>> {
        local::find_or_make(self.key.id, 0, || {
            let units = (self.options.magazine_bytes >> UNIT_SHIFT) as u64;
            let entries = self.options.magazine_entries.min(usize::from(u8::MAX)) as u8;
            // INV-PINNED-7.
            let cache = ThreadCache::new(units);
            let magazine = Arc::new(Magazine::with_extra(Limits { entries, units }, 0, cache));
            let mut caches = self.thread_caches.lock();
            // Under the lock: `close` finds the magazine, or none is made.
            if self.is_closed() {
                return None;
            }
            caches.push(magazine.clone());
            let owner: Weak<dyn OnThreadExit> = self.this.clone();
            Some((magazine, owner))
        })
    }

    /// Threads that have a cache, and at least 1.
    pub(super) fn nonzero_cache_count(&self) -> usize {
        self.thread_caches.lock().len().max(1)
    }

    /// Takes a block of the heap in constant time. It may overlook one of nearly the size.
    pub(super) fn allocate_good_fit(&self, units: u32, align: usize) -> Option<usize> {
        self.heap.lock().allocate(units, align)
    }

    /// Takes a block of the heap, and overlooks none.
    pub(super) fn allocate_exhaustive(&self, units: u32, align: usize) -> Option<usize> {
        self.heap.lock().allocate_exhaustive(units, align)
    }

    /// Frees blocks that no device work uses (INV-PINNED-5). An address of no live block is logged, not freed.
    pub(super) fn free_to_heap<'a>(&self, blocks: impl IntoIterator<Item = &'a FreedBlock>) {
        let mut unknown = 0;
        let mut heap = self.heap.lock();
        for block in blocks {
            unknown += usize::from(!heap.free(block.address));
        }
        drop(heap);
        if unknown > 0 {
            // Deferred: the caller may hold the locks of a pool above.
            deferred_event!(
                error,
                unknown,
                "page-locked blocks were freed that are not the pool's, or were freed before: ignored"
            );
        }
    }

    /// Whether the pool is closed. It is asked after a lock that `close` takes too (INV-PINNED-8).
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Begins a move of blocks or slabs from one list to another, during which the guards are held. The table of locks
    /// says more. Events are emitted when the lock is free.
    pub(super) fn begin_transit(&self) -> (RwLockReadGuard<'_, ()>, DeferEvents) {
        (self.in_transit.read(), defer_events())
    }

    /// Empties the caches of all threads.
    pub(super) fn flush_caches(&self) {
        let _transit = self.begin_transit();
        self.flush_caches_in_transit();
    }

    /// Does [`flush_caches`](Self::flush_caches) for a caller that has `in_transit`.
    pub(super) fn flush_caches_in_transit(&self) {
        let flushed = Self::flush(&self.thread_caches.lock());
        self.return_flushed(flushed);
    }

    fn flush(caches: &ThreadCaches<'_>) -> Flushed {
        let mut flushed = Flushed::default();
        Self::for_each_revoked_cache(caches, |classes| {
            // SAFETY: a magazine of this pool.
            unsafe { flushed.take(classes) }
        });
        flushed
    }

    /// Goes through the magazines of all threads, which do without them meanwhile.
    fn for_each_revoked_cache(caches: &ThreadCaches<'_>, mut each: impl FnMut(&mut SizeClasses)) {
        let magazines = caches.iter().map(|magazine| &**magazine);
        // SAFETY: the caller holds `thread_caches`, as every thread that reclaims does, and no thread
        // takes that from inside of a magazine.
        unsafe { Magazine::with_revoked(magazines, |_, classes| each(classes)) }
    }

    fn return_flushed(&self, flushed: Flushed) {
        flushed.freed.into_iter().for_each(|batch| self.quarantine(batch));
        self.free_to_heap(&flushed.ready);
        if self.is_closed() {
            self.return_slabs_after_close();
        }
    }

    /// The units `[freed, ready]` in the caches of all threads.
    pub(super) fn freed_and_ready_units(&self) -> [u64; 2] {
        let mut sums = [0; 2];
        Self::for_each_revoked_cache(&self.thread_caches.lock(), |classes| {
            // SAFETY: a magazine of this pool.
            let [freed, ready] = unsafe { ThreadCache::of(classes) }.units();
            sums[0] += freed;
            sums[1] += ready + classes.totals().1;
        });
        sums
    }

    /// Asks upstream for a slab in which a block of `units` fits, and takes that block. `align` is a
    /// power of two.
    pub(super) fn grow(&self, units: u32, align: usize) -> Result<Grown> {
        let block = bytes_of(u64::from(units));
        // An alignment above the page's is found inside of a larger slab.
        let padding = align.saturating_sub(PAGE);
        let least = block.checked_add(padding).and_then(|bytes| align_up(bytes, PAGE));
        let Some(least) = least.filter(|bytes| *bytes <= self.maximum_size()) else {
            return Ok(Grown::AtMaximum);
        };
        let wanted = {
            let mut heap = self.heap.lock();
            let room = self.maximum_size().saturating_sub(heap.statistics.reserved);
            if least > room {
                // In a memory manager's call, the thread that grows may be this one, or one that waits for it.
                let waits = heap.growing > 0 && !external::is_inside();
                return Ok(if waits { Grown::Busy } else { Grown::AtMaximum });
            }
            let step = heap.statistics.reserved.min(LARGEST_DOUBLING).max(self.options.growth_step);
            let step = align_up(step, PAGE).unwrap_or(NO_MAXIMUM).min(room).min(NO_MAXIMUM);
            heap.growing += 1;
            // INV-PINNED-6: counted before upstream is asked.
            heap.statistics.reserved += step.max(least);
            step.max(least)
        };
        // Dropped after the lock below.
        let mut guard = GrowthGuard { core: self, bytes: wanted };
        let (slab, short) = match self.allocate_slab(wanted) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && wanted > least => {
                (self.allocate_slab(least), wanted - least)
            }
            answer => (answer, 0),
        };
        let mut heap = self.heap.lock();
        self.upstream_full.store(short > 0 || slab.is_err(), Ordering::Relaxed);
        let slab = slab?;
        heap.statistics.reserved -= short;
        guard.bytes = 0;
        // It fits: the slab has `least` bytes.
        let block = heap.insert_slab(slab, Some((units, align)));
        Ok(block.map_or(Grown::AtMaximum, Grown::Block))
    }

    /// Takes the first slab, of `bytes`, if that is not 0.
    pub(super) fn reserve_initial(&self, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let slab = self.allocate_slab(bytes)?;
        let mut heap = self.heap.lock();
        heap.statistics.reserved += bytes;
        heap.insert_slab(slab, None);
        Ok(())
    }

    /// A slab of whole pages, which is in the address map, and not in the heap (INV-PINNED-9).
    fn allocate_slab(&self, bytes: usize) -> Result<Slab> {
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| impossible(bytes, PAGE))?;
        // The caller's handle keeps the pool.
        let core = self.this.upgrade();
        let core = core.ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, "a page-locked pool has no handle left")
        })?;
        let memory = address_map::allocate(self.source(), layout, Some(core))?;
        let (base, start) = (memory.base.addr().get(), memory.start.addr().get());
        Ok(Slab { base, bytes: memory.bytes, start, length: bytes, range: 0 })
    }

    /// Takes free slabs out of the heap and the address map while the pool has more than `keep` bytes, for `each` to give
    /// them back to upstream by address and size. Returns how many bytes they had.
    fn remove_free_slabs(&self, keep: usize, mut each: impl FnMut(NonNull<u8>, usize)) -> usize {
        let removed = self.heap.lock().remove_free_slabs(keep);
        for slab in &removed {
            address_map::remove_slab(slab.base);
            if let Some(base) = exposed_pointer(slab.base) {
                each(base, slab.bytes);
            }
        }
        removed.iter().map(|slab| slab.length).sum()
    }

    /// Unpins free slabs while the pool has more than `keep` bytes. Returns how many bytes they had.
    pub(super) fn free_whole_slabs(&self, keep: usize) -> usize {
        let transit = self.begin_transit();
        // Until the end other threads wait for the room, as for what one that grows gets.
        self.heap.lock().growing += 1;
        let mut guard = GrowthGuard { core: self, bytes: 0 };
        let mut slabs = Vec::new();
        let bytes = self.remove_free_slabs(keep, |base, bytes| slabs.push((base, bytes)));
        // INV-PINNED-6: lowered after the driver has them back.
        guard.bytes = bytes;
        // A memory manager's finalizer may use the pool.
        drop(transit);
        for (base, bytes) in slabs {
            match self.is_closed() {
                // A free of a closed pool has no fence of its own.
                true => self.source().quarantine(base, bytes),
                // SAFETY: INV-PINNED-5, for all blocks of the slab; it has left the address map.
                false => unsafe { self.source().free_to_driver(base, bytes) },
            }
        }
        self.upstream_full.store(false, Ordering::Relaxed);
        bytes
    }

    /// Whether a thread asks upstream.
    pub(super) fn is_growing(&self) -> bool {
        self.heap.lock().growing > 0
    }

    /// Whether `bytes` more could be had within the maximum, at best. That would be if all free memory were whole slabs
    /// that went back.
    pub(super) fn may_have_room_if_unpinned(&self, bytes: usize) -> bool {
        let heap = self.heap.lock();
        let free = heap.heap.stats().free_bytes as usize;
        bytes <= self.maximum_size().saturating_sub(heap.statistics.reserved).saturating_add(free)
    }

    /// Unpins free slabs above `threshold`, if the devices have nothing to do.
    #[cold]
    fn release_if_idle(&self, threshold: usize) {
        let is_nested = external::is_inside() || holds_buffers();
        let waiting = bytes_of(self.quarantined_units.load(Ordering::Relaxed));
        if is_nested || !self.has_free_above(threshold, waiting) {
            return;
        }
        {
            let _transit = self.begin_transit();
            let device = &self.source().device;
            let batches = self.quarantine.collect_all(|| is_idle(device) == Ok(true));
            let units = batches.iter().map(Batch::units).sum();
            self.quarantined_units.fetch_sub(units, Ordering::Relaxed);
            self.free_to_heap(batches.iter().flat_map(|batch| batch.blocks()));
            if batches.is_empty() && is_idle(device) != Ok(true) {
                return;
            }
        }
        self.free_whole_slabs(threshold);
    }

    /// Whether a slab above `threshold` may be free, with the `waiting` bytes.
    fn has_free_above(&self, threshold: usize, waiting: usize) -> bool {
        let heap = self.heap.lock();
        let free = (heap.heap.stats().free_bytes as usize).saturating_add(waiting);
        let most = heap.statistics.reserved.saturating_sub(threshold).min(free);
        heap.slabs.values().any(|slab| slab.length <= most)
    }

    /// Ends allocation, since the last handle is gone. Live blocks stay valid. The table of pool states at the head of
    /// this file says how they go back.
    pub(super) fn close(&self) {
        if is_forked_child() {
            return;
        }
        let mut caches = self.thread_caches.lock();
        self.closed.store(true, Ordering::Relaxed);
        // SAFETY: `thread_caches` is held.
        caches.iter().for_each(|magazine| unsafe { magazine.retire() });
        let flushed = Self::flush(&caches);
        caches.clear();
        drop(caches);
        self.return_flushed(flushed);
    }

    /// Puts the free slabs of a closed pool into upstream's quarantine. Its freed blocks are free without a fence,
    /// since they are never allocated again, and upstream's fence covers their uses.
    fn return_slabs_after_close(&self) {
        let no_fence = || Ok(NumberedFence { number: 0, fence: Arc::new(Fence::passed()) });
        let batches = self.quarantine.collect(no_fence, |_| Ok(true)).free;
        let units = batches.iter().map(|batch| batch.units()).sum();
        self.quarantined_units.fetch_sub(units, Ordering::Relaxed);
        self.free_to_heap(batches.iter().flat_map(|batch| batch.blocks()));
        self.remove_free_slabs(0, |base, bytes| self.source().quarantine(base, bytes));
    }

    pub(super) fn statistics(&self) -> PinnedPoolStatistics {
        let [freed, ready] = self.freed_and_ready_units();
        let waiting = self.quarantined_units.load(Ordering::Relaxed) + freed;
        let heap = self.heap.lock();
        let account = heap.heap.stats();
        let (cached, waiting) = (bytes_of(ready), bytes_of(waiting));
        PinnedPoolStatistics {
            live: (account.live_bytes as usize).saturating_sub(cached + waiting),
            cached,
            waiting,
            largest_free: heap.heap.largest_free() as usize,
            slabs: heap.slabs.len(),
            fences: self.fences.load(Ordering::Relaxed),
            ..heap.statistics
        }
    }
}

impl SlabOwner for PoolCore {
    fn key(&self) -> PoolKey {
        self.key
    }

    fn block_units(&self, address: usize) -> Option<u32> {
        self.heap.lock().block_units(address)
    }

    unsafe fn free_slow(&self, block: FreedBlock, fenced: bool) {
        if is_forked_child() {
            return;
        }
        if let Some(magazine) = self.thread_magazine() {
            // SAFETY: this thread's magazine; the rest is the caller's promise.
            match unsafe { thread_cache::free_into(&magazine, block, fenced) } {
                Ok(None) => return,
                Ok(Some(batch)) => return self.quarantine(batch),
                Err(NotCached) => {}
            }
        }
        if fenced {
            let mut batch = Batch::default();
            batch.push(block, 0);
            return self.quarantine(batch);
        }
        self.free_to_heap([&block]);
        // INV-PINNED-8: the handle may have gone meanwhile.
        if self.is_closed() {
            self.return_slabs_after_close();
        }
    }

    fn quarantine(&self, batch: Batch) {
        self.quarantined_units.fetch_add(batch.units(), Ordering::Relaxed);
        self.quarantine.push(batch);
        self.needs_fence.store(true, Ordering::Relaxed);
        if self.is_closed() {
            self.return_slabs_after_close();
        }
    }

    fn release(&self) {
        let threshold = self.release_threshold();
        if threshold < usize::MAX {
            self.release_if_idle(threshold);
        }
    }
}

/// A thread that asks upstream. Other threads wait for the memory that it gets. So its drop says that it is done, and
/// gives up the bytes that it did not get, also when a subscriber of [`tracing`](https://docs.rs/tracing) unwinds on
/// the way.
struct GrowthGuard<'a> {
    core: &'a PoolCore,
    bytes: usize,
}

impl Drop for GrowthGuard<'_> {
    fn drop(&mut self) {
        let mut heap = self.core.heap.lock();
        heap.growing -= 1;
        heap.statistics.reserved -= self.bytes;
    }
}

impl OnThreadExit for PoolCore {
    fn on_thread_exit(&self, magazine: &Arc<Magazine>) {
        if is_forked_child() {
            return;
        }
        let mut flushed = Flushed::default();
        let _transit = self.begin_transit();
        let mut caches = self.thread_caches.lock();
        // SAFETY: on the owner's thread, which is not inside; `take` enters no magazine, and this one is
        // of this pool.
        let _ = unsafe { magazine.try_with(|classes| flushed.take(classes)) };
        caches.retain(|other| !Arc::ptr_eq(other, magazine));
        drop(caches);
        self.return_flushed(flushed);
    }
}
