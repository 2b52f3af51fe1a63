//! The interfaces that other programs, processes and libraries plug into. They are external
//! memory managers (NBEP 7), data-allocation handlers (NEP 49), stacks of resources by a
//! text, and memory that processes share.

#![cfg_attr(all(feature = "std-allocator", aquifer_nightly), feature(allocator_api))]
#![deny(missing_docs, missing_debug_implementations)]

mod data_handler;
mod external;
mod host_only;
pub mod ipc;
mod memory_manager;
mod options;
mod pending;
mod pointers;
mod registry;
mod resource_manager;
mod stack;

use aquifer_core::{container, device, inside, pinned, resource, stream};
use aquifer_driver::{self as driver, error, impls, layout};
use aquifer_events as debug_log;
use aquifer_mr as adaptor;
use aquifer_sync as sync;

// The names that the documentation links to are those of `aquifer`.
#[cfg(doc)]
use aquifer_core::*;
#[cfg(doc)]
mod mr {
    pub use crate::{ResourceStack, StackText, StackTextError};
    pub use aquifer_core::mr::*;
    pub use aquifer_mr::*;
}
#[cfg(doc)]
use crate as nbep7;
#[cfg(doc)]
use crate as nep49;

pub use data_handler::{
    DataAlloc, DataHandler, HandlerFunctions, RawDataAllocator, RawDataHandler,
    current_data_handler, data_handler_name, data_handler_version, set_data_handler,
    with_data_handler, with_data_handler_async,
};
pub use host_only::{DeviceMemoryManager, HostOnly};
pub use memory_manager::{HostAllocFlags, INTERFACE_VERSION, MemoryManager};
pub use options::ManagerOptions;
pub use pending::{DeferCleanup, PendingDeallocations};
pub use pointers::{MemoryPointer, PinnedMemory};
pub use registry::{memory_manager, register_memory_manager, set_memory_manager};
pub use resource_manager::ResourceMemoryManager;
pub use stack::{ResourceStack, StackText, StackTextError};

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::pending::{DeferCleanup, PendingDeallocations};
    }
}
