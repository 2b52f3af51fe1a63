//! Host memory that the device reaches, which is page-locked, mapped or registered.
//!
//! `aquifer::pinned` says which type is for what.

mod address_map;
pub(crate) mod allocator;
mod batch;
mod current;
mod fence;
mod host_buffer;
mod host_chunk;
mod host_read;
#[cfg(target_os = "linux")]
mod huge_pages;
mod mapped_alloc;
#[cfg(target_os = "linux")]
mod memory_limit;
mod numa;
mod ordinary;
mod pinned_alloc;
mod pinned_resource;
mod pool;
mod pool_core;
mod pool_options;
mod pool_statistics;
mod quarantine;
mod registered;
mod registry;
mod siblings;
mod slab_heap;
mod slow_path;
mod source;
mod thread_cache;

pub use allocator::last_error;
pub(crate) use allocator::last_error_of;
pub use current::CurrentPinned;
pub use host_buffer::HostBuffer;
pub use host_chunk::HostChunk;
pub use host_read::HostRead;
pub use mapped_alloc::MappedAlloc;
pub use pinned_alloc::PinnedAlloc;
pub use pinned_resource::{PinnedOptions, PinnedResource};
pub use pool::PinnedPool;
pub use pool_options::PinnedPoolOptions;
pub use pool_statistics::PinnedPoolStatistics;
pub use registered::{ReadOnly, RegisterError, Registered};
pub use registry::{
    current_pinned_resource, reset_current_pinned_resource, set_current_pinned_resource,
};

pub(crate) use address_map::device_address;

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::quarantine::{FenceError, Quarantine};
    }
}
