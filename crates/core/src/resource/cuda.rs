//! Plain driver memory.

use super::block::{DeviceBlock, padded_block, padded_bytes};
use super::device_resource::DeviceResource;
use super::identity::ResourceId;
use super::mapped::Mappable;
use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{DeviceAddress, DriverResult, ErrorContext, is_in_host_function};
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::impls::Count;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout, Requested};
use crate::stream::{Stream, deferred};

/// Plain device memory, by one driver call an allocation (`cuMemAlloc` and `cuMemFree`).
///
/// All instances on one device are equal. Both calls block, and a free waits for its stream first. So put a pool above
/// it. A [`PoolResource`](crate::PoolResource) with [`Handles::On`](crate::mr::Handles::On) maps handles in place of
/// these calls. Without them, `cuIpcGetMemHandle` shares its memory. On a stream in capture a free does not disturb the
/// capture, since a later call of this crate makes it after the capture's end. RMM has `cuda_memory_resource`.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceLayout, DeviceResource};
///
/// let device = Device::detect_or_simulate()?;
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

// SAFETY: the driver hands out disjoint blocks, and gets one back when its stream has passed every use,
// so no memory is handed out again before its last work is complete.
unsafe impl DeviceResource for CudaResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, 0)
    }

    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        peer.enable_access_to(&self.device)
    }

    fn has_peer_access(&self, peer: &Device) -> bool {
        peer.has_access_to(&self.device)
    }

    fn mappable(&self) -> Mappable<'_> {
        Mappable::Plain
    }

    #[track_caller]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let _site = CallSite::enter();
        deferred::collect_blocks();
        allocate(&self.device, stream, layout, |bytes| self.device.driver().mem_alloc(bytes))
    }

    #[track_caller]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let _site = CallSite::enter();
        // SAFETY: the caller's promise; the token is the driver's address.
        unsafe { free_blocking(stream, &self.device, block) }
    }
}

/// A block of `layout`, from a driver call for so many bytes.
pub fn allocate(
    device: &Device,
    stream: &Stream,
    layout: DeviceLayout,
    driver_call: impl FnOnce(usize) -> DriverResult<DeviceAddress>,
) -> Result<DeviceBlock> {
    device.require(stream.device(), "the stream")?;
    if layout.bytes() == 0 {
        return Ok(DeviceBlock::empty(layout));
    }
    let (bytes, alignment) = (layout.bytes(), layout.alignment());
    let requested = Requested { bytes, alignment, usual: DEFAULT_ALIGNMENT };
    let base = driver_call(padded_bytes(layout)).with_context(|| match device.memory_info() {
        Ok(info) => format!(
            "allocating {requested} on {device}, which has {} free of its {}",
            Count(info.free, "byte"),
            Count(info.total, "byte")
        ),
        Err(_) => format!("allocating {requested} on {device}"),
    });
    Ok(padded_block(layout, base.map_err(|error| requested.advise(error))?))
}

/// Waits for the stream and calls `free`, with an error if the stream may not have passed all that it was given. On a
/// stream in capture, where a wait would invalidate the graph, a later call of the crate calls `free`.
pub fn free_behind(stream: &Stream, free: impl FnOnce(Result<()>) + Send + 'static) {
    if is_in_host_function() || stream.is_capturing().unwrap_or(false) {
        return stream.free_block_later(free);
    }
    free(stream.synchronize_uncaptured());
}

/// Waits for the stream, then frees. On a stream in capture, where a wait would invalidate the graph, it calls
/// [`free_deferred`]. A block that may still be in use is leaked and reported.
///
/// # Safety
///
/// The block's token is the address of a live allocation of the driver, which this frees, and all its
/// work is ordered before this call on `stream`.
pub unsafe fn free_blocking(stream: &Stream, device: &Device, block: DeviceBlock) {
    if block.is_empty() {
        return;
    }
    if is_in_host_function() || stream.is_capturing().unwrap_or(false) {
        // SAFETY: the caller's promise.
        return unsafe { free_deferred(stream, device, block) };
    }
    match stream.synchronize_uncaptured() {
        // SAFETY: the stream has passed every use; the caller vouches for the rest.
        Ok(()) => unsafe { free_now(device, &block) },
        Err(error) => report_leak(device, block.bytes(), &error),
    }
}

/// Frees in a later call of the crate, when the stream is in no capture and has passed what it was
/// given. Does not wait.
///
/// # Safety
///
/// The conditions of [`free_blocking`].
pub(super) unsafe fn free_deferred(stream: &Stream, device: &Device, block: DeviceBlock) {
    let device = device.clone();
    stream.free_block_later(move |passed| match passed {
        // SAFETY: the stream has passed every use; the caller vouches for the rest.
        Ok(()) => unsafe { free_now(&device, &block) },
        Err(error) => report_leak(&device, block.bytes(), &error),
    });
}

/// # Safety
///
/// The conditions of [`free_blocking`] hold, and no work uses the block.
unsafe fn free_now(device: &Device, block: &DeviceBlock) {
    // SAFETY: the caller's promise.
    if let Err(error) = unsafe { device.driver().mem_free(block.token()) } {
        report_failed_free(device, block.bytes(), &error);
    }
}

/// Reports a block that could not be freed for `error`.
pub fn report_leak(device: &Device, bytes: usize, error: &Error) {
    match error.driver() {
        Some(error) => report_failed_free(device, bytes, error),
        None => {
            let (device, error) = (device.to_string(), error.to_string());
            deferred_event!(error, %device, bytes, %error, "leaked device memory");
        }
    }
}

/// Reports a block that the driver did not free. It is silent if the driver or the context is gone, as when the process
/// exits, since no memory is lost then.
pub fn report_failed_free(device: &Device, bytes: usize, error: &DriverError) {
    if error.is_gone() {
        return;
    }
    let (name, error_shown) = (device.to_string(), error.to_string());
    // Deferred: a pool above may have its locks.
    if error.kind() == ErrorKind::Simulation {
        // No leak of the program's: a simulated device that made a report refuses all that follows.
        deferred_event!(
            debug, device = %name, bytes, error = %error_shown,
            "device memory was not freed: the simulated device stopped with a report"
        );
    } else {
        deferred_event!(
            error, device = %name, bytes, error = %error_shown,
            "leaked device memory: it could not be freed"
        );
    }
}

/// # Safety
///
/// The token is the address of a live allocation of a driver pool, freed here, and all its work is
/// ordered before this call on `stream`.
pub unsafe fn free_in_order(stream: &Stream, device: &Device, block: DeviceBlock) {
    let entered = stream.begin_nested_call().ok();
    let runs = entered.as_ref().filter(|entered| !entered.is_capturing().unwrap_or(false));
    let freed = runs.map(|entered| {
        // SAFETY: the caller's promise.
        unsafe { device.driver().mem_free_async(block.token(), entered.raw()) }
    });
    match freed {
        Some(Ok(())) => {}
        Some(Err(error)) => report_failed_free(device, block.bytes(), &error),
        // A graph frees no memory from outside of it. The deferred free is `cuMemFree`, which takes a
        // pool's memory too: by then the stream may be in its next capture.
        // SAFETY: the caller's promise.
        None => unsafe { free_deferred(stream, device, block) },
    }
}
