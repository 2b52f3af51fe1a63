//! The memory that a pool has taken from upstream, in blocks or in handles, and its bytes against the maximum.

use std::collections::BTreeMap;

/// What a pool has taken from upstream at an address.
#[derive(Debug)]
pub(super) struct UpstreamBlock<B> {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) origin: Origin<B>,
}

#[derive(Debug)]
pub(super) enum Origin<B> {
    /// A block, which has its address from upstream.
    Block(B),
    /// Memory that is mapped there.
    Handle(Handle),
}

/// A handle of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    /// Upstream's, which may be given out again when this one has gone back.
    pub(super) memory: u64,
    /// The pool's, which no other handle ever has.
    pub(super) id: u64,
}

/// INV-POOL-6: bytes are reserved before upstream is asked for them and until upstream has them back, so
/// no two threads pass the maximum together.
#[derive(Debug)]
pub(super) struct UpstreamBlocks<B> {
    bytes: usize,
    /// Of these the bytes of `blocks`, which upstream gave.
    held: usize,
    peak: usize,
    /// By address and the number that its pieces have in heaps: an upstream may hand out one address twice.
    blocks: BTreeMap<(u64, u32), UpstreamBlock<B>>,
    next_number: u32,
    /// Addresses that were reserved, and their bytes, by number.
    reservations: BTreeMap<u32, (u64, u64)>,
    /// Their bytes.
    addresses: u64,
}

impl<B> UpstreamBlocks<B> {
    pub(super) fn new() -> Self {
        Self {
            bytes: 0,
            held: 0,
            peak: 0,
            blocks: BTreeMap::new(),
            next_number: 0,
            reservations: BTreeMap::new(),
            addresses: 0,
        }
    }

    /// The bytes that are reserved: held, asked of upstream, or on their way back to it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// The most bytes that upstream had given at once.
    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Reserves between `least` and `wish` bytes, as many as stay within `limit`. Returns how many.
    pub(super) fn reserve(&mut self, least: usize, wish: usize, limit: usize) -> Option<usize> {
        let room = limit.saturating_sub(self.bytes);
        if least > room {
            return None;
        }
        let bytes = wish.clamp(least, room);
        self.bytes += bytes;
        Some(bytes)
    }

    pub(super) fn unreserve(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// The number of a block or a reservation, whose pieces join in heaps. Two that are adjacent have the same one
    /// after 2^32 others alone.
    pub(super) fn new_number(&mut self) -> u32 {
        self.next_number = self.next_number.wrapping_add(1);
        self.next_number
    }

    /// The bytes of all reservations.
    pub(super) fn addresses(&self) -> u64 {
        self.addresses
    }

    /// Adds a reservation: its address and bytes.
    pub(super) fn insert_reservation(&mut self, number: u32, reservation: (u64, u64)) {
        self.addresses += reservation.1;
        self.reservations.insert(number, reservation);
    }

    /// Adds a block whose bytes are reserved.
    pub(super) fn insert(&mut self, number: u32, block: UpstreamBlock<B>) {
        self.held += block.bytes as usize;
        self.peak = self.peak.max(self.held);
        let replaced = self.blocks.insert((block.address, number), block);
        debug_assert!(replaced.is_none(), "two handles at one address");
    }

    /// The blocks, smallest first: number, address, bytes.
    pub(super) fn smallest_first(&self) -> Vec<(u32, u64, u64)> {
        let blocks = self.blocks.iter();
        let mut all: Vec<_> =
            blocks.map(|(&(address, number), it)| (number, address, it.bytes)).collect();
        all.sort_by_key(|(_, _, bytes)| *bytes);
        all
    }

    /// The blocks that lie in a range as a whole: their numbers, and where they begin and end.
    pub(super) fn within(
        &self,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        let blocks = self.blocks.range((start, 0)..(end, 0));
        let blocks = blocks.map(|(&(at, number), block)| (number, at, at + block.bytes));
        blocks.filter(move |&(_, _, last)| last <= end)
    }

    /// The reservations that have no memory: address and bytes.
    pub(super) fn unused_reservations(&self) -> Vec<(u64, u64)> {
        let is_unused = |&(start, bytes): &(u64, u64)| {
            self.blocks.range((start, 0)..(start + bytes, 0)).next().is_none()
        };
        self.reservations.values().copied().filter(is_unused).collect()
    }

    /// All reservations: addresses and bytes.
    pub(super) fn reservations(&self) -> Vec<(u64, u64)> {
        self.reservations.values().copied().collect()
    }

    /// The handles, by address: the number of the reservation, address, bytes and the handle.
    pub(super) fn handles(&self) -> impl Iterator<Item = (u32, u64, u64, Handle)> + '_ {
        self.blocks.iter().filter_map(|(&(_, number), block)| match &block.origin {
            Origin::Handle(handle) => Some((number, block.address, block.bytes, *handle)),
            Origin::Block(_) => None,
        })
    }

    /// Has one handle of upstream's be at a range of addresses and bytes, in the place of those that were.
    pub(super) fn replace_handles(
        &mut self,
        number: u32,
        (address, bytes): (u64, u64),
        handle: Handle,
    ) {
        let of_range = self.blocks.range((address, 0)..(address + bytes, 0));
        let before: Vec<u64> =
            of_range.filter(|(key, _)| key.1 == number).map(|(key, _)| key.0).collect();
        for address in before {
            self.remove_reserved(number, address);
        }
        self.insert(number, UpstreamBlock { address, bytes, origin: Origin::Handle(handle) });
    }

    /// The end of the block that an address lies in.
    pub(super) fn end_of(&self, address: u64) -> Option<u64> {
        let (&(start, _), block) = self.blocks.range(..=(address, u32::MAX)).next_back()?;
        Some(start + block.bytes).filter(|&end| address < end)
    }

    /// Where the block begins that an address lies in.
    pub(super) fn start_of(&self, address: u64) -> Option<u64> {
        let (&(start, _), block) = self.blocks.range(..=(address, u32::MAX)).next_back()?;
        (address < start + block.bytes).then_some(start)
    }

    /// Takes a block out, whose bytes stay reserved until [`unreserve`](Self::unreserve).
    pub(super) fn remove_reserved(
        &mut self,
        number: u32,
        address: u64,
    ) -> Option<UpstreamBlock<B>> {
        let removed = self.blocks.remove(&(address, number))?;
        self.held -= removed.bytes as usize;
        Some(removed)
    }
}
