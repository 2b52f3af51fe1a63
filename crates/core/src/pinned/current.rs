//! The current pinned resource, which is a pool of page-locked memory, or the driver for each block.

use super::allocator::{HostAllocator, implement_allocators};
use super::pinned_resource::PinnedResource;
use super::pool::PinnedPool;
use crate::device::Device;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible, ResourceId};
use crate::stream::Stream;
use std::alloc::Layout;
use std::ptr::NonNull;

/// A [current pinned resource](crate::pinned::current_pinned_resource). It is a pool, by default, or a plain resource,
/// whose every block is a driver call.
///
/// As either of them, it is an allocator and a [`DeviceResource`].
///
/// ```
/// use aquifer::{Device, pinned::{CurrentPinned, PinnedPool, PinnedResource}};
/// use aquifer::{
///     pinned::{current_pinned_resource, reset_current_pinned_resource, set_current_pinned_resource},
/// };
///
/// let pinned = PinnedResource::new(&Device::detect_or_simulate()?)?;
/// let pool = PinnedPool::builder(pinned.clone()).maximum_size(1 << 30).build()?;
/// set_current_pinned_resource(pool.clone());
/// assert_eq!(current_pinned_resource()?, pool);
/// let before = set_current_pinned_resource(pinned);
/// assert_eq!(before, Some(CurrentPinned::Pool(pool)));
/// reset_current_pinned_resource();
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CurrentPinned {
    /// Page-locked memory of the driver, block by block.
    Resource(PinnedResource),
    /// A pool of page-locked memory.
    Pool(PinnedPool),
}

macro_rules! implement_variant {
    ($variant:ident, $resource:ty) => {
        impl From<$resource> for CurrentPinned {
            fn from(resource: $resource) -> Self {
                Self::$variant(resource)
            }
        }

        impl PartialEq<$resource> for CurrentPinned {
            fn eq(&self, other: &$resource) -> bool {
                matches!(self, Self::$variant(resource) if resource == other)
            }
        }
    };
}

implement_variant!(Resource, PinnedResource);
implement_variant!(Pool, PinnedPool);

/// Does the same with the resource of either variant.
macro_rules! either {
    ($current:ident, $resource:ident => $does:expr) => {
        match $current {
            CurrentPinned::Resource($resource) => $does,
            CurrentPinned::Pool($resource) => $does,
        }
    };
}

impl CurrentPinned {
    /// Waits until the device is past all its work, and unpins all memory that is not in use.
    ///
    /// # Errors
    ///
    /// The errors of [`PinnedResource::trim`] and [`PinnedPool::trim`].
    pub fn trim(&self) -> Result<()> {
        either!(self, resource => resource.trim().map(drop))
    }

    pub(super) fn upstream(&self) -> &PinnedResource {
        match self {
            Self::Resource(resource) => resource,
            Self::Pool(pool) => pool.upstream(),
        }
    }
}

// SAFETY: each call goes to the allocator within, which keeps the contract.
unsafe impl HostAllocator for CurrentPinned {
    fn allocate_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        either!(self, resource => resource.allocate_slow(layout))
    }
}

implement_allocators!([] CurrentPinned);

// SAFETY: each call goes to the resource within, which keeps the contract.
unsafe impl DeviceResource for CurrentPinned {
    fn device(&self) -> &Device {
        either!(self, resource => resource.device())
    }

    fn identity(&self) -> ResourceId {
        either!(self, resource => resource.identity())
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        either!(self, resource => resource.allocate(stream, layout))
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise, unchanged.
        unsafe { either!(self, resource => resource.deallocate(stream, block)) }
    }
}

// SAFETY: as above.
unsafe impl HostAccessible for CurrentPinned {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        either!(self, resource => resource.host_pointer(block))
    }

    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock {
        // SAFETY: the caller's promise, unchanged.
        unsafe { either!(self, resource => resource.block_at(pointer, layout)) }
    }
}
