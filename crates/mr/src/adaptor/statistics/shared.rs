//! The counters of all threads.

use super::counters::Counters;
use crate::driver::is_forked_child;
use crate::sync::BiasedMutex;
use std::fmt;

/// Counters that all threads change and read as a whole. So peaks are exact, and the values that a
/// reader gets were true at one moment. The first thread that changes them owns the lock until a second
/// one does. A reader only bars that thread for a moment. The end of that thread changes nothing.
#[derive(Default)]
pub struct SharedCounters {
    counters: BiasedMutex<Counters>,
}

impl SharedCounters {
    /// Counts a block of so many bytes.
    #[inline(always)]
    pub fn record_allocation(&self, bytes: i64) {
        self.change(bytes, 1);
    }

    /// Counts the free of a block of so many bytes.
    #[inline(always)]
    pub fn record_free(&self, bytes: i64) {
        self.change(bytes.wrapping_neg(), -1);
    }

    #[inline(always)]
    fn change(&self, bytes: i64, blocks: i64) {
        // SAFETY: `change` of the counters uses no mutex.
        let owned = unsafe { self.counters.try_owned(|own| own.change(bytes, blocks)) };
        if owned.is_none() {
            self.change_slow(bytes, blocks);
        }
    }

    #[inline(never)]
    fn change_slow(&self, bytes: i64, blocks: i64) {
        // The child of a fork has nothing to count, and a thread that is not there may hold the mutex.
        if !is_forked_child() {
            // SAFETY: as in `change`.
            unsafe { self.counters.lock(|all, _| all.change(bytes, blocks)) }
        }
    }

    /// Counts bytes that a live block gained, or lost if negative.
    pub fn record_resize(&self, bytes: i64) {
        // SAFETY: `resize` of the counters uses no mutex.
        let owned = unsafe { self.counters.try_owned(|own| own.resize(bytes)) };
        if owned.is_none() && !is_forked_child() {
            // SAFETY: as above.
            unsafe { self.counters.lock(|all, _| all.resize(bytes)) }
        }
    }

    /// Counts bytes again that a block was to give up and kept.
    pub fn record_kept(&self, bytes: i64) {
        // SAFETY: `keep` of the counters uses no mutex.
        let owned = unsafe { self.counters.try_owned(|own| own.keep(bytes)) };
        if owned.is_none() && !is_forked_child() {
            // SAFETY: as above.
            unsafe { self.counters.lock(|all, _| all.keep(bytes)) }
        }
    }

    /// Changes them as a whole, between two changes of other threads. Not for the child of a fork.
    pub fn exchange<R>(&self, body: impl FnOnce(&mut Counters) -> R) -> R {
        // SAFETY: the bodies, which are this crate's, use no mutex.
        unsafe { self.counters.lock(|all, _| body(all)) }
    }

    /// The counters at one moment of this call. Zero in the child of a fork.
    pub fn read(&self) -> Counters {
        if is_forked_child() {
            return Counters::default();
        }
        // SAFETY: a copy uses no mutex.
        unsafe { self.counters.read(|all, _| *all) }
    }
}

impl fmt::Debug for SharedCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}
