//! Managed memory that is on the device before its first use.

use super::handles::{handles, identity_by};
use crate::backend::Wanted;
use crate::device::Device;
use crate::error::{DriverError, Result};
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible};
use crate::stream::Stream;
use crate::sync::Arc;
use std::ptr::NonNull;

/// Moves each block to the resource's device as it is allocated, in the order of its stream, so
/// that its first use takes no page faults: `cuMemPrefetchAsync` over a
/// [`ManagedResource`](crate::ManagedResource) or a pool of it.
///
/// Memory that does not move passes as it is, and so does all memory where the device is not one
/// that moves pages by itself
/// ([`concurrent_managed_access`](crate::DeviceProperties::concurrent_managed_access)) or the stream
/// is in a capture, which a prefetch would lose. A handle: clones are the same resource.
///
/// RMM: `prefetch_resource_adaptor`, which moves to whatever device is current for the thread, and
/// loses captures.
///
/// ```
/// use aquifer::{Device, DeviceVec, ManagedResource, PrefetchAdaptor};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let managed = PrefetchAdaptor::new(ManagedResource::new(&device)?);
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, Arc::new(managed))?;
/// assert_eq!(vec.get(999)?, 0.0);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Debug)]
pub struct PrefetchAdaptor<U> {
    state: Arc<State<U>>,
}

#[derive(Debug)]
struct State<U> {
    upstream: U,
}

impl<U: DeviceResource> PrefetchAdaptor<U> {
    /// `upstream`, each block of which is moved to its device.
    pub fn new(upstream: U) -> Self {
        Self { state: Arc::new(State { upstream }) }
    }

    /// What the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.state.upstream
    }

    /// Moves a new block, or finds that it cannot move.
    fn prefetch(&self, stream: &Stream, block: &DeviceBlock) -> Result<()> {
        let device = self.device();
        if block.is_empty()
            || !device.properties().concurrent_managed_access
            || stream.is_capturing()?
        {
            return Ok(());
        }
        // SAFETY: the block is live, and goes back in the order of this stream.
        let moved =
            unsafe { device.driver().prefetch(block.address(), block.bytes(), stream.raw()) };
        match moved {
            Err(error)
                if matches!(
                    error.code(),
                    DriverError::INVALID_VALUE | DriverError::NOT_SUPPORTED
                ) =>
            {
                Ok(())
            }
            moved => moved.wanted(|| format!("moving {} bytes to {device}", block.bytes())),
        }
    }
}

handles!(PrefetchAdaptor, state);

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for PrefetchAdaptor<U> {
    fn device(&self) -> &Device {
        self.upstream().device()
    }

    identity_by!(state);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.upstream().allocate(stream, layout)?;
        if let Err(error) = self.prefetch(stream, &block) {
            // SAFETY: the block is the upstream's, and nobody has seen it.
            unsafe { self.upstream().deallocate(stream, block) };
            return Err(error);
        }
        Ok(block)
    }

    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        self.upstream().frees_with_driver(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the block is the upstream's; our caller vouches for the rest.
        unsafe { self.upstream().deallocate(stream, block) }
    }
}

// SAFETY: the blocks are the upstream's, unchanged.
unsafe impl<U: HostAccessible> HostAccessible for PrefetchAdaptor<U> {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        self.upstream().host_pointer(block)
    }
}
