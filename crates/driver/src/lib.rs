//! The calls that aquifer needs of a device, and their implementation by CUDA. Other crates call CUDA
//! only through cudarc, to share objects with it.
//!
//! [`Driver`] is the interface of one device, in raw handles and addresses. `cuda` implements it for GPUs,
//! `aquifer-sim` for simulated devices. It is a trait object, since it is not called on hot paths. The driver
//! reuses the numbers of handles. `Device`, `Stream` and `Event` of `aquifer-core` give them an identity.
//!
//! [`error`](mod@error), [`layout`], [`Kernel`] and the properties of a device are public in `aquifer`. The rest is for
//! the crates above.
// What the crates above share is hidden in the documentation of `aquifer`, and may name what is private here.
#![allow(rustdoc::private_intra_doc_links)]
#![deny(missing_docs, missing_debug_implementations)]
// Without the CUDA backend, parts that it alone uses are dead.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))]

pub mod arguments;
mod device_copy;
pub mod error;
pub mod impls;
pub mod kernel;
pub mod layout;
mod properties;

#[allow(missing_docs, reason = "for the crates above alone")]
mod call_site;
#[allow(missing_docs, missing_debug_implementations, reason = "for the crates above alone")]
mod calls;
#[cfg(feature = "cuda")]
#[allow(missing_docs, missing_debug_implementations, reason = "for the crates above alone")]
pub mod cuda;
pub mod fork;
#[allow(missing_docs, reason = "for the crates above alone")]
mod host_function;
#[allow(missing_docs, reason = "for the crates above alone")]
pub mod ipc;
mod peer;
mod pool_end;
#[allow(missing_docs, reason = "for the crates above alone")]
mod raw;
#[cfg(feature = "cuda")]
mod symbols;
#[allow(missing_docs, reason = "for the crates above alone")]
mod virtual_memory;

use aquifer_sync as sync;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use libloading;

pub use arguments::{Access, FunctionArgs, HostArgs, RawArg};
pub use call_site::{CallSite, NoCallSite, OWN_CRATES, OwnFiles, Site};
pub use calls::{
    AsideCalls, CaptureStatus, CopyOnDevice, CopyToDevice, CopyToHost, Driver, ErrorContext,
    FillWord, GraphCalls, HostFlags, MemoryCalls, MemoryLocation, NewStream, PoolAttribute,
    PoolCalls, PoolSpec, PreferredLocation, RawCopy, RawFill, RawLaunch, RegionCalls, StreamCalls,
    StreamKeeper, VectorEvent, VectorType, WorkCalls, has_ended_capture,
};
pub use device_copy::DeviceCopy;
pub use fork::{
    call_not_forked, is_forked_child, is_in_host_function, may_not_call, not_forked,
    not_in_host_function,
};
pub use host_function::{HostFunction, StreamOutcome, run_in_host_function};
pub use ipc::{AllocationKind, IpcBytes, IpcCalls, process_of};
pub use kernel::{HostForm, Kernel, KernelImage, LaunchConfig};
pub use peer::PeerCalls;
pub use pool_end::DefaultPoolEnd;
pub use properties::{BackendKind, DeviceProperties, MemoryInfo};
pub use raw::{
    DeviceAddress, DeviceRange, DriverResult, RawEvent, RawGraph, RawHandle, RawPool, RawStream,
};
pub use virtual_memory::{HandleSpec, VirtualCalls};

/// The names of driver functions, as strings.
#[macro_export]
#[doc(hidden)]
macro_rules! names {
    ($($name:ident)+) => { [$(stringify!($name)),+] };
}
