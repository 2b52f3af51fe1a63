//! One request on its way through the steps of a miss.

use super::block::{SHARED, SlotId, UNIT_SHIFT};
use super::slot::Slot;
use super::upstream::Upstream;
use crate::heap::{Node, Taken};
use std::cell::Cell;

pub(super) struct Request<'a, U: Upstream> {
    pub(super) slot: &'a Slot<U>,
    pub(super) stream: &'a U::Stream,
    pub(super) units: u32,
    /// The pool's alignment at least.
    pub(super) align: u64,
    /// Of a request for a graph that the stream records: `GraphMemory::upto`.
    pub(super) graph_upto: Option<usize>,
    /// Whether it takes no memory but of handles that it fills ([`placement`](super::placement)).
    pub(super) fills_handles: Cell<bool>,
    pub(super) target: Target<'a, U>,
}

/// Where the memory of a request is to be.
pub(super) enum Target<'a, U: Upstream> {
    /// Wherever it fits.
    Anywhere,
    /// Where memory is mapped, in front of addresses that are free for more. Whole granules.
    Growable,
    /// In a live block, which becomes longer: free memory above it, and what is mapped behind that.
    Above(Above<'a, U>),
    /// Where memory is mapped, behind a live block, which takes it. Whole granules.
    Behind(Behind<'a, U>),
}

/// The block that is to be longer.
pub(super) struct Above<'a, U: Upstream> {
    /// Whose heap has the block.
    pub(super) owner: &'a Slot<U>,
    pub(super) node: Node,
    /// The units that it has, needs at least, and should have.
    pub(super) before: u32,
    pub(super) least: u32,
    pub(super) whole: u32,
    /// Nothing waits for it.
    pub(super) is_wish: bool,
}

/// The block that memory is mapped behind.
pub(super) struct Behind<'a, U: Upstream> {
    /// Whose heap has the block.
    pub(super) owner: &'a Slot<U>,
    pub(super) node: Node,
    /// The units that it has then.
    pub(super) whole: u32,
    /// Where it ends, and nothing of the heap's is.
    pub(super) end: u64,
    /// The number of its reservation.
    pub(super) reservation: u32,
}

/// Where memory was found.
pub(super) struct TakenBlock {
    /// The slot whose heap the block is of.
    pub(super) owner: SlotId,
    /// The tag that the memory had there.
    pub(super) freed_by: SlotId,
    pub(super) taken: Taken,
}

impl<U: Upstream> Request<'_, U> {
    pub(super) fn bytes(&self) -> usize {
        (self.units as usize) << UNIT_SHIFT
    }

    /// The bytes of the block, also where the request is for a part of it.
    pub(super) fn block_bytes(&self) -> usize {
        match &self.target {
            Target::Behind(behind) => (behind.whole as usize) << UNIT_SHIFT,
            _ => self.bytes(),
        }
    }

    /// The units of memory that serves wherever it lies, if it is aligned to `granted`.
    pub(super) fn padded_units(&self, granted: u64) -> Option<u32> {
        let padding = self.align.saturating_sub(granted) >> UNIT_SHIFT;
        self.units.checked_add(u32::try_from(padding).unwrap_or(u32::MAX))
    }

    /// The bytes of a fresh block of upstream that serves for sure.
    pub(super) fn padded_bytes(&self, granted: u64) -> Option<usize> {
        (self.padded_units(granted)? as usize).checked_mul(1 << UNIT_SHIFT)
    }

    /// The tag of memory that comes into the slot's heap for this request. Memory for a graph stays
    /// complete: merged with what the stream freed since the capture began it would not be the
    /// graph's to take (INV-POOL-7).
    pub(super) fn tag(&self) -> SlotId {
        if self.graph_upto.is_some() { SHARED } else { self.slot.id }
    }

    /// The slot whose heap gets memory that is mapped for it.
    pub(super) fn heap_slot(&self) -> &Slot<U> {
        match &self.target {
            Target::Above(above) => above.owner,
            Target::Behind(behind) => behind.owner,
            Target::Anywhere | Target::Growable => self.slot,
        }
    }

    /// Whether memory serves wherever it lies.
    pub(super) fn is_anywhere(&self) -> bool {
        matches!(self.target, Target::Anywhere)
    }

    /// Whether the host may wait for it. Not for what memory elsewhere serves as well, which is asked for next.
    pub(super) fn may_block(&self) -> bool {
        match &self.target {
            Target::Anywhere => true,
            Target::Growable => false,
            Target::Above(Above { is_wish, .. }) => !is_wish,
            Target::Behind(_) => false,
        }
    }

    /// Whether its stream may wait for others.
    pub(super) fn may_wait(&self) -> bool {
        !matches!(&self.target, Target::Above(Above { is_wish: true, .. }))
    }
}
