//! The first mechanism of a miss: a look for memory that needs no wait, in the heap of the stream, in the shared one, and in
//! those of other streams.

use super::block::{SHARED, SlotId, UNIT_SHIFT};
use super::core::Pool;
use super::placement::Search;
use super::request::{Request, TakenBlock};
use super::slot::Slot;
use super::upstream::Upstream;
use crate::heap::Piece;
use crate::sync::trusted;

/// Tags of heaps that a miss of a small block looks at for memory that needs no wait. The next one goes on
/// behind them.
const SCAN_LIMIT: usize = 128;

/// The most bytes of a small block. A larger one is looked for in all heaps: where large blocks lay in any heap
/// that came first, pools grew by more (decision 7).
const MAX_SMALL: usize = 256 << 10;

/// The least that the shared heap gives a stream's, where it has as much.
const LEAST_REFILL: u64 = 2 << 20;
/// The part of the shared heap that a stream's gets: the other streams come, too.
const REFILL_DIVISOR: u64 = 16;

/// Places where a miss saw memory that it may not take yet.
const MAX_CANDIDATES: usize = 8;

/// Free memory large enough, of a stream that the asking one is not ordered after.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) owner: SlotId,
    pub(super) freed_by: SlotId,
    /// No free block of the tag has an earlier stamp.
    pub(super) oldest: usize,
    /// None has a later one.
    pub(super) latest: usize,
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

    pub(super) fn iter(&self) -> impl Iterator<Item = Candidate> + '_ {
        self.0.iter().flatten().copied()
    }
}

impl<U: Upstream> Pool<U> {
    /// A block of memory that needs no wait, wherever it lies.
    pub(super) fn look(&self, request: &Request<'_, U>, search: Search) -> Option<TakenBlock> {
        let found = self.take_own(request).or_else(|| self.refill_from_shared(request));
        found.or_else(|| self.scan_all(request, search))
    }

    /// As [`look`](Self::look), and misses none that serves. The caller writes `in_transit` (INV-POOL-5).
    pub(super) fn look_under_lock(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let shared = || self.refill_under_lock(request, self.slot(SHARED)?);
        let found = self.take_own(request).or_else(shared);
        found.or_else(|| self.scan_all(request, Search::Exhaustive))
    }

    /// A block of the stream's own free memory, of before the capture if it records a graph.
    pub(super) fn take_own(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let Request { slot, graph_upto, .. } = *request;
        let own = (slot.id, graph_upto.unwrap_or(usize::MAX));
        let taken = self.take_from(request, &mut slot.heap(), own, Search::Exhaustive)?;
        Some(TakenBlock { owner: slot.id, freed_by: slot.id, taken })
    }

    /// Memory that the stream freed into another's heap, for a small block.
    pub(super) fn take_from_recent_owners(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let Request { slot, units, align, .. } = *request;
        if request.bytes() > MAX_SMALL {
            return None;
        }
        slot.recent_owners.find_map(|owner| {
            let taken = self.slot(owner)?.heap().allocate(slot.id, units, align, usize::MAX)?;
            Some(TakenBlock { owner, freed_by: slot.id, taken })
        })
    }

    /// Moves complete memory from the shared heap into the stream's, more than is asked, so that the
    /// shared heap is seldom needed.
    pub(super) fn refill_from_shared(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let shared = self.slot(SHARED).filter(|shared| shared.shared_heap_may_have_free())?;
        let _transit = self.in_transit.read();
        self.refill_under_lock(request, shared)
    }

    /// As [`refill_from_shared`](Self::refill_from_shared). The caller has `in_transit` (INV-POOL-5).
    fn refill_under_lock(&self, request: &Request<'_, U>, shared: &Slot<U>) -> Option<TakenBlock> {
        let least = request.padded_units(self.settings.alignment)?;
        let piece = {
            let mut heap = shared.heap();
            let most = heap.largest_bound(SHARED);
            if most < least {
                shared.set_shared_heap_may_have_free(most > 0);
                return None;
            }
            let units = match request.graph_upto {
                Some(_) => least,
                None => {
                    let part = (heap.stats().free_bytes / REFILL_DIVISOR).max(LEAST_REFILL);
                    let part = u32::try_from(part >> UNIT_SHIFT).unwrap_or(u32::MAX);
                    // What stays behind is aligned, too.
                    least.max(part & !((self.settings.alignment >> UNIT_SHIFT) as u32 - 1))
                }
            };
            let is_mapped = self.upstream.mapped().is_some();
            let most = if is_mapped { u32::MAX } else { units };
            let piece = heap.extract(SHARED, least, most, usize::MAX)?;
            let wanted = piece.address + (u64::from(units) << UNIT_SHIFT);
            match is_mapped.then(|| self.upstream_blocks.lock().end_of(wanted - 1)).flatten() {
                // No handle lies in two heaps, which could not give it back.
                Some(end) if end < piece.address + piece.bytes => {
                    let bytes = end - piece.address;
                    let rest = Piece { address: end, bytes: piece.bytes - bytes, ..piece };
                    self.add(shared, &mut heap, SHARED, rest);
                    Piece { bytes, ..piece }
                }
                _ => piece,
            }
        };
        let mut heap = request.slot.heap();
        self.add(request.slot, &mut heap, request.tag(), Piece { stamp: 0, ..piece });
        self.take_new(request, &mut heap)
    }

    /// Moves all memory of the shared heap into the stream's.
    pub(super) fn drain_shared_into_own(&self, request: &Request<'_, U>) {
        let Some(shared) = self.slot(SHARED) else { return };
        let _transit = self.in_transit.read();
        let mut pieces = Vec::new();
        shared.heap().extract_all(SHARED, usize::MAX, &mut pieces);
        let (slot, tag) = (request.slot, request.tag());
        let mut heap = slot.heap();
        pieces.into_iter().for_each(|piece| self.add(slot, &mut heap, tag, piece));
    }

    /// Scans heaps for memory that needs no wait, and notes where there is some that does: all heaps, or
    /// for a small block until so many tags were seen.
    pub(super) fn scan(
        &self,
        request: &Request<'_, U>,
        candidates: &mut Candidates,
    ) -> Option<TakenBlock> {
        let limit = if request.bytes() > MAX_SMALL { usize::MAX } else { SCAN_LIMIT };
        self.scan_some(request, candidates, limit, Search::Short)
    }

    /// As [`scan`](Self::scan), of all heaps.
    fn scan_all(&self, request: &Request<'_, U>, search: Search) -> Option<TakenBlock> {
        self.scan_some(request, &mut Candidates::default(), usize::MAX, search)
    }

    pub(super) fn scan_some(
        &self,
        request: &Request<'_, U>,
        candidates: &mut Candidates,
        limit: usize,
        search: Search,
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
            if let Some(found) = self.scan_heap(request, source, candidates, search, &mut seen) {
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
        search: Search,
        seen: &mut usize,
    ) -> Option<TakenBlock> {
        let Request { slot, units, graph_upto, .. } = *request;
        *seen += 1;
        let mut heap = source.heap();
        match source.id == slot.id {
            // Merged with what the stream freed since the capture began it would not be the graph's (INV-POOL-7).
            _ if graph_upto.is_some() => {}
            false => self.retag_complete(source, &mut heap),
            true => {
                let own = self.take_ready_own(request, &mut heap, search);
                if own.is_some() {
                    return own;
                }
            }
        }
        let found = heap.find_tag(|heap, tag| {
            *seen += 1;
            // Its own in its own heap has been looked at.
            if heap.largest_bound(tag) < units || tag == slot.id && source.id == slot.id {
                return None;
            }
            let ready = self.ready_for(request, tag);
            let oldest = heap.oldest_bound(tag);
            if oldest <= ready
                && let Some(taken) = self.take_from(request, heap, (tag, ready), search)
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

    /// A block of memory that was a candidate, of streams that have passed it since.
    pub(super) fn take_complete(
        &self,
        request: &Request<'_, U>,
        candidates: &Candidates,
    ) -> Option<TakenBlock> {
        candidates.iter().find_map(|Candidate { owner, freed_by, oldest, .. }| {
            let completed = self.completed_stamp(freed_by);
            let source = self.slot(owner).filter(|_| completed >= oldest)?;
            let complete = (freed_by, completed);
            let taken = self.take_from(request, &mut source.heap(), complete, Search::Short)?;
            Some(self.count_steal(request, owner, freed_by, taken, "complete"))
        })
    }
}
