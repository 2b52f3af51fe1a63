//! Memory that is apart from its addresses: it is mapped beside what is free in a stream's heap, and comes from where
//! it lies free, in whichever heap, before upstream is asked for more.
//!
//! The unit is a handle of memory. A handle that lies in free memory as a whole can be moved:
//!
//! | a handle lies in | it may be moved to the heap of a stream | its old addresses are unmapped |
//! | --- | --- | --- |
//! | memory that is complete | of any | before it is mapped again |
//! | memory that a stream is ordered after | of that one | when the device is past the old uses: it has both addresses until then |
//! | any other | that is made to wait for the last use | likewise |
//!
//! A move by order alone needs no wait of the host: the new uses come after the old ones on the device.

use super::addresses::{AddressRange, Vacated};
use super::block::{SHARED, SlotId};
use super::core::Pool;
use super::events::emit;
use super::request::{Request, TakenBlock};
use super::slot::Slot;
use super::upstream::{Failure, Mapped, MappedEnd, Upstream, count};
use super::upstream_blocks::{Origin, UpstreamBlock};
use crate::debug_log::range;
use crate::heap::{FreeBlock, Heap, Piece};
use std::collections::BTreeMap;

/// What a slot reserves at first: addresses cost next to nothing, and a heap whose addresses are one range merges all
/// that is free in it.
const LEAST_ADDRESSES: u64 = 256 << 20;

/// A block from this size on has handles for itself where it can, a few: CUDA's calls cost some 50 microseconds a handle,
/// whatever its size.
const LARGE: u64 = 32 << 20;
/// How many, at least.
const HANDLES: u64 = 4;
/// The largest handle: a larger one makes the calls no cheaper.
const LARGEST_HANDLE: u64 = 64 << 20;
/// Smaller blocks share handles, of which a pool has some thirty: each is a part of it that moves as one.
const POOL_HANDLES: u64 = 32;
/// The largest of those. A small block keeps all of one where it is.
const LARGEST_SHARED_HANDLE: u64 = 16 << 20;

/// A handle that was taken out of a heap, where it was free. Its memory is still mapped there.
struct Movable {
    slot: SlotId,
    piece: Piece,
    tag: SlotId,
    order: Order,
}

/// Handles that are mapped nowhere.
type Handles<U> = Vec<UpstreamBlock<<U as Upstream>::Block>>;

/// How the uses of free memory stand to the request's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// The device is past all of them.
    Complete,
    /// The stream is ordered after them.
    Ready,
    /// The stream has to be made to wait for them.
    Pending,
}

/// What a request may take for its memory besides free handles that are ready.
#[derive(Clone, Copy)]
pub(super) struct MapLimits {
    /// Handles that lie free.
    pub(super) moves: bool,
    /// Those that its stream has to wait for.
    pub(super) waits: bool,
    /// New ones, up to so many bytes in all.
    pub(super) new: Option<usize>,
}

impl<U: Upstream> Pool<U> {
    /// Maps memory for the request into its heap. The caller has asked [`lock_growth`](Self::lock_growth).
    pub(super) fn map_for(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        limits: MapLimits,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        self.unmap_vacated(mapped);
        let _range = range(c"pool: map", request.bytes());
        let beside = self.map_at_place(request, mapped, limits, true);
        let is_short = match &beside {
            Ok(found) => found.is_none(),
            Err(Failure::Upstream(error)) => U::is_exhausted(error),
            Err(_) => false,
        };
        // Free memory beside the place does not move there. Elsewhere all of it does.
        match is_short && limits.moves {
            true => self.map_at_place(request, mapped, limits, false),
            false => beside,
        }
    }

    /// Maps memory beside what is free, or by itself.
    fn map_at_place(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        limits: MapLimits,
        beside: bool,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let slot = request.slot;
        let least = match (limits.moves, self.settings.growth_step) {
            (true, _) => mapped.granularity(),
            (false, 0) => self.handle_bytes(request.bytes() as u64, mapped.granularity()),
            (false, step) => (step as u64).next_multiple_of(mapped.granularity()),
        };
        let place = self.take_place(request, mapped, least, beside)?;
        let Some(place) = place else { return Ok(None) };
        let _transit = self.in_transit.read();
        let movable = match limits.moves {
            true => self.take_movable(request, mapped, place, (limits.waits, beside)),
            false => Vec::new(),
        };
        let moved: u64 = movable.iter().map(|it| it.piece.bytes).sum();
        let missing = place.bytes() - moved;
        let new = match limits.new {
            _ if missing == 0 => Ok(Some(Vec::new())),
            Some(limit) => self.create_handles(missing, mapped, limit),
            None => Ok(None),
        };
        let new = match new {
            Ok(Some(new)) => new,
            other => {
                movable.iter().for_each(|it| self.put_back_movable(it));
                slot.addresses.lock().give(place);
                return other.map(|_| None);
            }
        };
        let old = movable.iter().filter_map(|it| self.move_out(mapped, it));
        let stamp = if request.graph_upto.is_some() { 0 } else { slot.epochs.current() };
        let (bytes, failed) = self.map_all(slot, mapped, place, old.chain(new));
        let found = {
            // At once, so that no other thread of the stream takes it.
            let mut heap = slot.heap();
            self.add_mapped(slot, &mut heap, (place, bytes), (request.tag(), stamp));
            request.take(&mut heap)
        };
        emit!(self, {
            stream = U::id(request.stream), asked = request.bytes(), moved, new = missing,
            reserved = self.reserved_bytes(),
        }, "mapped memory");
        match (found, failed) {
            (None, Some(error)) => Err(Failure::Upstream(error)),
            (found, _) => Ok(found),
        }
    }

    /// Maps new memory into the shared heap.
    pub(super) fn prepare_mapped(
        &self,
        shared: &Slot<U>,
        mapped: Mapped<'_, U>,
        bytes: usize,
    ) -> Result<(), Failure<U::Error>> {
        let (limit, granularity) = (self.settings.limits.maximum(), mapped.granularity());
        let bytes = (bytes as u64).next_multiple_of(granularity);
        let bytes = bytes.min(limit as u64 & !(granularity - 1));
        let Some(new) = self.create_handles(bytes, mapped, limit)? else { return Ok(()) };
        let place = match self.reserve_place(shared, mapped, bytes, bytes) {
            Ok(place) => place,
            Err(error) => {
                self.release_all(mapped, new);
                return Err(error);
            }
        };
        let _transit = self.in_transit.read();
        let (bytes, failed) = self.map_all(shared, mapped, place, new.into_iter());
        self.add_mapped(shared, &mut shared.heap(), (place, bytes), (SHARED, 0));
        failed.map_or(Ok(()), |error| Err(Failure::Upstream(error)))
    }

    /// Maps handles one behind the other, and gives back the addresses that are left. Returns how many bytes are mapped, and
    /// the first error.
    fn map_all(
        &self,
        slot: &Slot<U>,
        mapped: Mapped<'_, U>,
        place: AddressRange,
        handles: impl Iterator<Item = UpstreamBlock<U::Block>>,
    ) -> (u64, Option<U::Error>) {
        let (mut at, mut failed) = (place.start, None);
        for mut handle in handles {
            let Origin::Handle(memory) = handle.origin else { continue };
            match mapped.map(at, handle.bytes, memory) {
                Ok(()) => {
                    handle.address = at;
                    at += handle.bytes;
                    self.upstream_blocks.lock().insert(place.reservation, handle);
                }
                Err(error) => {
                    self.release_handle(mapped, memory, handle.bytes);
                    failed.get_or_insert(error);
                }
            }
        }
        if at < place.end {
            slot.addresses.lock().give(AddressRange { start: at, ..place });
        }
        (at - place.start, failed)
    }

    /// Adds what is mapped at the beginning of a place to a heap.
    fn add_mapped(
        &self,
        slot: &Slot<U>,
        heap: &mut Heap,
        (place, bytes): (AddressRange, u64),
        (tag, stamp): (SlotId, usize),
    ) {
        if bytes > 0 {
            let (upstream_block, address) = (place.reservation, place.start);
            self.add(slot, heap, tag, Piece { upstream_block, address, bytes, stamp });
        }
    }

    /// Addresses for the request: where the least memory has to be mapped, since what is free beside them serves, too.
    fn take_place(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        least: u64,
        beside: bool,
    ) -> Result<Option<AddressRange>, Failure<U::Error>> {
        let slot = request.slot;
        let Some(alone) = request.padded_bytes(mapped.granularity()) else { return Ok(None) };
        let round = |bytes: u64| bytes.max(least).next_multiple_of(mapped.granularity());
        let bytes = request.bytes() as u64;
        {
            let heap = slot.heap();
            let mut addresses = slot.addresses.lock();
            // What lies below need not be aligned.
            let merges = beside && request.align <= self.settings.alignment;
            let place = |range: AddressRange| {
                let AddressRange { start, end, reservation } = range;
                let (below, above) = match merges {
                    true => heap.free_beside(request.tag(), reservation, (start, end)),
                    false => (0, 0),
                };
                let low = start.checked_add(round(bytes.saturating_sub(below)));
                let high = end.checked_sub(round(bytes.saturating_sub(above)));
                let from_low = low.map(|end| AddressRange { end, ..range });
                let to_high = high.map(|start| AddressRange { start, ..range });
                let all = (below + range.bytes() + above >= bytes).then_some(range);
                let own = round(alone as u64);
                let own = AddressRange { end: start.saturating_add(own), ..range };
                let any = match merges {
                    true => [from_low, to_high, all],
                    false => [Some(own), None, None],
                };
                let inside = |it: &AddressRange| it.start >= start && it.end <= end;
                any.into_iter().flatten().filter(inside).min_by_key(|it| it.bytes())
            };
            let place = addresses.iter().filter_map(place).min_by_key(|it| it.bytes());
            if let Some(place) = place.filter(|place| addresses.take(*place)) {
                return Ok(Some(place));
            }
        }
        let bytes = round(alone as u64);
        let wish = bytes.saturating_mul(4).max(LEAST_ADDRESSES);
        let wish = wish.max(slot.addresses.lock().reserved().saturating_mul(2));
        self.reserve_place(slot, mapped, bytes, round(wish)).map(Some)
    }

    /// The first of `wish` bytes of new addresses, or of no more than it needs.
    fn reserve_place(
        &self,
        slot: &Slot<U>,
        mapped: Mapped<'_, U>,
        bytes: u64,
        wish: u64,
    ) -> Result<AddressRange, Failure<U::Error>> {
        let (start, all) = match mapped.reserve(wish) {
            Ok(start) => (start, wish),
            Err(_) => (mapped.reserve(bytes)?, bytes),
        };
        let reservation = {
            let mut blocks = self.upstream_blocks.lock();
            let number = blocks.new_number();
            blocks.reservations.insert(number, (start, all));
            number
        };
        let place = AddressRange { start, end: start + bytes, reservation };
        let mut addresses = slot.addresses.lock();
        addresses.add(AddressRange { end: start + all, ..place });
        addresses.take(place);
        Ok(place)
    }

    /// Takes handles that lie free out of their heaps, up to the bytes of the place: complete ones before those that the
    /// stream is ordered after, and the smallest free blocks first, which serve least where they are.
    fn take_movable(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        place: AddressRange,
        (waits, beside): (bool, bool),
    ) -> Vec<Movable> {
        let slot = request.slot;
        let mut free = Vec::new();
        let mut look = |source: &Slot<U>| {
            let heap = source.heap();
            for block in heap.free_blocks_from(mapped.granularity()) {
                let is_beside =
                    beside && (block.end() == place.start || block.address == place.end);
                let order = if block.stamp <= self.completed_stamp(block.tag) {
                    Order::Complete
                } else if block.stamp <= self.ready_stamp(slot, block.tag) {
                    Order::Ready
                } else {
                    Order::Pending
                };
                let most = match (request.graph_upto, waits) {
                    (Some(_), _) => Order::Complete,
                    (None, false) => Order::Ready,
                    (None, true) => Order::Pending,
                };
                if order <= most && !(is_beside && source.id == slot.id) {
                    free.push((order, block, source.id));
                }
            }
        };
        self.each_populated(&mut look);
        self.slot(SHARED).map(look);
        free.sort_unstable_by_key(|&(order, block, _)| (order, block.bytes, block.address));
        let mut left = place.bytes();
        let mut movable = Vec::new();
        for (order, block, source) in free {
            if left == 0 {
                break;
            }
            let waited = || self.make_wait(slot, request.stream, block.tag, block.stamp);
            if order == Order::Pending && waited().is_err() {
                continue;
            }
            let taken = self.take_handles(source, block, &mut left);
            movable.extend(taken.into_iter().map(|piece| Movable {
                slot: source,
                piece,
                tag: block.tag,
                order,
            }));
        }
        movable
    }

    /// Takes handles that lie in a free block as a whole out of it, no more than are `left`.
    fn take_handles(&self, source: SlotId, mut block: FreeBlock, left: &mut u64) -> Vec<Piece> {
        let Some(source) = self.slot(source) else { return Vec::new() };
        let handles: Vec<_> =
            self.upstream_blocks.lock().within(block.address, block.end()).collect();
        let mut taken = Vec::new();
        let mut heap = source.heap();
        // From the top, so that what stays begins where it began.
        for (start, end) in handles.into_iter().rev().filter(|&(start, end)| end > start) {
            if end - start > *left {
                continue;
            }
            let Some(piece) = heap.extract_range(block, start, end - start) else { break };
            *left -= end - start;
            taken.push(piece);
            block.bytes = start - block.address;
        }
        taken
    }

    fn put_back_movable(&self, movable: &Movable) {
        if let Some(slot) = self.slot(movable.slot) {
            self.add(slot, &mut slot.heap(), movable.tag, movable.piece);
        }
    }

    /// Takes a handle from its addresses: they are unmapped now, or when the device is past their uses. `None` where that
    /// fails: it stays where it is.
    fn move_out(
        &self,
        mapped: Mapped<'_, U>,
        movable: &Movable,
    ) -> Option<UpstreamBlock<U::Block>> {
        let Movable { slot, piece, tag, order } = *movable;
        let complete = order == Order::Complete;
        let Piece { upstream_block: reservation, address, bytes, stamp } = piece;
        let range = AddressRange { start: address, end: address + bytes, reservation };
        if complete && !self.unmap(mapped, slot, range) {
            self.put_back_movable(movable);
            return None;
        }
        let handle = self.upstream_blocks.lock().remove_reserved(address)?;
        if let Origin::Handle(memory) = handle.origin {
            if complete {
                // Uses by former addresses came before.
                self.unmap_vacated_if(mapped, |one| one.memory == memory);
            } else {
                self.vacated.lock().push(Vacated { slot, range, memory, tag, stamp });
            }
        }
        Some(handle)
    }

    /// Unmaps addresses, which are the slot's to map to again.
    fn unmap(&self, mapped: Mapped<'_, U>, slot: SlotId, range: AddressRange) -> bool {
        let unmapped = mapped.unmap(range.start, range.bytes()).is_ok();
        if let Some(slot) = self.slot(slot).filter(|_| unmapped) {
            slot.addresses.lock().give(range);
        }
        unmapped
    }

    fn release_all(&self, mapped: Mapped<'_, U>, handles: Handles<U>) {
        for UpstreamBlock { bytes, origin, .. } in handles {
            if let Origin::Handle(memory) = origin {
                self.release_handle(mapped, memory, bytes);
            }
        }
    }

    fn release_handle(&self, mapped: Mapped<'_, U>, memory: u64, bytes: u64) {
        count(&self.counters().returns);
        mapped.release(memory, bytes);
        self.upstream_blocks.lock().unreserve(bytes as usize);
    }

    /// The size of new handles for so many bytes.
    fn handle_bytes(&self, bytes: u64, granularity: u64) -> u64 {
        let (part, most) = match bytes >= LARGE {
            true => (bytes / HANDLES, LARGEST_HANDLE),
            false => (self.reserved_bytes() as u64 / POOL_HANDLES, LARGEST_SHARED_HANDLE),
        };
        part.checked_ilog2().map_or(1, |log| 1 << log).clamp(granularity, most)
    }

    /// New handles of so many bytes in all. Where there is no room, free handles that are complete go back first.
    fn create_handles(
        &self,
        bytes: u64,
        mapped: Mapped<'_, U>,
        limit: usize,
    ) -> Result<Option<Handles<U>>, Failure<U::Error>> {
        let each = self.handle_bytes(bytes, mapped.granularity());
        let all = bytes as usize;
        let mut gave_back = false;
        loop {
            let reserved = self.upstream_blocks.lock().reserve(all, all, limit);
            if reserved.is_none() {
                let room = limit.saturating_sub(all);
                if gave_back || self.release_complete(mapped, room) == 0 {
                    return Ok(None);
                }
                gave_back = true;
                continue;
            }
            let mut made = Vec::new();
            let mut left = bytes;
            let error = loop {
                let bytes = each.min(left);
                if bytes == 0 {
                    return Ok(Some(made));
                }
                match mapped.create(bytes) {
                    Ok(memory) => {
                        count(&self.counters().growths);
                        left -= bytes;
                        let origin = Origin::Handle(memory);
                        made.push(UpstreamBlock { address: 0, bytes, origin });
                    }
                    Err(error) => break error,
                }
            };
            self.release_all(mapped, made);
            self.upstream_blocks.lock().unreserve(left as usize);
            let room = self.reserved_bytes().saturating_sub(all);
            let is_exhausted = U::is_exhausted(&error);
            if gave_back || !is_exhausted || self.release_complete(mapped, room) == 0 {
                return Err(Failure::Upstream(error));
            }
            gave_back = true;
        }
    }

    /// Gives handles that lie free and complete back to upstream, until `target` bytes are reserved. Waits for nothing.
    /// Returns how many bytes went back.
    pub(super) fn release_complete(&self, mapped: Mapped<'_, U>, target: usize) -> usize {
        self.unmap_vacated(mapped);
        let mut free = Vec::new();
        let mut look = |source: &Slot<U>| {
            let heap = source.heap();
            let blocks = heap.free_blocks_from(mapped.granularity());
            let complete = blocks.filter(|it| it.stamp <= self.completed_stamp(it.tag));
            free.extend(complete.map(|block| (block, source.id)));
        };
        self.each_populated(&mut look);
        self.slot(SHARED).map(look);
        free.sort_unstable_by_key(|&(block, _)| (block.bytes, block.address));
        let mut returned = 0;
        for (block, source) in free {
            let excess = self.reserved_bytes().saturating_sub(target) as u64;
            if excess == 0 {
                break;
            }
            // The last one may have more than is wanted.
            let largest = self
                .upstream_blocks
                .lock()
                .within(block.address, block.end())
                .fold(0, |most: u64, (start, end)| most.max(end - start));
            let mut left = excess.saturating_add(largest.saturating_sub(mapped.granularity()));
            for piece in self.take_handles(source, block, &mut left) {
                let order = Order::Complete;
                let movable = Movable { slot: source, piece, tag: block.tag, order };
                if let Some(handle) = self.move_out(mapped, &movable)
                    && let Origin::Handle(memory) = handle.origin
                {
                    self.release_handle(mapped, memory, handle.bytes);
                    returned += handle.bytes as usize;
                }
            }
        }
        if returned > 0 {
            let reserved = self.reserved_bytes();
            emit!(self, { bytes = returned, reserved }, "gave memory back");
        }
        returned
    }

    /// Unmaps addresses whose memory has moved, as far as the device is past their uses.
    fn unmap_vacated(&self, mapped: Mapped<'_, U>) {
        let mut latest = BTreeMap::<SlotId, usize>::new();
        for Vacated { tag, stamp, .. } in &*self.vacated.lock() {
            let known = latest.entry(*tag).or_default();
            *known = (*known).max(*stamp);
        }
        if !latest.is_empty() {
            self.close_and_poll(latest);
            self.unmap_vacated_if(mapped, |one| one.stamp <= self.completed_stamp(one.tag));
        }
    }

    fn unmap_vacated_if(&self, mapped: Mapped<'_, U>, is_over: impl Fn(&Vacated) -> bool) {
        let over: Vec<Vacated> = self.vacated.lock().extract_if(.., |one| is_over(one)).collect();
        for one in over {
            if !self.unmap(mapped, one.slot, one.range) {
                // Tried again: the memory stays as long as it is mapped.
                self.vacated.lock().push(one);
            }
        }
    }

    /// Takes everything that is mapped and free out, for the pool's end. What users still hold stays mapped.
    pub(super) fn take_all_mapped(&self) -> MappedEnd {
        let mut end = MappedEnd::default();
        for slot in self.all_slots() {
            let mut heap = slot.heap();
            let tags: Vec<SlotId> = heap.tags().collect();
            for tag in tags {
                heap.retag(tag, usize::MAX, SHARED, 0);
            }
            let mut blocks = self.upstream_blocks.lock();
            for block in heap.free_blocks_from(1) {
                let handles: Vec<_> = blocks.within(block.address, block.end()).collect();
                for (address, _) in handles {
                    if let Some(UpstreamBlock { bytes, origin: Origin::Handle(handle), .. }) =
                        blocks.remove_reserved(address)
                    {
                        end.handles.push((address, bytes, handle));
                    }
                }
            }
        }
        let vacated = std::mem::take(&mut *self.vacated.lock());
        end.vacated = vacated.iter().map(|one| (one.range.start, one.range.bytes())).collect();
        end.reservations = self.upstream_blocks.lock().unused_reservations();
        end
    }
}
