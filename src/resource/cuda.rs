//! Plain driver memory.

use super::block::Padded;
use super::{DeviceBlock, DeviceResource, ResourceId};
use crate::backend::{DeviceAddress, DriverResult, Wanted};
use crate::debug_log::{event, later};
use crate::device::Device;
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::event::Event;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::stream::{Stream, graveyard};
use crate::sync::Arc;

/// Plain device memory, one driver call an allocation: `cuMemAlloc` and `cuMemFree`.
///
/// Every instance on one device is equal. Both calls block; a free waits for its stream first, so
/// put a pool above it. A free on a stream in capture leaves the capture alone: the block goes back in
/// a later call of this crate, after the capture's end. RMM: `cuda_memory_resource`.
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
        graveyard::reap_blocks();
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
    if stream.is_capturing().unwrap_or(false) {
        // SAFETY: the caller's contract, for a later time.
        return unsafe { free_past(stream, device, block) };
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

/// Frees when the stream is out of its capture, which a wait would cost, and has passed what it was
/// given. Does not wait.
///
/// # Safety
///
/// As [`free_after`].
pub(super) unsafe fn free_past(stream: &Stream, device: &Device, block: DeviceBlock) {
    let (stream, device) = (stream.clone(), device.clone());
    match passed_all(&stream) {
        // SAFETY: the caller's contract, for a later time.
        Ok(None) => free_later(None, move || unsafe { free_past(&stream, &device, block) }),
        Ok(passed) => free_later(passed, move || {
            // SAFETY: the stream has passed every use; the caller vouches for the rest.
            if let Err(error) = unsafe { device.driver().mem_free(block.token()) } {
                leaked(&device, block.bytes(), &error);
            }
        }),
        Err(error) => lost(&device, block.bytes(), &error),
    }
}

/// An event after all that the stream was given, which says so of the device. `None` if a capture is
/// in the way: such an event is of a graph, and whoever asks it spoils the capture. The caller may be
/// any thread, so that one begins, or ends, at any point in here.
pub(super) fn passed_all(stream: &Stream) -> Result<Option<Event>> {
    let of_graph = |error: &Error| error.kind() == ErrorKind::Capture;
    if stream.is_capturing()? {
        return Ok(None);
    }
    let event = match stream.record() {
        Err(error) if of_graph(&error) => return Ok(None),
        event => event?,
    };
    if stream.is_capturing()? {
        return Ok(None);
    }
    // If it is of a capture that is over by now, it may be asked, and is no event of a stream.
    let of_ended_graph = |error: &Error| {
        error.driver().is_some_and(|error| error.code() == DriverError::INVALID_VALUE)
    };
    match event.is_complete() {
        Err(error) if of_graph(&error) || of_ended_graph(&error) => Ok(None),
        asked => asked.map(|_| Some(event)),
    }
}

/// As [`leaked`], for an error that may be no driver's.
pub(super) fn lost(device: &Device, bytes: usize, error: &Error) {
    match error.driver() {
        Some(error) => leaked(device, bytes, error),
        None => {
            let (device, error) = (device.to_string(), error.to_string());
            later(move || event!(error, %device, bytes, %error, "leaked device memory"));
        }
    }
}

/// Has a later call of the crate `free` something, if the device has passed `event` by then.
fn free_later(event: Option<Event>, free: impl FnOnce() + Send + 'static) {
    graveyard::bury_block(event.map(Arc::new), Box::new(FreeLater(Some(free))));
}

struct FreeLater<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for FreeLater<F> {
    fn drop(&mut self) {
        if let Some(free) = self.0.take() {
            free();
        }
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
