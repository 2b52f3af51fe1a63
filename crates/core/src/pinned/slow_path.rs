//! Allocation from a pool of page-locked memory when the calling thread's cache has nothing that fits.
//!
//! # The steps of a slow allocation
//!
//! | step | in a fenced pool only | cost |
//! | --- | --- | --- |
//! | 1. while the quarantine is above its limit: as 7, then as 12 | | |
//! | 2. record a fence if blocks were freed since the last one, and take what older fences free | yes | a driver call, and a barrier of the process |
//! | 3. the heap | | a lock |
//! | 4. as 2, then the thread's cache and the heap | | a driver call |
//! | 5. grow, while the pool is below its target size | yes | a barrier of the process, and a driver call, a third of a millisecond for each MiB |
//! | 6. flush the caches of all threads, as 2, and query the fences for [`FENCE_POLL_TIME`] | | a barrier of the process |
//! | 7. a fence of what others than the crate may have given the devices, where all of that is known, for the same time; it frees all that waits if it passes | | driver calls |
//! | 8. grow to the maximum, unless the quarantine is above its limit | | as 5 |
//! | 9. where the devices have nothing to do, unpin the free slabs, and grow by one that is large enough | | as 5 |
//! | 10. where upstream has no more, have other pools unpin what they have free, and grow: where the devices have nothing to do, or the user chose to wait | | as 5, driver calls, and a barrier for each other pool |
//! | 11. ask the user's callback, and go on at 6 if it asks for that | | the user's |
//! | 12. if the user chose it, wait for the oldest fences, one after the other, and then as 9 | | a wait for the device |
//! | 13. flush the caches of all threads, and look at every free block, while no thread moves any | | as 6 |
//! | 14. from 6 again, while something that waits for the device could serve: up to [`MAX_ATTEMPTS`] times; then fail | | |
//!
//! A thread that waits at 12 may find that others took the memory that came free. Hence the steps 13 and 14. A pool
//! refuses a request that it could serve in two cases alone. Others are faster so many times, or the device does not
//! come to an end.
//!
//! Steps 1, 2, 4, 7 and 12 have something to do in an unfenced pool too, if a block was freed as a
//! [`DeviceResource`](crate::DeviceResource)'s.

use super::batch::{Batch, FreedBlock, UNIT_SHIFT, bytes_of, exposed_pointer, units_of};
use super::fence::{
    FENCE_POLL_TIME, Fence, any_sharing_context_capturing, synchronize_sharing_contexts,
};
use super::pool_core::{Grown, NumberedFence, PoolCore};
use super::pool_options::NO_MAXIMUM;
use super::quarantine::{Collected, FenceError};
use super::siblings;
use super::source::{PAGE, is_idle, report_lost};
use super::thread_cache::{ThreadCache, allocate};
use crate::debug_log::defer_events;
use crate::driver::not_forked;
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::layout::{DeviceLayout, Requested, impossible};
use crate::pool::MAX_CALLS;
use crate::pool::magazine::Magazine;
use crate::resource::external;
use crate::resource::failure::{Failure, OnFailure, asks_for_retry};
use crate::stream::deferred::holds_buffers;
use crate::stream::{Stream, busy_streams, deferred};
use crate::sync::Arc;
use crate::sync::trusted::Ordering;
use std::alloc::Layout;
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::time::Instant;

/// Bytes that a fenced pool may have beside those in use, however few they are.
const MIN_SLACK_BYTES: usize = 64 << 20;

/// The times that a request waits for the device, while other threads take the memory that comes free.
const MAX_ATTEMPTS: usize = 64;

/// The calls of the user's callback about one request.
#[derive(Debug, Default)]
struct Calls {
    made: u32,
    is_over: bool,
}

/// The driver calls of a collection, beside a query of the older fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollectMode {
    /// Records a fence for the blocks that have none.
    Record,
    /// Makes no other call.
    Query,
    /// Makes no other call, and none for the fence of this number, which was waited for.
    Passed(usize),
}

impl PoolCore {
    /// A block of `layout`, which has a size.
    pub(super) fn allocate_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        not_forked("page-locked memory")?;
        let (size, align) = (layout.size(), layout.align());
        let Some(units) = units_of(size) else {
            return Err(above_largest_block(size, align));
        };
        let address = self.allocate_by_miss_steps(units, layout)?;
        let pointer = exposed_pointer(address).ok_or_else(|| impossible(size, align))?;
        Ok(NonNull::slice_from_raw_parts(pointer, size))
    }

    /// Goes through the steps at the head of this file.
    fn allocate_by_miss_steps(&self, units: u32, layout: Layout) -> Result<usize> {
        let align = layout.align();
        let own = self.thread_magazine();
        let own = own.as_deref();
        // `thread_magazine` may only just have put the magazine into the thread's table.
        let cached = || allocate(self.key, layout).map(|block| block.cast::<u8>().addr().get());
        if let Some(address) = cached() {
            return Ok(address);
        }
        self.adapt_cache_to_miss(own, units);
        self.enforce_quarantine_limit();
        if self.needs_fence.swap(false, Ordering::Relaxed) {
            self.set_batch_limit_and_is_below_target();
            self.collect(CollectMode::Record, own);
            if let Some(address) = cached() {
                return Ok(address);
            }
        }
        if let Some(address) = self.allocate_good_fit(units, align) {
            return Ok(address);
        }
        // The caches of other threads are left alone at first.
        if self.quarantine.len() > 0 {
            self.collect(CollectMode::Record, own);
            if let Some(address) = cached().or_else(|| self.allocate_good_fit(units, align)) {
                return Ok(address);
            }
        }
        if self.set_batch_limit_and_is_below_target()
            && self.may_grow()
            && let Ok(Grown::Block(address)) = self.grow(units, align)
        {
            return Ok(address);
        }
        let (mut attempts, mut calls) = (0, Calls::default());
        loop {
            if let Some(address) = self.flush_and_poll_for_block(units, align) {
                return Ok(address);
            }
            if self.collect_beside_own_work()
                && let Some(address) = self.allocate_exhaustive(units, align)
            {
                return Ok(address);
            }
            let grown = match self.may_grow() {
                true => self.grow(units, align),
                false => Ok(Grown::AtMaximum),
            };
            let refused = match grown {
                Ok(Grown::Block(address)) => return Ok(address),
                Ok(Grown::Busy) => {
                    // The driver takes a third of a millisecond for each MiB.
                    std::thread::sleep(FENCE_POLL_TIME);
                    continue;
                }
                Ok(Grown::AtMaximum) => None,
                Err(error) if error.kind() == ErrorKind::OutOfMemory => Some(error),
                Err(error) => return Err(error),
            };
            // The free slabs may each be too small, or upstream may lack what they hold.
            let least = layout.size() + if align > PAGE { align } else { 0 };
            let replace_slabs = |may_wait: bool| {
                let gives = self.may_have_room_if_unpinned(least)
                    && (may_wait || is_idle(&self.source().device) == Ok(true))
                    && self.free_whole_slabs(0) > 0;
                match gives.then(|| self.grow(units, align)) {
                    Some(Ok(Grown::Block(address))) => Some(address),
                    _ => None,
                }
            };
            if let Some(address) = replace_slabs(false) {
                return Ok(address);
            }
            if refused.is_some()
                && self.have_others_give_back()
                && let Ok(Grown::Block(address)) = self.grow(units, align)
            {
                return Ok(address);
            }
            if self.asks_callback(layout, refused.as_ref(), &mut calls) {
                continue;
            }
            if self.options.wait_for_device {
                while self.wait_for_oldest_fence() {
                    if let Some(address) = self.allocate_good_fit(units, align) {
                        return Ok(address);
                    }
                }
                if let Some(address) = replace_slabs(true) {
                    return Ok(address);
                }
            }
            let may_serve_later = match self.allocate_while_none_moves(units, align, least) {
                Ok(address) => return Ok(address),
                Err(may_serve_later) => may_serve_later,
            };
            attempts += 1;
            if attempts == MAX_ATTEMPTS || !may_serve_later {
                return Err(self.refused(layout, refused.as_ref()));
            }
        }
    }

    /// Makes the other pools unpin their free memory. That waits for all kernels. So it happens only if there are none,
    /// or the user chose to wait. Returns whether any pool did.
    fn have_others_give_back(&self) -> bool {
        let (device, waits) = (&self.source().device, self.options.wait_for_device);
        // In a memory manager's call, whose locks the thread may have, and in one of a resource around another pool.
        let is_nested = external::is_inside() || holds_buffers();
        if is_nested || !(waits || is_idle(device) == Ok(true)) {
            return false;
        }
        let others = siblings::others(device, self.key.id.number());
        others.iter().map(|pool| pool.give_back(waits)).sum::<usize>() > 0
    }

    /// Unpins free memory, for another pool. If it does not wait, the devices have nothing to do.
    pub(super) fn give_back(&self, waits: bool) -> usize {
        self.flush_caches();
        self.collect(CollectMode::Record, None);
        // What other threads free meanwhile is not waited for, so the waits end.
        let last = self.fences.load(Ordering::Relaxed);
        let is_due = || self.quarantine.oldest_fence().is_some_and(|oldest| oldest.number <= last);
        while waits && is_due() && self.wait_for_oldest_fence() {}
        self.collect(CollectMode::Query, None);
        self.free_whole_slabs(0)
    }

    /// Asks the user's callback. Returns whether to look again, which is as often as it makes more memory free, and
    /// once more.
    fn asks_callback(&self, layout: Layout, upstream: Option<&Error>, calls: &mut Calls) -> bool {
        let Some(OnFailure(callback)) = &self.options.failure_callback else { return false };
        let is_nested = external::is_inside() || holds_buffers();
        if calls.is_over || calls.made == MAX_CALLS || is_nested {
            return false;
        }
        let layout_of_device = DeviceLayout::with_alignment(layout.size(), layout.align());
        let Ok(layout_of_device) = layout_of_device else { return false };
        calls.made += 1;
        let error = self.refused(layout, upstream);
        let failure = Failure::new(layout_of_device, &error, calls.made);
        let before = self.free_anywhere();
        let owner = std::ptr::from_ref(self).addr();
        let retry = asks_for_retry(owner, &failure, || callback(&failure));
        calls.is_over = !retry || self.free_anywhere() <= before;
        retry
    }

    /// Bytes of page-locked pools that no user holds.
    fn free_anywhere(&self) -> usize {
        let now = self.statistics();
        let (_, others) = self.others();
        now.reserved.saturating_sub(now.live).saturating_add(others)
    }

    /// The bytes that other pools of page-locked memory have, and how many of them no user holds.
    fn others(&self) -> (usize, usize) {
        let others = siblings::others(&self.source().device, self.key.id.number());
        let sums = others.iter().map(|pool| pool.reserved_and_free());
        sums.fold((0, 0), |sums, (reserved, free)| {
            (sums.0.saturating_add(reserved), sums.1.saturating_add(free))
        })
    }

    /// Makes room in the magazine for blocks of this size, and sets the size of batches by the memory that the pool can
    /// spare. A few batches are in quarantine at any time.
    fn adapt_cache_to_miss(&self, own: Option<&Magazine>, units: u32) {
        let Some(magazine) = own else { return };
        let _transit = self.begin_transit();
        let mut evicted = Vec::new();
        let mut evict = |address| evicted.push(FreedBlock::without_size(address));
        // SAFETY: this thread's magazine, one of this pool; nothing below enters one.
        let _ = unsafe {
            magazine.try_with(|classes| {
                if !self.key.fenced {
                    classes.note_miss(units, |block| evict(block.address as usize));
                }
                let batch_limit = self.batch_limit.load(Ordering::Relaxed);
                ThreadCache::of(classes).set_batch_limit(batch_limit);
            })
        };
        if !evicted.is_empty() {
            self.free_to_heap(&evicted);
        }
    }

    /// Computes the size that a fenced pool grows to before it waits, so that a fence serves many
    /// frees. Returns whether the pool is smaller.
    fn set_batch_limit_and_is_below_target(&self) -> bool {
        if !self.key.fenced {
            return false;
        }
        let now = self.statistics();
        // Each thread can have four full batches in quarantine.
        let batches = 4 * self.nonzero_cache_count();
        let most_cached = self.options.magazine_bytes.saturating_mul(batches);
        let slack = now.live.saturating_mul(3).min(most_cached).max(MIN_SLACK_BYTES);
        let upstream_full = self.upstream_full.load(Ordering::Relaxed);
        let most = if upstream_full { now.reserved } else { self.maximum_size() };
        let target = now.live.saturating_add(slack).max(now.reserved).min(most);
        self.batch_limit.store((target / batches) as u64 >> UNIT_SHIFT, Ordering::Relaxed);
        now.reserved < target
    }

    /// Takes the blocks whose fence has passed out of quarantine. One batch goes into the calling thread's cache, if it
    /// has room, and the others to the heap. Returns whether there were any.
    fn collect(&self, mode: CollectMode, own: Option<&Magazine>) -> bool {
        let _transit = self.begin_transit();
        self.collect_in_transit(mode, own)
    }

    /// Does [`collect`](Self::collect) for a caller that has `in_transit`.
    fn collect_in_transit(&self, mode: CollectMode, own: Option<&Magazine>) -> bool {
        let mut batches = self.collect_batches(mode).free;
        let any = !batches.is_empty();
        if let Some(magazine) = own {
            let mut offered = batches.pop();
            // SAFETY: this thread's magazine, one of this pool; nothing below enters one.
            let _ = unsafe {
                magazine.try_with(|classes| {
                    let cache = ThreadCache::of(classes);
                    offered = offered.take().and_then(|batch| cache.replace_ready(batch));
                })
            };
            batches.extend(offered);
        }
        if !batches.is_empty() {
            self.free_to_heap(batches.iter().flat_map(|batch| batch.blocks()));
        }
        any
    }

    fn collect_batches(&self, mode: CollectMode) -> Collected<Batch> {
        let recorded = Cell::new(0);
        let device = &self.source().device;
        let collected = self.quarantine.collect(
            || {
                if mode != CollectMode::Record {
                    return Err(FenceError::NotNow);
                }
                let fence = Arc::new(Fence::record_sharing_contexts(device)?);
                recorded.set(self.fences.fetch_add(1, Ordering::Relaxed) + 1);
                Ok(NumberedFence { number: recorded.get(), fence })
            },
            |NumberedFence { number, fence }| match mode {
                CollectMode::Passed(passed) if *number == passed => Ok(true),
                // It has hardly passed right after its record; the next collection queries it.
                CollectMode::Record if *number == recorded.get() => Ok(false),
                _ => fence.query(),
            },
        );
        let units = |batches: &[Batch]| batches.iter().map(Batch::units).sum::<u64>();
        let lost = units(&collected.lost);
        self.quarantined_units.fetch_sub(units(&collected.free) + lost, Ordering::Relaxed);
        if lost > 0 {
            self.lost_units.fetch_add(lost, Ordering::Relaxed);
            report_lost(device, bytes_of(lost));
        }
        collected
    }

    /// Flushes the caches of all threads, and waits a moment for fences to pass.
    fn flush_and_poll_for_block(&self, units: u32, align: usize) -> Option<usize> {
        if self.freed_and_ready_units() != [0; 2] {
            self.flush_caches();
        }
        self.collect(CollectMode::Record, None);
        if let Some(address) = self.allocate_exhaustive(units, align) {
            return Some(address);
        }
        let mut until = None;
        loop {
            if let Some(address) = self.allocate_good_fit(units, align) {
                return Some(address);
            }
            let now = Instant::now();
            if self.quarantine.len() == 0 || now > *until.get_or_insert(now + FENCE_POLL_TIME) {
                return None;
            }
            self.collect(CollectMode::Query, None);
            std::hint::spin_loop();
        }
    }

    /// Waits on the host for the oldest fence. Returns whether blocks came out of quarantine. None do if it is empty, a
    /// capture may run, or another thread took them.
    fn wait_for_oldest_fence(&self) -> bool {
        if self.quarantine.len() == 0 || any_sharing_context_capturing(&self.source().device) {
            return false;
        }
        let collected = self.collect(CollectMode::Record, None);
        let Some(NumberedFence { number, fence }) = self.quarantine.oldest_fence() else {
            return collected;
        };
        let mode = match fence.wait() {
            Ok(()) => CollectMode::Passed(number),
            // A query says the same, and what becomes of the blocks.
            Err(_) => CollectMode::Query,
        };
        self.collect(mode, None) || collected
    }

    /// Takes a block wherever it lies, if it is free, since no thread moves one while this looks. If there is none, the
    /// error says whether the request, of `least` bytes, may be served later. That may be when the device has passed
    /// the memory that waits, or by the room that another thread has made.
    fn allocate_while_none_moves(
        &self,
        units: u32,
        align: usize,
        least: usize,
    ) -> std::result::Result<usize, bool> {
        // Emitted when the lock is free.
        let _events = defer_events();
        let _transit = self.in_transit.write();
        self.flush_caches_in_transit();
        self.collect_in_transit(CollectMode::Query, None);
        if let Some(address) = self.allocate_exhaustive(units, align) {
            return Ok(address);
        }
        let now = self.statistics();
        let most_free = self.maximum_size().saturating_sub(now.live);
        let waits = self.quarantine.len() > 0
            && least <= most_free
            && !any_sharing_context_capturing(&self.source().device);
        let upstream_full = self.upstream_full.load(Ordering::Relaxed);
        let has_room = !upstream_full && least <= self.maximum_size().saturating_sub(now.reserved);
        Err(waits || has_room || self.is_growing())
    }

    /// Frees all memory that waits, if nothing but the crate's own work runs, since that uses no freed memory. Returns
    /// whether there was any.
    fn collect_beside_own_work(&self) -> bool {
        if self.quarantine.len() == 0 {
            return false;
        }
        let device = &self.source().device;
        let _transit = self.begin_transit();
        let passes = |fence: Fence| fence.passes_soon();
        let has_passed = || Fence::record_unseen_users(device).and_then(passes) == Ok(true);
        let batches = self.quarantine.collect_all(has_passed);
        let units = batches.iter().map(Batch::units).sum();
        self.quarantined_units.fetch_sub(units, Ordering::Relaxed);
        self.free_to_heap(batches.iter().flat_map(|batch| batch.blocks()));
        !batches.is_empty()
    }

    /// Whether the pool may grow. It may not while more waits than the limit. Beside a capture nothing can be asked or
    /// waited for, so the pool grows.
    fn may_grow(&self) -> bool {
        !self.is_above_quarantine_limit() || any_sharing_context_capturing(&self.source().device)
    }

    fn is_above_quarantine_limit(&self) -> bool {
        let waiting = bytes_of(self.quarantined_units.load(Ordering::Relaxed));
        waiting > self.options.quarantine_bytes
    }

    fn enforce_quarantine_limit(&self) {
        if self.is_above_quarantine_limit() && !self.collect_beside_own_work() {
            let waits = self.options.wait_for_device;
            while waits && self.is_above_quarantine_limit() && self.wait_for_oldest_fence() {}
        }
    }

    /// The error of a request that is refused, with upstream's if that had no more.
    fn refused(&self, layout: Layout, upstream: Option<&Error>) -> Error {
        let now = self.statistics();
        let counted = |bytes| Count(bytes, "byte");
        // An alignment above a page's takes room that its message has to account for.
        let requested = Requested { bytes: layout.size(), alignment: layout.align(), usual: PAGE };
        let lost = bytes_of(self.lost_units.load(Ordering::Relaxed));
        let leaked = match lost {
            0 => String::new(),
            lost => format!(", {} leaked with their device, which is lost,", counted(lost)),
        };
        let (device, limit) = (&self.source().device, self.options.quarantine_bytes);
        let bound = match self.is_above_quarantine_limit() {
            true => format!(", where more than {} of freed memory are pending", counted(limit)),
            false if self.maximum_size() < NO_MAXIMUM => {
                format!(", whose maximum is {}", counted(self.maximum_size()))
            }
            false => String::new(),
        };
        let others = match self.others() {
            (0, _) => String::new(),
            (reserved, free) => format!(
                "; other page-locked pools have {}, {} of them free",
                counted(reserved),
                counted(free)
            ),
        };
        let last = upstream
            .map_or_else(String::new, |error| format!("; its upstream: {}", error.message()));
        let users =
            if now.waiting > 0 { UsersOf(busy_streams(device)).to_string() } else { String::new() };
        let message = format!(
            "allocating {requested} of page-locked memory from a pool for {device}{bound}: it has {}, {} of \
             them in use{leaked} and {} pending{users}, and its largest free block has {}{others}{last}",
            counted(now.reserved),
            counted(now.live.saturating_sub(lost)),
            counted(now.waiting),
            counted(now.largest_free),
        );
        let error = Error::new(ErrorKind::OutOfMemory, message);
        let error = match upstream.and_then(Error::driver) {
            Some(driver) => error.with_driver(driver.clone()),
            None => error,
        };
        if layout.size() > self.maximum_size() {
            return error.with_advice("ask for less, or build the pool with a larger maximum_size");
        }
        if let Some(advice) = upstream.and_then(Error::advice) {
            return error.with_advice(advice.to_owned());
        }
        if now.waiting > 0 && any_sharing_context_capturing(&self.source().device) {
            return error.with_advice("what waits can be had again when the capture has ended");
        }
        if lost > 0 {
            return error.with_advice(
                "restart the process: what the device may still write is given to nobody again",
            );
        }
        if now.live > 0 && deferred::has_deferred_buffers() {
            return error.with_advice(
                "buffers of dropped transfers are in use until the device is done with them: await the \
                 transfers, or synchronize their streams, and ask again",
            );
        }
        if now.waiting > 0 && !self.options.wait_for_device {
            return error.with_advice(
                "wait for the work that may use what was freed, or build the pool with wait_for_device(true), \
                 or with more room",
            );
        }
        error.with_advice(match requested.is_over_aligned() {
            true => "ask for a smaller alignment, free memory, or build the pool with a larger maximum_size",
            false => "free memory, ask for less, or build the pool with a larger maximum_size",
        })
    }

    /// Waits for the devices, and unpins slabs of which nothing is in use, as long as the others have `keep` bytes.
    pub(super) fn trim(&self, keep: usize) -> Result<usize> {
        not_forked("page-locked memory")?;
        self.flush_caches();
        let mut lost = None;
        if self.quarantine.len() > 0 {
            // The fence is recorded before the wait, and queried after it.
            self.collect(CollectMode::Record, None);
            lost = synchronize_sharing_contexts(&self.source().device)?;
            self.collect(CollectMode::Record, None);
        }
        let bytes = self.free_whole_slabs(keep);
        // What waited is leaked: no fence of a lost context passes.
        lost.map_or(Ok(bytes), Err)
    }
}

/// Streams that have work under way, which freed memory may be in.
struct UsersOf(Vec<Stream>);

impl fmt::Display for UsersOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, stream) in self.0.iter().enumerate() {
            write!(
                f,
                "{}{}",
                if at == 0 { ", where work is under way on stream " } else { ", " },
                stream.id()
            )?;
        }
        Ok(())
    }
}

fn above_largest_block(size: usize, align: usize) -> Error {
    let requested = Requested { bytes: size, alignment: align, usual: PAGE };
    let most = bytes_of(u64::from(u32::MAX));
    if size.checked_add(align).is_none_or(|bytes| bytes > isize::MAX as usize - PAGE) {
        return impossible(size, align);
    }
    let most = Count(most, "byte");
    Error::new(
        ErrorKind::OutOfMemory,
        format!("allocating {requested} from a page-locked pool whose largest block has {most}"),
    )
    .with_advice("take so large a block from a PinnedResource")
}
