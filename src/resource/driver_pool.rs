//! Memory from a pool of the driver.

use super::cuda::{allocate, leaked};
use super::{DeviceBlock, DeviceResource, ResourceId};
use crate::backend::{RawPool, Wanted};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::stream::Stream;

/// Stream-ordered memory from a driver pool of its own: `cuMemAllocFromPoolAsync` and
/// `cuMemFreeAsync`.
///
/// The pool is this resource's alone. The device's default pool, which other libraries use, is
/// never touched. Neither call waits for the device. RMM: `cuda_async_memory_resource`.
///
/// ```
/// use aquifer::{AsyncResource, Device, DeviceVec};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let resource = Arc::new(AsyncResource::new(&device)?);
/// let vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2, 3], resource)?;
/// assert_eq!(vec.to_vec()?, [1, 2, 3]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Debug)]
pub struct AsyncResource {
    device: Device,
    pool: RawPool,
}

impl AsyncResource {
    /// A new pool that keeps all it ever took until it is dropped or
    /// [trimmed](Self::trim): the release threshold is `u64::MAX`, as RMM's is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the device has no memory pools; those of the driver.
    pub fn new(device: &Device) -> Result<Self> {
        Self::with_release_threshold(device, u64::MAX)
    }

    /// A new pool that gives free memory beyond `bytes` back to the system when the device is
    /// synchronised.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_release_threshold(device: &Device, bytes: u64) -> Result<Self> {
        if !device.properties().memory_pools {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{device} has no memory pools"),
            )
            .advise("use CudaResource"));
        }
        let pool =
            device.driver().pool_create(bytes).wanted(|| format!("making a pool on {device}"))?;
        Ok(Self { device: device.clone(), pool })
    }

    /// Gives free memory back to the system, but for `keep` bytes.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn trim(&self, keep: usize) -> Result<()> {
        self.device
            .driver()
            .pool_trim(self.pool, keep)
            .wanted(|| format!("trimming a pool on {} to {keep} bytes", self.device))
    }
}

impl PartialEq for AsyncResource {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device && self.pool == other.pool
    }
}

impl Eq for AsyncResource {}

// SAFETY: the driver's pool is stream-ordered and hands out disjoint blocks; live ones outlive the
// pool itself, by its documentation.
unsafe impl DeviceResource for AsyncResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, self.pool.0)
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        allocate(&self.device, stream, layout, |bytes| {
            self.device.driver().mem_alloc_async(self.pool, bytes, stream.raw())
        })
    }

    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        // A block that was aligned further lies inside the driver's allocation.
        block.address() == block.token()
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if block.is_empty() {
            return;
        }
        // SAFETY: the token is the driver's address; the caller vouches for the order.
        let freed = unsafe { self.device.driver().mem_free_async(block.token(), stream.raw()) };
        if let Err(error) = freed {
            leaked(&self.device, block.bytes(), &error);
        }
    }
}

impl Drop for AsyncResource {
    fn drop(&mut self) {
        // SAFETY: this resource alone allocates from its pool, and it is going away.
        let destroyed = unsafe { self.device.driver().pool_destroy(self.pool) };
        if let Err(error) = destroyed {
            leaked(&self.device, 0, &error);
        }
    }
}
