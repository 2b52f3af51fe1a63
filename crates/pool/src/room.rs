//! New addresses, and those for blocks that grow: how many are reserved, and where such a block begins.

use super::addresses::AddressRange;
use super::core::Pool;
use super::slot::Slot;
use super::upstream::{Failure, Mapped, Upstream};
use std::cmp::Reverse;

/// What a pool reserves at most so that blocks may grow: a process has 128 TiB.
const MOST_ADDRESSES: u64 = 1 << 43;
/// The part of what is left of that for a block that grows, and for a slot that has reserved before.
pub(super) const ROOM_DIVISOR: u64 = 8;
const SLOT_DIVISOR: u64 = 64;
/// The part of all of them that slots take so.
const SLOTS_DIVISOR: u64 = 8;

impl<U: Upstream> Pool<U> {
    /// Takes addresses for a block that may grow, at the beginning of more than it can ever need, as long as there are many.
    pub(super) fn take_growable_place(
        &self,
        slot: &Slot<U>,
        mapped: Mapped<'_, U>,
        bytes: u64,
    ) -> Option<AddressRange> {
        let total = mapped.total().unwrap_or(0);
        let least = self.room(mapped, ROOM_DIVISOR).max(least_room(bytes, total)?);
        let heap = slot.heap();
        let mut addresses = slot.addresses.lock();
        addresses.open_unused(|start, number| heap.is_live_below(start, number));
        // The longest, but none that is longer than it needs.
        let wide = addresses.iter().filter(|range| range.bytes() >= least);
        let range = wide.max_by_key(|range| (range.bytes().min(total), Reverse(range.bytes())))?;
        let range = AddressRange { end: range.start + bytes, ..range };
        addresses.take(range).then_some(range)
    }

    /// Whether there are such addresses, which are reserved if need be.
    pub(super) fn make_growable_place(
        &self,
        slot: &Slot<U>,
        mapped: Mapped<'_, U>,
        bytes: u64,
    ) -> bool {
        let room = self.room(mapped, ROOM_DIVISOR);
        let Some(least) = least_room(bytes, mapped.total().unwrap_or(0)) else { return false };
        let is_there = || {
            let heap = slot.heap();
            let mut addresses = slot.addresses.lock();
            addresses.open_unused(|start, number| heap.is_live_below(start, number));
            addresses.longest().is_some_and(|range| range.bytes() >= room.max(least))
        };
        if is_there() {
            return true;
        }
        // Memory that moved may have left some.
        self.unmap_vacated(mapped);
        if is_there() {
            return true;
        }
        let reserved = if room >= least { self.reserve(mapped, room).ok() } else { None };
        reserved.map(|range| slot.addresses.lock().add(range)).is_some()
    }

    /// Addresses that a block may grow in: for all memory of the device, as long as there are many.
    pub(super) fn room(&self, mapped: Mapped<'_, U>, divisor: u64) -> u64 {
        let (total, granularity) = (mapped.total().unwrap_or(0), mapped.granularity());
        let left = self.addresses_left() / divisor;
        total.next_multiple_of(granularity).min(left & !(granularity - 1))
    }

    /// The first of `wish` bytes of new addresses, or of no more than it needs.
    pub(super) fn reserve_place(
        &self,
        slot: &Slot<U>,
        mapped: Mapped<'_, U>,
        bytes: u64,
        wish: u64,
    ) -> Result<AddressRange, Failure<U::Error>> {
        let all = match self.reserve(mapped, wish) {
            Ok(all) => all,
            Err(_) => self.reserve(mapped, bytes)?,
        };
        let place = AddressRange { end: all.start + bytes, ..all };
        // In one hold: between the two another thread could map there.
        let mut addresses = slot.addresses.lock();
        addresses.add(all);
        addresses.take(place);
        Ok(place)
    }

    /// New addresses, for a slot to add.
    fn reserve(&self, mapped: Mapped<'_, U>, bytes: u64) -> Result<AddressRange, U::Error> {
        let start = mapped.reserve(bytes)?;
        let reservation = {
            let mut blocks = self.upstream_blocks.lock();
            let number = blocks.new_number();
            blocks.insert_reservation(number, (start, bytes));
            number
        };
        Ok(AddressRange { start, end: start + bytes, reservation })
    }

    /// What the pool may still reserve so that blocks may grow.
    fn addresses_left(&self) -> u64 {
        MOST_ADDRESSES.saturating_sub(self.upstream_blocks.lock().addresses())
    }

    /// What a slot reserves for its next block at least, where `twice` is twice what it has.
    pub(super) fn room_of_slot(&self, mapped: Mapped<'_, U>, twice: u64) -> u64 {
        let left = self.addresses_left();
        let most = mapped.total().unwrap_or(u64::MAX).min(left / SLOT_DIVISOR);
        // The last block of one of the first slots may grow where it is. Many streams leave addresses for blocks that grow.
        let is_early = left >= MOST_ADDRESSES - MOST_ADDRESSES / SLOTS_DIVISOR;
        let early = if is_early { self.room(mapped, SLOT_DIVISOR) } else { 0 };
        twice.min(most).max(early)
    }
}

/// The least addresses that a block is worth to be placed at, to grow there: twice its own, or for all memory. `None` if it
/// has all memory already.
fn least_room(bytes: u64, total: u64) -> Option<u64> {
    let least = bytes.saturating_mul(2).min(total);
    (least > bytes).then_some(least)
}
