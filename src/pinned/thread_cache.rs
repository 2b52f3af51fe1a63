//! Blocks that a thread keeps of a pool of page-locked memory, and the fast paths in and out.
//!
//! Each thread has one [`Magazine`] for each pool, and a [`ThreadCache`] beside it. A pool uses one of
//! the two, by its rule:
//!
//! | pool | `free` of a block | `allocate` |
//! | --- | --- | --- |
//! | fenced | a store into the batch [`freed`](ThreadCache::freed), whose blocks no fence covers | a load from the batch [`ready`](ThreadCache::ready), whose fence has passed |
//! | unfenced | into the magazine's size class; the user vouches for the device | from the size class |
//!
//! A batch of a fenced pool goes round: `freed` on a thread, when full the pool's quarantine, after its
//! fence `ready` on the thread that collected it. Neither path calls the driver.
//!
//! INV-7: A `ThreadCache` is touched from inside of its magazine alone, by the owner or by a thread
//! that flushes it. The magazine's protocol keeps the two apart.

use super::batch::{Batch, FreedBlock, pointer_to, units_of};
use crate::driver::is_forked_child;
use crate::pool::local;
use crate::pool::magazine::{Cached, Magazine, SizeClasses};
use crate::sync::trusted::Mutex;
use crate::sync::{OnceLock, UnsafeCell};
use std::alloc::Layout;
use std::ptr::NonNull;

/// The batches that a thread keeps of one pool.
#[derive(Debug, Default)]
pub(super) struct ThreadCache {
    /// Blocks that this thread freed. No fence covers them.
    freed: Option<Box<Batch>>,
    /// Blocks whose fence has passed: to be allocated.
    ready: Option<Box<Batch>>,
    /// An empty batch, to become `freed`.
    spare: Option<Box<Batch>>,
    /// `freed` is full at so many units, though it has room for more blocks.
    batch_limit: u64,
    /// The most units that `ready` may hold.
    limit: u64,
}

impl ThreadCache {
    /// Keeps a freed block. Returns the batch once it is full.
    #[inline(always)]
    fn free(&mut self, block: FreedBlock) -> Option<Box<Batch>> {
        let Some(batch) = &mut self.freed else { return self.free_first(block) };
        batch.push(block);
        if !batch.is_full() && batch.units() < self.batch_limit { None } else { self.freed.take() }
    }

    #[cold]
    fn free_first(&mut self, block: FreedBlock) -> Option<Box<Batch>> {
        let batch = self.freed.insert(self.spare.take().unwrap_or_default());
        batch.push(block);
        if batch.units() < self.batch_limit { None } else { self.freed.take() }
    }

    /// Takes a batch whose fence has passed. Returns a batch for the heap: the former one, which did
    /// not serve, or this one if it is larger than the limit.
    pub(super) fn refill(&mut self, batch: Box<Batch>) -> Option<Box<Batch>> {
        if batch.units() > self.limit {
            return Some(batch);
        }
        let former = self.ready.replace(batch)?;
        if !former.is_empty() {
            return Some(former);
        }
        self.spare = Some(former);
        None
    }

    /// Sets the units at which a batch is full, within the limit of the cache.
    pub(super) fn set_batch_limit(&mut self, units: u64) {
        self.batch_limit = units.min(self.limit);
    }

    /// Takes out the batches `[freed, ready]`.
    pub(super) fn empty(&mut self) -> [Option<Box<Batch>>; 2] {
        [self.freed.take(), self.ready.take()]
    }

    /// The units of the batches `[freed, ready]`.
    pub(super) fn units(&self) -> [u64; 2] {
        let units = |batch: &Option<Box<Batch>>| batch.as_ref().map_or(0, |batch| batch.units());
        [units(&self.freed), units(&self.ready)]
    }
}

/// The place of a cache. It never moves, so the fast paths find it by its index alone, which its
/// magazine holds.
#[derive(Debug, Default)]
struct CacheSlot(UnsafeCell<ThreadCache>);

// SAFETY: INV-7: the cache is reached from inside its magazine alone, whose protocol keeps its users
// apart.
unsafe impl Sync for CacheSlot {}
// SAFETY: it holds numbers and boxes of numbers.
unsafe impl Send for CacheSlot {}

const CHUNK: usize = 64;

/// The caches of the whole process, made a chunk at a time.
static SLOTS: [OnceLock<Box<[CacheSlot]>>; 1024] = [const { OnceLock::new() }; 1024];

/// The indices that were released, and the lowest one that was never used.
static FREE_INDICES: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));

#[inline(always)]
fn slot(index: u32) -> Option<&'static CacheSlot> {
    SLOTS.get(index as usize / CHUNK)?.get()?.get(index as usize % CHUNK)
}

/// An empty cache for a new magazine. `None` when 65,536 are in use.
pub(super) fn claim(limit: u64) -> Option<u32> {
    let index = {
        let mut indices = FREE_INDICES.lock();
        let (released, next) = &mut *indices;
        match released.pop() {
            Some(index) => index,
            // Stays at the end: an index that wrapped would name a cache in use.
            None if *next as usize / CHUNK >= SLOTS.len() => return None,
            None => {
                *next += 1;
                *next - 1
            }
        }
    };
    let make = || (0..CHUNK).map(|_| CacheSlot::default()).collect();
    SLOTS.get(index as usize / CHUNK)?.get_or_init(make);
    let empty = ThreadCache { batch_limit: limit, limit, ..ThreadCache::default() };
    // SAFETY: INV-7: no magazine has this index yet.
    unsafe { with_cache(index, |cache| *cache = empty) };
    Some(index)
}

/// Gives a cache back for another magazine.
///
/// # Safety
///
/// Its magazine is retired or its thread is leaving, and the cache was emptied.
pub(super) unsafe fn release(index: u32) {
    // SAFETY: INV-7: by this function's contract no thread is inside.
    unsafe { with_cache(index, |cache| *cache = ThreadCache::default()) };
    FREE_INDICES.lock().0.push(index);
}

/// # Safety
///
/// The caller is inside the cache's magazine, as its owner or to flush it, or no thread can be.
#[inline(always)]
pub(super) unsafe fn with_cache<R>(
    index: u32,
    body: impl FnOnce(&mut ThreadCache) -> R,
) -> Option<R> {
    let slot = slot(index)?;
    Some(slot.0.with_mut(|cache| {
        // SAFETY: INV-7, by this function's contract.
        body(unsafe { &mut *cache })
    }))
}

/// The pool of a magazine, and its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolKey {
    /// Never 0, and never the number of another pool.
    pub(super) number: u64,
    /// Whether a freed block waits for a fence: see the [module](self).
    pub(super) fenced: bool,
}

impl PoolKey {
    /// The key of no pool.
    pub(super) const NONE: Self = Self { number: 0, fenced: true };
}

#[inline(always)]
fn allocate_inside(
    magazine: &Magazine,
    classes: &mut SizeClasses,
    key: PoolKey,
    units: u32,
    mask: usize,
) -> Option<usize> {
    if !key.fenced
        && let Some(block) = classes.pop(units)
    {
        let address = block.address as usize;
        if address & mask == 0 {
            return Some(address);
        }
        // It fits: it has just left the place that it goes back to.
        let _ = classes.push(units, block);
    }
    // SAFETY: INV-7: the caller is inside the magazine, and this is its cache.
    unsafe { with_cache(magazine.slot(), |cache| cache.ready.as_mut()?.take(units, mask)) }?
}

/// Takes a block out of the calling thread's cache. No lock, no driver call, no unwind.
#[inline(always)]
pub(super) fn allocate(key: PoolKey, layout: Layout) -> Option<NonNull<[u8]>> {
    let units = units_of(layout.size())?;
    if is_forked_child() {
        return None;
    }
    let mask = layout.align() - 1;
    // SAFETY: the reference is gone when this returns.
    let magazine = unsafe { local::find(key.number, 0) }?;
    // SAFETY: the table has this thread's own magazines, and `allocate_inside` enters none.
    let address = unsafe {
        magazine.try_with(|classes| allocate_inside(magazine, classes, key, units, mask))
    }??;
    Some(NonNull::slice_from_raw_parts(pointer_to(address)?, layout.size()))
}

/// The outcome of freeing a block into the thread's cache.
#[derive(Debug)]
pub(super) enum FreeResult {
    /// The cache has it.
    Cached,
    /// The cache had it, and its batch is full: the caller puts the batch into the pool's quarantine.
    BatchFull(Box<Batch>),
    /// Nothing was done, since the thread has no cache of this pool, another thread is flushing it, or
    /// the block's size class has no room: the caller frees the block to the pool.
    NotCached,
}

/// Frees a block into a magazine of the calling thread, or into its cache.
///
/// # Safety
///
/// The magazine is this thread's; the block is live, of the magazine's pool, and given up. Where
/// `fenced` is false no device work may use it any more.
#[inline(always)]
pub(super) unsafe fn free_into(magazine: &Magazine, block: FreedBlock, fenced: bool) -> FreeResult {
    // SAFETY: this thread's magazine; nothing below enters one.
    let result = unsafe {
        magazine.try_with(|classes| {
            if !fenced {
                let address = block.address as u64;
                let cached = Cached { address, token: address };
                return classes.push(block.units, cached).ok().map(|()| FreeResult::Cached);
            }
            // SAFETY: INV-7: inside the magazine, and this is its cache.
            let full = with_cache(magazine.slot(), |cache| cache.free(block))?;
            Some(full.map_or(FreeResult::Cached, FreeResult::BatchFull))
        })
    };
    result.flatten().unwrap_or(FreeResult::NotCached)
}

/// Frees a block into the cache that the calling thread has of a pool. `full` takes the batch if it
/// is full then. `false`: nothing was done, as [`FreeResult::NotCached`].
///
/// # Safety
///
/// As [`free_into`].
#[inline(always)]
pub(super) unsafe fn free(key: PoolKey, block: FreedBlock, full: impl FnOnce(Box<Batch>)) -> bool {
    // SAFETY: the reference is gone when this returns.
    let Some(magazine) = (unsafe { local::find(key.number, 0) }) else { return false };
    // SAFETY: the table has this thread's own magazines; the rest is the caller's promise.
    match unsafe { free_into(magazine, block, key.fenced) } {
        FreeResult::Cached => true,
        FreeResult::BatchFull(batch) => {
            full(batch);
            true
        }
        FreeResult::NotCached => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::{BATCH, UNIT_SHIFT};
    use super::*;

    #[test]
    fn a_cache_gives_full_batches_out_and_takes_one_back() {
        let mut cache = ThreadCache { batch_limit: 1000, limit: 1000, ..ThreadCache::default() };
        let block = |n: usize| FreedBlock { address: n << UNIT_SHIFT, units: 1 + (n % 2) as u32 };
        for n in 1..BATCH {
            assert!(cache.free(block(n)).is_none());
        }
        let batch = cache.free(block(BATCH)).unwrap();
        assert_eq!((batch.blocks().len(), batch.units()), (BATCH, 96));
        assert!(cache.refill(batch).is_none());
        let ready = cache.ready.as_mut().unwrap();
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
        assert!(cache.refill(one).is_none(), "the empty one is kept to be filled");
        assert!(cache.spare.is_some());
        assert_eq!(cache.refill(Box::default()).unwrap().units(), 2, "what did not serve goes");
        let large = FreedBlock { address: 64, units: 2000 };
        assert!(cache.free(large).is_some(), "full by its bytes");
    }

    #[test]
    fn an_index_is_used_again_when_it_was_released() {
        let one = claim(10).unwrap();
        let two = claim(10).unwrap();
        assert_ne!(one, two);
        // SAFETY: no magazine has these indices.
        unsafe {
            with_cache(one, |cache| cache.free(FreedBlock { address: 64, units: 3 }));
            assert_eq!(with_cache(one, |cache| cache.units()), Some([3, 0]));
            with_cache(one, |cache| drop(cache.empty()));
            release(one);
            release(two);
            assert_eq!(with_cache(one, |cache| cache.units()), Some([0, 0]));
        }
    }
}
