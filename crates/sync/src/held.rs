//! In a debug build: how many of the crate's locks a thread has, so that what needs none of them can say so; and how many it
//! has taken so far, so that a test can say what a way costs.
//!
//! | lock | counted | under it |
//! |---|---|---|
//! | `Mutex`, `RwLock` | yes | no callback, no wait for the device, no drop of a user's buffer |
//! | `ReentrantMutex` | no | calls of an upstream, which may call back and wait; the pool holds drops of users' buffers back |
//! | `WaitMutex` | no | waits: for a condition variable; of a `ThreadSafeAdaptor`'s resource; of a vector's uses for an old driver's device |

#[cfg(debug_assertions)]
mod counted {
    use parking_lot::lock_api::{RawMutex, RawRwLock};
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<usize> = const { Cell::new(0) };
        static TAKEN: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn held() -> usize {
        HELD.get()
    }

    pub(super) fn taken() -> usize {
        TAKEN.get()
    }

    /// A lock of parking_lot's that is counted.
    #[derive(Debug)]
    pub struct Counted<R>(R);

    /// One that the thread has. It does not leave the thread, as `G` does not.
    pub struct Held<G>(G);

    impl<G> Held<G> {
        fn new(guard: G) -> Self {
            HELD.set(HELD.get() + 1);
            TAKEN.set(TAKEN.get() + 1);
            Self(guard)
        }

        fn end(self) -> G {
            HELD.set(HELD.get() - 1);
            self.0
        }
    }

    // SAFETY: the lock is parking_lot's.
    unsafe impl<R: RawMutex> RawMutex for Counted<R> {
        #[allow(clippy::declare_interior_mutable_const, reason = "the trait's own form")]
        const INIT: Self = Self(R::INIT);
        type Guard = Held<R::Guard>;

        fn lock(&self) -> Self::Guard {
            Held::new(self.0.lock())
        }

        fn try_lock(&self) -> Option<Self::Guard> {
            self.0.try_lock().map(Held::new)
        }

        unsafe fn unlock(&self, held: Self::Guard) {
            // SAFETY: the caller's promise.
            unsafe { self.0.unlock(held.end()) }
        }

        fn is_locked(&self) -> bool {
            self.0.is_locked()
        }
    }

    // SAFETY: as above.
    unsafe impl<R: RawRwLock> RawRwLock for Counted<R> {
        #[allow(clippy::declare_interior_mutable_const, reason = "the trait's own form")]
        const INIT: Self = Self(R::INIT);
        type SharedGuard = Held<R::SharedGuard>;
        type ExclusiveGuard = Held<R::ExclusiveGuard>;

        fn lock_shared(&self) -> Self::SharedGuard {
            Held::new(self.0.lock_shared())
        }

        fn try_lock_shared(&self) -> Option<Self::SharedGuard> {
            self.0.try_lock_shared().map(Held::new)
        }

        unsafe fn unlock_shared(&self, held: Self::SharedGuard) {
            // SAFETY: the caller's promise.
            unsafe { self.0.unlock_shared(held.end()) }
        }

        fn lock_exclusive(&self) -> Self::ExclusiveGuard {
            Held::new(self.0.lock_exclusive())
        }

        fn try_lock_exclusive(&self) -> Option<Self::ExclusiveGuard> {
            self.0.try_lock_exclusive().map(Held::new)
        }

        unsafe fn unlock_exclusive(&self, held: Self::ExclusiveGuard) {
            // SAFETY: the caller's promise.
            unsafe { self.0.unlock_exclusive(held.end()) }
        }

        fn is_locked(&self) -> bool {
            self.0.is_locked()
        }

        fn is_locked_exclusive(&self) -> bool {
            self.0.is_locked_exclusive()
        }
    }
}

/// The locks of a build that counts, and of one that does not.
#[cfg(debug_assertions)]
mod locks {
    use super::counted::Counted;
    use parking_lot::lock_api;

    pub type Mutex<T> = lock_api::Mutex<Counted<parking_lot::RawMutex>, T>;
    pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Counted<parking_lot::RawMutex>, T>;
    pub type RwLock<T> = lock_api::RwLock<Counted<parking_lot::RawRwLock>, T>;
    pub type RwLockReadGuard<'a, T> =
        lock_api::RwLockReadGuard<'a, Counted<parking_lot::RawRwLock>, T>;
}
#[cfg(not(debug_assertions))]
mod locks {
    pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
}
pub use locks::*;

/// Panics, in a debug build, where the thread has a lock that `what` is not to be done under.
#[inline(always)]
pub fn assert_unlocked(what: &str) {
    #[cfg(debug_assertions)]
    assert!(
        counted::held() == 0,
        "{what} under {} of the crate's locks, which other threads may need to come to its end",
        counted::held()
    );
    #[cfg(not(debug_assertions))]
    let _ = what;
}

/// How many locks that are counted the thread has taken so far. One that was tried and not had is none.
#[cfg(debug_assertions)]
pub fn locks_taken() -> usize {
    counted::taken()
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn what_needs_no_lock_is_told_of_each() {
        let (mutex, rw) = (Mutex::new(()), RwLock::new(()));
        let is_refused = || std::panic::catch_unwind(|| assert_unlocked("a wait")).is_err();
        assert!(!is_refused());
        let first = mutex.lock();
        assert!(mutex.try_lock().is_none());
        let second = rw.read();
        drop(first);
        assert!(is_refused());
        drop(second);
        assert!(!is_refused());
        let write = rw.try_write().unwrap();
        assert!(is_refused());
        drop(write);
        let read = rw.try_read().unwrap();
        assert!(is_refused());
        drop(read);
        assert!(!is_refused());
        let write = rw.write();
        assert!(is_refused() && rw.try_read().is_none());
        drop(write);
        let tried = mutex.try_lock();
        assert!(tried.is_some() && is_refused());
        drop(tried);
        assert!(!is_refused());
    }

    #[test]
    fn locks_that_were_taken_are_counted_for_good() {
        let (mutex, rw) = (Mutex::new(()), RwLock::new(()));
        let before = locks_taken();
        let taken = || locks_taken() - before;
        let first = mutex.lock();
        assert!(mutex.try_lock().is_none() && taken() == 1);
        drop(first);
        assert_eq!(taken(), 1);
        drop(rw.read());
        drop(rw.write());
        drop(mutex.try_lock());
        assert_eq!(taken(), 4);
        assert_eq!(std::thread::spawn(locks_taken).join().unwrap(), 0);
    }
}
