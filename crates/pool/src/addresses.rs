//! Reserved addresses of one slot that have no memory: where the next handle may be mapped.

use super::block::SlotId;
use std::collections::BTreeMap;

/// A range of reserved addresses, and the number of its reservation, which is that of upstream's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) reservation: u32,
}

impl AddressRange {
    pub(super) fn bytes(self) -> u64 {
        self.end - self.start
    }

    /// So many bytes of it with as much room behind them and before them, if it is twice as long.
    pub(super) fn middle(self, bytes: u64, granularity: u64) -> Option<Self> {
        let half = (self.bytes() / 2) & !(granularity - 1);
        let start = self.start + half;
        (self.end - start >= bytes.saturating_mul(2)).then(|| Self {
            start,
            end: start + bytes,
            ..self
        })
    }
}

/// Addresses whose memory has moved, while uses by them may be pending; or at which memory could be neither used nor
/// unmapped.
#[derive(Debug)]
pub(super) struct Vacated {
    pub(super) slot: SlotId,
    pub(super) range: AddressRange,
    /// The handle that was mapped there.
    pub(super) handle: u64,
    /// The stream that used them last, and when.
    pub(super) tag: SlotId,
    pub(super) stamp: usize,
    /// The bytes that upstream has back when this is unmapped, as the handle was given back before.
    pub(super) released: usize,
}

/// Ranges without memory, by where they begin. Adjacent ones of one reservation are one.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    free: BTreeMap<u64, (u64, u32)>,
    /// Ranges without memory that nothing is mapped to but for the live block which ends where one begins: room for it to
    /// grow into.
    rooms: BTreeMap<u64, (u64, u32)>,
    /// All that was reserved for the slot.
    reserved: u64,
}

impl Addresses {
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(super) fn add(&mut self, reservation: AddressRange) {
        self.reserved += reservation.bytes();
        self.give(reservation);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.free.iter().map(|(&start, &(end, reservation))| AddressRange {
            start,
            end,
            reservation,
        })
    }

    /// The longest range.
    pub(super) fn longest(&self) -> Option<AddressRange> {
        self.iter().max_by_key(|it| it.bytes())
    }

    /// The bytes of a reservation's range or room that begins at an address.
    pub(super) fn behind(&self, start: u64, reservation: u32) -> u64 {
        let found = self.rooms.get(&start).or_else(|| self.free.get(&start));
        found.filter(|range| range.1 == reservation).map_or(0, |range| range.0 - start)
    }

    /// Takes the first of those, at least so many and at most as many as that.
    pub(super) fn take_behind(
        &mut self,
        start: u64,
        reservation: u32,
        (least, most): (u64, u64),
    ) -> Option<AddressRange> {
        let bytes = self.behind(start, reservation);
        if bytes < least {
            return None;
        }
        let ranges = if self.is_room(start) { &mut self.rooms } else { &mut self.free };
        ranges.remove(&start);
        let (end, last) = (start + bytes.min(most), start + bytes);
        if end < last {
            ranges.insert(end, (last, reservation));
        }
        Some(AddressRange { start, end, reservation })
    }

    pub(super) fn is_room(&self, start: u64) -> bool {
        self.rooms.contains_key(&start)
    }

    /// Makes the range that begins at an address, if one does, the room of the block below it.
    pub(super) fn keep(&mut self, start: u64) {
        let Some((mut end, reservation)) = self.free.remove(&start) else { return };
        // What was cut off comes back.
        if let Some(&(last, number)) = self.rooms.get(&end)
            && number == reservation
        {
            self.rooms.remove(&end);
            end = last;
        }
        self.rooms.insert(start, (end, reservation));
    }

    /// Makes the room that begins at an address a range as any other.
    pub(super) fn open(&mut self, start: u64) {
        if let Some((end, reservation)) = self.rooms.remove(&start) {
            self.give(AddressRange { start, end, reservation });
        }
    }

    /// Makes the rooms of blocks that are gone ranges as any other.
    pub(super) fn open_unused(&mut self, is_used: impl Fn(u64, u32) -> bool) {
        let unused = |start: &u64, range: &mut (u64, u32)| !is_used(*start, range.1);
        let unused: Vec<_> = self.rooms.extract_if(.., unused).collect();
        for (start, (end, reservation)) in unused {
            self.give(AddressRange { start, end, reservation });
        }
    }

    /// A range has no memory any more.
    pub(super) fn give(&mut self, range: AddressRange) {
        let AddressRange { mut start, mut end, reservation } = range;
        if let Some((&first, &(last, number))) = self.free.range(..start).next_back()
            && (last, number) == (start, reservation)
        {
            start = first;
        }
        if let Some(&(last, number)) = self.free.get(&end)
            && number == reservation
        {
            self.free.remove(&end);
            end = last;
        }
        self.free.insert(start, (end, reservation));
    }

    /// Takes a part of one of the ranges out, which is to have memory.
    pub(super) fn take(&mut self, part: AddressRange) -> bool {
        let around = self.free.range(..=part.start).next_back();
        let Some((&start, &(end, number))) = around else { return false };
        if part.end > end || number != part.reservation {
            return false;
        }
        self.free.remove(&start);
        for (start, end) in [(start, part.start), (part.end, end)] {
            if start < end {
                self.free.insert(start, (end, number));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange { start, end, reservation: 7 }
    }

    #[test]
    fn parts_are_taken_and_join_again() {
        let mut addresses = Addresses::default();
        addresses.add(range(10, 20));
        addresses.add(AddressRange { reservation: 8, ..range(20, 30) });
        assert!(addresses.take(range(12, 14)));
        assert!(!addresses.take(range(13, 15)), "a part of it is taken");
        assert!(!addresses.take(range(18, 22)), "another reservation begins there");
        assert!(addresses.take(range(14, 20)));
        assert_eq!(
            addresses.iter().map(|it| (it.start, it.end)).collect::<Vec<_>>(),
            [(10, 12), (20, 30)]
        );
        addresses.give(range(14, 20));
        addresses.give(range(12, 14));
        assert_eq!(
            addresses.iter().map(|it| (it.start, it.end)).collect::<Vec<_>>(),
            [(10, 20), (20, 30)]
        );
        assert_eq!(addresses.reserved(), 20);
    }

    #[test]
    fn rooms_are_taken_by_nobody_and_come_back() {
        let mut addresses = Addresses::default();
        addresses.add(range(10, 20));
        assert!(addresses.take(range(10, 12)));
        addresses.keep(13);
        assert_eq!((addresses.behind(12, 7), addresses.behind(13, 7)), (8, 0));
        assert_eq!((addresses.behind(12, 8), addresses.is_room(12)), (0, false));
        addresses.keep(12);
        assert_eq!((addresses.behind(12, 7), addresses.iter().count()), (8, 0));
        assert!(!addresses.take(range(12, 14)));
        addresses.open_unused(|start, reservation| (start, reservation) == (12, 7));
        assert_eq!(addresses.take_behind(12, 7, (9, 9)), None);
        assert_eq!(addresses.take_behind(12, 8, (1, 9)), None);
        assert_eq!(addresses.take_behind(12, 7, (3, 4)), Some(range(12, 16)));
        assert!(addresses.is_room(16) && addresses.iter().count() == 0);
        // What was not mapped goes back, and is the room of the block that ends there.
        addresses.give(range(14, 16));
        addresses.keep(14);
        assert_eq!((addresses.behind(14, 7), addresses.is_room(16)), (6, false));
        addresses.give(range(10, 14));
        addresses.open_unused(|_, _| false);
        assert_eq!(addresses.iter().collect::<Vec<_>>(), [range(10, 20)]);
        assert_eq!(addresses.take_behind(10, 7, (1, 20)), Some(range(10, 20)));
    }
}
