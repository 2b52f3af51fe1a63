//! Memory apart from its addresses, on a miss: it is mapped beside what is free in a stream's heap, and comes from where
//! it lies free, in whichever heap, or from upstream. [`handles`](super::handles) says which handles move.

use super::addresses::{AddressRange, Vacated};
use super::block::{SHARED, SlotId};
use super::core::Pool;
use super::events::emit;
use super::handles::{LARGEST_HANDLE, Last, Movable, Order};
use super::placement::LARGE;
use super::request::{Behind, Request, TakenBlock, Target};
use super::slot::Slot;
use super::upstream::{Failure, MapFailure, Mapped, Upstream};
use super::upstream_blocks::{Handle, Origin, UpstreamBlock};
use crate::debug_log::{is_enabled, range};
use crate::heap::{Heap, Piece, Taken};
use std::time::Instant;

/// What a slot reserves at first: addresses cost next to nothing, and a heap whose addresses are one range merges all
/// that is free in it.
const LEAST_ADDRESSES: u64 = 256 << 20;

/// The most that a step of growth may be: no device has as much.
const LARGEST_STEP: u64 = 1 << 46;

/// Where a request may get its memory from.
#[derive(Clone, Copy)]
pub(super) struct MapLimits {
    /// From handles that lie free and are ready.
    pub(super) moves: bool,
    /// From those that its stream has to wait for.
    pub(super) waits: bool,
    /// From new ones, up to so many bytes in all.
    pub(super) new: Option<usize>,
}

/// One way to map.
#[derive(Clone, Copy)]
struct Attempt {
    limits: MapLimits,
    /// Whether free memory beside the place serves, too. It does not move there then.
    beside: bool,
    /// The bytes that are mapped at least.
    least: u64,
}

impl<U: Upstream> Pool<U> {
    /// Maps memory for the request into its heap, for one that is not [`Target::Above`]. The caller has asked [`lock_growth`](Self::lock_growth).
    pub(super) fn map_for(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        limits: MapLimits,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let most = limits.new.unwrap_or_else(|| self.reserved_bytes());
        if request.bytes() > most {
            return Ok(None);
        }
        self.unmap_vacated(mapped);
        let _range = range(c"pool: map", request.bytes());
        let granularity = mapped.granularity();
        let step = match (limits.moves, self.settings.growth_step) {
            (true, _) => granularity,
            (false, 0) => self.handle_bytes(request.bytes() as u64, granularity),
            (false, step) => (step as u64).min(LARGEST_STEP).next_multiple_of(granularity),
        };
        // A step for which there is no room is no reason to refuse, nor is a place whose neighbours are in the way.
        let attempts = [(step, true), (granularity, true), (granularity, false)];
        let mut result = Ok(None);
        for (number, (least, beside)) in attempts.into_iter().enumerate() {
            let is_placed = !request.is_anywhere();
            if number == 0 && step == granularity || is_placed && beside {
                continue;
            }
            result = self.map_at_place(request, mapped, Attempt { limits, beside, least });
            let is_last = match &result {
                Ok(found) => found.is_some(),
                Err(Failure::Upstream(error)) => number > 0 && !U::is_exhausted(error),
                Err(_) => true,
            };
            if is_last {
                break;
            }
        }
        result
    }

    fn map_at_place(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        attempt: Attempt,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let (slot, limits) = (request.heap_slot(), attempt.limits);
        let begin = is_enabled().then(Instant::now);
        let Some(place) = self.take_place(request, mapped, attempt)? else { return Ok(None) };
        // Behind a block, the caller has it.
        let is_behind = matches!(request.target, Target::Behind(_));
        let _transit = (!is_behind).then(|| self.in_transit.read());
        if let Err(asleep) = self.require_awake() {
            slot.addresses.lock().give(place.range);
            return Err(asleep);
        }
        let movable = match limits.moves {
            true => self.take_movable(request, mapped, place, attempt),
            false => Vec::new(),
        };
        let moved: u64 = movable.iter().map(|it| it.piece.bytes).sum();
        let missing = place.wanted.saturating_sub(moved);
        let new = match limits.new {
            _ if missing == 0 => Ok(Some(Vec::new())),
            Some(limit) => {
                let bytes = (missing, missing.max(request.block_bytes() as u64));
                self.create_handles(mapped, bytes, limit, limits.moves)
            }
            None => Ok(None),
        };
        let new = match new {
            Ok(Some(new)) => new,
            other => {
                movable.iter().for_each(|it| self.put_back_movable(it));
                slot.addresses.lock().give(place.range);
                if let Err(Failure::Upstream(error)) = &other {
                    emit!(self, {
                        stream = U::id(request.stream), asked = request.bytes(), bytes = missing,
                        reserved = self.reserved_bytes(), error = error.to_string(),
                    }, "upstream refused");
                }
                return other.map(|_| None);
            }
        };
        // What the device is past stays so, also what it merges with: other streams need no wait for it, and it may go back.
        // The stream's own memory has its uses behind it where they were; that of others has the wait for them.
        let stamp = |it: &Movable| match it.order {
            Order::Complete => 0,
            _ if it.tag == request.tag() => it.piece.stamp,
            Order::Ready | Order::Pending => request.slot.epochs.current(),
        };
        let stamp = movable.iter().map(stamp).max().unwrap_or(0);
        let old = movable.iter().filter_map(|it| self.move_out(mapped, it));
        let (bytes, failed) = self.map_all(slot, mapped, place.range, old.chain(new));
        let found = {
            // At once, so that no other thread of the stream takes it.
            let mut heap = slot.heap();
            match &request.target {
                Target::Anywhere => {
                    self.add_mapped(slot, &mut heap, (place.range, bytes), (request.tag(), stamp));
                    self.take_new(request, &mut heap)
                }
                _ => self.add_placed(request, &mut heap, (place.range, bytes), stamp),
            }
        };
        if let Some(begin) = begin {
            let elapsed = begin.elapsed().as_nanos();
            emit!(self, {
                stream = U::id(request.stream), asked = request.bytes(), moved, new = missing,
                reserved = self.reserved_bytes(),
                elapsed_ns = u64::try_from(elapsed).unwrap_or(u64::MAX),
            }, "mapped memory");
        }
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
        let Some(new) = self.create_handles(mapped, (bytes, bytes), limit, false)? else {
            return Ok(());
        };
        let place = match self.reserve_place(shared, mapped, bytes, bytes) {
            Ok(place) => place,
            Err(error) => {
                self.release_all(mapped, new);
                return Err(error);
            }
        };
        let _transit = self.in_transit.read();
        if let Err(asleep) = self.require_awake() {
            self.release_all(mapped, new);
            shared.addresses.lock().give(place);
            return Err(asleep);
        }
        let (bytes, failed) = self.map_all(shared, mapped, place, new.into_iter());
        self.add_mapped(shared, &mut shared.heap(), (place, bytes), (SHARED, 0));
        failed.map_or(Ok(()), |error| Err(Failure::Upstream(error)))
    }

    /// Maps handles one behind the other, and gives back the addresses that are left. Returns how many bytes are mapped, and
    /// the first error. Behind a handle that could not be unmapped again nothing more is mapped.
    fn map_all(
        &self,
        slot: &Slot<U>,
        mapped: Mapped<'_, U>,
        place: AddressRange,
        handles: impl Iterator<Item = (Handle, u64)>,
    ) -> (u64, Option<U::Error>) {
        let (mut at, mut failed, mut stuck) = (place.start, None, 0);
        for (handle, bytes) in handles {
            if stuck > 0 || bytes > place.end - at {
                // Behind a gap, or larger than any that the place has room for.
                self.release_handle(mapped, (handle, bytes));
                continue;
            }
            match mapped.map(at, bytes, handle.memory) {
                Ok(()) => {
                    let block =
                        UpstreamBlock { address: at, bytes, origin: Origin::Handle(handle) };
                    self.upstream_blocks.lock().insert(place.reservation, block);
                    at += bytes;
                }
                Err(MapFailure { error, is_mapped }) => {
                    if is_mapped {
                        let range = AddressRange { start: at, end: at + bytes, ..place };
                        self.vacate_unused(slot, range, handle);
                        stuck = bytes;
                    }
                    self.release_handle(mapped, (handle, bytes));
                    failed.get_or_insert(error);
                }
            }
        }
        let rest = AddressRange { start: at + stuck, ..place };
        if rest.start < rest.end {
            slot.addresses.lock().give(rest);
        }
        (at - place.start, failed)
    }

    /// A handle is mapped where nothing has used it, and stays so until an unmap succeeds.
    fn vacate_unused(&self, slot: &Slot<U>, range: AddressRange, handle: Handle) {
        let (slot, handle) = (slot.id, handle.id);
        let one = Vacated { slot, range, handle, tag: SHARED, stamp: 0, released: 0 };
        self.vacated.lock().push(one);
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

    /// As [`add_mapped`](Self::add_mapped), for a request that the memory serves there alone. What it does not take is free.
    fn add_placed(
        &self,
        request: &Request<'_, U>,
        heap: &mut Heap,
        (place, bytes): (AddressRange, u64),
        stamp: usize,
    ) -> Option<TakenBlock> {
        let slot = request.heap_slot();
        let add = |heap: &mut Heap, start: u64| {
            let rest = AddressRange { start, ..place };
            let bytes = place.start + bytes - start;
            self.add_mapped(slot, heap, (rest, bytes), (request.tag(), stamp));
        };
        let is_enough = bytes >= request.bytes() as u64;
        match &request.target {
            Target::Growable if is_enough => {
                let AddressRange { start: address, reservation: upstream_block, .. } = place;
                let bytes = request.bytes() as u64;
                let piece = Piece { upstream_block, address, bytes, stamp };
                let Some(taken) = heap.add_allocated(piece) else {
                    add(heap, address);
                    return None;
                };
                self.note_memory(slot);
                add(heap, address + bytes);
                Some(TakenBlock { owner: slot.id, freed_by: request.tag(), taken })
            }
            Target::Behind(Behind { node, .. }) if is_enough => {
                add(heap, place.start);
                let extended = heap.extend(*node, request.units, |_, _| true);
                let taken = Taken { node: *node, address: place.start, stamp };
                let found = TakenBlock { owner: slot.id, freed_by: request.tag(), taken };
                (extended == Ok(true)).then_some(found)
            }
            _ => {
                add(heap, place.start);
                None
            }
        }
    }

    /// Addresses for the request: where the least memory has to be mapped, since what is free beside them serves, too.
    fn take_place(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        attempt: Attempt,
    ) -> Result<Option<Place>, Failure<U::Error>> {
        let (slot, granularity) = (request.slot, mapped.granularity());
        let Some(alone) = request.padded_bytes(granularity) else { return Ok(None) };
        let round = |bytes: u64| bytes.max(attempt.least).next_multiple_of(granularity);
        let bytes = request.bytes() as u64;
        let wanted = round(alone as u64);
        // Without new memory, handles need not add up: the last one may be larger than what is left.
        let is_open = !attempt.beside && attempt.limits.new.is_none();
        let all = if is_open { wanted + LARGEST_HANDLE.max(granularity) } else { wanted };
        match &request.target {
            Target::Anywhere => {}
            Target::Above(_) => return Ok(None),
            Target::Growable => {
                let range = self.take_growable_place(slot, mapped, wanted);
                return Ok(range.map(|range| Place { range, wanted }));
            }
            Target::Behind(behind) => {
                let Behind { owner, end, reservation, .. } = *behind;
                let mut addresses = owner.addresses.lock();
                let range = addresses.take_behind(end, reservation, (wanted, all));
                return Ok(range.map(|range| Place { range, wanted }));
            }
        }
        // What lies below need not be aligned.
        let merges = attempt.beside && request.align <= self.settings.alignment;
        let placed = |range: AddressRange| {
            let wanted = if merges { range.bytes().min(wanted) } else { wanted };
            Some(Place { range, wanted })
        };
        let beside = {
            let heap = slot.heap();
            let mut addresses = slot.addresses.lock();
            addresses.open_unused(|start, number| heap.is_live_below(start, number));
            let place = |range: AddressRange| {
                let AddressRange { start, end, reservation } = range;
                if !merges {
                    let own = AddressRange { end: start.saturating_add(all), ..range };
                    return (own.end <= end).then_some(own);
                }
                let beside = heap.free_beside(request.tag(), reservation, (start, end));
                let fills = request.fills_handles.get();
                let (below, above) = match fills {
                    true => self.whole_handles_beside((start, end), beside),
                    false => beside,
                };
                let low = start.checked_add(round(bytes.saturating_sub(below)));
                let high = end.checked_sub(round(bytes.saturating_sub(above)));
                let from_low = low.map(|end| AddressRange { end, ..range });
                let to_high = high.map(|start| AddressRange { start, ..range });
                // A block that begins and ends in free memory fills no handles but by chance.
                let spans = !fills && below + range.bytes() + above >= bytes;
                let between = spans.then_some(range);
                let inside = |it: &AddressRange| it.start >= start && it.end <= end;
                let any = [from_low, to_high, between].into_iter().flatten();
                any.filter(inside).min_by_key(|it| it.bytes())
            };
            let beside = addresses.iter().filter_map(place).min_by_key(|it| it.bytes());
            // Where what is free beside serves little: apart from others, so that what this one leaves can be made longer.
            let is_apart = |it: &AddressRange| bytes >= LARGE && it.bytes() > bytes / 2;
            let range = match beside.is_some_and(|it| is_apart(&it)) {
                true => addresses.longest().and_then(|it| it.middle(all, granularity)),
                false => beside,
            };
            if let Some(range) = range.filter(|range| addresses.take(*range)) {
                return Ok(placed(range));
            }
            beside
        };
        let wish = all.saturating_mul(4).max(LEAST_ADDRESSES);
        let twice = slot.addresses.lock().reserved().saturating_mul(2);
        let wish = wish.max(self.room_of_slot(mapped, twice));
        match self.reserve_place(slot, mapped, all, wish.next_multiple_of(granularity)) {
            Ok(range) => Ok(Some(Place { range, wanted })),
            // No more addresses: not apart then.
            Err(error) => match beside.filter(|range| slot.addresses.lock().take(*range)) {
                Some(range) => Ok(placed(range)),
                None => Err(error),
            },
        }
    }

    /// Takes handles that lie free out of their heaps, for the bytes of the place: complete ones before those that the
    /// stream is ordered after, and the smallest free blocks first, which serve least where they are.
    fn take_movable(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        place: Place,
        Attempt { limits, beside, .. }: Attempt,
    ) -> Vec<Movable> {
        let slot = request.slot;
        let most = match (request.graph_upto, limits.waits) {
            (Some(_), _) => Order::Complete,
            (None, false) => Order::Ready,
            (None, true) => Order::Pending,
        };
        let mut free = Vec::new();
        self.each_heap(|source| {
            let heap = source.heap();
            for block in heap.free_blocks_from(mapped.granularity()) {
                let is_beside = beside
                    && (block.end() == place.range.start || block.address == place.range.end);
                let order = if block.stamp <= self.completed_stamp(block.tag) {
                    Order::Complete
                } else if block.stamp <= self.ready_stamp(slot, block.tag) {
                    Order::Ready
                } else {
                    Order::Pending
                };
                if order <= most && !(is_beside && source.id == slot.id) {
                    free.push((order, block, source.id));
                }
            }
        });
        free.sort_unstable_by_key(|&(order, block, _)| (order, block.bytes, block.address));
        let is_open = place.range.bytes() > place.wanted;
        let last = if is_open { Last::MayBeLarger } else { Last::Fits };
        let mut left = place.wanted;
        let mut movable = Vec::new();
        for (order, block, source) in free {
            let before = left;
            let taken: Vec<Movable> = self
                .take_handles(source, block, &mut left, last)
                .into_iter()
                .map(|piece| Movable { slot: source, piece, tag: block.tag, order })
                .collect();
            let waits = order == Order::Pending && !taken.is_empty();
            // Only for what holds a handle: each wait is one that the stream may not need.
            if waits && self.make_wait(slot, request.stream, block.tag, block.stamp).is_err() {
                taken.iter().for_each(|it| self.put_back_movable(it));
                left = before;
                continue;
            }
            movable.extend(taken);
        }
        movable
    }
}

/// Addresses that a request has taken.
#[derive(Clone, Copy)]
struct Place {
    range: AddressRange,
    /// The bytes of memory for it, from its start on. The last handle may end later.
    wanted: u64,
}
