//! A thread's own blocks, ready for one stream: what makes a warm allocation a few instructions.
//!
//! The owner's thread goes in and out by plain stores to a word. Who else wants what is inside asks
//! through a second word and a barrier of the whole process, and waits until the owner is out:
//! Dekker's protocol, with all its cost on the side that is rare.

use crate::sync::barrier;
use crate::sync::trusted;
use crate::sync::{AtomicUsize, Ordering, UnsafeCell, yield_now};

/// Sizes that a magazine remembers at once.
const SHELVES: usize = 64;

/// Blocks of one size that a shelf has room for.
pub const SHELF_ROOM: usize = 8;

/// Misses of other sizes that a shelf stands before it makes room.
const PATIENCE: u8 = 2;

/// Units in a magazine's count of its contents; the blocks lie above. 2^48 units are more than any
/// address space.
const UNIT_BITS: u32 = 48;

const OPEN: usize = 0;
const ASKED: usize = 1;
/// Never the owner's again: its stream or its pool is gone.
const RETIRED: usize = 2;
/// Kept shut for now, beside what else is asked: the stream is in a declared capture.
const SHUT: usize = 4;

/// A block that waits to be allocated again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    strikes: u8,
    blocks: [Cached; SHELF_ROOM],
}

const EMPTY: Shelf = Shelf {
    units: 0,
    length: 0,
    strikes: 0,
    blocks: [Cached { address: 0, token: 0 }; SHELF_ROOM],
};

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
    units: u64,
    blocks: u64,
    shelves: [Shelf; SHELVES],
}

/// Where in the pool a magazine belongs, and its blocks.
#[derive(Debug)]
pub struct Magazine {
    /// 1 while the owner is inside. Written by the owner alone.
    inside: AtomicUsize,
    /// Not [`OPEN`] while the owner has to stay out.
    asked: AtomicUsize,
    shelves: UnsafeCell<Shelves>,
    /// Blocks and units inside, for statistics.
    contents: trusted::AtomicU64,
    home: u32,
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

const _: () = assert!(SHELVES == 1 << (32 - 26));

impl Shelves {
    /// A block of exactly this size, if there is one.
    #[inline]
    pub fn pop(&mut self, units: u32) -> Option<Cached> {
        let shelf = &mut self.shelves[shelf_of(units)];
        if shelf.units == units && shelf.length > 0 {
            shelf.length -= 1;
            shelf.strikes = 0;
            self.units -= u64::from(units);
            self.blocks -= 1;
            return Some(shelf.blocks[shelf.length as usize % SHELF_ROOM]);
        }
        None
    }

    /// Remembers that this size was missed, so that its next free is kept. Where another size holds
    /// the shelf for long without use, its blocks are given out to make room.
    #[inline]
    pub fn want(&mut self, units: u32, mut evicted: impl FnMut(Cached)) {
        let shelf = &mut self.shelves[shelf_of(units)];
        if shelf.length == 0 {
            shelf.units = units;
            return;
        }
        shelf.strikes += 1;
        if shelf.units != units && shelf.strikes > PATIENCE {
            self.units -= u64::from(shelf.units) * u64::from(shelf.length);
            self.blocks -= u64::from(shelf.length);
            for block in &shelf.blocks[..shelf.length as usize] {
                evicted(*block);
            }
            *shelf = Shelf { units, ..EMPTY };
        }
    }

    /// Keeps a freed block, if its size is wanted and there is room.
    #[inline]
    pub fn push(&mut self, units: u32, block: Cached) -> Result<(), Cached> {
        let shelf = &mut self.shelves[shelf_of(units)];
        let total = self.units + u64::from(units);
        if shelf.units != units || shelf.length >= self.limits.entries || total > self.limits.units
        {
            return Err(block);
        }
        // A block that is freed twice in a row must not be handed out twice: the heap will say so.
        if shelf.blocks[..shelf.length as usize].iter().any(|other| other.token == block.token) {
            return Err(block);
        }
        shelf.blocks[shelf.length as usize % SHELF_ROOM] = block;
        shelf.length += 1;
        self.units = total;
        self.blocks += 1;
        Ok(())
    }

    /// Takes everything out, and forgets which sizes were wanted.
    pub fn drain(&mut self, mut each: impl FnMut(Cached)) {
        if self.blocks == 0 {
            return;
        }
        for shelf in &mut self.shelves {
            for block in &shelf.blocks[..shelf.length as usize] {
                each(*block);
            }
            *shelf = EMPTY;
        }
        self.units = 0;
        self.blocks = 0;
    }

    #[inline]
    fn contents(&self) -> u64 {
        self.blocks << UNIT_BITS | self.units
    }
}

impl Magazine {
    /// An empty one. `home` is its owner's to read back.
    pub fn new(limits: Limits, home: u32) -> Self {
        barrier::prepare();
        let limits = Limits { entries: limits.entries.min(SHELF_ROOM as u8), ..limits };
        Self {
            inside: AtomicUsize::new(0),
            asked: AtomicUsize::new(OPEN),
            shelves: UnsafeCell::new(Shelves {
                limits,
                units: 0,
                blocks: 0,
                shelves: [EMPTY; SHELVES],
            }),
            contents: trusted::AtomicU64::new(0),
            home,
        }
    }

    #[inline]
    pub fn home(&self) -> u32 {
        self.home
    }

    /// Blocks and units inside, as of some moment.
    pub fn contents(&self) -> (u64, u64) {
        let contents = self.contents.load(trusted::Ordering::Relaxed);
        (contents >> UNIT_BITS, contents & ((1 << UNIT_BITS) - 1))
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
        self.inside.store(1, Ordering::Relaxed);
        // The store before the load: a reclaimer that misses the one is seen by the other.
        barrier::light();
        // Acquire: what the last reclaimer left inside is seen.
        if self.asked.load(Ordering::Acquire) != OPEN {
            self.inside.store(0, Ordering::Release);
            return None;
        }
        let result = self.shelves.with_mut(|shelves| {
            // SAFETY: the owner alone comes this way, and no reclaimer is in: it would have asked
            // before its barrier, and we would have seen it, or it waits for `inside`.
            let shelves = unsafe { &mut *shelves };
            let result = body(shelves);
            self.contents.store(shelves.contents(), trusted::Ordering::Relaxed);
            result
        });
        // Release: a reclaimer that sees this sees what we did.
        self.inside.store(0, Ordering::Release);
        Some(result)
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
                magazine.contents.store(shelves.contents(), trusted::Ordering::Relaxed);
            });
            let asked = magazine.asked.load(Ordering::Relaxed);
            // Release: the owner that sees this sees the shelves as they are left.
            magazine.asked.store(asked & !ASKED, Ordering::Release);
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
