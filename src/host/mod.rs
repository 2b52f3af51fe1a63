//! Host memory that the device reaches: page-locked, mapped, registered.

pub(crate) mod allocator;
mod blocks;
mod current;
mod ground;
mod lane;
mod mapped;
mod miss;
mod pending;
mod pinned;
mod polymorphic;
mod pool;
mod pool_options;
mod registered;
mod slabs;
mod source;

pub use allocator::last_error;
pub use current::CurrentPinned;
pub use mapped::MappedAlloc;
pub(crate) use pinned::default_pinned;
pub use pinned::{PinnedAlloc, PinnedOptions, PinnedResource};
pub use polymorphic::PolymorphicHostAllocator;
pub use pool::PinnedPool;
pub use pool_options::{PinnedPoolOptions, PinnedPoolStatistics};
pub use registered::{HostBuffer, RegisterError, Registered};

pub(crate) use allocator::{implement_allocator, implement_allocators};
pub(crate) use mapped::device_address;

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::pending::{Collected, Pending, Unfenced};
    }
}
