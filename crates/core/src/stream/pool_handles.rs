//! Handles on a stream that pools hold. They count apart, so that a pool can tell when no user has its stream any more.
//!
//! One count is of all handles, which a clone raises without a lock. The other is of the pools' handles among them. If
//! they were read one after the other while they change, they would call a stream abandoned that has a user.
//!
//! # State table
//!
//! | word | raised | lowered |
//! | --- | --- | --- |
//! | `all_handles` | by any clone; from 0, or by a look-up, under the table's lock | by any drop |
//! | `pool_handles` | `clone_for_pool`: after its clone, under the table's lock | `drop_for_pool`: before its drop, under the same lock |
//!
//! - `INV-1`. Under the table's lock, `pool_handles <= all_handles`, and every one beyond `pool_handles` is a user's.
//! - `INV-2`. `is_abandoned` reads both under that lock, `all_handles` first. A user can come from a clone of another
//!   user's handle, which is counted already, or from the table, which is locked.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::sync::fence;
use crate::sync::{AtomicUsize, Ordering};

/// A counted handle that users and pools hold.
pub trait PoolHandles: Clone {
    /// Runs `condition` under the lock of the table, from which all handles come that are no clones. If `condition`
    /// holds, takes this one off the table. Returns the result of `condition`.
    fn lock_and_unregister_if(&self, condition: impl FnOnce() -> bool) -> bool;

    /// The number of handles.
    fn all_handles(&self) -> usize;

    /// The number of them that are pools'.
    fn pool_handles(&self) -> &AtomicUsize;

    /// A handle for a pool, to be dropped by [`drop_for_pool`](Self::drop_for_pool).
    fn clone_for_pool(&self) -> Self {
        let kept = self.clone();
        let count = || {
            self.pool_handles().fetch_add(1, Ordering::Relaxed);
            false
        };
        self.lock_and_unregister_if(count);
        kept
    }

    /// Drops a handle of [`clone_for_pool`](Self::clone_for_pool), when it is counted no more.
    fn drop_for_pool(self) {
        let count = || {
            self.pool_handles().fetch_sub(1, Ordering::Relaxed);
            false
        };
        self.lock_and_unregister_if(count);
    }

    /// Whether pools alone hold this. If so it is off the table.
    fn is_abandoned(&self) -> bool {
        self.lock_and_unregister_if(|| {
            // INV-2.
            let handles = self.all_handles();
            if handles > self.pool_handles().load(Ordering::Relaxed) {
                return false;
            }
            // Pairs with the drop of each handle: what its user gave to the stream comes before our
            // event.
            fence(Ordering::Acquire);
            true
        })
    }
}
