//! Memory behind a live block, which becomes longer: what is free there, and what is mapped behind that.

use super::block::UNIT_SHIFT;
use super::core::Pool;
use super::mapping::MapLimits;
use super::ready::{Stamps, note_stamp};
use super::request::{Above, Behind, Request, TakenBlock, Target};
use super::upstream::{Failure, Mapped, Upstream};
use crate::heap::Taken;
use std::cell::Cell;

/// What a look above a block has found.
pub(super) enum LookedAbove {
    /// What it needed, which it has taken.
    Enough,
    Open(Open),
}

/// Addresses where memory can be mapped behind a block and what is free above it.
pub(super) struct Open {
    end: u64,
    reservation: u32,
    /// The units of memory for it.
    missing: u32,
    /// They were its room before.
    was_room: bool,
}

impl<U: Upstream> Pool<U> {
    /// Maps memory where the request wants it. The caller has asked [`lock_growth`](Self::lock_growth).
    pub(super) fn map(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        limits: MapLimits,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        match &request.target {
            Target::Above(above) => self.map_above(request, mapped, limits, above),
            _ => self.map_for(request, mapped, limits),
        }
    }

    /// Has a block take the free memory above it. Where that is not enough, it takes it only if it `holds` it, and makes
    /// what is behind it its room. `None`, and nothing changes, where something else lies there.
    pub(super) fn look_above(
        &self,
        request: &Request<'_, U>,
        to: &Above<'_, U>,
        holds: bool,
    ) -> Option<LookedAbove> {
        let Above { owner, node, before, least, whole, .. } = *to;
        let ready = |tag, stamp| stamp <= self.ready_for(request, tag);
        let mut heap = owner.heap();
        let above = heap.above(node, ready).ok()?;
        let free = (above.end - above.start) >> UNIT_SHIFT;
        let units = before + u64::from(whole - before).min(free) as u32;
        if units >= least {
            let extended = heap.extend(node, units - before, ready);
            return (extended == Ok(true)).then_some(LookedAbove::Enough);
        }
        let mut addresses = owner.addresses.lock();
        addresses.open_unused(|start, number| heap.is_live_below(start, number));
        let (reservation, missing) = (above.open?, whole - units);
        if addresses.behind(above.end, reservation) < u64::from(missing) << UNIT_SHIFT {
            return None;
        }
        let was_room = addresses.is_room(above.end);
        if holds {
            if heap.extend(node, units - before, ready) != Ok(true) {
                return None;
            }
            addresses.keep(above.end);
        }
        Some(LookedAbove::Open(Open { end: above.end, reservation, missing, was_room }))
    }

    /// Maps memory behind a block that is to be longer. What is free above it is the block's meanwhile, so that none of it
    /// moves; no step waits for the device meanwhile, and a request that is about to be refused
    /// waits for this (INV-POOL-5).
    fn map_above(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        limits: MapLimits,
        above: &Above<'_, U>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let Above { owner, node, before, whole, .. } = *above;
        let Request { slot, stream, align, graph_upto, .. } = *request;
        let taken = TakenBlock {
            owner: owner.id,
            freed_by: request.tag(),
            taken: Taken { node, address: 0, stamp: 0 },
        };
        let _transit = self.in_transit.read();
        let open = match self.look_above(request, above, true) {
            None => return Ok(None),
            Some(LookedAbove::Enough) => return Ok(Some(taken)),
            Some(LookedAbove::Open(open)) => open,
        };
        let Open { end, reservation, missing, was_room } = open;
        let target = Target::Behind(Behind { owner, node, whole, end, reservation });
        let fills_handles = Cell::new(false);
        let behind =
            Request { slot, stream, units: missing, align, graph_upto, fills_handles, target };
        let result = self.map_for(&behind, mapped, limits);
        let mut heap = owner.heap();
        if let Ok(Some(_)) = &result {
            owner.addresses.lock().keep(end + behind.bytes() as u64);
            return result;
        }
        // As it was, but what it took is the stream's by now.
        let _ = heap.shrink(node, before, slot.id, slot.epochs.current());
        let mut addresses = owner.addresses.lock();
        addresses.keep(end);
        if !was_room {
            addresses.open(end);
        }
        result
    }

    /// Has the stream own what it needs of the free memory above a block: what the device is past, and what the policy
    /// lets it wait for.
    pub(super) fn wait_for_above(&self, request: &Request<'_, U>, above: &Above<'_, U>) {
        let Above { owner, node, before, whole, .. } = *above;
        let (mut missing, mut pending) = (whole - before, Stamps::new());
        {
            let heap = owner.heap();
            // Of a block that is live: it was checked.
            for (tag, stamp, units) in heap.free_above(node).into_iter().flatten() {
                if stamp > self.ready_for(request, tag) {
                    note_stamp(&mut pending, tag, stamp);
                }
                missing = missing.saturating_sub(units);
                if missing == 0 {
                    break;
                }
            }
        }
        self.close_and_poll(pending.clone());
        if self.has_waits() {
            for (tag, stamp) in pending {
                // What cannot be waited for stays as it is.
                let _ = self.make_wait(request.slot, request.stream, tag, stamp);
            }
        }
    }
}
