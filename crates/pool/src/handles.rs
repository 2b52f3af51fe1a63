//! Handles of memory apart from addresses: made, taken out of free memory, unmapped and given back.
//!
//! The unit is a handle. One that lies in free memory as a whole can be moved:
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
use super::placement::LARGE;
use super::ready::{Stamps, note_stamp};
use super::upstream::{Failure, Mapped, MappedEnd, Upstream, count};
use super::upstream_blocks::{Handle, Origin, UpstreamBlock};
use crate::heap::{FreeBlock, Piece};
use crate::sync::trusted::unique;

/// A large block has so many handles, or up to twice as many: CUDA's calls cost some 50 microseconds a handle, whatever its
/// size, and one that is much smaller than the next block serves that, too.
const HANDLES: u64 = 8;
/// The largest handle of most blocks: larger ones cost less for each byte, and more blocks do not fill them. A small block
/// keeps all of one where it is.
const USUAL_HANDLE: u64 = 16 << 20;
/// The most handles of a block, up to the largest handle: so long a block would take many milliseconds.
const MOST_HANDLES: u64 = 64;
/// The largest handle: a larger one makes the calls no cheaper.
pub(super) const LARGEST_HANDLE: u64 = 64 << 20;
/// Smaller blocks share handles, of which a pool has some sixty: each is a part of it that moves as one.
const POOL_HANDLES: u64 = 64;

/// A handle that was taken out of a heap, where it was free. Its memory is still mapped there.
pub(super) struct Movable {
    pub(super) slot: SlotId,
    pub(super) piece: Piece,
    pub(super) tag: SlotId,
    pub(super) order: Order,
}

/// How the uses of free memory stand to the stream that wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// The device is past all of them.
    Complete,
    /// The stream is ordered after them.
    Ready,
    /// The stream has to be made to wait for them.
    Pending,
}

/// Whether to take a handle that is larger than what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Fits,
    MayBeLarger,
}

/// Handles that are mapped nowhere, and their bytes.
pub(super) type Unmapped = Vec<(Handle, u64)>;

impl<U: Upstream> Pool<U> {
    /// Takes handles that lie in a free block as a whole out of it, until `left` bytes are taken.
    pub(super) fn take_handles(
        &self,
        source: SlotId,
        mut block: FreeBlock,
        left: &mut u64,
        last: Last,
    ) -> Vec<Piece> {
        let Some(source) = self.slot(source) else { return Vec::new() };
        let mut taken = Vec::new();
        let mut heap = source.heap();
        let handles: Vec<_> =
            self.upstream_blocks.lock().within(block.address, block.end()).collect();
        // From the top, so that what stays begins where it began.
        for (_, start, end) in handles.into_iter().rev() {
            let bytes = end - start;
            if *left == 0 || bytes > *left && last == Last::Fits {
                continue;
            }
            let Some(piece) = heap.extract_range(block, start, bytes) else { break };
            *left = left.saturating_sub(bytes);
            taken.push(piece);
            block.bytes = start - block.address;
        }
        taken
    }

    pub(super) fn put_back_movable(&self, movable: &Movable) {
        if let Some(slot) = self.slot(movable.slot) {
            self.add(slot, &mut slot.heap(), movable.tag, movable.piece);
        }
    }

    /// Takes a handle from its addresses: they are unmapped now, or when the device is past their uses. `None` where that
    /// fails: it stays where it is.
    pub(super) fn move_out(
        &self,
        mapped: Mapped<'_, U>,
        movable: &Movable,
    ) -> Option<(Handle, u64)> {
        let Movable { slot, piece, tag, order } = *movable;
        let Piece { upstream_block: reservation, address, bytes, stamp } = piece;
        let range = AddressRange { start: address, end: address + bytes, reservation };
        // Out of the table first: once the addresses are free, another handle may be mapped there.
        let removed = self.upstream_blocks.lock().remove_reserved(reservation, address);
        let handle = match removed {
            Some(UpstreamBlock { origin: Origin::Handle(handle), .. }) => handle,
            // No block of a pool whose memory is mapped.
            _ => {
                self.put_back_movable(movable);
                return None;
            }
        };
        if order != Order::Complete {
            let vacated = Vacated { slot, range, handle: handle.id, tag, stamp, released: 0 };
            self.vacated.lock().push(vacated);
        } else if self.unmap(mapped, slot, range) {
            // Uses by former addresses came before.
            self.unmap_vacated_if(mapped, |one| one.handle == handle.id);
        } else {
            let block = UpstreamBlock { address, bytes, origin: Origin::Handle(handle) };
            self.upstream_blocks.lock().insert(reservation, block);
            self.put_back_movable(movable);
            return None;
        }
        Some((handle, bytes))
    }

    /// The addresses of a piece that has no memory are its slot's to map to.
    pub(super) fn give_addresses(&self, slot: SlotId, piece: &Piece) {
        let Piece { upstream_block: reservation, address, bytes, .. } = *piece;
        let range = AddressRange { start: address, end: address + bytes, reservation };
        if let Some(slot) = self.slot(slot) {
            slot.addresses.lock().give(range);
        }
    }

    /// Unmaps addresses, which are the slot's to map to again.
    fn unmap(&self, mapped: Mapped<'_, U>, slot: SlotId, range: AddressRange) -> bool {
        let unmapped = mapped.unmap(range.start, range.bytes()).is_ok();
        if let Some(slot) = self.slot(slot).filter(|_| unmapped) {
            slot.addresses.lock().give(range);
        }
        unmapped
    }

    /// Unmaps addresses whose memory has moved, as far as the device is past their uses.
    pub(super) fn unmap_vacated(&self, mapped: Mapped<'_, U>) {
        let mut latest = Stamps::new();
        for Vacated { tag, stamp, .. } in &*self.vacated.lock() {
            note_stamp(&mut latest, *tag, *stamp);
        }
        if !latest.is_empty() {
            self.close_and_poll(latest);
            self.unmap_vacated_if(mapped, |one| one.stamp <= self.completed_stamp(one.tag));
        }
    }

    fn unmap_vacated_if(&self, mapped: Mapped<'_, U>, is_over: impl Fn(&Vacated) -> bool) {
        let over: Vec<Vacated> = self.vacated.lock().extract_if(.., |one| is_over(one)).collect();
        for one in over {
            if self.unmap(mapped, one.slot, one.range) {
                self.unreserve_vacated(&one);
            } else {
                // Tried again: the memory stays as long as it is mapped.
                self.vacated.lock().push(one);
            }
        }
    }

    /// Upstream has the bytes of a handle that was given back when the last of its addresses is unmapped.
    fn unreserve_vacated(&self, unmapped: &Vacated) {
        if unmapped.released == 0 {
            return;
        }
        let mut vacated = self.vacated.lock();
        match vacated.iter_mut().rfind(|one| one.handle == unmapped.handle) {
            Some(one) => one.released += unmapped.released,
            None => {
                drop(vacated);
                self.upstream_blocks.lock().unreserve(unmapped.released);
            }
        }
    }

    /// Gives a handle back that is mapped nowhere, but for vacated addresses: the device has its memory when they are
    /// unmapped.
    pub(super) fn release_handle(&self, mapped: Mapped<'_, U>, (handle, bytes): (Handle, u64)) {
        count(&self.counters().returns);
        mapped.release(handle.memory, bytes);
        let bytes = bytes as usize;
        let mut vacated = self.vacated.lock();
        match vacated.iter_mut().rfind(|one| one.handle == handle.id) {
            Some(one) => one.released += bytes,
            None => {
                drop(vacated);
                self.upstream_blocks.lock().unreserve(bytes);
            }
        }
    }

    pub(super) fn release_all(&self, mapped: Mapped<'_, U>, handles: Unmapped) {
        handles.into_iter().for_each(|handle| self.release_handle(mapped, handle));
    }

    /// The size of new handles for a request of so many bytes.
    pub(super) fn handle_bytes(&self, bytes: u64, granularity: u64) -> u64 {
        let (part, most) = match bytes >= LARGE {
            true => (bytes / HANDLES, USUAL_HANDLE.max(bytes / MOST_HANDLES)),
            false => (self.reserved_bytes() as u64 / POOL_HANDLES, USUAL_HANDLE),
        };
        let bytes = part.min(most).min(LARGEST_HANDLE);
        bytes.checked_ilog2().map_or(1, |log| 1 << log).max(granularity)
    }

    /// New handles of so many bytes in all, of the size for a block of `block` bytes, within `limit`. Where there is no
    /// room and `replaces`, free handles that are complete go back first.
    pub(super) fn create_handles(
        &self,
        mapped: Mapped<'_, U>,
        (bytes, block): (u64, u64),
        limit: usize,
        replaces: bool,
    ) -> Result<Option<Unmapped>, Failure<U::Error>> {
        let all = bytes as usize;
        let each = self.handle_bytes(block, mapped.granularity());
        if all > limit {
            return Ok(None);
        }
        let mut may_replace = replaces;
        let mut replace = |target: usize| {
            std::mem::take(&mut may_replace) && self.release_complete(mapped, target) > 0
        };
        loop {
            let reserved = self.upstream_blocks.lock().reserve(all, all, limit);
            if reserved.is_none() {
                if replace(limit - all) {
                    continue;
                }
                return Ok(None);
            }
            match self.create_reserved(mapped, bytes, each) {
                Ok(made) => return Ok(Some(made)),
                Err(error) => {
                    self.upstream_blocks.lock().unreserve(all);
                    let reserved = self.reserved_bytes();
                    // What is too much for the device costs the pool nothing.
                    let is_possible = |free: u64| free.saturating_add(reserved as u64) >= bytes;
                    let helps = U::is_exhausted(&error) && mapped.free().is_none_or(is_possible);
                    if !helps || !replace(reserved.saturating_sub(all)) {
                        return Err(Failure::Upstream(error));
                    }
                }
            }
        }
    }

    /// New handles for bytes that are reserved. All of them or none.
    fn create_reserved(
        &self,
        mapped: Mapped<'_, U>,
        bytes: u64,
        each: u64,
    ) -> Result<Unmapped, U::Error> {
        // Of memory that is not there no part is taken from others for a moment: one handle for all is refused at once.
        let is_there = bytes <= each || mapped.free().is_none_or(|free| bytes <= free);
        let each = if is_there { each } else { bytes };
        let mut made = Unmapped::new();
        let mut left = bytes;
        while left > 0 {
            let bytes = each.min(left);
            match mapped.create(bytes) {
                Ok(memory) => {
                    count(&self.counters().growths);
                    left -= bytes;
                    made.push((Handle { memory, id: unique() }, bytes));
                }
                Err(error) => {
                    made.iter().for_each(|(handle, bytes)| mapped.release(handle.memory, *bytes));
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// Gives handles that lie free and complete back to upstream, until `target` bytes are reserved. Waits for nothing.
    /// Returns how many bytes went back.
    pub(super) fn release_complete(&self, mapped: Mapped<'_, U>, target: usize) -> usize {
        self.unmap_vacated(mapped);
        let goal = self.reserved_bytes().saturating_sub(target);
        self.release_bytes(mapped, goal)
    }

    /// As [`release_complete`](Self::release_complete), also where a handle lies in several free blocks that are complete. What
    /// merges with memory that is pending is pending, too: so what is complete by itself goes back before anything merges.
    pub(super) fn release_and_merge(&self, mapped: Mapped<'_, U>, target: usize) -> usize {
        self.unmap_vacated(mapped);
        // Not what is reserved by then: that counts a handle until its last address is unmapped.
        let goal = self.reserved_bytes().saturating_sub(target);
        let returned = self.release_bytes(mapped, goal);
        self.merge_ready();
        returned + self.release_bytes(mapped, goal.saturating_sub(returned))
    }

    fn release_bytes(&self, mapped: Mapped<'_, U>, goal: usize) -> usize {
        let mut free = Vec::new();
        self.each_heap(|source| {
            let heap = source.heap();
            let blocks = heap.free_blocks_from(mapped.granularity());
            let complete = blocks.filter(|it| it.stamp <= self.completed_stamp(it.tag));
            free.extend(complete.map(|block| (block, source.id)));
        });
        // The smallest blocks first, which serve least where they are.
        free.sort_unstable_by_key(|&(block, _)| (block.bytes, block.address));
        let (mut blocks, mut returned) = (0, 0);
        for (block, source) in free {
            let mut left = goal.saturating_sub(returned) as u64;
            for piece in self.take_handles(source, block, &mut left, Last::MayBeLarger) {
                let order = Order::Complete;
                let movable = Movable { slot: source, piece, tag: block.tag, order };
                if let Some(handle) = self.move_out(mapped, &movable) {
                    blocks += 1;
                    returned += handle.1 as usize;
                    self.release_handle(mapped, handle);
                }
            }
        }
        if returned > 0 {
            let reserved = self.reserved_bytes();
            emit!(self, { blocks, bytes = returned, reserved }, "gave memory back");
        }
        returned
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
                for (number, address, _) in handles {
                    if let Some(UpstreamBlock { bytes, origin: Origin::Handle(handle), .. }) =
                        blocks.remove_reserved(number, address)
                    {
                        blocks.unreserve(bytes as usize);
                        end.handles.push((address, bytes, handle.memory));
                    }
                }
            }
        }
        let vacated = std::mem::take(&mut *self.vacated.lock());
        let mut blocks = self.upstream_blocks.lock();
        for Vacated { range, released, .. } in vacated {
            blocks.unreserve(released);
            end.vacated.push((range.start, range.bytes()));
        }
        end.reservations = blocks.unused_reservations();
        end
    }
}
