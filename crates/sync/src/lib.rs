//! The one door to locks, atomics and channels.
//!
//! Two sets of names. Those at the top are for the *checked core*: gates, pools, pending uses, deferred
//! drops, quarantines, the current resource. Under `--cfg aquifer_loom` they are loom's, so that the code
//! that ships is the code that loom explores. Those in [`trusted`] are the real ones in every build, for
//! modules that no model enters (the simulated device, the CUDA backend, process-wide tables);
//! `loom_tests/README.md` lists them.

pub mod barrier;
mod biased;
mod biased_mutex;
pub mod fork;
mod held;
pub mod host_function;
#[cfg(aquifer_loom)]
pub mod local;
pub mod scope_list;
pub mod thread_id;

pub use biased::Biased;
pub use biased_mutex::{Bias, BiasedMutex};

pub use crossbeam::utils::CachePadded;
pub use std::sync::{Arc, LazyLock, OnceLock, Weak};

/// parking_lot, crossbeam and the standard atomics, unseen by loom.
pub mod trusted {
    pub use super::held::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
    pub use crossbeam::channel;
    pub use crossbeam::utils::Backoff;
    pub use parking_lot::{Condvar, Mutex as WaitMutex, MutexGuard as WaitMutexGuard};
    pub use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering,
    };
    pub use std::thread_local;

    #[cfg(not(aquifer_loom))]
    static NEXT: AtomicU64 = AtomicU64::new(16);
    #[cfg(not(aquifer_loom))]
    static NEXT_POOL: AtomicU64 = AtomicU64::new(1);
    // Again from the first in every execution: a number decides where things stand in tables, and loom
    // repeats an execution by its choices alone.
    #[cfg(aquifer_loom)]
    loom::lazy_static! {
        static ref NEXT: AtomicU64 = AtomicU64::new(16);
        static ref NEXT_POOL: AtomicU64 = AtomicU64::new(1);
    }

    /// The bits of a number of [`unique`].
    pub const UNIQUE_BITS: u32 = 40;

    /// A number that no other call in this process returns. From 16, so that none looks like one of
    /// the driver's special handles. Below `2^UNIQUE_BITS - 1`.
    ///
    /// # Panics
    ///
    /// Panics after a trillion numbers.
    pub fn unique() -> u64 {
        // Relaxed: only uniqueness is asked, which the read-modify-write gives by itself.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < (1 << UNIQUE_BITS) - 1, "the process has drawn a trillion numbers");
        number
    }

    /// A number for a pool, of its own sequence: 1, 2, 3.
    pub fn unique_pool() -> u64 {
        // Relaxed: as above.
        NEXT_POOL.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(not(aquifer_loom))]
mod primitives {
    pub use super::held::{Mutex, MutexGuard, RwLock};
    pub use parking_lot::{
        Mutex as WaitMutex, MutexGuard as WaitMutexGuard, ReentrantMutex, ReentrantMutexGuard,
    };
    pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub use std::thread::{LocalKey, yield_now};
    pub use std::thread_local;

    /// parking_lot's, with the signature of the standard library's and loom's.
    #[derive(Debug, Default)]
    pub struct Condvar(parking_lot::Condvar);

    impl Condvar {
        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        pub fn wait<'a, T>(&self, mut guard: WaitMutexGuard<'a, T>) -> WaitMutexGuard<'a, T> {
            self.0.wait(&mut guard);
            guard
        }

        /// As [`wait`](Self::wait), for so long at most.
        pub fn wait_for<'a, T>(
            &self,
            mut guard: WaitMutexGuard<'a, T>,
            limit: std::time::Duration,
        ) -> WaitMutexGuard<'a, T> {
            self.0.wait_for(&mut guard, limit);
            guard
        }
    }

    /// A cell whose users keep each other out by a word of their own; loom's checks that they do.
    #[derive(Debug)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Hands the pointer out. To write through it is the caller's to justify.
        #[inline(always)]
        pub fn with_mut<R>(&self, body: impl FnOnce(*mut T) -> R) -> R {
            body(self.0.get())
        }
    }
}

#[cfg(aquifer_loom)]
mod primitives {
    pub use Mutex as WaitMutex;
    pub use Mutex as ReentrantMutex;
    pub use MutexGuard as WaitMutexGuard;
    pub use MutexGuard as ReentrantMutexGuard;
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
    pub use loom::thread::yield_now;

    pub use super::local::{LocalKey, thread_local};

    /// loom's mutex with parking_lot's signature. A poisoned lock belongs to a model that has
    /// already failed.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }

        /// Time does not pass in a model.
        pub fn try_lock_for(&self, _limit: std::time::Duration) -> Option<MutexGuard<'_, T>> {
            Some(self.lock())
        }

        /// No upstream of a model calls back, so no lock is taken twice.
        pub fn is_owned_by_current_thread(&self) -> bool {
            false
        }
    }

    #[derive(Debug, Default)]
    pub struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
        }

        /// Time does not pass in a model.
        pub fn wait_for<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _limit: std::time::Duration,
        ) -> MutexGuard<'a, T> {
            self.wait(guard)
        }
    }

    /// The same for loom's lock of many readers.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::RwLock::new(value))
        }

        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner())
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner())
        }
    }
}

pub use held::assert_unlocked;
#[cfg(debug_assertions)]
pub use held::locks_taken;
#[cfg(aquifer_loom)]
pub use local::drop_thread_locals;
pub use primitives::*;

/// Whether loom explores this build: then what is only a matter of size is as small as can be.
pub const MODELLED: bool = cfg!(aquifer_loom);

/// Items that only the models of `loom_tests/` see. The cfg is named in this file alone.
#[cfg(aquifer_loom)]
#[macro_export]
macro_rules! for_models {
    ($($item:item)*) => { $($item)* };
}
/// Items that only the models of `loom_tests/` see. The cfg is named in this file alone.
#[cfg(not(aquifer_loom))]
#[macro_export]
macro_rules! for_models {
    ($($item:item)*) => {};
}

for_models! {
    #[allow(unreachable_pub)]
    pub mod models {
        pub use super::biased::Biased;
        pub use super::biased_mutex::{Bias, BiasedMutex};
    }
}
