//! Memory for Rust programs that launch CUDA kernels. `Vec`, `Box` and `HashMap` live in
//! page-locked memory, and [`DeviceVec`] lives on the device. A warm stream-ordered pool
//! serves both without a driver call.
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
//! The guide ([`guide`]) has pages on one task each. The README says which type fits
//! which task, and how to add the crate.
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

pub mod debug_log;
#[cfg(doc)]
pub mod guide;
#[cfg(feature = "sim")]
pub mod sim;

#[doc(inline)]
pub use aquifer_core::DeviceCopy;
#[cfg(feature = "cuda")]
#[doc(inline)]
pub use aquifer_core::interop;
#[doc(inline)]
pub use aquifer_core::{container, device, transfer};
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

pub mod error {
    //! The one error of all crates: what failed, why, and what to do about it.

    pub use aquifer_driver::error::{DriverError, Error, ErrorKind, Refused, Result};
}

pub mod kernel {
    //! Kernels of a program, and how a stream launches them.
    //!
    //! A [`Kernel`] has PTX or a cubin for GPUs and a host function for the simulated device.
    //! [`Stream::launch`](crate::Stream::launch) makes a [`Launch`], which takes the arguments.

    pub use aquifer_core::kernel::*;
    #[cfg(feature = "nvrtc")]
    pub use aquifer_nvrtc::{CompileOptions, compile_cuda};
}

pub mod pinned {
    //! Host memory that the device reaches, which is page-locked, mapped or registered.
    //!
    //! [`PinnedAlloc`] and [`MappedAlloc`] are allocators of the process, for `Vec`, `Box` and `HashMap`. They take
    //! memory from the [current resource](current_pinned_resource), by default a [`PinnedPool`]. [`PinnedResource`]
    //! asks the driver for each block. [`Registered`] page-locks memory where it lies.

    pub use aquifer_core::pinned::*;
    pub use aquifer_mr::PolymorphicHostAllocator;
}

pub mod stream {
    //! Streams, which are in-order queues of work on a device, with an identity of their own.
    //!
    //! An [`Event`] is a point in a [`Stream`], for which others wait. A [`Graph`] is the work that a stream was given
    //! while it [captured](Stream::capture), to be launched again. A [`StreamPool`] has streams to take in turn.

    pub use aquifer_core::stream::*;
    pub use aquifer_mr::StreamPool;
}

pub mod mr {
    //! Memory resources, as RMM calls them, from which device memory comes.
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

    pub use aquifer_core::mr::*;
    pub use aquifer_mr::{
        AlignedAdaptor, Allocation, ArenaOptions, ArenaResource, AsyncOptions, AsyncResource,
        AsyncStatistics, BinningOptions, BinningResource, BlockUse, CallStack, CallbackResource,
        CheckedAdaptor, CheckedOptions, Counter, Counters, FailureCallbackAdaptor,
        FailureCallbackOptions, FixedSizeOptions, FixedSizeResource, LimitingAdaptor,
        LocalDeviceResource, LogFormat, LoggingAdaptor, LoggingOptions, ManagedAlloc,
        ManagedOptions, ManagedResource, Misuse, MisuseKind, OnStream, PolymorphicAllocator,
        PrefetchAdaptor, StatisticsAdaptor, SystemOptions, SystemResource, ThreadSafeAdaptor,
        TracedAdaptor, TrackingAdaptor, TrackingOptions, flush_logs,
    };
    pub use aquifer_nccl::NcclResource;
    pub use aquifer_plug::{ResourceStack, StackText, StackTextError};
}

pub mod nbep7 {
    //! Memory managers, which have all memory of a process whose code names no resource, after Numba's
    //! [NBEP 7](https://numba.readthedocs.io/en/stable/proposals/external-memory-management.html).

    pub use aquifer_plug::{
        DeferCleanup, DeviceMemoryManager, HostAllocFlags, HostOnly, INTERFACE_VERSION,
        ManagerOptions, MemoryManager, MemoryPointer, PendingDeallocations, PinnedMemory,
        ResourceMemoryManager, memory_manager, register_memory_manager, set_memory_manager,
    };
}

pub mod nep49 {
    //! Data handlers, which are named tables of `malloc`, `calloc`, `realloc` and `free`, after NumPy's
    //! [NEP 49](https://numpy.org/neps/nep-0049.html).

    pub use aquifer_plug::{
        DataAlloc, DataHandler, HandlerFunctions, RawDataAllocator, RawDataHandler,
        current_data_handler, data_handler_name, data_handler_version, set_data_handler,
        with_data_handler, with_data_handler_async,
    };
}

pub mod ipc {
    //! Memory that processes share.

    pub use aquifer_plug::ipc::{IpcExport, IpcHandle, IpcKind};
    #[cfg(unix)]
    pub use aquifer_plug::ipc::{IpcPool, receive};
}

pub mod collective {
    //! Collectives of several devices, by NCCL, with communicators, groups, and memory that they know.

    pub use aquifer_nccl::{
        Communicator, CommunicatorId, CommunicatorOptions, Group, ReduceElement, ReduceOp,
        RegisteringAdaptor,
    };
}

/// For libraries over this crate.
#[doc(hidden)]
pub use aquifer_core::{ThreadMagazine, barrier};

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
/// It leaves out the names that both crates have, which are `LaunchConfig`, `DeviceSlice` and
/// `DriverError`. A launch takes either [`LaunchConfig`].
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
    pub use crate::container::StreamRef;
    pub use crate::{
        Communicator, Device, DeviceBuffer, DeviceRead, DeviceResource, DeviceScalar, DeviceVec,
        DeviceWrite, HostArgs, Kernel, MappedAlloc, PinnedAlloc, PoolResource, Stream, Transfer,
    };
}

aquifer_sync::for_models! {
    /// The checked core, for the models of `loom_tests/`.
    #[doc(hidden)]
    #[allow(missing_docs)]
    pub mod models {
        pub use aquifer_core::models::*;
        pub use aquifer_mr::models::*;
        pub use aquifer_plug::models::*;
    }
}
