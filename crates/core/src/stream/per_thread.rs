//! The default stream that each thread has for itself.

use super::call::StreamCall;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{ErrorContext, RawStream};
use crate::error::Result;
use crate::event::Event;
use std::marker::PhantomData;

impl Device {
    /// The calling thread's own default stream, CUDA's handle 2. The handle cannot leave its
    /// thread, since elsewhere it would name another stream, and it is no home for a vector.
    ///
    /// This does not compile, since the handle would move to another thread:
    ///
    /// ```compile_fail
    /// let device = aquifer::Device::simulated(Default::default());
    /// let mine = device.per_thread_stream().unwrap();
    /// std::thread::spawn(move || mine.synchronize());
    /// ```
    ///
    /// [Synchronise](PerThreadStream::synchronize) it before its thread ends. With driver 580, on an H100 and an H200,
    /// programs that had made and dropped many streams were seen to stop for good inside of the driver. That happened
    /// if a thread ended with work on its own stream, and not if it had synchronised first. Streams of
    /// [`new_stream`](Device::new_stream) did not show it.
    ///
    /// # Errors
    ///
    /// The errors of the driver call.
    pub fn per_thread_stream(&self) -> Result<PerThreadStream> {
        let raw = self
            .driver()
            .per_thread_stream()
            .with_context(|| format!("asking {self} for the thread's default stream"))?;
        Ok(PerThreadStream { device: self.clone(), raw, stays: PhantomData })
    }
}

/// The default stream of the thread that asked for it.
///
/// It is not `Send` and not `Sync`, and comes from [`Device::per_thread_stream`].
///
/// ```
/// use aquifer::{Device, DeviceVec};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let mut vec = DeviceVec::<u32>::zeroed(&stream, 3)?;
/// vec.fill(2)?;
/// let filled = stream.record()?;
/// let mine = device.per_thread_stream()?;
/// mine.wait(&filled)?; // in order after what the other stream was given
/// mine.synchronize()?;
/// assert!(filled.is_complete()?);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Debug)]
pub struct PerThreadStream {
    device: Device,
    raw: RawStream,
    stays: PhantomData<*const ()>,
}

impl PerThreadStream {
    /// The device that the stream runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Makes the stream wait for `event`, without blocking the host.
    ///
    /// # Errors
    ///
    /// The errors of [`Stream::wait`](crate::Stream::wait).
    #[track_caller]
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _site = CallSite::enter();
        self.begin_call().wait(event)
    }

    /// Blocks until the stream has done all it was given so far.
    ///
    /// # Errors
    ///
    /// The errors of [`Stream::synchronize`](crate::Stream::synchronize).
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let _site = CallSite::enter();
        let call = self.begin_call();
        call.refuse_capture("waiting for the stream")?;
        call.synchronize()
    }

    /// Begins a call. No other thread has the stream, and no declared capture.
    pub(crate) fn begin_call(&self) -> StreamCall<'_> {
        StreamCall::without_gate(&self.device, self.raw)
    }
}
