//! Blocks that change their size where they are, where memory is mapped.
//!
//! A block takes what is free above it, and then has memory mapped behind it, if the addresses there are free. From then
//! on they are its room ([`Addresses`](super::addresses::Addresses)): nothing else is mapped there while it lives. Who
//! expects a block to grow asks for one at the beginning of addresses for all memory of the device.

use super::above::LookedAbove;
use super::block::{Block, POOL_SHIFT, UNIT_SHIFT, node_of, owner_of};
use super::core::Pool;
use super::request::{Above, Request, Target};
use super::room::ROOM_DIVISOR;
use super::slot::Slot;
use super::upstream::{Failure, Mapped, Upstream};
use crate::debug_log::defer_events;
use crate::heap::Node;
use std::cell::Cell;

/// A live block whose token and size the pool has checked.
struct Checked<'a, U: Upstream> {
    owner: &'a Slot<U>,
    node: Node,
    units: u32,
}

impl<U: Upstream> Pool<U> {
    /// A block of at least `bytes` bytes, aligned to `align`, for work on `stream`, with room to grow into. `None` where
    /// the pool has no such blocks, or no addresses for one.
    pub fn allocate_growable(
        &self,
        stream: &U::Stream,
        stream_id: u64,
        bytes: usize,
        align: u64,
    ) -> Result<Option<Block>, Failure<U::Error>> {
        let Some(mapped) = self.upstream.mapped() else { return Ok(None) };
        let granularity = mapped.granularity();
        if (bytes as u64) < granularity || align > granularity {
            return Ok(None);
        }
        let bytes = bytes.checked_next_multiple_of(granularity as usize);
        let Some(units) = bytes.and_then(|bytes| self.aligned_units(bytes)) else {
            return Ok(None);
        };
        self.require_awake()?;
        let slot = self.slot_of(stream, stream_id)?;
        // A graph's memory is the graph's: it comes another way.
        if slot.recording_graph() != 0 || self.upstream.is_capturing(stream)? {
            return Ok(None);
        }
        self.free_deferred_graphs();
        let _deferred = defer_events();
        if let Some(block) = self.allocate_in_room(slot, mapped, units) {
            return Ok(Some(block));
        }
        // Without a place no step helps. Another thread may take this one, and then nothing waits for it either.
        if !self.make_growable_place(slot, mapped, u64::from(units) << UNIT_SHIFT) {
            return Ok(None);
        }
        let align = align.max(self.settings.alignment);
        let target = Target::Growable;
        let fills_handles = Cell::new(false);
        let request =
            Request { slot, stream, units, align, graph_upto: None, fills_handles, target };
        let found = match self.take_steps(&request, None) {
            Ok(found) => found,
            // Memory that lies elsewhere may serve.
            Err(Failure::Exhausted(_)) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let block = self.make_block(slot.id, found.taken.node, found.taken.address, units);
        slot.addresses.lock().keep(block.address + block.bytes as u64);
        Ok(Some(block))
    }

    /// A block of the stream's own free memory that has room behind it, as a former one has left it: without a driver call.
    fn allocate_in_room(&self, slot: &Slot<U>, mapped: Mapped<'_, U>, units: u32) -> Option<Block> {
        let (bytes, room) = (u64::from(units) << UNIT_SHIFT, self.room(mapped, ROOM_DIVISOR));
        let granularity = mapped.granularity();
        let mut heap = slot.heap();
        let mut addresses = slot.addresses.lock();
        let free = heap.free_blocks_from(bytes).filter(|it| it.tag == slot.id).find(|it| {
            let number = heap.number_below(it.end());
            let behind = number.map_or(0, |number| addresses.behind(it.end(), number));
            it.address.is_multiple_of(granularity)
                && it.bytes.saturating_add(behind) >= room.max(bytes + granularity)
        })?;
        let taken = heap.allocate_from(free, units)?;
        if free.bytes == bytes {
            addresses.keep(free.end());
        }
        Some(self.make_block(slot.id, taken.node, taken.address, units))
    }

    /// Has a block be at least `bytes` bytes long where it is, for work on `stream`: whole granules, where memory is mapped
    /// for it. Whether it is; if not, it is as it was. Nothing waits for what is but a wish, and nothing is said to lack for it.
    pub fn extend(
        &self,
        stream: &U::Stream,
        stream_id: u64,
        block: &mut Block,
        bytes: usize,
        is_wish: bool,
    ) -> Result<bool, Failure<U::Error>> {
        let Some(mapped) = self.upstream.mapped() else { return Ok(false) };
        let granularity = mapped.granularity();
        let Some(Checked { owner, node, units: before }) = self.check(block) else {
            return Ok(false);
        };
        let end = block.address.checked_add(bytes as u64);
        let end = end.and_then(|end| end.checked_next_multiple_of(granularity));
        // Of whole granules, and just enough.
        let whole = end.and_then(|end| self.aligned_units((end - block.address) as usize));
        let sizes = self.aligned_units(bytes).zip(whole);
        let Some((least, whole)) = sizes.filter(|_| bytes as u64 >= granularity) else {
            return Ok(false);
        };
        if least <= before {
            return Ok(true);
        }
        self.require_awake()?;
        let slot = self.slot_of(stream, stream_id)?;
        let graph = slot.recording_graph();
        let graph_upto = self.graphs.lock().upto(graph);
        if graph_upto.is_none() && (graph != 0 || self.upstream.is_capturing(stream)?) {
            return Ok(false);
        }
        self.free_deferred_graphs();
        let _deferred = defer_events();
        let above = Above { owner, node, before, least, whole, is_wish };
        let request = Request {
            slot,
            stream,
            units: whole - before,
            align: self.settings.alignment,
            graph_upto,
            fills_handles: Cell::new(false),
            target: Target::Above(above),
        };
        let Target::Above(above) = &request.target else { return Ok(false) };
        let mut found = self.look_above(&request, above, false);
        if found.is_none() {
            // Addresses behind it may have been left by memory that moved, and memory there by other streams.
            self.unmap_vacated(mapped);
            if graph_upto.is_none() && !is_wish {
                self.wait_for_above(&request, above);
            }
            found = self.look_above(&request, above, false);
        }
        let Some(found) = found else { return Ok(false) };
        if let LookedAbove::Open(_) = found {
            match self.take_steps(&request, None) {
                Ok(_) => {}
                // Another thread has the place by now, or nobody waits for it: it is no lack of memory.
                Err(Failure::Exhausted(_))
                    if is_wish || self.look_above(&request, above, false).is_none() =>
                {
                    return Ok(false);
                }
                Err(failure) => return Err(failure),
            }
        }
        let Some(units) = owner.heap().live_units(node) else { return Ok(false) };
        block.bytes = (units as usize) << UNIT_SHIFT;
        Ok(true)
    }

    /// Whether [`shrink`](Self::shrink) would make the block smaller. Less than a granule had better lie elsewhere.
    pub fn can_shrink(&self, stream_id: u64, block: &Block, bytes: usize) -> bool {
        let Some(mapped) = self.upstream.mapped() else { return false };
        let units = self.aligned_units(bytes).filter(|_| bytes as u64 >= mapped.granularity());
        let is_smaller = self.check(block).zip(units).is_some_and(|(it, units)| units < it.units);
        // A graph may use all of it.
        is_smaller && !self.is_kept_for_graph(stream_id, block)
    }

    /// Has a block keep its first bytes, and frees the others.
    ///
    /// # Safety
    ///
    /// What uses the others is ordered before this call on `stream`.
    pub unsafe fn shrink(
        &self,
        stream: &U::Stream,
        stream_id: u64,
        block: &mut Block,
        bytes: usize,
    ) -> Result<bool, Failure<U::Error>> {
        let slot = self.slot_of(stream, stream_id)?;
        let Some(units) = self.aligned_units(bytes) else { return Ok(false) };
        let Some(Checked { owner, node, .. }) = self.check(block) else { return Ok(false) };
        let shrunk = owner.heap().shrink(node, units, slot.id, slot.epochs.current());
        if shrunk == Ok(true) {
            block.bytes = (units as usize) << UNIT_SHIFT;
        }
        Ok(shrunk == Ok(true))
    }

    fn slot_of(&self, stream: &U::Stream, id: u64) -> Result<&Slot<U>, Failure<U::Error>> {
        self.upstream.check_device(stream)?;
        let slot = self.find_or_make_slot(stream, id)?;
        self.slot(slot).ok_or(Failure::Crowded)
    }

    /// The block, if it is live, this pool's, and as long as it says. None of a graph pool, whose chunks keep their sizes.
    fn check(&self, block: &Block) -> Option<Checked<'_, U>> {
        let Block { address, token, bytes } = *block;
        let is_own = token >> POOL_SHIFT == u64::from(self.mark);
        let owner = self.slot(owner_of(token)).filter(|_| is_own)?;
        let (node, units) = (node_of(token), u32::try_from(bytes >> UNIT_SHIFT).ok()?);
        let is_seen = owner.heap().live(node) == Ok((address, units));
        is_seen.then_some(Checked { owner, node, units })
    }
}
