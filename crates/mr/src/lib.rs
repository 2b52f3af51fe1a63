//! The rest of RMM's family, which is the adaptors and the resources that fewer programs take.
//!
//! `aquifer::mr` has all of it, beside the resources of `aquifer-core`.
#![cfg_attr(all(feature = "std-allocator", aquifer_nightly), feature(allocator_api))]
#![deny(missing_docs, missing_debug_implementations)]

mod adaptor;
mod arena;
mod binning;
mod callback;
mod driver_pool;
mod fixed_size;
mod managed;
mod managed_alloc;
mod polymorphic_host;
mod stream_pool;
mod system;

use aquifer_core::{device, inside, resource, stream};
use aquifer_driver::{self as driver, error, impls, layout};
use aquifer_events as debug_log;
use aquifer_pool::{self as pool, heap};
use aquifer_sync as sync;

// The names that the documentation links to are those of `aquifer`.
#[cfg(doc)]
use aquifer_core::*;
#[cfg(doc)]
mod mr {
    pub use crate::*;
    pub use aquifer_core::mr::*;
}

pub use adaptor::*;
pub use arena::{ArenaOptions, ArenaResource};
pub use binning::{BinningOptions, BinningResource};
pub use callback::CallbackResource;
pub use driver_pool::{AsyncOptions, AsyncResource, AsyncStatistics};
pub use fixed_size::{FixedSizeOptions, FixedSizeResource};
pub use managed::{ManagedOptions, ManagedResource};
pub use managed_alloc::ManagedAlloc;
pub use polymorphic_host::PolymorphicHostAllocator;
pub use stream_pool::StreamPool;
pub use system::{SystemOptions, SystemResource};

crate::sync::for_models! {
    #[doc(hidden)]
    #[allow(missing_docs)]
    pub mod models {
        pub use crate::adaptor::models::*;
    }
}
