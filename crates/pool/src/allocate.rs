//! Allocation and free: from a thread's magazine, which is the warm way, and past it.

use super::block::{
    Block, GRAPH_BIT, POOL_SHIFT, SlotId, UNIT_SHIFT, cacheable, node_of, owner_of,
};
use super::core::Pool;
use super::local::{self, OnThreadExit};
use super::magazine::{Cached, Limits, Magazine};
use super::placement::{LARGE, Search};
use super::remote_frees::Freed;
use super::slot::{Slot, report};
use super::upstream::{Failure, Upstream};
use crate::debug_log::{POOL, defer_events, emit_deferred, event};
use crate::heap::NotLive;
use crate::sync::{Arc, Weak};
use std::ptr::NonNull;

/// Bytes of a unit.
const UNIT: u64 = 1 << UNIT_SHIFT;

impl<U: Upstream> Pool<U> {
    /// A block that the calling thread keeps ready for the stream: no lock, no driver call. `None`
    /// for no bytes.
    #[inline(always)]
    pub fn allocate_cached(&self, stream_id: u64, bytes: usize, align: u64) -> Option<Block> {
        self.allocate_cached_units(stream_id, self.aligned_units(bytes)?, align)
    }

    /// The same for units that are known. `None` where the thread's table lacks the magazine, too.
    #[inline(always)]
    pub fn allocate_cached_units(&self, stream_id: u64, units: u32, align: u64) -> Option<Block> {
        if align > self.settings.alignment {
            return None;
        }
        // SAFETY: the magazine is not used.
        unsafe { self.pop_or(stream_id, units, Some, |_| None) }
    }

    /// What `warm` makes of the block of [`allocate_cached`](Self::allocate_cached); else what `past` makes of
    /// the thread's magazine of the stream, if its table has one.
    ///
    /// # Safety
    ///
    /// `past` uses the magazine before it calls another function of a pool, and does not keep it.
    #[inline(always)]
    pub unsafe fn allocate_cached_or<R>(
        &self,
        stream_id: u64,
        bytes: usize,
        align: u64,
        warm: impl FnOnce(Block) -> R,
        past: impl FnOnce(Option<NonNull<Magazine>>) -> R,
    ) -> R {
        let units = self.aligned_units(bytes).filter(|_| align <= self.settings.alignment);
        let Some(units) = units else { return past(None) };
        // SAFETY: the caller's promise.
        unsafe { self.pop_or(stream_id, units, warm, past) }
    }

    /// # Safety
    ///
    /// As [`allocate_cached_or`](Self::allocate_cached_or).
    #[inline(always)]
    unsafe fn pop_or<R>(
        &self,
        stream_id: u64,
        units: u32,
        warm: impl FnOnce(Block) -> R,
        past: impl FnOnce(Option<NonNull<Magazine>>) -> R,
    ) -> R {
        // SAFETY: the caller's promise; the table gives a thread its own magazines, which live, and `pop`
        // enters none.
        unsafe {
            local::find_in_table_or_none(self.id, stream_id, |magazine| {
                let cached = magazine.and_then(|magazine| {
                    magazine.as_ref().try_with_fast(|classes| classes.pop(units)).flatten()
                });
                match cached {
                    Some(cached) => warm(cached.into_block(units)),
                    None => past(magazine),
                }
            })
        }
    }

    /// A block of the stream's own heap, by the thread's magazine of the stream, which has none of the
    /// size. `None` where that takes more.
    ///
    /// # Safety
    ///
    /// The magazine is the calling thread's own, of this pool and this stream, and lives when this is called.
    /// A pointer, since it may be dropped meanwhile: a subscriber to an event may trim the pool.
    #[inline(always)]
    pub unsafe fn allocate_own(
        &self,
        own_magazine: NonNull<Magazine>,
        stream_id: u64,
        bytes: usize,
        align: u64,
    ) -> Option<Block> {
        let units = self.aligned_units(bytes).filter(|&units| units != 0)?;
        // SAFETY: the caller's promise that it lives; not used after the first event.
        let magazine = unsafe { own_magazine.as_ref() };
        // Heaps align to a unit. A stream in capture has its magazines suspended, one that is gone has them
        // retired.
        let is_plain = align <= UNIT && self.settings.alignment <= UNIT;
        if !is_plain || !magazine.is_open() || self.has_placed_blocks(units) {
            return None;
        }
        let slot_id = magazine.slot() as SlotId;
        let slot = self.slot(slot_id).filter(|slot| slot.recording_graph() == 0)?;
        let (node, address) = slot.allocate_own(units)?;
        // SAFETY: the thread's own magazine, and `is_missed_again` enters none.
        let again = unsafe { magazine.try_with_fast(|classes| classes.is_missed_again(units)) };
        if again == Some(true) {
            // SAFETY: the caller's promise.
            unsafe { self.assign_class(own_magazine, stream_id, units) };
        }
        Some(self.make_block(slot_id, node, address, units))
    }

    /// `bytes > 0` bytes, aligned to `align`, for work on `stream`, after
    /// [`allocate_cached`](Self::allocate_cached) had none, and [`allocate_own`](Self::allocate_own), where that was
    /// tried: it takes more here, and is not tried again.
    pub fn allocate(
        &self,
        stream: &U::Stream,
        stream_id: u64,
        bytes: usize,
        align: u64,
    ) -> Result<Block, Failure<U::Error>> {
        let Some(units) = self.aligned_units(bytes) else { return Err(Failure::Exhausted(None)) };
        // SAFETY: used before anything else looks for a magazine.
        let in_table = unsafe { local::find(self.id, stream_id) };
        // SAFETY: the same.
        let magazine = in_table.or_else(|| unsafe { local::find_in_list(self.id, stream_id) });
        // What the warm way leaves to this one.
        let is_left = |magazine: &Magazine| {
            in_table.is_none() || align > self.settings.alignment || magazine.needs_fence()
        };
        if let Some(magazine) = magazine.filter(|magazine| is_left(magazine)) {
            // SAFETY: the table gives a thread its own magazines, and `pop_aligned` enters none.
            let cached = unsafe { magazine.try_with(|classes| classes.pop_aligned(units, align)) };
            if let Some(cached) = cached.flatten() {
                return Ok(cached.into_block(units));
            }
        }
        // A stream whose slot was retired may be here again. From here on the magazine may be dropped: a
        // subscriber to the events of a miss may trim the pool. Not by `map`: what a closure is given has to live
        // until it returns.
        let slot_id = match magazine.filter(|magazine| !magazine.is_retired()) {
            Some(magazine) => {
                let slot_id = magazine.slot() as SlotId;
                // SAFETY: the table gives a thread its own magazines, and `is_missed_again` enters none.
                let again = unsafe { magazine.try_with(|classes| classes.is_missed_again(units)) };
                if again == Some(true) {
                    // SAFETY: the table gives a thread its own magazines, by pool and stream.
                    unsafe { self.assign_class(magazine.into(), stream_id, units) };
                }
                Some(slot_id)
            }
            None => None,
        };
        self.allocate_past_magazine(stream, stream_id, slot_id, units, align)
    }

    fn allocate_past_magazine(
        &self,
        stream: &U::Stream,
        stream_id: u64,
        known: Option<SlotId>,
        units: u32,
        align: u64,
    ) -> Result<Block, Failure<U::Error>> {
        let slot_id = match known {
            Some(slot_id) => slot_id,
            None => self.register_magazine(stream, stream_id)?,
        };
        self.require_awake()?;
        let align = align.max(self.settings.alignment);
        let slot = self.slot(slot_id).ok_or(Failure::Crowded)?;
        let graph = slot.recording_graph();
        if graph != 0
            && let Some(block) = self.allocate_for_graph((slot, graph), stream, (units, align))?
        {
            return Ok(block);
        }
        let request = self.request(slot, stream, (units, align), None);
        let own = self.take_from(&request, &mut slot.heap(), (slot_id, usize::MAX), Search::Short);
        if let Some(taken) = own {
            return Ok(self.make_block(slot_id, taken.node, taken.address, units));
        }
        self.free_deferred_graphs();
        let _deferred = defer_events();
        let found = self.miss(&request)?;
        Ok(self.make_block(found.owner, found.taken.node, found.taken.address, units))
    }

    /// Gives a size that was missed again its class in the magazine. What that evicts goes to the heap.
    ///
    /// # Safety
    ///
    /// As [`allocate_own`](Self::allocate_own).
    #[cold]
    unsafe fn assign_class(&self, magazine: NonNull<Magazine>, stream_id: u64, units: u32) {
        let mut freed = Ok(());
        // SAFETY: the caller's promise that it lives; not used after the first event.
        let magazine = unsafe { magazine.as_ref() };
        let Some(slot) = self.slot(magazine.slot() as SlotId) else { return };
        let evict = |block| freed = freed.and(self.free_to_owner(slot, block));
        // SAFETY: the table gave us this thread's own magazine, and heaps enter none.
        let to_list = unsafe {
            magazine.try_with(|classes| {
                classes.assign_class(units, evict);
                classes.mark_listed_if_needed()
            })
        };
        if to_list == Some(true) {
            local::note_stocked(self.id, stream_id);
        }
        report(freed);
    }

    /// Frees a block into the thread's magazine of the stream. `past` gets a block that the magazine does
    /// not take, and the magazine if the thread's table has it.
    ///
    /// # Safety
    ///
    /// As [`deallocate`](Self::deallocate), and as [`allocate_cached_or`](Self::allocate_cached_or) of `past`.
    #[inline(always)]
    pub unsafe fn deallocate_to_cache(
        &self,
        stream_id: u64,
        block: Block,
        past: impl FnOnce(Block, Option<NonNull<Magazine>>),
    ) {
        // SAFETY: the caller's promise; the table gives a thread its own magazines, which live, and `push`
        // enters none.
        unsafe {
            local::find_in_table_or_none(self.id, stream_id, |magazine| {
                let pushed = magazine.and_then(|magazine| {
                    let (units, cached) = cacheable(self.mark, &block)?;
                    magazine.as_ref().try_with_fast(|classes| classes.push(units, cached))?.ok()
                });
                if pushed.is_none() {
                    past(block, magazine);
                }
            });
        }
    }

    /// Frees a block to the stream's own heap, if it is of that, after the thread's magazine of the stream
    /// did not take it. Returns whether it did; else that takes more.
    ///
    /// # Safety
    ///
    /// As [`deallocate`](Self::deallocate), on the magazine's stream; of the magazine as
    /// [`allocate_own`](Self::allocate_own).
    #[inline(always)]
    pub unsafe fn deallocate_own(&self, magazine: NonNull<Magazine>, block: &Block) -> bool {
        // SAFETY: the caller's promise that it lives; not used after the first event.
        let magazine = unsafe { magazine.as_ref() };
        let slot_id = magazine.slot() as SlotId;
        let Some((units, Cached { token, .. })) = cacheable(self.mark, block) else { return false };
        if owner_of(token) != slot_id {
            return false;
        }
        let Some(slot) = self.slot(slot_id).filter(|slot| slot.recording_graph() == 0) else {
            return false;
        };
        // To its heap what lies in a magazine is live. A stream in capture has its magazines suspended.
        // SAFETY: the table gives a thread its own magazines, and `holds` enters none.
        let held = unsafe { magazine.try_with_fast(|classes| classes.holds(units, token)) };
        if held != Some(false) {
            return false;
        }
        let stamp = slot.epochs.current();
        report(slot.free(Freed { node: node_of(token), freed_by: slot_id, stamp }));
        self.close_behind_large(slot, block);
        true
    }

    /// Frees a block in the order of `stream`, after [`deallocate_to_cache`](Self::deallocate_to_cache) did
    /// not take it, nor [`deallocate_own`](Self::deallocate_own), where that was tried.
    ///
    /// # Safety
    ///
    /// The block is this pool's and live, and what uses it is ordered before this call on `stream`.
    pub unsafe fn deallocate(&self, stream: &U::Stream, stream_id: u64, block: Block) {
        let Block { address, token, .. } = block;
        if (token & !GRAPH_BIT) >> POOL_SHIFT != u64::from(self.mark) {
            // A pool above may have its locks.
            return emit_deferred(move || {
                let address = format_args!("{address:#x}");
                event!(error, target: POOL, address, "a block was given to a pool that is not its own: ignored");
            });
        }
        // SAFETY: used before anything else looks for a magazine.
        let in_table = unsafe { local::find(self.id, stream_id) };
        // SAFETY: as above.
        let magazine = in_table.or_else(|| unsafe { local::find_in_list(self.id, stream_id) });
        if let Some(magazine) = magazine
            && let Some((units, cached)) = cacheable(self.mark, &block)
        {
            let is_to_push = in_table.is_none() || magazine.needs_fence();
            // SAFETY: as in `deallocate_to_cache`; `holds` enters none either.
            let found = unsafe {
                magazine.try_with(|classes| {
                    let pushed = is_to_push && classes.push(units, cached).is_ok();
                    // To its heap what lies in a magazine is live: it would free it, and the magazine
                    // has it as well.
                    (pushed, !pushed && classes.holds(units, token))
                })
            };
            match found {
                Some((true, _)) => return,
                Some((_, true)) => return report(Err(NotLive(node_of(token)))),
                _ => {}
            }
        }
        let slot_id = match magazine {
            Some(magazine) if !magazine.is_retired() => Some(magazine.slot() as SlotId),
            _ => self.register_magazine(stream, stream_id).ok(),
        };
        let Some(slot) = slot_id.and_then(|slot_id| self.slot(slot_id)) else {
            return emit_deferred(move || {
                event!(
                    error,
                    target: POOL,
                    address = format_args!("{address:#x}"),
                    "leaked device memory: the stream is of another device, or one more than a \
                     pool can tell apart"
                );
            });
        };
        report(match self.defer_free_to_graph(slot, stream, &block) {
            Some(noted) => noted,
            None => {
                let freed = self.free_to_owner(slot, Cached { address, token });
                self.close_behind_large(slot, &block);
                freed
            }
        });
    }

    /// An event behind the free of a large block, where memory is mapped. What the device has done with it is known then,
    /// whatever the stream is given next: it can move, and go back.
    #[inline]
    fn close_behind_large(&self, freeing: &Slot<U>, block: &Block) {
        if block.bytes as u64 >= LARGE && self.upstream.mapped().is_some() {
            self.try_close_epoch(freeing);
        }
    }

    /// Without an event the next one tells.
    #[cold]
    fn try_close_epoch(&self, slot: &Slot<U>) {
        if slot.recording_graph() != 0 || self.upstream.is_forked() {
            return;
        }
        // A free waits for no lock, and this one is held over calls of the driver.
        if let Some(mut record) = slot.epochs.try_lock() {
            let _ = slot.epochs.close(&self.upstream, &mut record);
        }
    }

    /// The slot of a stream that the thread has no magazine for, and such a magazine.
    #[cold]
    fn register_magazine(
        &self,
        stream: &U::Stream,
        stream_id: u64,
    ) -> Result<SlotId, Failure<U::Error>> {
        self.upstream.check_device(stream)?;
        let slot_id = self.find_or_make_slot(stream, stream_id)?;
        let limits = Limits {
            entries: self.settings.entries,
            units: self.most_cached_bytes() >> UNIT_SHIFT,
        };
        local::find_or_make(self.id, stream_id, || {
            let slot = self.slot(slot_id)?;
            let magazine = Arc::new(Magazine::new(limits, u32::from(slot_id)));
            let pool: Weak<dyn OnThreadExit> = self.this.clone();
            let _reclaim = self.reclaim_lock.lock();
            if slot.recording_graph() != 0 || self.is_asleep() {
                // SAFETY: INV-POOL-4.
                unsafe { magazine.suspend() };
            }
            slot.magazines.lock().push(magazine.clone());
            Some((magazine, pool))
        });
        Ok(slot_id)
    }
}

impl<U: Upstream> OnThreadExit for Pool<U> {
    fn on_thread_exit(&self, magazine: &Arc<Magazine>) {
        // In the child of a fork the lock may be held by a thread that is not here.
        if self.upstream.is_forked() {
            return;
        }
        let _deferred = defer_events();
        let _reclaim = self.reclaim_lock.lock();
        // SAFETY: on the owner's thread, and INV-POOL-4.
        unsafe {
            let _ = magazine.try_with(|classes| self.drain(magazine, classes));
            magazine.retire();
        }
        if let Some(slot) = self.slot(magazine.slot() as SlotId) {
            slot.magazines.lock().retain(|other| !Arc::ptr_eq(other, magazine));
        }
    }
}
