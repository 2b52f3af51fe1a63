//! Which free memory is ready, and the question to the device: what is ready becomes its heap's own, and merges there.
//!
//! What another stream freed into a heap keeps that stream's tag, and merges with nothing else, until
//! somebody sees that it is ready.

use super::block::{SHARED, SlotId};
use super::core::Pool;
use super::placement::Search;
use super::request::{Request, TakenBlock};
use super::slot::Slot;
use super::upstream::Upstream;
use crate::heap::Heap;
use crate::sync::MODELLED;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often and how long the device is polled, at least, before the pool grows, which takes the host
/// longer, and before free memory stays that could go back.
const MIN_POLL_ATTEMPTS: usize = if MODELLED { 1 } else { 16 };
pub(super) const MIN_POLL_TIME: Duration = Duration::from_micros(30);

/// How often the device is polled: once, or for as long as an event takes on a stream that has nothing else to do.
pub(super) struct Polls {
    attempts: usize,
    end: Option<Instant>,
}

impl Polls {
    pub(super) fn once() -> Self {
        Self { attempts: MIN_POLL_ATTEMPTS, end: None }
    }

    pub(super) fn brief<U: Upstream>(upstream: &U) -> Self {
        // Where a device works only when it is asked, time decides nothing: one program does the same each time.
        let end = upstream.works_unasked().then(|| Instant::now() + MIN_POLL_TIME);
        Self { attempts: 0, end }
    }

    /// Whether to poll again, after a poll.
    pub(super) fn again(&mut self) -> bool {
        self.attempts += 1;
        let is_late = |end| MODELLED || Instant::now() >= end;
        self.attempts <= MIN_POLL_ATTEMPTS || !self.end.is_none_or(is_late)
    }
}

/// The latest stamp of each stream's frees.
pub(super) type Stamps = BTreeMap<SlotId, usize>;

impl<U: Upstream> Pool<U> {
    /// The last stamp of a slot's frees that the device has passed.
    pub(super) fn completed_stamp(&self, tag: SlotId) -> usize {
        match tag {
            SHARED => usize::MAX,
            tag => self.slot(tag).map_or(0, |slot| slot.epochs.completed()),
        }
    }

    /// The last stamp of a slot's frees that a request takes without a wait.
    pub(super) fn ready_for(&self, request: &Request<'_, U>, tag: SlotId) -> usize {
        match request.graph_upto {
            // What the stream is ordered after it was before the capture, as was its own (INV-POOL-7).
            Some(upto) if tag == request.slot.id => upto,
            _ => self.ready_stamp(request.slot, tag),
        }
    }

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
    pub(super) fn retag_upto(
        &self,
        heap: &mut Heap,
        tag: SlotId,
        ready: usize,
        slot: &Slot<U>,
    ) -> usize {
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

    /// In a heap of another stream, makes complete what is known to be: then it merges with what other
    /// streams freed, and needs no stream to wait.
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

    /// What is ready merges in each heap, also where several streams freed it: so a handle lies in one free block.
    pub(super) fn merge_ready(&self) {
        self.each_populated(|source| {
            self.retag_ready_as_own(source, &mut source.heap());
        });
    }

    /// Makes the stream's own what others freed into its heap and is ready, and takes a block if there was some.
    pub(super) fn take_ready_own(
        &self,
        request: &Request<'_, U>,
        heap: &mut Heap,
        search: Search,
    ) -> Option<TakenBlock> {
        let slot = request.slot;
        if !self.retag_ready_as_own(slot, heap) {
            return None;
        }
        let taken = self.take_from(request, heap, (slot.id, usize::MAX), search)?;
        Some(TakenBlock { owner: slot.id, freed_by: slot.id, taken })
    }

    /// Asks the device about what other streams freed into the stream's heap, and takes a block where some is ready.
    pub(super) fn poll_own(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let (slot, mut latest) = (request.slot, Stamps::new());
        note_latest(slot, &mut latest);
        latest.remove(&slot.id);
        if latest.is_empty() {
            return None;
        }
        self.close_and_poll(latest);
        self.take_ready_own(request, &mut slot.heap(), Search::Exhaustive)
    }

    /// Closes the epochs of all streams with free memory but one, and asks the device once how far it is. Returns whether it
    /// is past all of them.
    pub(super) fn close_and_poll_all(&self, but: Option<&Slot<U>>) -> bool {
        let mut latest = Stamps::new();
        self.each_populated(|source| note_latest(source, &mut latest));
        but.and_then(|slot| latest.remove(&slot.id));
        self.close_and_poll(latest)
    }

    /// Closes the epochs up to these stamps, and asks the device once how far it is. Returns whether it is past all of them.
    pub(super) fn close_and_poll(&self, latest: Stamps) -> bool {
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
            self.each_heap(|source| free += source.heap().stats().free_bytes as usize);
        }
        (free, self.reserved_bytes().saturating_sub(free))
    }
}

/// Notes the latest stamp of each stream's frees in this heap.
pub(super) fn note_latest<U: Upstream>(source: &Slot<U>, latest: &mut Stamps) {
    let heap = source.heap();
    for tag in heap.tags() {
        note_stamp(latest, tag, heap.latest_bound(tag));
    }
}

/// Notes a stamp of a stream's frees, if there is no later one.
pub(super) fn note_stamp(latest: &mut Stamps, tag: SlotId, stamp: usize) {
    let known = latest.entry(tag).or_default();
    *known = stamp.max(*known);
}
