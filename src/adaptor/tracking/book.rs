//! The list of what is out, of those who may change it: a table by address.
//!
//! Not the standard library's, of which an insertion and a removal right after it take twice as long:
//! it reads sixteen marks at once just after one of them was written, which waits for the write. Here
//! words are read as they were written, and an entry is written where it stays.

use super::call_stack::CallStack;
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
    #[inline(always)]
    fn from(Entry { bytes, backtrace, .. }: Entry) -> Self {
        Self { bytes, _backtrace: backtrace }
    }
}

/// Places of entries, a power of two of them. Made beforehand, where a list is not to allocate.
pub(super) type Places = Box<[Option<Entry>]>;

/// The fewest places that a list with entries has.
const LEAST: usize = 64;

/// An entry lies at the place that its address says, or behind it where there is no gap between the
/// two. Half of the places are free at least.
#[derive(Default)]
pub(super) struct Book {
    places: Places,
    count: usize,
    bytes: usize,
    /// Entries that were made, as far as this list counts them.
    pub(super) made: u64,
}

impl Book {
    /// Whether the next entry needs no memory of the host.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.count < self.places.len() / 2
    }

    /// How many places [`widen`](Self::widen) is to be given before the next entry; none if there is
    /// room.
    pub(super) fn wanted(&mut self) -> usize {
        if self.has_room() { 0 } else { (2 * self.places.len()).max(LEAST) }
    }

    /// Goes on in `wider`: as many as were [`wanted`](Self::wanted), and empty. Leaves the old places
    /// there.
    pub(super) fn widen(&mut self, wider: &mut Places) {
        std::mem::swap(&mut self.places, wider);
        for entry in wider.iter_mut().filter_map(Option::take) {
            let place = self.gap(entry.address);
            self.places[place] = Some(entry);
        }
    }

    /// The entry's own place, in a list that has any.
    #[inline(always)]
    fn home(&self, address: u64) -> usize {
        // Blocks start at multiples of 256 and often of much more: the product mixes the upper bits in,
        // and its own upper ones are the best mixed. Not the factor that chooses a shard.
        let mixed = address.wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 32) as usize & (self.places.len() - 1)
    }

    #[inline(always)]
    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// Where the entry is to go: it is not there yet, and there is room.
    fn gap(&self, address: u64) -> usize {
        let mut place = self.home(address);
        while self.places[place].is_some() {
            place = self.after(place);
        }
        place
    }

    /// Numbers the entry, and inserts it.
    #[inline(always)]
    pub(super) fn add(&mut self, mut entry: Entry) -> Option<Gone> {
        entry.number = self.made;
        self.made += 1;
        self.insert(entry)
    }

    /// Gives what is left of the entry that was there before. There [is room](Self::has_room).
    #[inline(always)]
    pub(super) fn insert(&mut self, entry: Entry) -> Option<Gone> {
        self.bytes += entry.bytes;
        let mut place = self.home(entry.address);
        while let Some(before) = &self.places[place] {
            if before.address == entry.address {
                self.bytes -= before.bytes;
                return self.places[place].replace(entry).map(Gone::from);
            }
            place = self.after(place);
        }
        self.count += 1;
        self.places[place] = Some(entry);
        None
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, address: u64) -> Option<Gone> {
        if self.count == 0 {
            return None;
        }
        let mut place = self.home(address);
        while self.places[place].as_ref()?.address != address {
            place = self.after(place);
        }
        let gone = self.places[place].take().map(Gone::from)?;
        // By what was added: the caller's idea of the size cannot bring the sum below zero.
        self.bytes -= gone.bytes;
        self.count -= 1;
        if self.places[self.after(place)].is_some() {
            self.close(place);
        }
        Some(gone)
    }

    /// Moves what lies behind a new gap into it, as far as it may lie there.
    fn close(&mut self, mut gap: usize) {
        let mask = self.places.len() - 1;
        let mut place = gap;
        loop {
            place = self.after(place);
            let Some(entry) = &self.places[place] else { return };
            let distance = |from: usize| place.wrapping_sub(from) & mask;
            if distance(self.home(entry.address)) >= distance(gap) {
                self.places[gap] = self.places[place].take();
                gap = place;
            }
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.places.iter().flatten()
    }

    /// Empties the list.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Entry> + use<> {
        (self.bytes, self.count) = (0, 0);
        std::mem::take(&mut self.places).into_iter().flatten()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Empty places.
pub(super) fn places(count: usize) -> Places {
    std::iter::repeat_with(|| None).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn entry(address: u64, bytes: usize) -> Entry {
        let thread = std::thread::current().id();
        Entry { address, number: 0, bytes, stream: 0, thread, ticks: 0, backtrace: None }
    }

    fn insert(book: &mut Book, entry: Entry) -> Option<Gone> {
        book.widen_if_full();
        book.insert(entry)
    }

    impl Book {
        fn widen_if_full(&mut self) {
            let wanted = self.wanted();
            if wanted > 0 {
                self.widen(&mut places(wanted));
            }
        }
    }

    /// Dense tables, so that entries lie far from home, around the end of the table too.
    #[test]
    fn it_is_the_map_that_the_standard_library_has() {
        for (stride, addresses) in [(256, 40), (4096, 300), (2 << 20, 3000), (1 << 40, 30)] {
            let (mut book, mut map) = (Book::default(), BTreeMap::new());
            let mut random = 42_u64;
            let mut below = |end: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % end
            };
            for step in 0..20_000 {
                // From 0 on, which is an address like any other.
                let address = stride * below(addresses);
                if below(2) == 0 {
                    let replaced = insert(&mut book, entry(address, step)).map(|gone| gone.bytes);
                    assert_eq!(replaced, map.insert(address, step));
                } else {
                    let removed = book.remove(address).map(|gone| gone.bytes);
                    assert_eq!(removed, map.remove(&address));
                }
                if step % 100 == 0 {
                    let mut listed: Vec<_> =
                        book.entries().map(|entry| (entry.address, entry.bytes)).collect();
                    listed.sort_unstable();
                    assert!(listed.into_iter().eq(map.iter().map(|(a, b)| (*a, *b))));
                    assert_eq!(book.bytes(), map.values().sum());
                }
            }
            assert_eq!(book.take().count(), map.len());
            assert_eq!((book.bytes(), book.entries().count()), (0, 0));
            assert!(book.remove(stride).is_none());
            assert!(insert(&mut book, entry(stride, 1)).is_none());
        }
    }

    #[test]
    fn neighbours_lie_near_their_homes() {
        for stride in [256, 4096, 2 << 20, 64 << 20] {
            let mut book = Book::default();
            let addresses = || (0..1 << 13).map(|block| 0x7f00_0000_0000 + block * stride);
            for address in addresses() {
                assert!(insert(&mut book, entry(address, 1)).is_none());
            }
            let far: usize = addresses()
                .map(|address| {
                    let held = |place: &Option<Entry>| {
                        place.as_ref().is_some_and(|entry| entry.address == address)
                    };
                    let place = book.places.iter().position(held).unwrap();
                    place.wrapping_sub(book.home(address)) & (book.places.len() - 1)
                })
                .sum();
            assert!(far < 2 << 13, "{stride}: {far} steps for {} entries", 1 << 13);
        }
    }
}
