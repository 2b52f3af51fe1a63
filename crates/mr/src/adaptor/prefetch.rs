//! Managed memory that is on the device before its first use.

use crate::driver::{DeviceRange, MemoryLocation};
use crate::error::Result;
use crate::inside::prefetch;
use crate::layout::DeviceLayout;
use crate::resource::impls::{adaptor, forward};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;

/// A resource that moves each block to its device at the allocation, in the order of the block's
/// stream. The first use then takes no page faults. The adaptor calls `cuMemPrefetchAsync`, over a
/// [`ManagedResource`](crate::mr::ManagedResource) or a pool of it.
///
/// A block passes without a prefetch in three cases:
///
/// - Its memory does not migrate.
/// - The device does not migrate pages on demand
///   ([`concurrent_managed_access`](crate::device::DeviceProperties::concurrent_managed_access)).
/// - The stream is in a capture, which a prefetch would invalidate.
///
/// Clones are the same resource.
///
/// RMM calls it `prefetch_resource_adaptor`. RMM's prefetches to the thread's current
/// device, and invalidates captures.
///
/// ```
/// use aquifer::{Device, DeviceVec, mr::{ManagedResource, PrefetchAdaptor}};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let managed = PrefetchAdaptor::new(ManagedResource::new(&device)?);
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, managed)?;
/// assert_eq!(vec.get(999)?, 0.0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct PrefetchAdaptor<U> {
    state: Arc<U>,
}

adaptor!(PrefetchAdaptor, state);

impl<U: DeviceResource> PrefetchAdaptor<U> {
    /// Prefetches each block of `upstream`.
    pub fn new(upstream: U) -> Self {
        Self { state: Arc::new(upstream) }
    }
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for PrefetchAdaptor<U> {
    forward!(device, peer_access, identity, frees_with_driver, deallocate);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.upstream().allocate(stream, layout)?;
        let range = DeviceRange { address: block.address(), bytes: block.bytes() };
        // SAFETY: the block is live, and its free is ordered after this on the stream.
        if let Err(error) = unsafe { prefetch(stream, range, MemoryLocation::Device) } {
            // SAFETY: the block is the upstream's, and was not handed out.
            unsafe { self.upstream().deallocate(stream, block) };
            return Err(error);
        }
        Ok(block)
    }
}
