//! Memory for Rust programs that launch CUDA kernels. `Vec`, `Box` and `HashMap` live in page-locked memory, [`DeviceVec`] on the
//! device, and a stream-ordered pool serves both without a driver call when it is warm.
//!
//! ```
//! use allocator_api2::vec::Vec;
//! use aquifer::{Device, PinnedAlloc};
//!
//! # fn main() -> Result<(), aquifer::Error> {
//! // Of the feature `sim`. A program for GPUs calls `Device::detect`, which takes one or returns an error.
//! let device = Device::detect_or_simulate()?;
//! let stream = device.new_stream()?;
//! let mut host: Vec<f32, PinnedAlloc> = Vec::with_capacity_in(1000, PinnedAlloc);
//! host.resize(1000, 1.0);
//! // The transfer owns both buffers while the copy runs, and gives them back.
//! let (_host, samples) = stream.upload_new(host)?.wait()?;
//! assert_eq!(samples.to_vec()?, [1.0; 1000]);
//! # Ok(())
//! # }
//! ```
//!
//! The guide ([`guide`]) has pages on one task each. The README says what to take for what, and how to add the crate.
//!
//! | module | content |
//! | --- | --- |
//! | [`container`] | typed memory on the device: vectors, buffers, scalars, guards of uses on other streams |
//! | [`pinned`] | page-locked and mapped memory as allocators |
//! | [`transfer`] | copies: owned, scoped, blocking |
//! | [`mr`] | memory resources and adaptors, pools among them |
//! | [`device`], [`stream`], [`kernel`] | devices; streams, events and graphs; launches |
//! | [`collective`] | several devices, by NCCL |
//! | [`nbep7`], [`nep49`], [`ipc`] | memory managers, data handlers, memory that processes share |
//! | `interop` | cudarc's traits for these vectors (feature `cuda`) |
//! | `sim` | the simulated device (feature `sim`) |
//! | [`debug_log`], [`error`] | what pools report; the one error |
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

mod adaptor;
pub mod collective;
pub mod container;
pub mod debug_log;
pub mod device;
mod driver;
pub mod error;
mod event;
#[cfg(doc)]
pub mod guide;
mod impls;
#[cfg(feature = "cuda")]
pub mod interop;
mod layout;
mod manager;
pub mod pinned;
mod resource;
pub mod stream;
pub mod transfer;

// The crates below, by the names of what they hold.
use aquifer_pool::{self as pool, heap};
use aquifer_sync as sync;

#[doc(inline)]
pub use collective::Communicator;
#[doc(inline)]
pub use container::{
    DeviceBuffer, DeviceRead, DeviceScalar, DeviceSlice, DeviceSliceMut, DeviceVec, DeviceWrite,
};
#[cfg(feature = "sim")]
#[doc(inline)]
pub use device::CheckedDevice;
#[doc(inline)]
pub use device::Device;
#[cfg(feature = "sim")]
pub use driver::sim;
#[doc(inline)]
pub use error::{Error, ErrorKind, Result};
#[doc(inline)]
pub use kernel::{HostArgs, Kernel, LaunchConfig};
#[doc(inline)]
pub use mr::{CudaResource, DeviceBlock, DeviceLayout, DeviceResource, PoolResource};
#[doc(inline)]
pub use pinned::{MappedAlloc, PinnedAlloc};
#[doc(inline)]
pub use stream::{Event, Stream};
#[doc(inline)]
pub use transfer::Transfer;

pub mod kernel {
    //! Kernels of one's own, and how they are launched on a stream.
    //!
    //! A [`Kernel`] has PTX or a cubin for GPUs and a host function for the simulated device.
    //! [`Stream::launch`](crate::Stream::launch) makes a [`Launch`], which takes the arguments.

    pub use crate::container::launch::Launch;
    pub use crate::driver::{HostArgs, HostForm, Kernel, LaunchConfig};
    #[cfg(feature = "nvrtc")]
    pub use crate::interop::cuda_source::CompileOptions;
}

pub mod mr {
    //! Memory resources, as RMM calls them: where device memory comes from.
    //!
    //! | | |
    //! | --- | --- |
    //! | of the driver | [`CudaResource`], [`VirtualResource`], [`AsyncResource`] (the driver's own pool), [`ManagedResource`], [`NcclResource`] |
    //! | of the host | [`SystemResource`] |
    //! | by two closures | [`CallbackResource`] |
    //! | over another resource | [`PoolResource`], [`ArenaResource`], [`BinningResource`], [`FixedSizeResource`] |
    //! | adaptors, each over another resource | [`StatisticsAdaptor`], [`LimitingAdaptor`], [`LoggingAdaptor`], [`TrackingAdaptor`], [`CheckedAdaptor`], [`AlignedAdaptor`], [`PrefetchAdaptor`], [`FailureCallbackAdaptor`], [`ThreadSafeAdaptor`], [`TracedAdaptor`] |
    //! | bound to a stream, to a type | [`OnStream`], [`PolymorphicAllocator`] |
    //! | a stack of them by a text | [`StackText`], [`ResourceStack`] |
    //! | what containers take unless told otherwise | [`current_device_resource`], [`set_current_device_resource`], [`with_device_resource`] |
    //!
    //! The options of each are beside it. Page-locked memory is in [`pinned`](crate::pinned).

    pub use crate::adaptor::*;
    pub use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
    pub use crate::manager::{ResourceStack, StackText, StackTextError};
    pub use crate::resource::{
        ArenaOptions, ArenaResource, AsyncOptions, AsyncResource, AsyncStatistics, BinningOptions,
        BinningResource, CallbackResource, CudaResource, DeviceBlock, DeviceResource, Failure,
        FixedSizeOptions, FixedSizeResource, Handles, HostAccessible, HostComplete, ManagedAlloc,
        ManagedOptions, ManagedResource, MissPolicy, MissStep, NcclResource, PoolBlock, PoolMap,
        PoolOptions, PoolResource, PoolStatistics, ResourceId, SystemOptions, SystemResource,
        VirtualResource, WithDeviceResource, current_device_resource, default_device_pool,
        reset_current_device_resource, set_current_device_resource, with_device_resource,
    };
}

pub mod nbep7 {
    //! Memory managers: what has all memory of a process whose code names no resource, after Numba's
    //! [NBEP 7](https://numba.readthedocs.io/en/stable/proposals/external-memory-management.html).

    pub use crate::manager::{
        DeferCleanup, DeviceMemoryManager, HostAllocFlags, HostOnly, INTERFACE_VERSION,
        ManagerOptions, MemoryManager, MemoryPointer, PendingDeallocations, PinnedMemory,
        ResourceMemoryManager, memory_manager, register_memory_manager, set_memory_manager,
    };
}

pub mod nep49 {
    //! Data handlers: named tables of `malloc`, `calloc`, `realloc` and `free`, after NumPy's
    //! [NEP 49](https://numpy.org/neps/nep-0049.html).

    pub use crate::manager::{
        DataAlloc, DataHandler, HandlerFunctions, RawDataAllocator, RawDataHandler,
        WithDataHandler, current_data_handler, data_handler_name, data_handler_version,
        set_data_handler, with_data_handler,
    };
}

pub mod ipc {
    //! Memory that processes share.

    #[cfg(unix)]
    pub use crate::manager::IpcPool;
    pub use crate::manager::{IpcHandle, IpcKind};
}

/// For libraries over this crate.
#[doc(hidden)]
pub use resource::ThreadMagazine;
/// As above.
#[doc(hidden)]
pub mod barrier {
    pub use crate::sync::barrier::{heavy, light};
}

/// The README's programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub use allocator_api2;
pub use bytemuck;
#[cfg(feature = "cuda")]
pub use cudarc;
#[cfg(feature = "half")]
pub use half;

/// The names that most programs use, for a glob import, also beside those of cudarc.
///
/// It leaves out what both crates have: `LaunchConfig`, `DeviceSlice` and `DriverError`. A launch takes
/// either [`LaunchConfig`].
///
/// ```
/// use aquifer::prelude::*;
/// # #[cfg(feature = "cuda")]
/// use aquifer::cudarc::driver::*;
///
/// static NOTHING: Kernel = Kernel::new(
///     "nothing",
///     ".version 6.4 .target sm_50 .address_size 64 .visible .entry nothing() { ret; }",
///     |_, _| Ok(()),
/// );
///
/// # #[cfg(feature = "cuda")]
/// fn main() -> aquifer::Result<()> {
///     let stream = Device::detect_or_simulate()?.new_stream()?;
///     // SAFETY: the kernel touches nothing.
///     unsafe { stream.launch(&NOTHING).launch(LaunchConfig::for_num_elems(1))? };
///     stream.synchronize()
/// }
/// # #[cfg(not(feature = "cuda"))]
/// # fn main() {}
/// ```
pub mod prelude {
    #[cfg(feature = "sim")]
    pub use crate::CheckedDevice;
    pub use crate::collective::{Group, ReduceOp};
    pub use crate::container::{DeviceBox, StreamRef};
    pub use crate::{
        Communicator, Device, DeviceBuffer, DeviceRead, DeviceResource, DeviceScalar, DeviceVec,
        DeviceWrite, HostArgs, Kernel, MappedAlloc, PinnedAlloc, PoolResource, Stream, Transfer,
    };
}

sync::for_models! {
    /// The checked core, for the models of `loom_tests/`.
    #[doc(hidden)]
    #[allow(missing_docs)]
    pub mod models {
        pub use crate::adaptor::models::*;
        pub use crate::container::models::*;
        pub use crate::manager::models::*;
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
