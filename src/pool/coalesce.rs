//! Free memory that is complete or ordered by now becomes its heap's own, and merges there.
//!
//! What another stream freed into a heap keeps that stream's tag, and merges with nothing else, until
//! somebody sees that it is ready.

use super::block::{SHARED, SlotId};
use super::core::Pool;
use super::placement::Search;
use super::request::{Request, TakenBlock};
use super::slot::Slot;
use super::steal::Candidates;
use super::upstream::{Failure, Upstream};
use crate::heap::Heap;
use crate::sync::MODELLED;
use std::collections::BTreeMap;

impl<U: Upstream> Pool<U> {
    /// Makes the slot's own what other streams freed into its heap and it is ordered after. Returns
    /// whether there was some.
    pub(super) fn retag_ready_as_own(&self, slot: &Slot<U>, heap: &mut Heap) -> bool {
        let mut moved = 0;
        let _: Option<()> = heap.find_tag(|heap, tag| {
            if tag != slot.id {
                moved += self.retag_upto(heap, tag, self.ready_stamp(slot, tag), slot);
            }
            None
        });
        moved > 0
    }

    /// Makes the slot's own what `tag` freed up to this stamp, which the slot's stream is ordered after.
    /// Memory that is complete stays so: another stream that takes it waits for nothing that this one was
    /// given since.
    fn retag_upto(&self, heap: &mut Heap, tag: SlotId, ready: usize, slot: &Slot<U>) -> usize {
        let stamps = [
            (ready.min(self.completed_stamp(tag)), slot.epochs.completed()),
            (ready, slot.epochs.current()),
        ];
        let mut moved = 0;
        for (upto, stamp) in stamps {
            if heap.oldest_bound(tag) <= upto {
                moved += heap.retag(tag, upto, slot.id, stamp);
            }
        }
        moved
    }

    /// The last stamp of a slot's frees that the device has passed.
    pub(super) fn completed_stamp(&self, tag: SlotId) -> usize {
        match tag {
            SHARED => usize::MAX,
            tag => self.slot(tag).map_or(0, |slot| slot.epochs.completed()),
        }
    }

    /// In a heap of another stream, makes complete what is known to be: then it merges, whoever freed
    /// it, and needs no stream to wait.
    pub(super) fn retag_complete(&self, source: &Slot<U>, heap: &mut Heap) {
        let _: Option<()> = heap.find_tag(|heap, tag| {
            if tag != source.id && tag != SHARED {
                let completed = self.completed_stamp(tag);
                if heap.oldest_bound(tag) <= completed {
                    heap.retag(tag, completed, SHARED, 0);
                }
            }
            None
        });
    }

    /// Makes the request's stream own what it is ordered after in this heap, by a wait: then it merges.
    pub(super) fn retag_for_request(&self, request: &Request<'_, U>, source: &Slot<U>) {
        let slot = request.slot;
        let mut heap = source.heap();
        let _: Option<()> = heap.find_tag(|heap, tag| {
            let latest = heap.latest_bound(tag);
            if tag != slot.id && tag != SHARED && latest <= self.ready_stamp(slot, tag) {
                self.retag_upto(heap, tag, latest, slot);
            }
            None
        });
    }

    /// Asks the device about what other streams freed into the request's heap, makes it the stream's
    /// own where that is ready, and looks for a block.
    pub(super) fn poll_and_coalesce_own(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let slot = request.slot;
        let mut latest = BTreeMap::new();
        self.note_latest(slot, &mut latest);
        latest.remove(&slot.id);
        if latest.is_empty() {
            return None;
        }
        self.close_and_poll(latest);
        let absorbed = self.retag_ready_as_own(slot, &mut slot.heap());
        if absorbed { self.take_own(request) } else { None }
    }

    /// The same for all heaps, before the pool grows.
    pub(super) fn poll_and_coalesce_all(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        self.poll_and_merge_all(request);
        self.take_without_wait(request)
    }

    /// The same without a look for a block.
    pub(super) fn poll_and_merge_all(&self, request: &Request<'_, U>) {
        let mut latest = BTreeMap::new();
        self.each_populated(|source| self.note_latest(source, &mut latest));
        latest.remove(&request.slot.id);
        self.close_and_poll(latest);
        self.each_populated(|source| {
            self.retag_ready_as_own(source, &mut source.heap());
        });
    }

    /// Closes the epochs of all streams with free memory, and asks the device once how far it is. Returns whether it is past
    /// all of them.
    pub(super) fn close_and_poll_all(&self) -> bool {
        let mut latest = BTreeMap::new();
        self.each_populated(|source| self.note_latest(source, &mut latest));
        self.close_and_poll(latest)
    }

    /// A block that needs no wait, wherever another thread or a merge has made one.
    pub(super) fn take_without_wait(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let found = self.take_own(request).or_else(|| self.refill_from_shared(request));
        found.or_else(|| self.scan(request, &mut Candidates::default(), usize::MAX))
    }

    /// Makes the request's stream wait for all that freed memory in one heap, so that all of it there
    /// merges. The heaps with the most free memory come first.
    pub(super) fn wait_and_merge_heap(
        &self,
        request: &Request<'_, U>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let slot = request.slot;
        let mut heaps = Vec::new();
        self.each_populated(|source| {
            let free = source.heap().stats().free_bytes as usize;
            if free >= request.bytes() {
                heaps.push((free, source.id));
            }
        });
        heaps.sort_unstable_by(|one, other| other.cmp(one));
        let mut failed = None;
        for (_, id) in heaps {
            let Some(source) = self.slot(id) else { continue };
            failed = self.wait_and_merge(request, source).err().or(failed);
            let of_all = (slot.id, usize::MAX);
            let taken = self.take_from(request, &mut source.heap(), of_all, Search::Exhaustive);
            if let Some(taken) = taken {
                return Ok(Some(TakenBlock { owner: id, freed_by: slot.id, taken }));
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Makes the request's stream wait for all that freed memory in a heap, which is its own then. Returns the last error.
    pub(super) fn wait_and_merge(
        &self,
        request: &Request<'_, U>,
        source: &Slot<U>,
    ) -> Result<(), Failure<U::Error>> {
        let mut latest = BTreeMap::new();
        self.note_latest(source, &mut latest);
        // Its own merges as it is, and with a later stamp it would never be complete.
        latest.remove(&request.slot.id);
        let mut waited = Ok(());
        for (tag, stamp) in latest {
            match self.make_wait(request.slot, request.stream, tag, stamp) {
                Ok(()) => {
                    self.retag_upto(&mut source.heap(), tag, stamp, request.slot);
                }
                Err(error) => waited = Err(error),
            }
        }
        waited
    }

    /// Notes the latest stamp of each stream's frees in this heap.
    fn note_latest(&self, source: &Slot<U>, latest: &mut BTreeMap<SlotId, usize>) {
        let heap = source.heap();
        for tag in heap.tags() {
            let known = latest.entry(tag).or_default();
            *known = (*known).max(heap.latest_bound(tag));
        }
    }

    /// Closes the epochs up to these stamps, and asks the device once how far it is. Returns whether it is past all of them.
    pub(super) fn close_and_poll(&self, latest: BTreeMap<SlotId, usize>) -> bool {
        let mut passed = true;
        for (id, stamp) in latest {
            let Some(source) = self.slot(id) else { continue };
            if source.epochs.completed() < stamp && source.recording_graph() == 0 {
                let mut record = source.epochs.lock();
                // A failure leaves things as they are: the memory is not ready.
                let _ = source.epochs.ensure_closed(&self.upstream, &mut record, stamp);
                source.epochs.poll(&self.upstream, &mut record);
                passed &= source.epochs.completed() >= stamp;
            }
        }
        passed
    }

    /// Bytes that are free in heaps, and the rest, which counts as live. No model has as much as would
    /// matter.
    pub(super) fn free_and_other_bytes(&self) -> (usize, usize) {
        let mut free = 0;
        if !MODELLED {
            self.each_populated(|source| free += source.heap().stats().free_bytes as usize);
            free += self.slot(SHARED).map_or(0, |slot| slot.heap().stats().free_bytes as usize);
        }
        (free, self.reserved_bytes().saturating_sub(free))
    }

    pub(super) fn each_populated(&self, mut each: impl FnMut(&Slot<U>)) {
        let _: Option<()> = self.find_populated(|source| {
            each(source);
            None
        });
    }
}
