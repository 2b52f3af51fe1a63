#![doc = include_str!("../README.md")]
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
mod collective;
mod container;
pub mod debug_log;
mod device;
mod driver;
mod error;
mod event;
#[cfg(doc)]
pub mod guide;
mod heap;
mod impls;
#[cfg(feature = "cuda")]
mod interop;
mod layout;
mod manager;
mod pinned;
mod pool;
mod resource;
mod stream;
mod sync;
mod transfer;

pub use adaptor::{
    AlignedAdaptor, Allocation, BlockUse, CallStack, CheckedAdaptor, CheckedOptions, Counter,
    Counters, FailureCallbackAdaptor, FailureCallbackOptions, LimitingAdaptor, LocalDeviceResource,
    LogFormat, LoggingAdaptor, LoggingOptions, Misuse, MisuseKind, OnStream, PolymorphicAllocator,
    PrefetchAdaptor, StatisticsAdaptor, ThreadSafeAdaptor, TracedAdaptor, TrackingAdaptor,
    TrackingOptions,
};
pub use collective::{
    Communicator, CommunicatorId, CommunicatorOptions, Group, ReduceElement, RegisteringAdaptor,
};
pub use container::{
    DeviceBox, DeviceBuffer, DeviceRead, DeviceScalar, DeviceSlice, DeviceSliceMut, DeviceVec,
    DeviceVecParts, DeviceWrite, Growth, Launch, On, OnMut, StreamRef,
};
#[cfg(feature = "sim")]
pub use device::CheckedDevice;
pub use device::Device;
#[cfg(feature = "sim")]
pub use driver::sim;
pub use driver::{
    BackendKind, DeviceProperties, HostArgs, HostForm, Kernel, LaunchConfig, MemoryInfo, ReduceOp,
};
pub use error::{DriverError, Error, ErrorKind, Refused, Result};
pub use event::Event;
#[cfg(feature = "nvrtc")]
pub use interop::CompileOptions;
#[cfg(feature = "cuda")]
pub use interop::{CudaMut, CudaRef};
pub use layout::{DEFAULT_ALIGNMENT, DeviceLayout};
#[cfg(unix)]
pub use manager::IpcPool;
pub use manager::{
    DataAlloc, DataHandler, DeferCleanup, DeviceMemoryManager, HandlerFunctions, HostAllocFlags,
    HostOnly, INTERFACE_VERSION, IpcHandle, IpcKind, ManagerOptions, MemoryManager, MemoryPointer,
    PendingDeallocations, PinnedMemory, RawDataAllocator, RawDataHandler, ResourceMemoryManager,
    ResourceStack, StackText, StackTextError, WithDataHandler, current_data_handler,
    data_handler_name, data_handler_version, memory_manager, register_memory_manager,
    set_data_handler, set_memory_manager, with_data_handler,
};
pub use pinned::{
    CurrentPinned, HostBuffer, HostChunk, MappedAlloc, PinnedAlloc, PinnedOptions, PinnedPool,
    PinnedPoolOptions, PinnedPoolStatistics, PinnedResource, PolymorphicHostAllocator,
    RegisterError, Registered, current_pinned_resource, last_error, reset_current_pinned_resource,
    set_current_pinned_resource,
};
/// For libraries over this crate.
#[doc(hidden)]
pub use resource::ThreadMagazine;
/// As above.
#[doc(hidden)]
pub mod barrier {
    pub use crate::sync::barrier::{heavy, light};
}
pub use resource::{
    ArenaOptions, ArenaResource, AsyncOptions, AsyncResource, AsyncStatistics, BinningOptions,
    BinningResource, CallbackResource, CudaResource, DeviceBlock, DeviceResource, Failure,
    FixedSizeOptions, FixedSizeResource, Handles, HostAccessible, HostComplete, ManagedAlloc,
    ManagedOptions, ManagedResource, MissPolicy, MissStep, NcclResource, PoolBlock, PoolMap,
    PoolOptions, PoolResource, PoolStatistics, ResourceId, SystemOptions, SystemResource,
    VirtualResource, WithDeviceResource, current_device_resource, default_device_pool,
    reset_current_device_resource, set_current_device_resource, with_device_resource,
};
pub use stream::{Graph, PerThreadStream, Stream, StreamPool, Synchronized};
pub use transfer::{Mapped, MappedMut, Scope, Transfer, TransferError};

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
    pub use crate::{
        Communicator, Device, DeviceBox, DeviceBuffer, DeviceRead, DeviceResource, DeviceScalar,
        DeviceVec, DeviceWrite, Group, HostArgs, Kernel, MappedAlloc, PinnedAlloc, PoolResource,
        ReduceOp, Stream, StreamRef, Transfer,
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
