//! Where large blocks lie in memory that is mapped: in handles that they fill.
//!
//! A handle moves, or goes back, when all of it is free. So a block that lies in a part of a handle keeps the rest of it
//! where it is. A large block takes free memory only where what it keeps so is a small part of its own bytes; else other
//! handles are mapped for it. So what large blocks keep is bounded, whatever the program does.
//!
//! Where nothing can be mapped, such a block lies anywhere: a request is refused for no place.

use super::block::{SlotId, UNIT_SHIFT};
use super::core::Pool;
use super::epochs::ClosedEpochs;
use super::events::emit;
use super::miss_step::MissStep;
use super::remote_frees::Freed;
use super::request::{Request, TakenBlock, Target};
use super::slot::{Slot, report};
use super::upstream::{Upstream, count};
use super::upstream_blocks::UpstreamBlocks;
use crate::heap::{Heap, Taken};
use std::cell::Cell;
use std::iter::once;

/// A block from this size on has handles for itself where it can.
pub(super) const LARGE: u64 = 32 << 20;

/// The part of its bytes that a large block may keep beside itself.
const BESIDE_DIVISOR: u64 = 10;

/// So many handles of a free block are tried as the place where a large block begins.
const PLACES: usize = 64;

/// How long a search in a heap goes on.
#[derive(Clone, Copy)]
pub(super) enum Search {
    /// It may miss what lies behind many blocks that do not serve.
    Short,
    Exhaustive,
}

impl<U: Upstream> Pool<U> {
    pub(super) fn request<'a>(
        &self,
        slot: &'a Slot<U>,
        stream: &'a U::Stream,
        (units, align): (u32, u64),
        graph_upto: Option<usize>,
    ) -> Request<'a, U> {
        // What cannot be mapped elsewhere lies where there is memory.
        let fills = graph_upto.is_none()
            && self.has_placed_blocks(units)
            && self.settings.steps.contains(&MissStep::GrowToMaximum);
        let (fills_handles, target) = (Cell::new(fills), Target::Anywhere);
        Request { slot, stream, units, align, graph_upto, fills_handles, target }
    }

    /// Whether blocks of so many units are placed.
    #[inline(always)]
    pub(super) fn has_placed_blocks(&self, units: u32) -> bool {
        u64::from(units) << UNIT_SHIFT >= LARGE && self.upstream.mapped().is_some()
    }

    /// What a thread keeps for a stream. A large block would keep its handles for nobody.
    pub(super) fn most_cached_bytes(&self) -> u64 {
        let bytes = self.settings.cached_bytes as u64;
        if self.upstream.mapped().is_some() { bytes.min(LARGE - 1) } else { bytes }
    }

    /// Takes a block for the request out of the free memory of a heap that a stream freed, up to a stamp.
    pub(super) fn take_from(
        &self,
        request: &Request<'_, U>,
        heap: &mut Heap,
        (tag, upto): (SlotId, usize),
        search: Search,
    ) -> Option<Taken> {
        let Request { units, align, .. } = *request;
        if request.fills_handles.get() {
            let blocks = self.upstream_blocks.lock();
            let bytes = request.bytes() as u64;
            return heap.allocate_where(tag, units, upto, |start, end| {
                place(&blocks, (start, end), bytes, align)
            });
        }
        match search {
            Search::Short => heap.allocate(tag, units, align, upto),
            Search::Exhaustive => heap.allocate_exhaustive(tag, units, align, upto),
        }
    }

    /// A block of the memory that came into the heap of the request's slot, or lay there. Misses none that serves.
    pub(super) fn take_new(&self, request: &Request<'_, U>, heap: &mut Heap) -> Option<TakenBlock> {
        let (owner, freed_by) = (request.slot.id, request.tag());
        let taken = self.take_from(request, heap, (freed_by, usize::MAX), Search::Exhaustive)?;
        Some(TakenBlock { owner, freed_by, taken })
    }

    /// Counts a steal and emits it. The caller has no lock of a slot.
    pub(super) fn count_steal(
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

    /// Frees a block as it was before it was found: no nearer to being ready.
    pub(super) fn put_back(&self, found: &TakenBlock) {
        let TakenBlock { owner, freed_by, taken: Taken { node, stamp, .. } } = *found;
        if let Some(owner) = self.slot(owner) {
            report(owner.free(Freed { node, freed_by, stamp }));
        }
    }

    /// What of the free memory below and above some addresses is whole handles.
    pub(super) fn whole_handles_beside(
        &self,
        (start, end): (u64, u64),
        (below, above): (u64, u64),
    ) -> (u64, u64) {
        let blocks = self.upstream_blocks.lock();
        let first = start - below;
        let first = match blocks.start_of(first) {
            Some(begin) if begin < first => blocks.end_of(first).unwrap_or(start),
            _ => first,
        };
        let last = end + above;
        let last = match blocks.end_of(last.saturating_sub(1)) {
            Some(finish) if above > 0 && finish > last => blocks.start_of(last).unwrap_or(end),
            _ => last,
        };
        (start.saturating_sub(first), last.saturating_sub(end))
    }
}

/// Where in a range of free memory a block lies in handles that it fills.
fn place<B>(
    blocks: &UpstreamBlocks<B>,
    (start, end): (u64, u64),
    bytes: u64,
    align: u64,
) -> Option<u64> {
    let last = end.checked_sub(bytes)?;
    let handles = blocks.within(start, end).map(|(_, begin, _)| begin).take(PLACES);
    once(start).chain(handles).find(|&at| {
        let kept = || {
            let (first, past) = (blocks.start_of(at)?, blocks.end_of(at + bytes - 1)?);
            Some(past - first - bytes)
        };
        at <= last
            && at.is_multiple_of(align)
            && kept().is_some_and(|kept| kept <= bytes / BESIDE_DIVISOR)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream_blocks::{Origin, UpstreamBlock};

    /// Handles of 64, 4, 4, 4 and 64, from 1,000 on.
    fn handles() -> UpstreamBlocks<()> {
        let mut blocks = UpstreamBlocks::new();
        let mut address = 1000;
        for bytes in [64, 4, 4, 4, 64] {
            blocks.insert(1, UpstreamBlock { address, bytes, origin: Origin::Block(()) });
            address += bytes;
        }
        blocks
    }

    #[test]
    fn a_block_lies_where_it_keeps_little_beside_itself() {
        let blocks = handles();
        let found = |range, bytes| place(&blocks, range, bytes, 1);
        assert_eq!(found((1000, 1140), 64), Some(1000));
        assert_eq!(found((1000, 1140), 58), None, "a handle of 64 keeps 6, more than 5");
        assert_eq!(found((1000, 1140), 59), Some(1000));
        assert_eq!(found((1001, 1140), 59), Some(1001), "1 of the first handle and 4 behind");
        assert_eq!(found((1010, 1140), 12), Some(1064));
        assert_eq!(found((1010, 1140), 11), Some(1064), "1 is a tenth");
        assert_eq!(found((1010, 1140), 10), None);
        assert_eq!(found((1010, 1075), 12), None);
        assert_eq!(place(&blocks, (1000, 1140), 12, 64), None, "1,064 is no multiple");
    }
}
