//! Memory that other streams freed: ready, soon complete, or behind a wait.

use super::block::SlotId;
use super::core::Pool;
use super::epochs::ClosedEpochs;
use super::events::emit;
use super::miss_step::MissStep;
use super::placement::Search;
use super::remote_frees::Freed;
use super::request::{Request, TakenBlock};
use super::slot::{Slot, report};
use super::upstream::{Failure, Upstream, count};
use crate::debug_log::range;
use crate::heap::Taken;
use crate::sync::{MODELLED, trusted};
use std::time::{Duration, Instant};

/// How often and how long the device is polled, at least, before the pool grows, which takes the host
/// longer.
pub(super) const MIN_POLL_ATTEMPTS: usize = if MODELLED { 1 } else { 16 };
pub(super) const MIN_POLL_TIME: Duration = Duration::from_micros(30);

/// Places where a miss saw memory that it may not take yet.
const MAX_CANDIDATES: usize = 8;

/// Free memory large enough, of a stream that the asking one is not ordered after.
#[derive(Clone, Copy)]
struct Candidate {
    owner: SlotId,
    freed_by: SlotId,
    /// No free block of the tag has an earlier stamp.
    oldest: usize,
    /// None has a later one.
    latest: usize,
}

#[derive(Default)]
pub(super) struct Candidates([Option<Candidate>; MAX_CANDIDATES]);

impl Candidates {
    fn push(&mut self, candidate: Candidate) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(candidate);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().flatten().next().is_none()
    }

    /// Whether there are some, and one stream freed all.
    pub(super) fn is_of_one_stream(&self) -> bool {
        let mut streams = self.iter().map(|candidate| candidate.freed_by);
        let first = streams.next();
        first.is_some() && streams.all(|other| Some(other) == first)
    }

    fn iter(&self) -> impl Iterator<Item = Candidate> + '_ {
        self.0.iter().flatten().copied()
    }
}

impl<U: Upstream> Pool<U> {
    /// Scans heaps for memory that needs no wait, and notes where there is some that does: all heaps, or
    /// until so many tags were seen.
    pub(super) fn scan(
        &self,
        request: &Request<'_, U>,
        candidates: &mut Candidates,
        limit: usize,
    ) -> Option<TakenBlock> {
        let sources = self.populated.snapshot()?;
        // Relaxed: where two begin at one place, one scans in vain.
        let begin = self.next_source.load(trusted::Ordering::Relaxed);
        let mut seen = 0;
        for step in 0..sources.len() {
            let place = (begin + step) % sources.len();
            if seen >= limit {
                self.next_source.store(place, trusted::Ordering::Relaxed);
                break;
            }
            let Some(source) = self.slot(sources[place]) else { continue };
            if let Some(found) = self.scan_heap(request, source, candidates, &mut seen) {
                return Some(found);
            }
        }
        None
    }

    /// A block of one heap that needs no wait. Notes where there is one that does.
    fn scan_heap(
        &self,
        request: &Request<'_, U>,
        source: &Slot<U>,
        candidates: &mut Candidates,
        seen: &mut usize,
    ) -> Option<TakenBlock> {
        let Request { slot, units, .. } = *request;
        *seen += 1;
        let mut heap = source.heap();
        let is_own = source.id == slot.id;
        if is_own && self.retag_ready_as_own(slot, &mut heap) {
            let own = self.take_from(request, &mut heap, (slot.id, usize::MAX), Search::Short);
            if let Some(taken) = own {
                return Some(TakenBlock { owner: slot.id, freed_by: slot.id, taken });
            }
        }
        if !is_own {
            self.retag_complete(source, &mut heap);
        }
        let found = heap.find_tag(|heap, tag| {
            *seen += 1;
            if heap.largest_bound(tag) < units || tag == slot.id && is_own {
                return None;
            }
            let ready = self.ready_stamp(slot, tag);
            let oldest = heap.oldest_bound(tag);
            if oldest <= ready
                && let Some(taken) = self.take_from(request, heap, (tag, ready), Search::Short)
            {
                return Some((tag, taken));
            }
            let latest = heap.latest_bound(tag);
            candidates.push(Candidate { owner: source.id, freed_by: tag, oldest, latest });
            None
        });
        drop(heap);
        let (freed_by, taken) = found?;
        Some(self.count_steal(request, source.id, freed_by, taken, "ordered"))
    }

    /// Counts a steal and emits it. The caller has no lock of a slot.
    fn count_steal(
        &self,
        request: &Request<'_, U>,
        owner: SlotId,
        freed_by: SlotId,
        taken: Taken,
        how: &'static str,
    ) -> TakenBlock {
        if owner != request.slot.id {
            request.slot.recent_owners.insert(owner);
        }
        if freed_by != request.slot.id {
            count(&self.counters().steals);
            let id_of = |record: &ClosedEpochs<U>| record.stream.as_ref().map(U::id);
            let source = self.slot(freed_by);
            emit!(self, {
                stream = U::id(request.stream),
                from = source.and_then(|source| id_of(&source.epochs.lock())).unwrap_or(0),
                bytes = request.bytes(), how,
            }, "took a block of another stream");
        }
        TakenBlock { owner, freed_by, taken }
    }

    /// Polls the device for the candidates, and closes the epochs of their streams, so that this miss
    /// or the next can see them complete. Where the pool could grow instead, which takes the host a
    /// hundred times longer, it polls more than once.
    pub(super) fn record_and_poll(
        &self,
        request: &Request<'_, U>,
        candidates: &Candidates,
    ) -> Option<TakenBlock> {
        candidates.iter().next()?;
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
        let may_grow = self.settings.steps.contains(&MissStep::Grow)
            && self.fits(request, self.settings.limits.soft_limit());
        // Where a device works only when it is asked, time decides nothing: one program does the same each time.
        let end = self.upstream.works_unasked().then(|| Instant::now() + MIN_POLL_TIME);
        for attempt in 0.. {
            let is_late = |end| MODELLED || Instant::now() >= end;
            let long = attempt >= MIN_POLL_ATTEMPTS && end.is_none_or(is_late);
            let is_last = !may_grow || long;
            for candidate in candidates.iter() {
                let Some(source) = self.slot(candidate.freed_by) else { continue };
                // At first only what closing left open.
                let wanted = if attempt > 0 { candidate.latest } else { candidate.oldest };
                if source.epochs.completed() < wanted {
                    source.epochs.poll(&self.upstream, &mut source.epochs.lock());
                }
                let completed = source.epochs.completed();
                let Some(owner) = self.slot(candidate.owner) else { continue };
                if completed < candidate.oldest {
                    continue;
                }
                let complete = (candidate.freed_by, completed);
                let taken = self.take_from(request, &mut owner.heap(), complete, Search::Short);
                if let Some(taken) = taken {
                    let Candidate { owner, freed_by, .. } = candidate;
                    return Some(self.count_steal(request, owner, freed_by, taken, "complete"));
                }
            }
            if is_last {
                break;
            }
        }
        None
    }

    /// Takes one block of another stream and makes the request's stream wait for it.
    pub(super) fn steal_one_with_wait(
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
                    self.retag_for_request(request, owner_slot);
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

    /// Frees a block as it was before it was found: no nearer to being ready.
    pub(super) fn put_back(&self, found: &TakenBlock) {
        let TakenBlock { owner, freed_by, taken: Taken { node, stamp, .. } } = *found;
        if let Some(owner) = self.slot(owner) {
            report(owner.free(Freed { node, freed_by, stamp }));
        }
    }
}
