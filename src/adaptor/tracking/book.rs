//! The list of what is out, of those who may change it: a table by address.

use super::call_stack::CallStack;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::thread::ThreadId;

/// What is known of a block.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) number: u64,
    pub(super) stream: u64,
    pub(super) thread: ThreadId,
    pub(super) ticks: u64,
    pub(super) backtrace: Option<CallStack>,
}

/// What is left of an entry that is taken off the list.
pub(super) struct Gone {
    pub(super) bytes: usize,
    /// Dropped where that may take what it likes.
    _backtrace: Option<CallStack>,
}

impl From<Entry> for Gone {
    fn from(Entry { bytes, backtrace, .. }: Entry) -> Self {
        Self { bytes, _backtrace: backtrace }
    }
}

/// Entries by address. Made beforehand, where a list is not to allocate.
pub(super) type Places = HashMap<u64, Entry, BuildHasherDefault<AddressHasher>>;

/// Mixes the address of a block, which the driver chose: nobody's input is to be defended against.
#[derive(Default)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, address: u64) {
        // Blocks start at multiples of 256 and often of much more: the two halves of the product have
        // all bits in them. Not the factor that chooses a shard.
        let product = u128::from(self.0 ^ address) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The fewest entries that a list with any has room for.
const LEAST: usize = 32;

#[derive(Default)]
pub(super) struct Book {
    places: Places,
    bytes: usize,
    /// Entries that were made, as far as this list counts them.
    pub(super) made: u64,
}

impl Book {
    /// Whether the next entry needs no memory of the host.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.places.len() < self.places.capacity()
    }

    /// For how many entries [`widen`](Self::widen) is to be given room before the next one; none if
    /// there is room.
    pub(super) fn wanted(&self) -> usize {
        if self.has_room() { 0 } else { (2 * self.places.len()).max(LEAST) }
    }

    /// Goes on in `wider`, which is empty and has room for as many as were [`wanted`](Self::wanted).
    /// Leaves the old places there.
    pub(super) fn widen(&mut self, wider: &mut Places) {
        wider.extend(self.places.drain());
        std::mem::swap(&mut self.places, wider);
    }

    /// Numbers the entry, and inserts it.
    #[inline]
    pub(super) fn add(&mut self, mut entry: Entry) -> Option<Gone> {
        entry.number = self.made;
        self.made += 1;
        self.insert(entry)
    }

    /// Gives what is left of the entry that was there before. There [is room](Self::has_room).
    #[inline]
    pub(super) fn insert(&mut self, entry: Entry) -> Option<Gone> {
        self.bytes += entry.bytes;
        let before = self.places.insert(entry.address, entry)?;
        self.bytes -= before.bytes;
        Some(before.into())
    }

    #[inline]
    pub(super) fn remove(&mut self, address: u64) -> Option<Gone> {
        let gone = self.places.remove(&address)?;
        // By what was added: the caller's idea of the size cannot bring the sum below zero.
        self.bytes -= gone.bytes;
        Some(gone.into())
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.places.values()
    }

    /// Empties the list.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Entry> + use<> {
        self.bytes = 0;
        std::mem::take(&mut self.places).into_values()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Room for so many entries.
pub(super) fn places(count: usize) -> Places {
    Places::with_capacity_and_hasher(count, BuildHasherDefault::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    fn entry(address: u64, bytes: usize) -> Entry {
        let thread = std::thread::current().id();
        Entry { address, number: 0, bytes, stream: 0, thread, ticks: 0, backtrace: None }
    }

    #[test]
    fn it_takes_memory_only_where_it_is_given_some() {
        let mut book = Book::default();
        for address in 0..10_000 {
            let wanted = book.wanted();
            assert_eq!(wanted == 0, book.has_room());
            if wanted > 0 {
                book.widen(&mut places(wanted));
            }
            let capacity = book.places.capacity();
            assert!(book.insert(entry(address, 2)).is_none());
            assert_eq!(book.places.capacity(), capacity);
        }
        assert_eq!((book.bytes(), book.entries().count()), (20_000, 10_000));
        assert_eq!(book.insert(entry(7, 5)).map(|gone| gone.bytes), Some(2));
        assert_eq!(book.remove(7).map(|gone| gone.bytes), Some(5));
        assert!(book.remove(7).is_none());
        assert_eq!(book.bytes(), 19_998);
        assert_eq!(book.take().count(), 9999);
        assert_eq!((book.bytes(), book.entries().count()), (0, 0));
    }

    /// The table looks at the lowest bits and at the highest seven.
    #[test]
    fn addresses_that_differ_by_much_differ_in_the_bits_that_are_looked_at() {
        let hasher = BuildHasherDefault::<AddressHasher>::default();
        for stride in [256_u64, 4096, 2 << 20, 64 << 20, 1 << 30] {
            let hashes = (0..4096).map(|block| hasher.hash_one(0x7f00_0000_0000 + block * stride));
            let (mut low, mut high) = (HashSet::new(), HashSet::new());
            for hash in hashes {
                low.insert(hash & 4095);
                high.insert(hash >> 57);
            }
            // Of numbers by chance, about 63 of 100 places have one.
            assert!(low.len() > 2200 && high.len() > 100, "{stride}: {} {}", low.len(), high.len());
        }
    }
}
