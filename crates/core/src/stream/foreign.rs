//! Streams of other libraries, by the driver's handle.
//!
//! The driver uses a handle again as soon as its stream is destroyed. On an H100, four streams in turn had one handle.
//! The driver has a number for each stream that it never uses again. So a handle that is brought is compared by that
//! number. The question would invalidate a capture of the stream, so a stream in capture is taken to be the stream that
//! it was.
//!
//! A handle without a stream must not be named in a call of the driver, which would read memory that is gone. On an
//! H100 with driver 580 the process ends. So an owner says before that it destroys a stream.
//!
//! A stream that its owner destroys lives on here under another handle. That handle is of a stream of the crate's own,
//! which waits for all that the first was given. A pool or a vector's home that remembers the stream goes on without
//! knowing.
//!
//! | what becomes of the stream | `StreamInner::replacement` | the stream's handle here |
//! |---|---|---|
//! | in use | none | its owner's |
//! | [`detach`](Stream::detach) | a stream that waits for it | that stream's |
//! | destroyed without that, and its handle brought again | a stream that waits for all of the context | that stream's |

use super::context::record_context;
use super::gate::Patience;
use super::handle::Stream;
use super::members::record_before;
use crate::debug_log::defer_events;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{CaptureStatus, ErrorContext, RawStream, not_forked};
use crate::error::{Result, ensure};
use crate::event::Event;

/// The legacy default stream's handles.
const LEGACY: [u64; 2] = [0, 1];

/// The handle that is another stream on each thread.
const PER_THREAD: u64 = 2;

impl Stream {
    /// The driver's handle, a `CUstream`, for other libraries. While [`capture`](Self::capture) has the stream, no other
    /// thread may name it in a call.
    pub fn handle(&self) -> u64 {
        self.expose();
        self.raw().0
    }

    /// The stream behind another library's handle. The handle is a `CUstream` of the device's primary context, as a
    /// `cudaStream_t` is. The handles 0 and 1 are the [default stream](Device::default_stream). While a stream lives,
    /// its handle gives the same `Stream`. If a stream was destroyed and its handle came back, the handle gives another
    /// `Stream`. The call costs two driver calls.
    ///
    /// The `Stream` does not keep the stream alive. So its owner calls [`detach`](Self::detach) before it destroys the
    /// stream.
    ///
    /// As for [`from_cudarc`](Self::from_cudarc), a capture that another library begins on it begins while no other
    /// thread is in a call on a pool that has the stream.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for handle 2, the per-thread default stream,
    ///   for which there is [`Device::per_thread_stream`].
    /// - [`ErrorKind::Driver`](crate::ErrorKind::Driver) for a handle that no stream of a simulated device has.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    /// - The errors of the driver.
    ///
    /// # Safety
    ///
    /// - The handle is of a stream of the device's context.
    /// - The stream is not destroyed before this `Stream` was [detached](Self::detach), or before it and all that keeps
    ///   it are gone. Vectors at home on it and transfers keep it, pools that it allocated from, graphs that were launched
    ///   on it, with their graph pools and the pools of their captures.
    /// - The handles that `cuda_stream` and [`handle`](Self::handle) gave before it was detached, and streams of other
    ///   libraries that stand on them, are not used after that.
    pub unsafe fn from_handle(device: &Device, handle: u64) -> Result<Self> {
        not_forked("a stream")?;
        if LEGACY.contains(&handle) {
            return Ok(device.default_stream());
        }
        ensure!(
            handle != PER_THREAD,
            InvalidArgument,
            "use Device::per_thread_stream on the thread that wants it",
            "the per-thread default stream was given as a stream of its own"
        );
        let raw = RawStream(handle);
        if let Some(known) = Self::take_over_known(device, raw) {
            if known.is_still(raw)? {
                return Ok(known);
            }
            known.replace(Some(&record_context(device)?), false)?;
        }
        let what = || format!("taking over a stream of {device} by its handle {handle:#x}");
        let keep = device.driver().stream_borrow(raw).with_context(what)?;
        let stream = Self::register_foreign(device, raw, keep);
        stream.is_still(raw)?;
        Ok(stream)
    }

    /// Whether the driver's stream of a handle is still this one. True of a stream in capture, which is not asked. It
    /// is for libraries over this crate, which keep the `Stream` of a handle. It costs two driver calls.
    ///
    /// # Errors
    ///
    /// The errors of the driver.
    ///
    /// # Safety
    ///
    /// [`from_handle`](Self::from_handle) gave this for the handle, which is of a stream that lives.
    #[doc(hidden)]
    pub unsafe fn is_behind(&self, handle: u64) -> Result<bool> {
        if LEGACY.contains(&handle) { Ok(true) } else { self.is_still(RawStream(handle)) }
    }

    /// Whether the driver's stream of this handle is this one. True of a stream in capture.
    fn is_still(&self, raw: RawStream) -> Result<bool> {
        // Aquifer itself keeps any other alive.
        let Some(known) = self.foreign_number() else { return Ok(true) };
        if self.is_replaced() && self.raw() == raw {
            return Ok(true);
        }
        let driver = self.device().driver();
        let what = || format!("asking which stream has the handle of {self}");
        // A declared capture has it: no other call may name it.
        let is_free = self.gate().is_open()
            && driver.capture_status(raw).with_context(what)? == CaptureStatus::None;
        Ok(!is_free || known.is(driver.stream_number(raw).with_context(what)?))
    }

    /// Lets go of a stream of another library, before that destroys it. All that was at home on it or remembers it goes
    /// on, on a stream of Aquifer's own that comes after all that this one was given. Its owner gives it no more work
    /// after this. The call does nothing on a stream that Aquifer keeps alive.
    ///
    /// It waits for calls of other threads that are under way on the stream, for their waits for the device, and for a
    /// short capture of theirs. Calls that begin meanwhile come first, or wait.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, Stream, sim::SimConfig};
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let simulator = device.simulator().unwrap();
    /// let handle = simulator.create_foreign_stream()?; // as another library would
    /// // SAFETY: it is destroyed after it was detached.
    /// let theirs = unsafe { Stream::from_handle(&device, handle)? };
    /// let mut vec = DeviceVec::<u32>::zeroed(&theirs, 3)?;
    /// theirs.detach()?;
    /// simulator.destroy_foreign_stream(handle)?;
    /// vec.fill(7)?; // on another stream, after what theirs was given
    /// assert_eq!(vec.to_vec()?, [7; 3]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`](crate::ErrorKind::Capture) while the stream is in a longer capture, which is not
    /// disturbed, and the errors of the driver. The stream is as it was then.
    #[track_caller]
    pub fn detach(&self) -> Result<()> {
        let _site = CallSite::enter();
        not_forked("a stream")?;
        if self.foreign_number().is_none() || self.is_replaced() {
            return Ok(());
        }
        self.replace(None, false)
    }

    /// Like [`detach`](Self::detach), for the last guard that has borrowed the stream. It stays if another one has taken it
    /// over since.
    pub(super) fn detach_unless_taken(&self) -> Result<()> {
        if self.foreign_number().is_none() || self.is_replaced() {
            return Ok(());
        }
        self.replace(None, true)
    }

    /// Replaces this stream from now on by a stream of the crate's own, which comes after all that this one was given,
    /// and after `also`.
    fn replace(&self, also: Option<&Event>, unless_taken: bool) -> Result<()> {
        // Emitted when the gate is open.
        let _events = defer_events();
        let replaced = self.gate().alone(&Patience::new(), |raw| {
            match self.replace_alone(raw, also, unless_taken) {
                Ok(replacement) => (Ok(()), replacement),
                Err(error) => (Err(error), raw),
            }
        });
        replaced.unwrap_or_else(|refused| Err(self.refused(&refused)))
    }

    /// Replaces the stream while no other thread is in a call on it. Returns the handle that it has from here on.
    fn replace_alone(
        &self,
        raw: RawStream,
        also: Option<&Event>,
        unless_taken: bool,
    ) -> Result<RawStream> {
        if self.is_replaced() {
            return Ok(raw);
        }
        let driver = self.device().driver();
        let what = || format!("making a stream in place of {self}");
        if driver.capture_status(raw).with_context(what)? != CaptureStatus::None {
            return Err(self.in_capture("is in a capture that Aquifer was not told of"));
        }
        let event = record_before(self, raw)?;
        let new = driver.stream_create().with_context(what)?;
        let mut events = std::iter::once(&*event).chain(also);
        match events.try_for_each(|event| driver.stream_wait_event(new.raw, event.raw())) {
            Ok(()) => Ok(self.set_replacement(new, unless_taken)),
            Err(error) => {
                driver.stream_destroy(new.raw, new.keep);
                Err(error).with_context(what)
            }
        }
    }
}
