//! What a thread keeps of a pool of page-locked memory, and the warm ways in and out.
//!
//! Beside a thread's magazine lies its *lane*: a batch of blocks that it freed and that no fence
//! covers yet, and a batch that came back. Whoever is inside the magazine has the lane too. A free
//! is a store into the first, an allocation a load from the second; neither asks the driver.

use crate::backend::is_forked_child;
use crate::pool::local;
use crate::pool::magazine::{Cached, Magazine, Shelves};
use crate::sync::trusted::{AtomicU64, Mutex, Ordering};
use crate::sync::{OnceLock, UnsafeCell};
use std::alloc::Layout;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// log2 of the bytes that sizes are rounded up to: a line of the cache.
pub(super) const UNIT_SHIFT: u32 = 6;

/// Blocks of a batch, and so the frees that share a fence.
pub(super) const BATCH: usize = 64;

/// The size of a block of `size` bytes; `None` of no bytes, and of more than a pool's block holds.
#[inline(always)]
pub(super) fn units_of(size: usize) -> Option<u32> {
    // A layout's size has room above it.
    let units = size.wrapping_add((1 << UNIT_SHIFT) - 1) >> UNIT_SHIFT;
    if units == 0 { None } else { u32::try_from(units).ok() }
}

pub(super) fn bytes_of(units: u64) -> usize {
    (units << UNIT_SHIFT) as usize
}

/// A pointer to memory whose address was exposed when it came into the process's map.
#[inline(always)]
pub(super) fn pointer_to(address: usize) -> Option<NonNull<u8>> {
    Some(NonNull::with_exposed_provenance(NonZeroUsize::new(address)?))
}

/// A block without its node, which the pool finds by the address when the block goes home.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    pub(super) address: usize,
    /// What its user said: the block holds as much, or more where it was shrunk in place.
    pub(super) units: u32,
}

impl Block {
    /// A block on its way to the heap, which knows its size.
    pub(super) fn at(address: usize) -> Self {
        Self { address, units: 0 }
    }
}

/// Blocks that go one way together.
#[derive(Debug)]
pub(super) struct Batch {
    length: usize,
    units: u64,
    blocks: [Block; BATCH],
}

impl Default for Batch {
    fn default() -> Self {
        Self { length: 0, units: 0, blocks: [Block::default(); BATCH] }
    }
}

impl Batch {
    pub(super) fn units(&self) -> u64 {
        self.units
    }

    pub(super) fn blocks(&self) -> &[Block] {
        self.blocks.get(..self.length).unwrap_or_default()
    }

    pub(super) fn is_full(&self) -> bool {
        self.length >= BATCH
    }

    /// Adds a block; a full batch takes none.
    #[inline(always)]
    pub(super) fn push(&mut self, block: Block) {
        if let Some(place) = self.blocks.get_mut(self.length) {
            *place = block;
            self.length += 1;
            self.units += u64::from(block.units);
        }
    }

    /// A block of this size whose address has none of the bits of `mask`: the last one there is.
    #[inline(always)]
    fn take(&mut self, units: u32, mask: usize) -> Option<usize> {
        let last = self.length.wrapping_sub(1);
        let block = *self.blocks.get(last)?;
        if block.units == units && block.address & mask == 0 {
            self.length = last;
            self.units -= u64::from(units);
            return Some(block.address);
        }
        self.take_from_below(units, mask)
    }

    #[cold]
    fn take_from_below(&mut self, units: u32, mask: usize) -> Option<usize> {
        let serves = |block: &Block| block.units == units && block.address & mask == 0;
        let at = self.blocks().iter().rposition(serves)?;
        self.length -= 1;
        self.blocks.swap(at, self.length);
        self.units -= u64::from(units);
        self.blocks.get(self.length).map(|block| block.address)
    }
}

/// A thread's two batches.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Freed on this thread, and covered by no fence.
    freed: Option<Box<Batch>>,
    /// Complete, and ready to be allocated.
    ready: Option<Box<Batch>>,
    /// An empty batch, to be filled again.
    spare: Option<Box<Batch>>,
    /// Units that fill a batch before its places are used up.
    limit: u64,
    /// Units that may be ready.
    most: u64,
}

impl Lane {
    /// Takes a freed block in, and gives the batch out once it is full.
    #[inline(always)]
    fn free(&mut self, block: Block) -> Option<Box<Batch>> {
        let Some(batch) = &mut self.freed else { return self.free_first(block) };
        batch.push(block);
        if !batch.is_full() && batch.units < self.limit { None } else { self.freed.take() }
    }

    #[cold]
    fn free_first(&mut self, block: Block) -> Option<Box<Batch>> {
        let batch = self.freed.insert(self.spare.take().unwrap_or_default());
        batch.push(block);
        if batch.units < self.limit { None } else { self.freed.take() }
    }

    /// Takes a batch of complete blocks, and gives out what goes to the heap instead: the batch that
    /// was there, which did not serve, or this one, if it is too much for one thread to keep.
    pub(super) fn refill(&mut self, batch: Box<Batch>) -> Option<Box<Batch>> {
        if batch.units > self.most {
            return Some(batch);
        }
        let before = self.ready.replace(batch)?;
        if before.length > 0 {
            return Some(before);
        }
        self.spare = Some(before);
        None
    }

    /// Batches are full at so many units from now on, if the lane has room for them.
    pub(super) fn batch_at(&mut self, units: u64) {
        self.limit = units.min(self.most);
    }

    /// Empties the lane: what waits for a fence, and what is complete.
    pub(super) fn empty(&mut self) -> [Option<Box<Batch>>; 2] {
        [self.freed.take(), self.ready.take()]
    }

    #[inline(always)]
    fn counts(&self) -> [u64; 2] {
        let units = |batch: &Option<Box<Batch>>| batch.as_ref().map_or(0, |batch| batch.units);
        [units(&self.freed), units(&self.ready)]
    }
}

/// Where a lane lies: found by its magazine's `home`, and never moved, so that the way to it needs
/// no pool.
#[derive(Debug, Default)]
struct Slot {
    lane: UnsafeCell<Lane>,
    freed: AtomicU64,
    ready: AtomicU64,
}

// SAFETY: the lane is reached from inside its magazine alone, whose protocol keeps its users apart.
unsafe impl Sync for Slot {}
// SAFETY: it holds numbers and boxes of numbers.
unsafe impl Send for Slot {}

const SLOTS: usize = 64;

/// Lanes of the whole process, made 64 at a time.
static LANES: [OnceLock<Box<[Slot]>>; 1024] = [const { OnceLock::new() }; 1024];

/// Numbers to use again, and the first one that was never used.
static NUMBERS: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));

#[inline(always)]
fn slot(home: u32) -> Option<&'static Slot> {
    LANES.get(home as usize / SLOTS)?.get()?.get(home as usize % SLOTS)
}

/// A lane for a new magazine. `None` when sixty-five thousand are in use.
pub(super) fn claim(most: u64) -> Option<u32> {
    let home = {
        let mut numbers = NUMBERS.lock();
        let (again, next) = &mut *numbers;
        match again.pop() {
            Some(home) => home,
            // Not counted past the last one: a count that came round would name a lane in use.
            None if *next as usize / SLOTS >= LANES.len() => return None,
            None => {
                *next += 1;
                *next - 1
            }
        }
    };
    let make = || (0..SLOTS).map(|_| Slot::default()).collect();
    LANES.get(home as usize / SLOTS)?.get_or_init(make);
    // SAFETY: no magazine has this number yet.
    unsafe { with_lane(home, |lane| *lane = Lane { limit: most, most, ..Lane::default() }) };
    Some(home)
}

/// Gives a lane's number back.
///
/// # Safety
///
/// The magazine is retired or its thread is leaving, and its lane was emptied.
pub(super) unsafe fn release(home: u32) {
    // SAFETY: by this function's contract nobody else comes here.
    unsafe { with_lane(home, |lane| *lane = Lane::default()) };
    NUMBERS.lock().0.push(home);
}

/// # Safety
///
/// The caller is inside the lane's magazine, as its owner or as its reclaimer, or nobody can be.
#[inline(always)]
pub(super) unsafe fn with_lane<R>(home: u32, body: impl FnOnce(&mut Lane) -> R) -> Option<R> {
    let slot = slot(home)?;
    Some(slot.lane.with_mut(|lane| {
        // SAFETY: this function's contract: one at a time.
        let lane = unsafe { &mut *lane };
        let result = body(lane);
        let [freed, ready] = lane.counts();
        slot.freed.store(freed, Ordering::Relaxed);
        slot.ready.store(ready, Ordering::Relaxed);
        result
    }))
}

/// Units in a magazine's lane, as of some moment: freed and not fenced, and ready.
pub(super) fn counts(home: u32) -> [u64; 2] {
    slot(home).map_or([0; 2], |slot| {
        [slot.freed.load(Ordering::Relaxed), slot.ready.load(Ordering::Relaxed)]
    })
}

/// Which pool, and its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// Never 0.
    pub(super) number: u64,
    pub(super) fenced: bool,
}

#[inline(always)]
fn take_inside(
    magazine: &Magazine,
    shelves: &mut Shelves,
    key: Key,
    units: u32,
    mask: usize,
) -> Option<usize> {
    if !key.fenced
        && let Some(block) = shelves.pop(units)
    {
        let address = block.address as usize;
        if address & mask == 0 {
            return Some(address);
        }
        // It has just left the very place that it goes back to.
        let _ = shelves.push(units, block);
    }
    let slot = slot(magazine.home())?;
    slot.lane.with_mut(|lane| {
        // SAFETY: the caller is inside the magazine, and this is its lane.
        let ready = unsafe { &mut *lane }.ready.as_mut()?;
        let address = ready.take(units, mask)?;
        slot.ready.store(ready.units, Ordering::Relaxed);
        Some(address)
    })
}

/// # Safety
///
/// The caller is inside the magazine.
#[inline(always)]
unsafe fn free_inside(magazine: &Magazine, block: Block) -> Put {
    let Some(slot) = slot(magazine.home()) else { return Put::NotHere };
    slot.lane.with_mut(|lane| {
        // SAFETY: this function's contract, and this is the magazine's lane.
        let lane = unsafe { &mut *lane };
        let full = lane.free(block);
        let freed = lane.freed.as_ref().map_or(0, |batch| batch.units);
        slot.freed.store(freed, Ordering::Relaxed);
        full.map_or(Put::Done, Put::Full)
    })
}

/// A block that the calling thread has ready. No lock, no driver call, no unwind.
#[inline(always)]
pub(super) fn take(key: Key, layout: Layout) -> Option<NonNull<[u8]>> {
    let units = units_of(layout.size())?;
    if is_forked_child() {
        return None;
    }
    let mask = layout.align() - 1;
    // SAFETY: the reference is gone when this returns.
    let magazine = unsafe { local::find(key.number, 0) }?;
    // SAFETY: the table has this thread's own magazines, and `take_inside` enters none.
    let address =
        unsafe { magazine.enter(|shelves| take_inside(magazine, shelves, key, units, mask)) }??;
    Some(NonNull::slice_from_raw_parts(pointer_to(address)?, layout.size()))
}

/// What became of a block that was freed.
#[derive(Debug)]
pub(super) enum Put {
    Done,
    /// The thread's batch is full: it goes to the pool.
    Full(Box<Batch>),
    /// The thread has no place for it.
    NotHere,
}

/// Frees a block into the calling thread's own magazine or lane.
///
/// # Safety
///
/// The magazine is this thread's; the block is live, of the magazine's pool, and given up. Where
/// `fenced` is false no device work may use it any more.
#[inline(always)]
pub(super) unsafe fn put_in(magazine: &Magazine, block: Block, fenced: bool) -> Put {
    // SAFETY: this thread's magazine; nothing below enters one.
    let put = unsafe {
        magazine.enter(|shelves| {
            if !fenced {
                let address = block.address as u64;
                let cached = Cached { address, token: address };
                return match shelves.push(block.units, cached) {
                    Ok(()) => Put::Done,
                    Err(_) => Put::NotHere,
                };
            }
            // SAFETY: inside the magazine.
            free_inside(magazine, block)
        })
    };
    put.unwrap_or(Put::NotHere)
}

/// As [`put_in`], into the magazine that the thread's table has for this pool.
///
/// # Safety
///
/// As [`put_in`].
#[inline(always)]
pub(super) unsafe fn put(key: Key, block: Block) -> Put {
    // SAFETY: the reference is gone when this returns.
    match unsafe { local::find(key.number, 0) } {
        // SAFETY: the table has this thread's own magazines; the rest is the caller's promise.
        Some(magazine) => unsafe { put_in(magazine, block, key.fenced) },
        None => Put::NotHere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_a_line_and_never_wrap() {
        assert_eq!(units_of(0), None);
        assert_eq!([1, 64, 65, 1 << 20].map(units_of), [Some(1), Some(1), Some(2), Some(1 << 14)]);
        assert_eq!(units_of(isize::MAX as usize), None);
        assert_eq!(units_of((u32::MAX as usize) << UNIT_SHIFT), Some(u32::MAX));
        assert_eq!(units_of(((u32::MAX as usize) << UNIT_SHIFT) + 1), None);
    }

    #[test]
    fn a_lane_gives_full_batches_out_and_takes_one_back() {
        let mut lane = Lane { limit: 1000, most: 1000, ..Lane::default() };
        let block = |n: usize| Block { address: n << UNIT_SHIFT, units: 1 + (n % 2) as u32 };
        for n in 1..BATCH {
            assert!(lane.free(block(n)).is_none());
        }
        let batch = lane.free(block(BATCH)).unwrap();
        assert_eq!((batch.blocks().len(), batch.units()), (BATCH, 96));
        assert!(lane.refill(batch).is_none());
        let ready = lane.ready.as_mut().unwrap();
        assert_eq!(ready.take(1, 0), Some(BATCH << UNIT_SHIFT), "the last one first");
        assert_eq!(ready.take(1, 4095), None, "63 lines and no page");
        assert_eq!(ready.take(3, 0), None);
        let mut seen = vec![BATCH << UNIT_SHIFT];
        while let Some(address) = ready.take(1, 0).or_else(|| ready.take(2, 0)) {
            seen.push(address);
        }
        assert_eq!(ready.units(), 0);
        seen.sort_unstable();
        assert!(seen.into_iter().eq((1..=BATCH).map(|n| n << UNIT_SHIFT)));
        let mut one = Box::<Batch>::default();
        one.push(block(1));
        assert!(lane.refill(one).is_none(), "the empty one is kept to be filled");
        assert!(lane.spare.is_some());
        assert_eq!(lane.refill(Box::default()).unwrap().units(), 2, "what did not serve goes");
        let large = Block { address: 64, units: 2000 };
        assert!(lane.free(large).is_some(), "full by its bytes");
    }

    #[test]
    fn a_number_is_used_again_when_it_was_given_back() {
        let one = claim(10).unwrap();
        let two = claim(10).unwrap();
        assert_ne!(one, two);
        // SAFETY: no magazine has these numbers.
        unsafe {
            with_lane(one, |lane| lane.free(Block { address: 64, units: 3 }));
            assert_eq!(counts(one), [3, 0]);
            with_lane(one, |lane| drop(lane.empty()));
            release(one);
            release(two);
        }
        assert_eq!(counts(one), [0, 0]);
    }
}
