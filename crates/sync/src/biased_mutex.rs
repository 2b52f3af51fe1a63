//! A mutex whose first user locks it without a locked instruction, until a second one comes.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use super::thread_id;
use super::{Biased, CachePadded, Mutex};

/// Which thread a [`BiasedMutex`] is for, during one call of [`BiasedMutex::lock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// One thread's: the calling thread's, or still another's for a reader.
    One,
    /// All threads', for good.
    Ended,
}

/// A value behind a mutex that belongs to the first thread that locks it.
///
/// As the JVM's biased locks: while no second thread [locks](Self::lock), the first one takes
/// [`try_owned`](Self::try_owned), which has no locked instruction. The second one ends the bias, with a
/// barrier of some microseconds; from then on it is a mutex for all.
///
/// | state of the cell | `try_owned` of the owner | `lock` of a thread | after it |
/// | --- | --- | --- | --- |
/// | no owner | - | has the value | the thread owns it |
/// | owned | has the value | has the value; another than the owner waits for it | owned, or retired |
/// | retired | `None` | has the value | retired |
///
/// The revokers' lock of the cell is `mutex`.
#[derive(Debug)]
pub struct BiasedMutex<T> {
    cell: CachePadded<Biased<T>>,
    mutex: CachePadded<Mutex<()>>,
}

impl<T: Default> Default for BiasedMutex<T> {
    fn default() -> Self {
        Self { cell: CachePadded::new(Biased::new(T::default())), mutex: CachePadded::default() }
    }
}

impl<T> BiasedMutex<T> {
    /// The value, for the thread that owns it. `None` for others, and while one of them reads.
    ///
    /// # Safety
    ///
    /// `body` does not use this mutex.
    #[inline(always)]
    pub unsafe fn try_owned<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let thread = thread_id::current_or_none();
        if !self.cell.is_open_to(thread) {
            return None;
        }
        // SAFETY: a number is one thread's for good, and `body` does not come back here.
        unsafe { self.cell.try_with_fast(thread, body) }
    }

    /// The value, for any thread: the first one owns it from then on, and a second one ends that.
    ///
    /// # Safety
    ///
    /// `body` does not use this mutex.
    pub unsafe fn lock<R>(&self, body: impl FnOnce(&mut T, Bias) -> R) -> R {
        let _revoker = self.mutex.lock();
        let cell = &*self.cell;
        if self.bias() == Bias::Ended {
            // SAFETY: under the revokers' lock; the owner was revoked before it was retired.
            return unsafe { cell.with_unchecked(|value| body(value, Bias::Ended)) };
        }
        let thread = thread_id::assign();
        // SAFETY: under the revokers' lock. The owner is none, or this thread, which is not inside, or
        // revoked.
        unsafe {
            if self.is_owner_or_none(thread) {
                cell.set_owner(thread);
                return cell.with_unchecked(|value| body(value, Bias::One));
            }
            cell.revoke();
            let result = cell.with_unchecked(|value| body(value, Bias::Ended));
            // Last: other threads see that the bias has ended after `body` alone.
            cell.retire();
            result
        }
    }

    /// The value while no thread changes it. Leaves the bias as it is.
    ///
    /// # Safety
    ///
    /// `body` does not use this mutex.
    pub unsafe fn read<R>(&self, body: impl FnOnce(&T, Bias) -> R) -> R {
        let _revoker = self.mutex.lock();
        let cell = &*self.cell;
        let bias = self.bias();
        let is_revoked = bias == Bias::One && !self.is_owner_or_none(thread_id::current_or_none());
        if is_revoked {
            // SAFETY: under the revokers' lock.
            unsafe { cell.revoke() };
        }
        // SAFETY: under the revokers' lock; the owner is revoked, none, or this thread, which is not
        // inside.
        unsafe {
            let result = cell.with_unchecked(|value| body(value, bias));
            if is_revoked {
                cell.restore();
            }
            result
        }
    }

    /// Whether a second thread has locked it, and its `body` has returned.
    pub fn bias(&self) -> Bias {
        if self.cell.is_retired() { Bias::Ended } else { Bias::One }
    }

    fn is_owner_or_none(&self, thread: u64) -> bool {
        self.cell.owner().is_none_or(|owner| owner == thread)
    }
}
