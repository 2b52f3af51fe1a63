//! What the crates above need of the types here, and what no program may have: it goes past gates, uses and locks.
//!
//! The methods are those of traits, since an inherent method would be one of the type in `aquifer`, too. `aquifer` does not
//! re-export this module.

use crate::container::{DeviceSlice, DeviceSliceMut};
use crate::device::Device;
use crate::driver::{DeviceCopy, Driver};
use crate::error::Result;
use crate::stream::Stream;

pub use crate::container::device_vec::refuse_zero_sized;
pub use crate::order::{CapturePolicy, MemoryUse};
pub use crate::stream::call::{Status, StreamCall};
pub use crate::stream::context::{
    any_capturing, busy_streams, record_context, record_exposed, wait_for_idle_streams,
};
pub use crate::stream::gate::Patience;
pub use crate::stream::prefetch::prefetch;

/// Page-locked memory as allocators.
pub mod allocator {
    pub use crate::pinned::allocator::{
        HostAllocator, catch_panic_and_error, implement_allocators, last_error_of,
        log_and_set_last_error,
    };
}

/// Drops that run when the device has passed an event.
pub mod deferred {
    pub use crate::stream::deferred::{
        HoldBuffers, collect_blocks, defer_to_program, hold_buffers, or_collect,
    };
}

/// The driver of a device.
pub trait DeviceInside {
    /// The driver, which knows no gates.
    fn driver(&self) -> &dyn Driver;
}

impl DeviceInside for Device {
    #[inline]
    fn driver(&self) -> &dyn Driver {
        Device::driver(self)
    }
}

/// Calls of the driver on a stream. They are held like a lock, over no code of a user.
pub trait StreamInside {
    /// See `Stream::begin_call`.
    ///
    /// # Errors
    ///
    /// A capture on another thread has the stream, or the process is a fork.
    fn begin_call(&self) -> Result<StreamCall<'_>>;

    /// As [`begin_call`](Self::begin_call), without a wait: for a caller that is inside of another gate or has a lock.
    ///
    /// # Errors
    ///
    /// The same.
    fn begin_nested_call(&self) -> Result<StreamCall<'_>>;

    /// As [`begin_call`](Self::begin_call), for a call that may wait for the device.
    ///
    /// # Errors
    ///
    /// The same.
    fn begin_blocking_call(&self, patience: &Patience) -> Result<StreamCall<'_>>;

    /// Defers `free` of a block to a later call of the crate. It may run under locks of pools.
    fn free_block_later(&self, free: impl FnOnce(Result<()>) + Send + 'static);
}

impl StreamInside for Stream {
    #[inline]
    fn begin_call(&self) -> Result<StreamCall<'_>> {
        Stream::begin_call(self)
    }

    #[inline]
    fn begin_nested_call(&self) -> Result<StreamCall<'_>> {
        Stream::begin_nested_call(self)
    }

    #[inline]
    fn begin_blocking_call(&self, patience: &Patience) -> Result<StreamCall<'_>> {
        Stream::begin_blocking_call(self, patience)
    }

    fn free_block_later(&self, free: impl FnOnce(Result<()>) + Send + 'static) {
        Stream::free_block_later(self, free);
    }
}

/// The use of a view's memory.
pub trait ViewInside<'a> {
    /// The use of this memory, in the way that the view allows.
    fn memory_use(&self) -> MemoryUse<'a>;
}

impl<'a, T: DeviceCopy> ViewInside<'a> for DeviceSlice<'a, T> {
    fn memory_use(&self) -> MemoryUse<'a> {
        DeviceSlice::memory_use(self)
    }
}

impl<'a, T: DeviceCopy> ViewInside<'a> for DeviceSliceMut<'a, T> {
    fn memory_use(&self) -> MemoryUse<'a> {
        DeviceSliceMut::memory_use(self)
    }
}
