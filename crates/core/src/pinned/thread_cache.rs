//! Blocks that a thread keeps of a pool of page-locked memory, and the fast paths in and out.
//!
//! Each thread has one [`Magazine`] for each pool, which has a [`ThreadCache`] beside its size classes. The rule of a
//! pool says which of the two it uses.
//!
//! | pool | `free` of a block | `allocate` |
//! | --- | --- | --- |
//! | fenced | a store into the batch [`freed`](ThreadCache::freed), whose blocks no fence covers | a load from the batch [`ready`](ThreadCache::ready), whose fence has passed |
//! | unfenced | into the magazine's size class; the user vouches for the device | from the size class |
//!
//! A batch of a fenced pool goes round. It is `freed` on a thread, is in the pool's quarantine when it is full, and is
//! `ready` after its fence on the thread that collected it. Neither path calls the driver.
//!
//! INV-PINNED-7. Each magazine of a pool of page-locked memory was made with a `ThreadCache`, which is reached from
//! inside of it alone, by the owner or by a thread that flushes it. The magazine's protocol keeps the two apart.

use super::batch::{Batch, FreedBlock, exposed_pointer, units_of};
use crate::driver::is_forked_child;
use crate::pool::local::{self, PoolId};
use crate::pool::magazine::{Cached, Magazine, SizeClasses};
use std::alloc::Layout;
use std::mem;
use std::ptr::NonNull;

/// The batches that a thread keeps of one pool.
#[derive(Debug, Default)]
pub(super) struct ThreadCache {
    /// Blocks that this thread freed. No fence covers them.
    freed: Batch,
    /// Blocks whose fence has passed, which are to be allocated.
    ready: Batch,
    /// An empty batch that has its memory, to become `freed`.
    spare: Batch,
    /// The units at which `freed` is full, though it has room for more blocks.
    batch_limit: u64,
    /// The most units that `ready` may hold.
    limit: u64,
}

impl ThreadCache {
    /// An empty cache, each of whose batches has at most so many units.
    pub(super) fn new(limit: u64) -> Self {
        Self { batch_limit: limit, limit, ..Self::default() }
    }

    /// The cache of a magazine, from inside of it.
    ///
    /// # Safety
    ///
    /// The magazine is one of a pool of page-locked memory (INV-PINNED-7).
    #[inline(always)]
    pub(super) unsafe fn of(classes: &mut SizeClasses) -> &mut Self {
        // SAFETY: INV-PINNED-7, by this function's contract.
        unsafe { classes.extra() }
    }

    /// Keeps a freed block. Returns the batch once it is full.
    #[inline(always)]
    fn free(&mut self, block: FreedBlock) -> Option<Batch> {
        let is_full = self.freed.push(block, self.batch_limit);
        is_full.then(|| mem::replace(&mut self.freed, mem::take(&mut self.spare)))
    }

    /// Takes a batch whose fence has passed. Returns a batch for the heap. That is the former one, which did not serve,
    /// or this one if it is larger than the limit.
    pub(super) fn replace_ready(&mut self, batch: Batch) -> Option<Batch> {
        if batch.units() > self.limit {
            return Some(batch);
        }
        let former = mem::replace(&mut self.ready, batch);
        if !former.blocks().is_empty() {
            return Some(former);
        }
        self.spare = former;
        None
    }

    /// Sets the units at which a batch is full, within the limit of the cache.
    pub(super) fn set_batch_limit(&mut self, units: u64) {
        self.batch_limit = units.min(self.limit);
    }

    /// Takes out the batches `[freed, ready]`.
    pub(super) fn take_freed_and_ready(&mut self) -> [Batch; 2] {
        [mem::take(&mut self.freed), mem::take(&mut self.ready)]
    }

    /// The units of the batches `[freed, ready]`.
    pub(super) fn units(&self) -> [u64; 2] {
        [self.freed.units(), self.ready.units()]
    }
}

/// The pool of a magazine, and its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolKey {
    pub(super) id: PoolId,
    /// Whether a freed block waits for a fence, as the [module](self) explains.
    pub(super) fenced: bool,
}

impl PoolKey {
    /// The key of no pool.
    pub(super) const NONE: Self = Self { id: PoolId::NONE, fenced: true };
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
    let magazine = unsafe { local::find(key.id, 0) }?;
    // SAFETY: the table has this thread's own magazines, and nothing below enters one.
    let address = unsafe {
        magazine.try_with(|classes| {
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
            // SAFETY: the magazine is that of a pool of page-locked memory, as the key is.
            ThreadCache::of(classes).ready.take(units, mask)
        })
    }??;
    Some(NonNull::slice_from_raw_parts(exposed_pointer(address)?, layout.size()))
}

/// A block was not freed, since the thread has no cache of its pool, another thread is flushing it, or the block's size
/// class has no room. The caller frees the block to the pool.
#[derive(Debug)]
pub(super) struct NotCached;

/// Frees a block into a magazine of the calling thread, or into its cache. Returns the cache's batch if that is full
/// now, which the caller puts into the pool's quarantine.
///
/// # Safety
///
/// The magazine is this thread's. The block is live, of the magazine's pool, and given up. If `fenced` is false, no
/// device work may use it any more.
#[inline(always)]
pub(super) unsafe fn free_into(
    magazine: &Magazine,
    block: FreedBlock,
    fenced: bool,
) -> Result<Option<Batch>, NotCached> {
    // SAFETY: this thread's magazine; nothing below enters one.
    let freed = unsafe {
        magazine.try_with(|classes| {
            if fenced {
                // SAFETY: the magazine is that of a pool of page-locked memory, as the block is.
                return Ok(ThreadCache::of(classes).free(block));
            }
            let address = block.address as u64;
            let cached = Cached { address, token: address };
            classes.push(block.units, cached).map_or(Err(NotCached), |()| Ok(None))
        })
    };
    freed.unwrap_or(Err(NotCached))
}

/// Frees a block into the cache that the calling thread has of a pool. `full` takes the batch if it is full then.
/// `false` says that nothing was done, as [`NotCached`].
///
/// # Safety
///
/// The conditions of [`free_into`].
#[inline(always)]
pub(super) unsafe fn free(key: PoolKey, block: FreedBlock, full: impl FnOnce(Batch)) -> bool {
    // SAFETY: the reference is gone when this returns.
    let Some(magazine) = (unsafe { local::find(key.id, 0) }) else { return false };
    // SAFETY: the table has this thread's own magazines; the rest is the caller's promise.
    let freed = unsafe { free_into(magazine, block, key.fenced) };
    freed.map(|batch| batch.map(full)).is_ok()
}

#[cfg(test)]
mod tests;
