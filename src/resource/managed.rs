//! Managed memory.

use super::cuda::{allocate, free_after};
use super::{DeviceBlock, DeviceResource, ResourceId};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::stream::Stream;

/// Managed memory, which the driver moves between host and device: `cuMemAllocManaged`.
///
/// Never ask for more of it than the device has free on a GPU that others share. A free waits for
/// its stream. RMM: `managed_memory_resource`.
///
/// ```
/// use aquifer::{Device, DeviceVec, ManagedResource};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let managed = Arc::new(ManagedResource::new(&device)?);
/// let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, managed)?;
/// assert_eq!(vec.to_vec()?, [0; 100]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedResource {
    device: Device,
}

impl ManagedResource {
    /// The managed memory of `device`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the device has none.
    pub fn new(device: &Device) -> Result<Self> {
        if !device.properties().managed_memory {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{device} has no managed memory"),
            )
            .advise("use CudaResource, and copies"));
        }
        Ok(Self { device: device.clone() })
    }
}

// SAFETY: as CudaResource: disjoint blocks of the driver, freed when the stream has passed.
unsafe impl DeviceResource for ManagedResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, 0)
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        allocate(&self.device, stream, layout, |bytes| {
            self.device.driver().mem_alloc_managed(bytes)
        })
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller vouches for the block; the token is the driver's address.
        unsafe { free_after(stream, &self.device, block) }
    }
}
