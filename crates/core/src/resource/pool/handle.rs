//! A pool as its handles and graphs share it.

use super::driver::PoolDriver;
use super::siblings::{Sibling, register};
use crate::driver::{is_in_host_function, may_not_call};
use crate::pool::Pool;
use crate::resource::device_resource::DeviceResource;
use crate::stream::deferred;
use crate::sync::{Arc, Weak};
use std::ops::Deref;

/// A share of a pool. The pool ends with the last share, but not while a capture has one of its streams. The work of
/// that stream could not be waited for, and all memory would leak. A later call of the crate ends the pool then.
pub(super) struct PoolHandle<U: DeviceResource + 'static>(Arc<Pool<PoolDriver<U>>>);

impl<U: DeviceResource + 'static> PoolHandle<U> {
    /// A new pool. It gives back its free memory, but for `keep` bytes, before another pool of its device refuses a
    /// request.
    pub(super) fn new(pool: Arc<Pool<PoolDriver<U>>>, keep: usize) -> Self {
        let weak = WeakHandle { pool: Arc::downgrade(&pool), keep };
        register(pool.upstream().resource.device(), pool.id(), Arc::new(weak));
        Self(pool)
    }

    /// Lets free memory above the release threshold go back each time that the program has waited for the device.
    pub(super) fn release_after_waits(&self) {
        if self.0.upstream().is_first_threshold() {
            deferred::after_waits(Arc::new(self.downgrade()));
        }
    }

    /// A handle that keeps no pool.
    pub(super) fn downgrade(&self) -> WeakHandle<U> {
        WeakHandle { pool: Arc::downgrade(&self.0), keep: 0 }
    }

    /// The address of the pool.
    pub(super) fn address(&self) -> *const Pool<PoolDriver<U>> {
        Arc::as_ptr(&self.0)
    }
}

/// A pool as others of its device know it.
pub(super) struct WeakHandle<U: DeviceResource + 'static> {
    pool: Weak<Pool<PoolDriver<U>>>,
    /// The bytes that it keeps, those in use among them.
    keep: usize,
}

impl<U: DeviceResource + 'static> WeakHandle<U> {
    /// A share of the pool, like any other. It may be the last one by then.
    pub(super) fn upgrade(&self) -> Option<PoolHandle<U>> {
        self.pool.upgrade().map(PoolHandle)
    }
}

impl<U: DeviceResource + 'static> Sibling for WeakHandle<U> {
    fn is_gone(&self) -> bool {
        self.pool.strong_count() == 0
    }

    fn reserved(&self) -> usize {
        self.upgrade().map_or(0, |pool| pool.reserved_bytes())
    }

    fn free(&self) -> usize {
        self.upgrade().map_or(0, |pool| pool.stats().free)
    }

    fn trim(&self) -> usize {
        let Some(pool) = self.upgrade() else { return 0 };
        let given = pool.trim(self.keep);
        if given > 0 {
            pool.upstream().wait_for_returns();
        }
        given
    }

    fn pending_since(&self) -> Option<u64> {
        self.upgrade()?.pending_since()
    }

    fn wait_and_trim_until(&self, is_served: &mut dyn FnMut() -> bool) -> bool {
        let Some(pool) = self.upgrade() else { return false };
        let mut served = false;
        pool.wait_and_trim_until(self.keep, &mut || {
            pool.upstream().wait_for_returns();
            served = is_served();
            served
        });
        served
    }
}

impl<U: DeviceResource + 'static> deferred::AfterWait for WeakHandle<U> {
    fn is_gone(&self) -> bool {
        self.pool.strong_count() == 0
    }

    fn after_wait(&self) {
        let Some(pool) = self.upgrade() else { return };
        if pool.release_above_threshold() > 0 {
            pool.upstream().wait_for_returns();
        }
    }
}

impl<U: DeviceResource + 'static> Clone for PoolHandle<U> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<U: DeviceResource + 'static> Deref for PoolHandle<U> {
    type Target = Pool<PoolDriver<U>>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<U: DeviceResource + 'static> Drop for PoolHandle<U> {
    fn drop(&mut self) {
        if is_in_host_function() {
            // Whether it is the last one or not, as that may change until it is gone: the pool ends on a thread that may end it.
            let handle = self.clone();
            return deferred::defer(None, move || drop(handle));
        }
        // Two last ones that are dropped in one moment overlook each other: the pool ends at once then.
        if Arc::strong_count(&self.0) != 1 || may_not_call() {
            return;
        }
        if self.0.has_stream_in_capture() {
            deferred::defer_until(self.clone(), |last| !last.has_stream_in_capture());
        }
    }
}
