//! Streams of other libraries, borrowed for a while.

use super::handle::Stream;
use crate::debug_log::event;
use crate::device::Device;
use crate::driver::{CallSite, is_forked_child};
use crate::error::Result;
use std::marker::PhantomData;
use std::ops::Deref;

/// A stream of another library, by its handle, which is [detached](Stream::detach) when this is dropped, and is the last of
/// those that took the stream over.
///
/// So several may borrow one stream at once. A stream that [`Stream::from_handle`] or [`Stream::from_cudarc`] gave, too, is
/// not detached, as their callers promised to keep it.
///
/// It derefs to [`Stream`]. Vectors, pools and clones of the stream that live on go on, on a stream of Aquifer's own that
/// comes after all that this one was given.
///
/// ```
/// use aquifer::{Device, DeviceVec, sim::SimConfig, stream::BorrowedStream};
///
/// let device = Device::simulated(SimConfig::default());
/// let simulator = device.simulator().unwrap();
/// let handle = simulator.create_foreign_stream()?; // as another library would
/// let vec = {
///     // SAFETY: it is destroyed after the guard is gone, and nobody captures.
///     let theirs = unsafe { BorrowedStream::new(&device, handle)? };
///     DeviceVec::from_slice(&theirs, &[1_u32, 2, 3])?
/// };
/// simulator.destroy_foreign_stream(handle)?;
/// assert_eq!(vec.to_vec()?, [1, 2, 3]); // on another stream
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Debug)]
pub struct BorrowedStream<'a> {
    stream: Stream,
    owner: PhantomData<&'a ()>,
}

impl BorrowedStream<'_> {
    /// The stream behind a handle, as [`Stream::from_handle`] gives it.
    ///
    /// # Errors
    ///
    /// The errors of [`Stream::from_handle`].
    ///
    /// # Safety
    ///
    /// - The handle is of a stream of the device's context, which is not destroyed before this was dropped. If it is
    ///   forgotten, the conditions of [`Stream::from_handle`] hold.
    /// - The stream is in no capture when this is dropped, and the handles that `cuda_stream` and
    ///   [`handle`](Stream::handle) gave are not used after that, nor streams of other libraries that stand on them. A drop
    ///   inside of a host function, or one that an error event
    ///   says has failed, is no drop.
    #[track_caller]
    pub unsafe fn new(device: &Device, handle: u64) -> Result<Self> {
        let _site = CallSite::enter();
        // SAFETY: the stream lives until it was detached, by the caller's promise and the drop.
        let stream = unsafe { Stream::from_handle(device, handle)? };
        Ok(Self { stream, owner: PhantomData })
    }
}

impl Deref for BorrowedStream<'_> {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for BorrowedStream<'_> {
    fn drop(&mut self) {
        // With no other handle nothing goes on, and a stream in its place would be made for nothing.
        if is_forked_child() || !self.stream.let_go() {
            return;
        }
        if let Err(error) = self.stream.detach_unless_taken() {
            event!(error, stream = %self.stream, %error, "a borrowed stream could not be detached");
        }
    }
}
