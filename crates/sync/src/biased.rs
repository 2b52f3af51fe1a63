//! A cell with a biased lock: its owner enters without a locked instruction, other threads revoke it.
//!
//! The owner marks itself as inside, then looks at the state. A revoker bars the owner in the state,
//! then looks whether it is inside. That is Dekker's algorithm, whose two pairs of store and load need
//! a fence each; [`barrier`] moves the cost of both to the revoker (quickly reacquirable locks, the
//! biased locks of the JVM).
//!
//! | word | written by | read by |
//! | --- | --- | --- |
//! | `state` | the holder of the revokers' lock | all |
//! | `owner_inside` | the owner | the holder of the revokers' lock |
//! | `value` | the owner inside, the revoker that has waited for it | the same |
//!
//! The *revokers' lock* is a mutex of the cell's user. One lock may serve many cells.
//!
//! # State table
//!
//! The state is the owner's number with flags above it.
//!
//! | state | an owner that comes | left by |
//! | --- | --- | --- |
//! | no owner | - | [`set_owner`](Biased::set_owner) |
//! | owner | enters | `revoke`, `with_revoked`, `suspend`, `retire` |
//! | owner + `FENCED` | issues a fence, looks again, enters | the same |
//! | + `REVOKED` | does without | [`restore`](Biased::restore), the end of [`with_revoked`](Biased::with_revoked) |
//! | + `SUSPENDED` | does without | [`resume`](Biased::resume) |
//! | + `RETIRED` | does without | never |
//!
//! Flags come together: the owner enters when all but `FENCED` are gone. `FENCED` stands from the start
//! where the system has no barrier for a whole process.
//!
//! # Invariants
//!
//! - INV-1: the owner alone writes `owner_inside`, the holder of the revokers' lock alone `state`.
//! - INV-2: the owner reaches the value only after it has set `owner_inside` and then found no flag
//!   but `FENCED`.
//! - INV-3: a revoker reaches the value only after it has set a flag and then found `owner_inside`
//!   clear.
//! - INV-4: of an owner and a revoker at least one sees the other's store, by the barriers between the
//!   steps of INV-2 and INV-3. So at most one of them reaches the value.
//! - INV-5: who reaches the value sees all that was done to it: each releases by the word that it
//!   writes last, and the next acquires by that word.
//! - INV-6: `RETIRED` is never cleared.
//!
//! `loom_tests/biased.rs` explores it.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use super::{AtomicU64, AtomicUsize, MODELLED, Ordering, UnsafeCell, barrier, yield_now};
use std::hint::cold_path;

const REVOKED: u64 = 1 << 63;
const SUSPENDED: u64 = 1 << 62;
const RETIRED: u64 = 1 << 61;
const FENCED: u64 = 1 << 60;
/// The bits of the owner's number, and in place of one. Not 0, which is what a thread without a number
/// compares with.
const NO_OWNER: u64 = FENCED - 1;

/// A value of one owner thread, which other threads can take for a moment or for good.
#[derive(Debug)]
pub struct Biased<T> {
    owner_inside: AtomicUsize,
    state: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: INV-4: one thread at a time reaches the value.
unsafe impl<T: Send> Sync for Biased<T> {}

impl<T> Biased<T> {
    /// A cell that has no owner yet.
    pub fn new(value: T) -> Self {
        // Asked before the first owner comes: it registers the process for the barrier.
        let fence = if barrier::is_asymmetric() { 0 } else { FENCED };
        Self {
            owner_inside: AtomicUsize::new(0),
            state: AtomicU64::new(NO_OWNER | fence),
            value: UnsafeCell::new(value),
        }
    }

    /// A cell that an owner of this number has from the start. A number of a thread, or any other where
    /// the caller knows by itself which thread owns the cell.
    pub fn with_owner(owner: u64, value: T) -> Self {
        let cell = Self::new(value);
        // SAFETY: no other thread has the cell yet.
        unsafe { cell.set_owner(owner) };
        cell
    }

    /// The owner's way to the value. `None` while a revoker keeps it out.
    ///
    /// # Safety
    ///
    /// The calling thread is the one owner of the cell, with this number, and is not inside.
    #[inline(always)]
    pub unsafe fn try_with<R>(&self, owner: u64, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: the caller's promise.
        unsafe { self.try_with_recheck(owner, body, || self.fence_and_recheck(owner)) }
    }

    /// As [`try_with`](Self::try_with), without a call for which a warm function would save registers.
    /// `None` also where the owner [needs a fence](Self::needs_fence).
    ///
    /// # Safety
    ///
    /// As [`try_with`](Self::try_with).
    #[inline(always)]
    pub unsafe fn try_with_fast<R>(&self, owner: u64, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let is_open = || !barrier::MAY_BE_ASYMMETRIC && self.fence_and_recheck(owner);
        // SAFETY: the caller's promise.
        unsafe { self.try_with_recheck(owner, body, is_open) }
    }

    /// Whether [`try_with_fast`](Self::try_with_fast) leaves the owner to
    /// [`try_with`](Self::try_with).
    pub fn needs_fence(&self) -> bool {
        barrier::MAY_BE_ASYMMETRIC && self.state.load(Ordering::Relaxed) & FENCED != 0
    }

    /// # Safety
    ///
    /// As [`try_with`](Self::try_with).
    #[inline(always)]
    unsafe fn try_with_recheck<R>(
        &self,
        owner: u64,
        body: impl FnOnce(&mut T) -> R,
        fence_and_recheck: impl FnOnce() -> bool,
    ) -> Option<R> {
        self.owner_inside.store(1, Ordering::Relaxed);
        // INV-4: the store before the load.
        barrier::compiler();
        // Acquire: INV-5.
        if self.state.load(Ordering::Acquire) != owner && !fence_and_recheck() {
            cold_path();
            self.owner_inside.store(0, Ordering::Release);
            return None;
        }
        let result = self.value.with_mut(|value| {
            // SAFETY: INV-2 and INV-4; the caller promises that there is one owner.
            body(unsafe { &mut *value })
        });
        // Release: INV-5.
        self.owner_inside.store(0, Ordering::Release);
        Some(result)
    }

    /// The second look of an owner that issues a fence of its own.
    #[cold]
    fn fence_and_recheck(&self, owner: u64) -> bool {
        barrier::full_fence();
        self.state.load(Ordering::Acquire) == owner | FENCED
    }

    /// Bars the owner and waits until it is out. [`restore`](Self::restore) has to follow, or
    /// [`retire`](Self::retire).
    ///
    /// # Safety
    ///
    /// The caller holds the revokers' lock, and the calling thread is not inside.
    pub unsafe fn revoke(&self) {
        self.set_flags(REVOKED);
        barrier::heavy();
        self.wait_for_owner();
    }

    /// Ends [`revoke`](Self::revoke).
    ///
    /// # Safety
    ///
    /// The caller holds the revokers' lock.
    pub unsafe fn restore(&self) {
        self.clear_flags(REVOKED);
    }

    /// Goes through the values of many cells while their owners are out, with one barrier for all.
    ///
    /// # Safety
    ///
    /// The caller holds the revokers' lock of these cells, and the calling thread is inside of none.
    pub unsafe fn with_revoked<'a, C>(
        cells: impl Iterator<Item = (&'a Self, C)> + Clone,
        mut each: impl FnMut(C, &mut T),
    ) where
        T: 'a,
    {
        if cells.clone().next().is_none() {
            return;
        }
        cells.clone().for_each(|(cell, _)| cell.set_flags(REVOKED));
        barrier::heavy();
        for (cell, context) in cells {
            cell.wait_for_owner();
            // SAFETY: the caller has the revokers' lock, and the owner was barred and waited for.
            unsafe {
                cell.with_unchecked(|value| each(context, value));
                cell.restore();
            }
        }
    }

    /// After a flag and the barrier: INV-3.
    fn wait_for_owner(&self) {
        let mut yields = 0..64;
        // Acquire: INV-5.
        while self.owner_inside.load(Ordering::Acquire) != 0 {
            // The owner is inside for a few instructions, or was put to sleep there. If its priority is
            // lower, it does not run while this thread only yields.
            if MODELLED || yields.next().is_some() {
                yield_now();
            } else {
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        }
    }

    /// The value of a cell whose owner is out.
    ///
    /// # Safety
    ///
    /// The caller holds the revokers' lock. The owner was barred and waited for, or there is none, or
    /// it is the calling thread, which is not inside.
    pub unsafe fn with_unchecked<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        self.value.with_mut(|value| {
            // SAFETY: this function's contract.
            body(unsafe { &mut *value })
        })
    }

    /// Names the owner of a cell that has none.
    ///
    /// # Safety
    ///
    /// The caller holds the revokers' lock.
    pub unsafe fn set_owner(&self, owner: u64) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(state & !NO_OWNER | owner, Ordering::Release);
    }

    /// The owner's number.
    pub fn owner(&self) -> Option<u64> {
        let owner = self.state.load(Ordering::Relaxed) & NO_OWNER;
        (owner != NO_OWNER).then_some(owner)
    }

    /// Whether [`try_with_fast`](Self::try_with_fast) would let the owner of this number in.
    /// Relaxed: it looks again.
    #[inline(always)]
    pub fn is_open_to(&self, owner: u64) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state == owner || !barrier::MAY_BE_ASYMMETRIC && state == owner | FENCED
    }

    /// Bars the owner until [`resume`](Self::resume), whatever is revoked and restored meanwhile. It is
    /// out after the next [`with_revoked`](Self::with_revoked).
    ///
    /// # Safety
    ///
    /// The caller holds the revokers' lock.
    pub unsafe fn suspend(&self) {
        self.set_flags(SUSPENDED);
    }

    /// Ends [`suspend`](Self::suspend).
    ///
    /// # Safety
    ///
    /// The caller holds the revokers' lock.
    pub unsafe fn resume(&self) {
        self.clear_flags(SUSPENDED);
    }

    /// Bars the owner for good. It is out after the next [`with_revoked`](Self::with_revoked).
    ///
    /// # Safety
    ///
    /// The caller holds the revokers' lock.
    pub unsafe fn retire(&self) {
        self.set_flags(RETIRED);
    }

    /// Whether the owner is barred for good, after all that was done before.
    pub fn is_retired(&self) -> bool {
        self.state.load(Ordering::Acquire) & RETIRED != 0
    }

    /// INV-1: under the revokers' lock, or before another thread has the cell. Release: INV-5.
    fn set_flags(&self, flags: u64) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(state | flags, Ordering::Release);
    }

    fn clear_flags(&self, flags: u64) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(state & !flags, Ordering::Release);
    }
}

#[cfg(all(test, not(aquifer_loom)))]
mod tests;
