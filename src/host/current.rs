//! What page-locked memory of the process comes from: a pool, or the driver each time.

use super::allocator::implement_by_map;
use super::lane::{self, Key};
use super::pinned::PinnedResource;
use super::pool::PinnedPool;
use crate::device::Device;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::{
    DeviceBlock, DeviceResource, HostAccessible, HostComplete, ResourceId, current_pinned_resource,
    pinned_generation,
};
use crate::stream::Stream;
use crate::sync::trusted::thread_local;
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;

/// What can be the [current pinned resource](crate::current_pinned_resource): a pool, as it is unless
/// said otherwise, or a plain resource, whose every block is a driver call.
///
/// It is an allocator and a [`DeviceResource`] as both of them are.
///
/// ```
/// use aquifer::{CurrentPinned, Device, PinnedPool, PinnedResource};
/// use aquifer::{current_pinned_resource, reset_current_pinned_resource, set_current_pinned_resource};
///
/// let pinned = PinnedResource::new(&Device::detect()?)?;
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
    /// A pool of it.
    Pool(PinnedPool),
}

impl From<PinnedResource> for CurrentPinned {
    fn from(resource: PinnedResource) -> Self {
        Self::Resource(resource)
    }
}

impl From<PinnedPool> for CurrentPinned {
    fn from(pool: PinnedPool) -> Self {
        Self::Pool(pool)
    }
}

impl PartialEq<PinnedResource> for CurrentPinned {
    fn eq(&self, other: &PinnedResource) -> bool {
        matches!(self, Self::Resource(resource) if resource == other)
    }
}

impl PartialEq<PinnedPool> for CurrentPinned {
    fn eq(&self, other: &PinnedPool) -> bool {
        matches!(self, Self::Pool(pool) if pool == other)
    }
}

impl CurrentPinned {
    /// Waits until the device is past all its work, and unpins all that is not in use.
    ///
    /// # Errors
    ///
    /// As [`PinnedResource::trim`] and [`PinnedPool::trim`].
    pub fn trim(&self) -> Result<()> {
        match self {
            Self::Resource(resource) => resource.trim(),
            Self::Pool(pool) => pool.trim().map(drop),
        }
    }

    pub(super) fn upstream(&self) -> &PinnedResource {
        match self {
            Self::Resource(resource) => resource,
            Self::Pool(pool) => pool.upstream(),
        }
    }

    pub(super) fn obtain(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        match self {
            Self::Resource(resource) => resource.obtain(layout),
            Self::Pool(pool) => pool.obtain(layout),
        }
    }

    #[inline(always)]
    fn warm(&self, _layout: Layout) -> Option<NonNull<[u8]>> {
        None
    }

    fn inner(&self) -> &dyn HostComplete {
        match self {
            Self::Resource(resource) => resource,
            Self::Pool(pool) => pool,
        }
    }
}

implement_by_map!(CurrentPinned);

// SAFETY: each call goes to the resource within, which keeps the contract.
unsafe impl DeviceResource for CurrentPinned {
    fn device(&self) -> &Device {
        self.inner().device()
    }

    fn identity(&self) -> ResourceId {
        self.inner().identity()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.inner().allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.inner().deallocate(stream, block) }
    }
}

// SAFETY: as above.
unsafe impl HostAccessible for CurrentPinned {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        self.inner().host_pointer(block)
    }
}

// SAFETY: as above.
unsafe impl HostComplete for CurrentPinned {
    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock {
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.inner().block_at(pointer, layout) }
    }
}

/// The pool that was current when the calling thread last looked. A number, not a handle: a thread
/// that sleeps keeps no pool from closing.
#[derive(Clone, Copy)]
struct Known {
    generation: u64,
    key: Key,
    mapped: bool,
}

thread_local! {
    static KNOWN: Cell<Known> = const {
        Cell::new(Known { generation: 0, key: Key { number: 0, fenced: true }, mapped: false })
    };
}

/// A block that the calling thread has ready of the current pool.
#[inline(always)]
pub(super) fn warm(layout: Layout, mapped: bool) -> Option<NonNull<[u8]>> {
    let known = KNOWN.with(Cell::get);
    if known.generation != pinned_generation() || (mapped && !known.mapped) {
        return None;
    }
    lane::take(known.key, layout)
}

/// What is current, remembered for [`warm`] if it is a pool.
pub(super) fn look() -> Result<CurrentPinned> {
    // Before the look: what is replaced after it has a later generation.
    let generation = pinned_generation();
    let current = current_pinned_resource()?;
    if let CurrentPinned::Pool(pool) = &current {
        let upstream = pool.upstream();
        let mapped = upstream.is_mapped() && upstream.device().properties().map_host_memory;
        let key = pool.core().key();
        KNOWN.with(|known| known.set(Known { generation, key, mapped }));
    }
    Ok(current)
}
