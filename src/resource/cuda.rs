//! Plain driver memory.

use super::block::Padded;
use super::{DeviceBlock, DeviceResource, ResourceId};
use crate::backend::{DeviceAddress, DriverResult, Wanted};
use crate::debug_log::{event, later};
use crate::device::Device;
use crate::error::{DriverError, Result};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::stream::Stream;

/// Plain device memory, one driver call an allocation: `cuMemAlloc` and `cuMemFree`.
///
/// Every instance on one device is equal. Both calls block; a free waits for its stream first, so
/// put a pool above it. RMM: `cuda_memory_resource`.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceLayout, DeviceResource};
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let resource = CudaResource::new(&device);
/// let block = resource.allocate(&stream, DeviceLayout::new(4096)?)?;
/// assert_eq!(block.address() % 256, 0);
/// // SAFETY: the block is this resource's, and no work uses it.
/// unsafe { resource.deallocate(&stream, block) };
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaResource {
    device: Device,
}

impl CudaResource {
    /// The plain memory of `device`.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone() }
    }
}

// SAFETY: the driver hands out disjoint blocks; a block goes back to it only when the stream has
// passed every use, so memory never changes hands before its work is complete.
unsafe impl DeviceResource for CudaResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, 0)
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        allocate(&self.device, stream, layout, |bytes| self.device.driver().mem_alloc(bytes))
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller vouches for the block; the base that the token keeps is the driver's.
        unsafe { free_after(stream, &self.device, block) }
    }
}

/// A block of `layout`, from a driver call that `ask`s for so many bytes.
pub(super) fn allocate(
    device: &Device,
    stream: &Stream,
    layout: DeviceLayout,
    ask: impl FnOnce(usize) -> DriverResult<DeviceAddress>,
) -> Result<DeviceBlock> {
    device.require(stream.device(), "the stream")?;
    if layout.bytes() == 0 {
        return Ok(DeviceBlock::empty(layout));
    }
    let padded = Padded::new(layout, DEFAULT_ALIGNMENT);
    let base = ask(padded.bytes()).wanted(|| wanted(device, &padded))?;
    Ok(padded.block(base))
}

/// What an allocation wanted, and what was there: the sentence of an out-of-memory error.
fn wanted(device: &Device, padded: &Padded) -> String {
    let bytes = padded.bytes();
    match device.memory_info() {
        Ok(info) => format!(
            "allocating {bytes} bytes on {device}, where {} of {} are free",
            info.free, info.total
        ),
        Err(_) => format!("allocating {bytes} bytes on {device}"),
    }
}

/// Waits for the stream, then frees. What cannot be proven unused is leaked and reported.
///
/// # Safety
///
/// The token is the address of a live allocation of `mem_alloc` or `mem_alloc_managed`, freed here,
/// and all its work is ordered before this call on `stream`.
pub(super) unsafe fn free_after(stream: &Stream, device: &Device, block: DeviceBlock) {
    if block.is_empty() {
        return;
    }
    let driver = device.driver();
    let freed = driver.stream_synchronize(stream.raw()).and_then(|()| {
        // SAFETY: the stream has passed every use; the caller vouches for the rest.
        unsafe { driver.mem_free(block.token()) }
    });
    if let Err(error) = freed {
        leaked(device, block.bytes(), &error);
    }
}

/// Reports a block that could not be freed. Quiet where driver or context are gone, as they are
/// when a process exits: nothing is lost there.
pub(super) fn leaked(device: &Device, bytes: usize, error: &DriverError) {
    if !error.is_gone() {
        let (device, error) = (device.to_string(), error.to_string());
        // A pool above may be in the middle of a trim.
        later(
            move || event!(error, %device, bytes, %error, "leaked device memory: it could not be freed"),
        );
    }
}
