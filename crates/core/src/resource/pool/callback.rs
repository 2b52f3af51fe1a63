//! The user's callback on failure, of one pool.

use super::{Asked, PoolResource};
use crate::error::Error;
use crate::layout::DeviceLayout;
use crate::pool::{Retry, Unserved};
use crate::resource::device_resource::DeviceResource;
use crate::resource::failure::{Callback, Failure, OnFailure, asks_for_retry};

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// Makes the pool ask this callback from now on.
    pub(super) fn set_callback(&self, OnFailure(callback): OnFailure) {
        // The pool has it, which it must not keep.
        let pool = self.pool.downgrade();
        self.pool.upstream().callback.set(move |request| {
            let pool = pool.upgrade().map(|pool| Self { pool });
            pool.map_or(Retry::No, |pool| pool.ask(&*callback, &request))
        });
    }

    fn ask(&self, callback: &Callback, request: &Unserved<'_, Error>) -> Retry {
        let Ok(layout) = DeviceLayout::with_alignment(request.bytes, request.align as usize) else {
            return Retry::No;
        };
        let (error, _) = self.refusal(request.error, Asked::Allocation(layout));
        let failure = Failure::new(layout, &error, request.attempt);
        let before = self.free_anywhere();
        match asks_for_retry(self.state().addr(), &failure, || callback(&failure)) {
            false => Retry::No,
            true if self.free_anywhere() > before => Retry::Again,
            true => Retry::Last,
        }
    }

    /// The sum of the bytes that are free in this pool, in others of its device and on the device, and of the maximum.
    /// A callback that helps the pool raises this sum.
    fn free_anywhere(&self) -> u128 {
        let device = self.device().memory_info().map_or(0, |info| info.free);
        let own = [self.pool.stats().free, self.pool.settings().limits.maximum()];
        let others = [self.others().free];
        own.into_iter().chain(others).map(|bytes| bytes as u128).sum::<u128>() + device as u128
    }
}
