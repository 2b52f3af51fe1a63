//! A thread's own blocks, ready for one stream: what makes a warm allocation a few instructions.
//!
//! The owner's thread goes in and out by plain stores to a word. Who else wants what is inside asks
//! through a second word and a barrier of the whole process, and waits until the owner is out:
//! Dekker's protocol, with all its cost on the side that is rare.

use crate::sync::barrier;
use crate::sync::{AtomicUsize, Ordering, UnsafeCell, yield_now};
use std::hint::cold_path;

/// Sizes that a magazine remembers at once.
const SHELVES: usize = 64;

/// Blocks of one size that a shelf has room for.
pub const SHELF_ROOM: usize = 8;

/// Misses of a size before its shelf keeps blocks again, after they were taken from it.
const PATIENCE: u8 = 32;

const OPEN: usize = 0;
const ASKED: usize = 1;
/// Never the owner's again: its stream or its pool is gone.
const RETIRED: usize = 2;
/// Kept shut for now, beside what else is asked: the stream is in a declared capture.
const SHUT: usize = 4;
/// The owner has to use a real fence: the system offers no barrier of the whole process.
const FENCED: usize = 8;

/// A block that waits to be allocated again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cached {
    pub address: u64,
    pub token: u64,
}

/// Blocks of one size, the last one freed on top. Only a size that was asked for and missed gets a
/// shelf, so that sizes which never come back are not kept from the heap.
#[derive(Clone, Copy, Debug)]
struct Shelf {
    units: u32,
    length: u8,
    /// Blocks that are kept of this size.
    room: u8,
    /// Misses to wait for before the shelf keeps blocks again.
    patience: u8,
    /// The size that was missed last.
    missed: u32,
    blocks: [Cached; SHELF_ROOM],
}

const EMPTY: Shelf = Shelf {
    units: NO_SIZE,
    length: 0,
    room: 0,
    patience: 0,
    missed: NO_SIZE,
    blocks: [NOTHING; SHELF_ROOM],
};

const NOTHING: Cached = Cached { address: 0, token: 0 };

impl Shelf {
    /// The last block that is aligned so, though others lie on top of it.
    fn take_aligned(&mut self, align: u64) -> Option<Cached> {
        let blocks = self.blocks.get_mut(..self.length as usize)?;
        let place = blocks.iter().rposition(|block| block.address & (align - 1) == 0)?;
        let block = blocks[place];
        blocks.copy_within(place + 1.., place);
        self.length -= 1;
        Some(block)
    }
}

/// No block has this size, nor 0.
const NO_SIZE: u32 = u32::MAX;

/// How much a magazine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Blocks of one size, [`SHELF_ROOM`] at most.
    pub entries: u8,
    /// Units of all blocks together.
    pub units: u64,
}

#[derive(Debug)]
pub struct Shelves {
    limits: Limits,
    /// Units that the shelves have room for; never more than the limit.
    promised: u64,
    /// The shelves that have a size, one bit each.
    sized: u64,
    /// Whether the owner has it on its list of those that may hold something.
    listed: bool,
    shelves: [Shelf; SHELVES],
}

/// Where in the pool a magazine belongs, and its blocks.
#[derive(Debug)]
pub struct Magazine {
    /// 1 while the owner is inside. Written by the owner alone.
    inside: AtomicUsize,
    /// Not [`OPEN`] while the owner has to stay out, or to look twice.
    asked: AtomicUsize,
    home: u32,
    shelves: UnsafeCell<Shelves>,
}

// SAFETY: the shelves are reached by the owner's thread while it is inside, and by one reclaimer
// while the owner is kept out; the protocol below keeps the two apart.
unsafe impl Sync for Magazine {}
// SAFETY: it holds numbers alone.
unsafe impl Send for Magazine {}

#[inline]
fn shelf_of(units: u32) -> usize {
    (units.wrapping_mul(0x9E37_79B1) >> 26) as usize
}

const _: () = assert!(SHELVES == 1 << (32 - 26) && SHELVES == u64::BITS as usize);

impl Shelves {
    /// A block of exactly this size, if there is one.
    #[inline(always)]
    pub fn pop(&mut self, units: u32) -> Option<Cached> {
        let shelf = &mut self.shelves[shelf_of(units)];
        if shelf.units != units || shelf.length == 0 {
            return None;
        }
        shelf.length -= 1;
        Some(shelf.blocks[shelf.length as usize % SHELF_ROOM])
    }

    /// The last block of exactly this size at a multiple of `align`, a power of two, though others lie
    /// on top of it. Apart from [`pop`](Self::pop), which few instructions more would make slower.
    pub fn search(&mut self, units: u32, align: u64) -> Option<Cached> {
        let shelf = &mut self.shelves[shelf_of(units)];
        if shelf.units == units { shelf.take_aligned(align) } else { None }
    }

    /// Keeps a freed block, if its size is wanted and there is room.
    #[inline(always)]
    pub fn push(&mut self, units: u32, block: Cached) -> Result<(), Cached> {
        let shelf = &mut self.shelves[shelf_of(units)];
        let length = shelf.length as usize;
        if shelf.units != units || shelf.length >= shelf.room {
            return Err(block);
        }
        // A block that is freed twice must not be handed out twice: a pool asks `holds` next.
        let mut place = length;
        while place > 0 {
            place -= 1;
            if shelf.blocks[place % SHELF_ROOM].token == block.token {
                return Err(block);
            }
        }
        // Mostly it comes back to where it was taken from, and still stands there. Then nothing is
        // stored: its next way out would have to wait for the store.
        let place = &mut shelf.blocks[length % SHELF_ROOM];
        if (place.address ^ block.address) | (place.token ^ block.token) != 0 {
            *place = block;
        }
        shelf.length += 1;
        Ok(())
    }

    /// Whether the block is inside, among those of its size.
    #[inline]
    pub fn holds(&self, units: u32, token: u64) -> bool {
        let shelf = &self.shelves[shelf_of(units)];
        let blocks = shelf.blocks.iter().take(shelf.length as usize);
        shelf.units == units && blocks.into_iter().any(|other| other.token == token)
    }

    /// Remembers that this size was missed. The second time in a row it gets the shelf, and its next
    /// frees are kept; sizes that do not come back cost the shelf nothing. What has to make room goes
    /// to `evicted`.
    #[inline]
    pub fn want(&mut self, units: u32, evicted: impl FnMut(Cached)) {
        let shelf = &mut self.shelves[shelf_of(units)];
        if shelf.units == units {
            return;
        }
        if shelf.missed != units {
            shelf.missed = units;
            return;
        }
        if shelf.patience > 0 {
            shelf.patience -= 1;
            return;
        }
        self.claim(units, evicted);
    }

    #[cold]
    fn claim(&mut self, units: u32, mut evicted: impl FnMut(Cached)) {
        let place = shelf_of(units);
        self.give_up(place, &mut evicted);
        let size = u64::from(units);
        if size > self.limits.units || self.limits.entries == 0 || units == NO_SIZE || units == 0 {
            return;
        }
        if self.limits.units - self.promised < size {
            self.drain(evicted);
        }
        let room = (self.limits.units - self.promised) / size;
        let room = room.min(u64::from(self.limits.entries));
        self.promised += room * size;
        self.sized |= 1 << place;
        let shelf = &mut self.shelves[place];
        (shelf.units, shelf.room) = (units, room as u8);
    }

    fn give_up(&mut self, place: usize, each: &mut impl FnMut(Cached)) {
        let shelf = &mut self.shelves[place];
        if shelf.units != NO_SIZE {
            shelf.blocks.iter().take(shelf.length as usize).for_each(|block| each(*block));
            self.promised -= u64::from(shelf.units) * u64::from(shelf.room);
            self.sized &= !(1 << place);
            // No room either: a block may be of the size that stands for none.
            (shelf.units, shelf.length, shelf.room) = (NO_SIZE, 0, 0);
        }
    }

    fn filled(&self) -> impl Iterator<Item = usize> + use<> {
        let mut sized = self.sized;
        std::iter::from_fn(move || {
            let place = sized.trailing_zeros();
            sized &= sized.checked_sub(1)?;
            Some(place as usize)
        })
    }

    /// Takes everything out, and forgets which sizes were wanted.
    pub fn drain(&mut self, mut each: impl FnMut(Cached)) {
        self.filled().for_each(|place| self.give_up(place, &mut each));
    }

    /// As [`drain`](Self::drain), for somebody who lacks memory: for a while what is freed goes where
    /// others find it.
    pub fn raid(&mut self, mut each: impl FnMut(Cached)) {
        for place in self.filled() {
            self.give_up(place, &mut each);
            self.shelves[place].patience = PATIENCE;
        }
    }

    /// Whether the owner is to list it: blocks may come in from now on, and it is not listed yet.
    pub fn is_to_list(&mut self) -> bool {
        let to_list = self.sized != 0 && !self.listed;
        self.listed |= to_list;
        to_list
    }

    /// Notes that the owner has it on no list, which nothing is in.
    pub fn unlist(&mut self) {
        self.listed = false;
    }

    /// Blocks and units inside.
    pub fn contents(&self) -> (usize, u64) {
        self.filled().fold((0, 0), |(blocks, units), place| {
            let Shelf { length, units: size, .. } = self.shelves[place];
            (blocks + length as usize, units + u64::from(length) * u64::from(size))
        })
    }
}

impl Magazine {
    /// An empty one. `home` is its owner's to read back.
    pub fn new(limits: Limits, home: u32) -> Self {
        let asked = if barrier::is_asymmetric() { OPEN } else { FENCED };
        let limits = Limits { entries: limits.entries.min(SHELF_ROOM as u8), ..limits };
        let shelves =
            Shelves { limits, promised: 0, sized: 0, listed: false, shelves: [EMPTY; SHELVES] };
        Self {
            inside: AtomicUsize::new(0),
            asked: AtomicUsize::new(asked),
            home,
            shelves: UnsafeCell::new(shelves),
        }
    }

    #[inline]
    pub fn home(&self) -> u32 {
        self.home
    }

    pub fn is_retired(&self) -> bool {
        self.asked.load(Ordering::Relaxed) & RETIRED != 0
    }

    /// The owner's way in. `None` while someone else wants what is inside: do without.
    ///
    /// # Safety
    ///
    /// Called on the one thread that owns the magazine, and not from within `body`.
    #[inline(always)]
    pub unsafe fn enter<R>(&self, body: impl FnOnce(&mut Shelves) -> R) -> Option<R> {
        // SAFETY: the caller's promise.
        unsafe { self.enter_by(body, Self::look_twice) }
    }

    /// As [`enter`](Self::enter), without a call that a warm function would have to save its registers
    /// for. `None` also where the owner has to use a real fence, which is [`enter`](Self::enter)'s:
    /// [`is_behind_fence`](Self::is_behind_fence).
    ///
    /// # Safety
    ///
    /// As [`enter`](Self::enter).
    #[inline(always)]
    pub unsafe fn enter_warm<R>(&self, body: impl FnOnce(&mut Shelves) -> R) -> Option<R> {
        // SAFETY: the caller's promise.
        unsafe { self.enter_by(body, |this| !barrier::MAY_BE_ASYMMETRIC && this.look_twice()) }
    }

    /// Whether [`enter_warm`](Self::enter_warm) leaves this magazine to [`enter`](Self::enter).
    pub fn is_behind_fence(&self) -> bool {
        barrier::MAY_BE_ASYMMETRIC && self.asked.load(Ordering::Relaxed) & FENCED != 0
    }

    /// # Safety
    ///
    /// As [`enter`](Self::enter).
    #[inline(always)]
    unsafe fn enter_by<R>(
        &self,
        body: impl FnOnce(&mut Shelves) -> R,
        look_twice: impl FnOnce(&Self) -> bool,
    ) -> Option<R> {
        self.inside.store(1, Ordering::Relaxed);
        // The store before the load: a reclaimer that misses the one is seen by the other.
        barrier::compiler();
        // Acquire: what the last reclaimer left inside is seen.
        if self.asked.load(Ordering::Acquire) != OPEN && !look_twice(self) {
            cold_path();
            self.inside.store(0, Ordering::Release);
            return None;
        }
        let result = self.shelves.with_mut(|shelves| {
            // SAFETY: the owner alone comes this way, and no reclaimer is in: it would have asked
            // before its barrier, and we would have seen it, or it waits for `inside`.
            body(unsafe { &mut *shelves })
        });
        // Release: a reclaimer that sees this sees what we did.
        self.inside.store(0, Ordering::Release);
        Some(result)
    }

    /// Whether nobody asks, with a fence of the owner's own where it needs one.
    #[cold]
    fn look_twice(&self) -> bool {
        barrier::light();
        self.asked.load(Ordering::Acquire) == FENCED
    }

    /// Goes through magazines of any threads and takes what they hold. Their owners do without
    /// meanwhile.
    ///
    /// # Safety
    ///
    /// One call at a time for one magazine: the pool's lock of reclaimers keeps that.
    pub unsafe fn reclaim<'a>(
        magazines: impl Iterator<Item = &'a Magazine> + Clone,
        mut each: impl FnMut(&'a Magazine, &mut Shelves),
    ) {
        let add = |magazine: &Magazine, bit| {
            let before = magazine.asked.load(Ordering::Relaxed);
            magazine.asked.store(before | bit, Ordering::Relaxed);
        };
        magazines.clone().for_each(|magazine| add(magazine, ASKED));
        barrier::heavy();
        for magazine in magazines {
            #[cfg(not(aquifer_fault = "reclaim_does_not_wait"))]
            while magazine.inside.load(Ordering::Acquire) != 0 {
                // The owner is inside for a few instructions, or was put to sleep there.
                yield_now();
            }
            magazine.shelves.with_mut(|shelves| {
                // SAFETY: the owner has seen what was asked, or left before; no other reclaimer
                // runs, by this function's contract.
                let shelves = unsafe { &mut *shelves };
                each(magazine, shelves);
            });
            let asked = magazine.asked.load(Ordering::Relaxed);
            // Release: the owner that sees this sees the shelves as they are left.
            #[cfg(not(aquifer_fault = "reclaim_opens_retired"))]
            magazine.asked.store(asked & !ASKED, Ordering::Release);
            #[cfg(aquifer_fault = "reclaim_opens_retired")]
            magazine.asked.store(asked & FENCED, Ordering::Release);
        }
    }

    /// Keeps the owner out for good. Reclaim afterwards.
    ///
    /// # Safety
    ///
    /// As [`reclaim`](Self::reclaim).
    pub unsafe fn retire(&self) {
        let asked = self.asked.load(Ordering::Relaxed);
        self.asked.store(asked | RETIRED, Ordering::Relaxed);
    }

    /// Keeps the owner out, or lets it in again. Reclaim after shutting.
    ///
    /// # Safety
    ///
    /// As [`reclaim`](Self::reclaim).
    pub unsafe fn shut(&self, shut: bool) {
        let asked = self.asked.load(Ordering::Relaxed);
        let asked = if shut { asked | SHUT } else { asked & !SHUT };
        self.asked.store(asked, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shelf_gives_what_is_aligned_as_asked_and_keeps_the_rest_in_order() {
        let magazine = Magazine::new(Limits { entries: 8, units: 1000 }, 1);
        let block = |address| Cached { address, token: address };
        // SAFETY: one thread, and the body enters nothing.
        let entered = unsafe {
            magazine.enter(|shelves| {
                (0..2).for_each(|_| shelves.want(4, |_| ()));
                for address in [0x1000, 0x2000, 0x2400, 0x4000, 0x4400] {
                    assert_eq!(shelves.push(4, block(address)), Ok(()));
                }
                assert_eq!(shelves.search(4, 0x8000), None);
                assert_eq!(shelves.search(3, 1), None);
                for (align, address) in [(0x1000, 0x4000), (0x400, 0x4400), (0x2000, 0x2000)] {
                    assert_eq!(shelves.search(4, align), Some(block(address)));
                }
                assert_eq!(shelves.pop(4), Some(block(0x2400)));
                assert_eq!(shelves.pop(4), Some(block(0x1000)));
                assert_eq!((shelves.pop(4), shelves.contents()), (None, (0, 0)));
            })
        };
        assert!(entered.is_some());
    }
}
