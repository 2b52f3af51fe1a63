//! A resource as a memory manager.

use super::host_only::DeviceMemoryManager;
use super::pointers::MemoryPointer;
use crate::driver::MemoryInfo;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::DeviceResource;
use crate::stream::Stream;
use crate::sync::Arc;

/// A memory manager whose device memory is a resource's, such as one pool for a whole process.
///
/// Memory goes back to the resource at once, in the order of its stream. That holds even inside of
/// [`defer_cleanup`](crate::nbep7::MemoryManager::defer_cleanup), where a pool frees nothing to the
/// driver unless it runs out of memory or is trimmed.
///
/// ```
/// use aquifer::{
///     CudaResource, Device, DeviceVec, PoolResource,
///     nbep7::{HostOnly, ResourceMemoryManager, set_memory_manager},
/// };
///
/// set_memory_manager(|device| {
///     let pool = PoolResource::builder(CudaResource::new(device)).maximum_size(1 << 30).build()?;
///     HostOnly::new(device, ResourceMemoryManager::new(pool))
/// })?;
/// let vec = DeviceVec::<f32>::zeroed(&Device::detect_or_simulate()?.new_stream()?, 1000)?; // from that pool
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ResourceMemoryManager {
    resource: Arc<dyn DeviceResource>,
}

impl ResourceMemoryManager {
    /// A manager over `resource`.
    pub fn new(resource: impl DeviceResource + 'static) -> Self {
        Self { resource: resource.into_shared() }
    }

    /// The resource.
    pub fn resource(&self) -> &Arc<dyn DeviceResource> {
        &self.resource
    }
}

// SAFETY: each block is the resource's, which keeps the contract, and goes back to it when its finalizer runs.
unsafe impl DeviceMemoryManager for ResourceMemoryManager {
    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer> {
        let block = self.resource.allocate(stream, layout)?;
        let (address, bytes, resource) = (block.address(), block.bytes(), self.resource.clone());
        Ok(MemoryPointer::new(stream, address, bytes, move |stream| {
            // SAFETY: the resource's block. The finalizer runs once, when no view is left, with the stream whose
            // order comes after all uses.
            unsafe { resource.deallocate(stream, block) }
        }))
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.resource.device().memory_info()
    }
}
