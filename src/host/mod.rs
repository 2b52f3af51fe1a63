//! Host memory that the device reaches: page-locked, mapped, registered.

mod allocator;
mod blocks;
mod mapped;
mod pending;
mod pinned;
mod registered;
mod source;

pub use allocator::last_error;
pub use mapped::MappedAlloc;
pub use pinned::{PinnedAlloc, PinnedOptions, PinnedResource};
pub use registered::{HostBuffer, RegisterError, Registered};

pub(crate) use allocator::remember;
pub(crate) use mapped::device_address;
pub(crate) use pending::Pending;
