//! The crate of devices, streams, memory resources, page-locked memory, containers and transfers.
//!
//! Programs name `aquifer`, which re-exports the public part of this crate. Each module imports only those above it in
//! this table.
//!
//! | module | content |
//! | --- | --- |
//! | [`device`], [`stream`], `event`, `split` | handles with an identity of their own; gates, captures, graphs, deferred drops; chunks of one memory |
//! | `resource` | what hands out device memory, and what is current |
//! | [`pinned`] | page-locked memory as allocators |
//! | `order`, `sleep` | the order between a use on some stream and the memory's home; pools that sleep |
//! | [`container`] | typed memory on the device; its copies that wait |
//! | [`transfer`] | copies that own or borrow host memory while they run |
//! | `interop` | cudarc's traits |
// What the crates above share is hidden in the documentation of `aquifer`, and may name what is private here.
#![allow(rustdoc::private_intra_doc_links)]
#![deny(missing_docs, missing_debug_implementations)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Without one of the backends, parts of the lower modules that it alone uses are dead.
#![cfg_attr(not(all(feature = "cuda", feature = "sim")), allow(dead_code))]
#![cfg_attr(not(any(feature = "cuda", feature = "sim")), allow(unused_imports, unused_macros))]
#![cfg_attr(all(feature = "std-allocator", aquifer_nightly), feature(allocator_api))]

#[cfg(all(feature = "std-allocator", not(aquifer_std_allocator)))]
compile_error!(
    "the feature `std-allocator` needs Rust 1.100, where `std::alloc::Allocator` is stable, or a \
     nightly with `--cfg aquifer_nightly` in RUSTFLAGS"
);

pub mod container;
pub mod device;
#[doc(hidden)]
pub mod event;
#[doc(hidden)]
pub mod inside;
#[cfg(feature = "cuda")]
pub mod interop;
mod order;
pub mod pinned;
#[doc(hidden)]
pub mod resource;
mod sleep;
mod split;
pub mod stream;
pub mod transfer;

// The crates below, by the names of what they hold.
use aquifer_driver::{self as driver, impls, layout};
use aquifer_events as debug_log;
use aquifer_pool::{self as pool, heap};
#[cfg(feature = "sim")]
pub use aquifer_sim as sim;
#[doc(hidden)]
pub use aquifer_sync as sync;

pub use aquifer_driver::DeviceCopy;
pub use aquifer_driver::error;
pub use container::{
    DeviceBuffer, DeviceRead, DeviceScalar, DeviceSlice, DeviceSliceMut, DeviceVec, DeviceWrite,
};
#[cfg(feature = "sim")]
pub use device::CheckedDevice;
pub use device::Device;
pub use error::{Error, ErrorKind, Result};
pub use kernel::{HostArgs, Kernel, LaunchConfig};
pub use mr::{CudaResource, DeviceBlock, DeviceLayout, DeviceResource, PoolResource};
pub use pinned::{MappedAlloc, PinnedAlloc};
pub use stream::{Event, Stream};
pub use transfer::Transfer;

pub mod kernel {
    //! Kernels of a program, and how a stream launches them.

    pub use crate::container::launch::Launch;
    pub use crate::driver::{FunctionArgs, HostArgs, HostForm, Kernel, LaunchConfig};
}

pub mod mr {
    //! The memory resources of this crate, which are those of the driver and the pool.

    pub use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
    pub use crate::resource::pool::SleepReport;
    pub use crate::resource::{
        CudaResource, DeviceBlock, DeviceResource, Failure, GraphPool, Handles, HostAccessible,
        MissPolicy, MissStep, PoolBlock, PoolMap, PoolOptions, PoolResource, PoolStatistics,
        ResourceId, VirtualResource, current_device_resource, default_device_pool,
        reset_current_device_resource, set_current_device_resource, with_device_resource,
        with_device_resource_async,
    };
    pub use crate::sleep::{Keep, SleepOptions, Woken};
}

/// The magazine of one thread, for libraries over this crate.
#[doc(hidden)]
pub use resource::ThreadMagazine;
/// The barriers of `aquifer-sync`, for the same libraries.
#[doc(hidden)]
pub mod barrier {
    pub use crate::sync::barrier::{heavy, light};
}

sync::for_models! {
    /// The checked core, for the models of `loom_tests/`.
    #[doc(hidden)]
    #[allow(missing_docs)]
    pub mod models {
        pub use crate::order::models::*;
        pub use crate::pinned::models::*;
        pub use crate::pool::models::*;
        pub use crate::resource::models::*;
        pub use crate::stream::gate::{Entered, Gate, GateOwner, Owning, Patience, Refused};
        pub use crate::stream::deferred::{Collected, DeferredQueue, Passed};
        pub use crate::stream::pool_handles::PoolHandles;
        pub use crate::sync::drop_thread_locals;
        pub use crate::sync::models::*;
    }
}
