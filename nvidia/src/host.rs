//! Copies between page-locked vectors and buffers of theirs, which own both.

use crate::error::{refused, theirs};
use crate::stream::refuse_capture;
use aquifer::allocator_api2::vec::Vec;
use aquifer::bytemuck::Pod;
use aquifer::error::Refused;
use aquifer::{Error, ErrorKind, PinnedAlloc, Result};
use cuda_core::{DeviceBuffer, DeviceCopy, Event, completion, memory};
use std::fmt;
use std::sync::Arc;

/// A page-locked vector, and a buffer of theirs.
pub type HostAndBuffer<T> = (Vec<T, PinnedAlloc>, DeviceBuffer<T>);

/// A page-locked vector and a buffer of theirs while a copy between the two runs, from [`upload_new`], [`upload`] and
/// [`download`].
///
/// It may be dropped or forgotten at any time. A drop does not wait: the vector goes to their worker, which frees it when
/// the copy is complete. A forgotten one is leaked. The buffer's own memory is kept by its tracker.
pub struct HostTransfer<T: Pod + DeviceCopy> {
    /// `None` once both have left.
    parts: Option<HostAndBuffer<T>>,
    stream: Arc<cuda_core::Stream>,
    event: Event,
}

impl<T: Pod + DeviceCopy> HostTransfer<T> {
    /// Whether the copy is complete.
    ///
    /// # Errors
    ///
    /// The errors of the driver, such as that of a lost context.
    pub fn is_complete(&self) -> Result<bool> {
        self.event.query().map_err(|error| theirs("asking for a copy", "cuEventQuery", error))
    }

    /// Waits for the copy, and gives both back.
    ///
    /// # Errors
    ///
    /// The errors of the driver. The transfer comes back.
    pub fn wait(mut self) -> Result<HostAndBuffer<T>, Refused<Self>> {
        if let Err(error) = self.event.synchronize() {
            let error = theirs("waiting for a copy", "cuEventSynchronize", error);
            return Err(Refused { error, value: self });
        }
        match self.parts.take() {
            Some(parts) => Ok(parts),
            None => Err(Refused { error: gone(), value: self }),
        }
    }

    /// The buffer at once, for work on the stream of the copy. Another is refused while the copy runs. The vector is freed
    /// when the copy is complete. After a [`download`] its elements are lost.
    ///
    /// # Errors
    ///
    /// None but that of a transfer that is empty, which no program can make.
    pub fn into_buffer(mut self) -> Result<DeviceBuffer<T>> {
        let (host, buffer) = self.parts.take().ok_or_else(gone)?;
        retire(host, &self.event, &self.stream);
        Ok(buffer)
    }
}

fn gone() -> Error {
    refused(
        ErrorKind::InvalidArgument,
        "a transfer had given its parts away".into(),
        "this is a fault of aquifer-nvidia: please report it",
    )
}

/// Frees the vector when the copy is complete, without a wait.
fn retire<T: Pod>(host: Vec<T, PinnedAlloc>, event: &Event, stream: &cuda_core::Stream) {
    if event.query() == Ok(true) {
        return drop(host);
    }
    let bytes = Freed(host);
    // An error leaks the vector, since the copy may run.
    let _ = completion::retain_until_complete(bytes, stream);
}

/// A vector that another thread frees, and does no more with.
struct Freed<T>(#[allow(dead_code, reason = "it is dropped")] Vec<T, PinnedAlloc>);

// SAFETY: the other thread frees memory of an allocator that all threads share. The elements are `Copy`, so nothing of
// theirs runs.
unsafe impl<T: Pod> Send for Freed<T> {}

impl<T: Pod + DeviceCopy> Drop for HostTransfer<T> {
    fn drop(&mut self) {
        if let Some((host, buffer)) = self.parts.take() {
            retire(host, &self.event, &self.stream);
            drop(buffer);
        }
    }
}

impl<T: Pod + DeviceCopy> fmt::Debug for HostTransfer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.parts.as_ref().map(|(host, _)| host.len());
        f.debug_struct("HostTransfer").field("len", &length).finish_non_exhaustive()
    }
}

/// Copies a page-locked vector to a new buffer of theirs, without a wait (`from_host_async_unchecked`).
///
/// Their allocation is `cuMemAlloc`, which may wait for the device. For memory of a pool, take
/// [`Stream::upload_new`](aquifer::Stream::upload_new) and [`into_buffer`](crate::into_buffer).
///
/// ```no_run
/// use aquifer::allocator_api2::vec::Vec;
/// use aquifer::{Device, PinnedAlloc};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::detect()?;
/// let theirs = aquifer_nvidia::context(&device)?.new_stream()?;
/// let mut host = Vec::new_in(PinnedAlloc);
/// host.extend([1_u32, 2, 3]);
/// let (host, buffer) = aquifer_nvidia::upload_new(host, &theirs)?.wait()?;
/// assert_eq!(buffer.to_host_vec(&theirs)?, host.as_slice());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The vector comes back. It is leaked, and an empty one comes, where the driver does not say whether the copy runs.
///
/// - [`ErrorKind::Capture`] while the stream is in capture, since a graph would read the vector later.
/// - The errors of the driver.
pub fn upload_new<T: Pod + DeviceCopy>(
    host: Vec<T, PinnedAlloc>,
    stream: &Arc<cuda_core::Stream>,
) -> Result<HostTransfer<T>, Refused<Vec<T, PinnedAlloc>>> {
    if let Err(error) = refuse_capture(stream, "a copy of host memory") {
        return Err(Refused { error, value: host });
    }
    // SAFETY: the vector is kept, and nobody writes to it, until the copy is complete: by the transfer, its drop or `settle`.
    let made = unsafe { DeviceBuffer::from_host_async_unchecked(stream, &host) };
    let made = made.and_then(|buffer| Ok((stream.record_event(None)?, buffer)));
    match made {
        Ok((event, buffer)) => {
            Ok(HostTransfer { parts: Some((host, buffer)), stream: stream.clone(), event })
        }
        Err(error) => {
            let error = theirs("copying a vector to a new buffer", "cuMemcpyHtoDAsync", error);
            Err(Refused { error, value: settle(host, stream) })
        }
    }
}

/// The vector, once the stream is done. An empty one, where the driver does not say when that is.
fn settle<T>(host: Vec<T, PinnedAlloc>, stream: &cuda_core::Stream) -> Vec<T, PinnedAlloc> {
    if stream.synchronize().is_ok() {
        return host;
    }
    std::mem::forget(host);
    Vec::new_in(PinnedAlloc)
}

/// Copies a page-locked vector to a buffer of the same length, without a wait (`copy_from_host_async_unchecked`).
///
/// # Errors
///
/// Both come back. The vector is leaked, and an empty one comes, where the driver does not say whether the copy runs.
///
/// - [`ErrorKind::LengthMismatch`].
/// - [`ErrorKind::Capture`] while the stream is in capture, since a graph would read the vector later.
/// - [`ErrorKind::Driver`] with `CUDA_ERROR_NOT_READY` if another stream uses the buffer, and other errors of the driver.
pub fn upload<T: Pod + DeviceCopy>(
    host: Vec<T, PinnedAlloc>,
    buffer: DeviceBuffer<T>,
    stream: &Arc<cuda_core::Stream>,
) -> Result<HostTransfer<T>, Refused<HostAndBuffer<T>>> {
    copy(host, buffer, stream, "copying a vector to a buffer", |host, buffer| {
        // SAFETY: as in `upload_new`.
        unsafe { buffer.copy_from_host_async_unchecked(stream, host) }
    })
}

/// Copies a buffer to a page-locked vector of the same length, without a wait.
///
/// # Errors
///
/// The errors of [`upload`].
pub fn download<T: Pod + DeviceCopy>(
    buffer: DeviceBuffer<T>,
    host: Vec<T, PinnedAlloc>,
    stream: &Arc<cuda_core::Stream>,
) -> Result<HostTransfer<T>, Refused<HostAndBuffer<T>>> {
    copy(host, buffer, stream, "copying a buffer to a vector", |host, buffer| {
        let lease = buffer.storage().acquire(stream, false, false)?;
        stream.context().bind_to_thread()?;
        let (target, source, bytes) =
            (host.as_mut_ptr(), buffer.cu_deviceptr(), buffer.num_bytes());
        // SAFETY: both are of `bytes` bytes. The lease keeps the buffer, and the transfer, its drop or `settle` the vector,
        // which nobody reads until the copy is complete.
        let copied =
            unsafe { memory::memcpy_dtoh_async(target, source, bytes, stream.cu_stream()) };
        let kept = lease.retain_until_complete(stream);
        copied.and(kept)
    })
}

fn copy<T: Pod + DeviceCopy>(
    mut host: Vec<T, PinnedAlloc>,
    mut buffer: DeviceBuffer<T>,
    stream: &Arc<cuda_core::Stream>,
    what: &str,
    enqueue: impl FnOnce(
        &mut Vec<T, PinnedAlloc>,
        &mut DeviceBuffer<T>,
    ) -> Result<(), cuda_core::DriverError>,
) -> Result<HostTransfer<T>, Refused<HostAndBuffer<T>>> {
    if let Err(error) = refuse(host.len(), buffer.len(), stream, what) {
        return Err(Refused { error, value: (host, buffer) });
    }
    let enqueued = if buffer.num_bytes() == 0 { Ok(()) } else { enqueue(&mut host, &mut buffer) };
    match enqueued.and_then(|()| stream.record_event(None)) {
        Ok(event) => {
            Ok(HostTransfer { parts: Some((host, buffer)), stream: stream.clone(), event })
        }
        Err(error) => {
            let error = theirs(what, "cuMemcpyAsync", error);
            Err(Refused { error, value: (settle(host, stream), buffer) })
        }
    }
}

fn refuse(host: usize, buffer: usize, stream: &cuda_core::Stream, what: &str) -> Result<()> {
    if host != buffer {
        return Err(refused(
            ErrorKind::LengthMismatch,
            format!("{what}: the vector has {host} elements, and the buffer {buffer}"),
            "resize the vector first",
        ));
    }
    refuse_capture(stream, what)
}
