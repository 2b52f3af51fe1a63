//! A mechanism of a miss: the last uses of free memory are waited for. The device is asked whether it is past them, the
//! request's stream waits for the streams that made them, or the host does.

use super::block::SHARED;
use super::core::Pool;
use super::look::{Candidate, Candidates};
use super::placement::Search;
use super::ready::note_latest;
use super::request::{Request, TakenBlock};
use super::slot::Slot;
use super::upstream::{Failure, Upstream};
use crate::debug_log::range;
use std::cmp::Reverse;
use std::collections::BTreeMap;

impl<U: Upstream> Pool<U> {
    /// Closes the epochs of the candidates' streams, so that this miss or the next can see them complete.
    pub(super) fn close_candidates(&self, candidates: &Candidates) {
        for candidate in candidates.iter() {
            let Some(source) = self.slot(candidate.freed_by) else { continue };
            if source.epochs.completed() < candidate.latest && source.recording_graph() == 0 {
                let mut record = source.epochs.lock();
                if record.newest() >= candidate.oldest {
                    source.epochs.poll(&self.upstream, &mut record);
                }
                // A failure leaves things as they are: the memory is not ready.
                let _ = source.epochs.ensure_closed(&self.upstream, &mut record, candidate.latest);
            }
        }
    }

    /// Asks the device about the candidates.
    pub(super) fn poll_candidates(&self, candidates: &Candidates) {
        for candidate in candidates.iter() {
            let Some(source) = self.slot(candidate.freed_by) else { continue };
            if source.epochs.completed() < candidate.latest {
                source.epochs.poll(&self.upstream, &mut source.epochs.lock());
            }
        }
    }

    /// Takes one block of another stream and makes the request's stream wait for it.
    pub(super) fn wait_for_one(
        &self,
        request: &Request<'_, U>,
        candidates: &Candidates,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let mut failed = None;
        for Candidate { owner, freed_by, .. } in candidates.iter() {
            let Some(owner_slot) = self.slot(owner) else { continue };
            let of_all = (freed_by, usize::MAX);
            // Taken first, so that no other miss takes it; nothing uses it until the order is made.
            let taken = self.take_from(request, &mut owner_slot.heap(), of_all, Search::Exhaustive);
            let Some(taken) = taken else { continue };
            let _range = range(c"pool: wait for a stream", request.bytes());
            match self.make_wait(request.slot, request.stream, freed_by, taken.stamp) {
                Ok(()) => {
                    self.retag_waited_for(request, owner_slot);
                    return Ok(Some(self.count_steal(request, owner, freed_by, taken, "waited")));
                }
                Err(error) => {
                    self.put_back(&TakenBlock { owner, freed_by, taken });
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Makes the request's stream own what it is ordered after in this heap, by a wait: then it merges.
    fn retag_waited_for(&self, request: &Request<'_, U>, source: &Slot<U>) {
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

    /// Makes the request's stream wait for all that freed memory in one heap, so that all of it there
    /// merges. The heaps with the most free memory come first.
    pub(super) fn wait_for_heap(
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
        heaps.sort_unstable_by_key(|&heap| Reverse(heap));
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

    /// As [`wait_for_heap`](Self::wait_for_heap), of all heaps. Returns the last error.
    pub(super) fn wait_for_all(&self, request: &Request<'_, U>) -> Result<(), Failure<U::Error>> {
        let mut waited = Ok(());
        self.each_populated(|source| {
            if let Err(error) = self.wait_and_merge(request, source) {
                waited = Err(error);
            }
        });
        waited
    }

    /// Makes the request's stream wait for all that freed memory in a heap, which is its own then. Returns the last error.
    fn wait_and_merge(
        &self,
        request: &Request<'_, U>,
        source: &Slot<U>,
    ) -> Result<(), Failure<U::Error>> {
        let mut latest = BTreeMap::new();
        note_latest(source, &mut latest);
        // Its own merges as it is, and with a later stamp it would never be complete.
        latest.remove(&request.slot.id);
        let mut waited = Ok(());
        latest.retain(|tag, stamp| {
            let made = self.make_wait(request.slot, request.stream, *tag, *stamp);
            made.map_err(|error| waited = Err(error)).is_ok()
        });
        if !latest.is_empty() {
            let mut heap = source.heap();
            for (tag, stamp) in latest {
                self.retag_upto(&mut heap, tag, stamp, request.slot);
            }
        }
        waited
    }

    /// Moves what is the stream's own in all heaps, and complete in the shared one, to the stream's heap: there it is in one
    /// piece where its addresses are. The caller writes `in_transit`.
    pub(super) fn gather_own(&self, request: &Request<'_, U>) {
        let slot = request.slot;
        let mut pieces = Vec::new();
        self.each_populated(|source| {
            if source.id != slot.id {
                source.heap().extract_all(slot.id, usize::MAX, &mut pieces);
            }
        });
        if let Some(shared) = self.slot(SHARED) {
            shared.heap().extract_all(SHARED, usize::MAX, &mut pieces);
        }
        let mut heap = slot.heap();
        pieces.into_iter().for_each(|piece| self.add(slot, &mut heap, slot.id, piece));
    }
}
