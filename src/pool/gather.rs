//! All free memory in one place, and whole blocks back to upstream.

use super::block::{SHARED, SlotId};
use super::core::Pool;
use super::events::emit;
use super::mapping::MapLimits;
use super::request::{Request, TakenBlock};
use super::surplus::with_room;
use super::upstream::{Failure, Mapped, Upstream, count};
use super::upstream_blocks::{Origin, UpstreamBlock};
use crate::debug_log::range;
use crate::heap::{Heap, Piece};
use crate::sync::{ReentrantMutexGuard, RwLockWriteGuard};
use std::time::Duration;

/// How long a thread waits for another that gives memory back: longer than kernels take, for whose end that one may wait.
const TRIM_PATIENCE: Duration = Duration::from_secs(10);

impl<U: Upstream> Pool<U> {
    /// Keeps other threads from giving blocks back. `None` where upstream called back during growth and
    /// another thread trims: that one may wait for the growth. And where one trims for so long that its
    /// upstream may wait for this thread.
    pub(super) fn lock_or_try_trim(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        if self.growth_lock.is_owned_by_current_thread() {
            return self.trim_lock.try_lock();
        }
        let trim = self.trim_lock.try_lock_for(TRIM_PATIENCE);
        if trim.is_none() {
            self.report_patience("trim_lock", TRIM_PATIENCE);
        }
        trim
    }

    /// Flushes every magazine of every thread into the heaps.
    pub(super) fn flush_all(&self) {
        self.with_all_revoked(|magazine, classes| self.flush(magazine, classes));
    }

    /// Moves all free memory of the pool into the stream's heap, ordered, and so in one piece where
    /// its addresses are. The caller writes `in_transit`.
    pub(super) fn gather(
        &self,
        request: &Request<'_, U>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let _range = range(c"pool: gather", request.bytes());
        self.flush_all();
        let Request { slot, stream, .. } = *request;
        let mut failed = None;
        let mut pieces = Vec::new();
        for source in self.all_slots() {
            let is_own = source.id == slot.id;
            let tags: Vec<(SlotId, usize)> = {
                let heap = source.heap();
                heap.tags().map(|tag| (tag, heap.latest_bound(tag))).collect()
            };
            for (tag, latest) in tags {
                if tag == slot.id && is_own {
                    continue;
                }
                if let Err(error) = self.make_wait(slot, stream, tag, latest) {
                    failed = Some(error);
                    continue;
                }
                let mut heap = source.heap();
                if is_own {
                    heap.retag(tag, latest, slot.id, slot.epochs.current());
                } else {
                    heap.extract_all(tag, latest, &mut pieces);
                }
            }
        }
        let stamp = slot.epochs.current();
        {
            let mut heap = slot.heap();
            for piece in pieces {
                self.add(slot, &mut heap, slot.id, Piece { stamp, ..piece });
            }
        }
        emit!(self, {
            stream = U::id(stream), asked = request.bytes(), largest = slot.heap().largest_free(),
        }, "gathered free memory");
        match (self.take_own(request), failed) {
            (Some(found), _) => Ok(Some(found)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// As [`gather`](Self::gather), of memory that is mapped: nothing moves to another heap. What is one piece nowhere is
    /// mapped as one.
    pub(super) fn wait_for_all_and_map(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        self.flush_all();
        let mut waited = Ok(());
        self.each_populated(|source| {
            if let Err(error) = self.wait_and_merge(request, source) {
                waited = Err(error);
            }
        });
        match self.take_or_map(request, mapped, None)? {
            None => waited.map(|()| None),
            found => Ok(found),
        }
    }

    /// Memory that is known to be complete merges in each heap, also where several streams freed it: so a handle lies in
    /// one free block.
    pub(super) fn merge_complete(&self) {
        self.each_populated(|source| {
            self.retag_ready_as_own(source, &mut source.heap());
        });
    }

    /// Memory that is ready in a heap, or can be mapped into the request's: with new memory, up to so many bytes in all.
    pub(super) fn take_or_map(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        new: Option<usize>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let _growth = self.lock_growth();
        let found = match request.is_anywhere() {
            true => {
                let found = self.take_own(request).or_else(|| self.refill_from_shared(request));
                found.or_else(|| self.take_ready(request))
            }
            false => None,
        };
        match found {
            Some(found) => Ok(Some(found)),
            None => self.map_for(
                request,
                mapped,
                MapLimits { moves: true, waits: self.has_waits(), new },
            ),
        }
    }

    /// Gives whole blocks of upstream back until one of the request's size may be asked for, and asks.
    /// The host waits for the stream, which waits for the others. The caller has asked
    /// [`lock_or_try_trim`](Self::lock_or_try_trim).
    pub(super) fn wait_and_trim_for(
        &self,
        request: &Request<'_, U>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        if self.upstream.mapped().is_some() {
            return self.wait_and_trim_for_graph(request);
        }
        let Some(bytes) = self.bytes_unless_above_maximum(request) else { return Ok(None) };
        let _range = range(c"pool: trim for a request", bytes);
        {
            let _transit = self.in_transit.write();
            if let Some(found) = self.gather(request)? {
                return Ok(Some(found));
            }
        }
        let slot = request.slot;
        let stamp = slot.epochs.current();
        slot.epochs.synchronize(&self.upstream, stamp)?;
        let transit = self.in_transit.write();
        // What came meanwhile, while the host waited. It is of a later epoch.
        if let Some(found) = self.gather(request)? {
            return Ok(Some(found));
        }
        self.replace_blocks(request, bytes, transit, |target| {
            let mut heap = slot.heap();
            heap.retag(slot.id, stamp, SHARED, 0);
            let returned = self.extract_upstream_blocks(&mut heap, target);
            heap.retag(SHARED, usize::MAX, slot.id, 0);
            returned
        })
    }

    /// As [`wait_and_trim_for`](Self::wait_and_trim_for), for a graph, and for any request where memory is mapped: the host
    /// waits for all streams that are not in capture.
    pub(super) fn wait_and_trim_for_graph(
        &self,
        request: &Request<'_, U>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let Some(bytes) = self.bytes_unless_above_maximum(request) else { return Ok(None) };
        self.flush_all();
        for source in self.stream_slots() {
            let stamp = {
                let record = source.epochs.lock();
                // Closed epochs have events from before the capture, which may be waited for.
                let in_capture = source.recording_graph() != 0;
                if in_capture { record.newest() } else { source.epochs.current() }
            };
            // A failure leaves things as they are: the memory is not ready.
            let _ = source.epochs.synchronize(&self.upstream, stamp);
        }
        if let Some(mapped) = self.upstream.mapped() {
            self.merge_complete();
            return self.take_or_map(request, mapped, Some(self.settings.limits.maximum()));
        }
        let transit = self.in_transit.write();
        self.move_complete_to_shared();
        let Some(shared) = self.make_shared_slot() else { return Ok(None) };
        let found = self.take_own(request).or_else(|| self.refill_from_shared_locked(request));
        if let Some(found) = found.or_else(|| self.take_ready(request)) {
            return Ok(Some(found));
        }
        self.replace_blocks(request, bytes, transit, |target| {
            self.extract_upstream_blocks(&mut shared.heap(), target)
        })
    }

    fn bytes_unless_above_maximum(&self, request: &Request<'_, U>) -> Option<usize> {
        let bytes = request.padded_bytes(self.settings.alignment);
        bytes.filter(|bytes| *bytes <= self.settings.limits.maximum())
    }

    /// Gives blocks of upstream back, which `extract` takes out of a heap until so many bytes are
    /// reserved, and asks for one of `bytes`. The caller wrote `in_transit` (INV-POOL-5), which is free
    /// while upstream is called, as is the lock of growth while it takes memory back: another thread may
    /// grow into the room.
    fn replace_blocks<'a>(
        &'a self,
        request: &Request<'_, U>,
        bytes: usize,
        mut transit: RwLockWriteGuard<'a, ()>,
        extract: impl Fn(usize) -> Vec<UpstreamBlock<U::Block>>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let maximum = self.settings.limits.maximum();
        // What the maximum asks for first; everything, if upstream has no more.
        let mut target = maximum.saturating_sub(bytes);
        loop {
            let extracted = extract(target);
            drop(transit);
            let is_last = extracted.is_empty();
            let wish = with_room(bytes, &extracted);
            self.release_upstream(extracted);
            let found = {
                let _growth = self.lock_growth();
                self.grow_by(request, bytes, wish, maximum)
            };
            match &found {
                Ok(Some(_)) => return found,
                Err(_) if target > 0 => target = 0,
                _ if is_last => return found,
                _ => {}
            }
            transit = self.in_transit.write();
        }
    }

    /// Extracts whole blocks of upstream that are complete from a heap, until no more than `target`
    /// bytes would be reserved without them.
    pub(super) fn extract_upstream_blocks(
        &self,
        heap: &mut Heap,
        target: usize,
    ) -> Vec<UpstreamBlock<U::Block>> {
        let mut blocks = self.upstream_blocks.lock();
        let mut left = blocks.bytes();
        let mut extracted = Vec::new();
        for (number, address, bytes) in blocks.largest_first() {
            if left <= target {
                break;
            }
            if heap.extract_complete_block(number, address, bytes) {
                left -= bytes as usize;
                extracted.extend(blocks.remove_reserved(number, address));
            }
        }
        extracted
    }

    /// Gives blocks back that nothing uses. Returns how many bytes they have. Upstream may wait for the
    /// device, or call back: the caller has no lock of the pool.
    pub(super) fn release_upstream(&self, blocks: Vec<UpstreamBlock<U::Block>>) -> usize {
        let (number, bytes): (usize, usize) =
            (blocks.len(), blocks.iter().map(|block| block.bytes as usize).sum());
        for block in blocks {
            count(&self.counters().returns);
            if let Origin::Block(memory) = block.origin {
                self.upstream.deallocate(None, memory);
            }
            self.upstream_blocks.lock().unreserve(block.bytes as usize);
        }
        if number > 0 {
            emit!(self, {
                blocks = number, bytes, reserved = self.reserved_bytes(),
            }, "gave memory back");
        }
        bytes
    }

    /// Moves what is known to be complete from all heaps to the shared one.
    pub(super) fn move_complete_to_shared(&self) {
        let mut pieces = Vec::new();
        for source in self.stream_slots() {
            let mut heap = source.heap();
            let tags: Vec<SlotId> = heap.tags().collect();
            for tag in tags {
                let completed = self.slot(tag).map_or(0, |slot| slot.epochs.completed());
                heap.extract_all(tag, completed, &mut pieces);
            }
        }
        if let Some(shared) = self.make_shared_slot() {
            let mut heap = shared.heap();
            for piece in pieces {
                self.add(shared, &mut heap, SHARED, Piece { stamp: 0, ..piece });
            }
        }
    }
}
