//! Calls of the driver on a stream.

use super::gate::Patience;
use super::handle::{Capture, Stream};
use super::members::capture_of;
use crate::debug_log::{DeferEvents, defer_events};
use crate::device::Device;
use crate::driver::{BackendKind, CaptureStatus, ErrorContext, RawStream};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::event::Event;
use crate::sync::{Arc, assert_unlocked};
use std::cell::Cell;
use std::fmt;

/// A call of the driver on a stream, counted in the stream's gate. While it lives, no other thread begins a capture on
/// the stream or ends one. It is held like a lock, over calls of the driver and never over code of a user.
///
/// It comes from [`Stream::begin_call`], or from [`without_gate`](Self::without_gate) for a stream without a gate.
///
/// This does not compile, since the call is the thread's that entered the gate:
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<aquifer_core::inside::StreamCall<'static>>();
/// ```
pub struct StreamCall<'a> {
    device: &'a Device,
    raw: RawStream,
    stream: Option<&'a Stream>,
    /// Whether the gate counts it, since no capture of this thread has the stream.
    counted: bool,
    /// The declared capture of this thread that has the stream.
    capture: Option<Arc<Capture>>,
    /// Whether an undeclared capture has it, once the driver was asked.
    undeclared: Cell<Option<bool>>,
    /// Whether it may wait for the device.
    waits: Cell<bool>,
    /// The guard keeps the call on its thread, which entered the gate. It is the last field, so that events are emitted
    /// when the call is over.
    _held: Option<DeferEvents>,
}

/// The state of the work that a stream is given.
#[allow(missing_debug_implementations, reason = "for the crates above alone")]
pub enum Status<'a> {
    /// It runs.
    Runs,
    /// It is recorded, by this thread's declared capture.
    Declared(&'a Arc<Capture>),
    /// It is recorded, by a capture that Aquifer was not told of.
    Undeclared,
}

impl Drop for StreamCall<'_> {
    fn drop(&mut self) {
        if let (Some(stream), true) = (self.stream, self.counted) {
            stream.gate().end_call(self.waits.get());
        }
    }
}

impl<'a> StreamCall<'a> {
    #[inline]
    pub(super) fn new(stream: &'a Stream, patience: &Patience) -> Result<Self> {
        Self::begin(stream, patience, false)
    }

    /// Begins a call that may wait for the device, or for other ranks of a communicator, from its beginning.
    #[inline]
    pub(super) fn blocking(stream: &'a Stream, patience: &Patience) -> Result<Self> {
        Self::begin(stream, patience, true)
    }

    fn begin(stream: &'a Stream, patience: &Patience, waits: bool) -> Result<Self> {
        let device = stream.device();
        // The simulated device emits its findings in the call itself: no subscriber is to run here.
        let held = (device.kind() == BackendKind::Simulated).then(defer_events);
        let entered = match waits {
            true => stream.gate().begin_blocking_call(patience),
            false => stream.gate().begin_call(patience),
        };
        let entered = entered.map_err(|refused| stream.refused(&refused))?;
        // Inside of the gate these stay what they are.
        let (raw, capture) = (entered.handle, entered.owner);
        let undeclared = Cell::new((!stream.is_exposed()).then_some(false));
        let (counted, waits) = (capture.is_none(), Cell::new(waits && capture.is_none()));
        let stream = Some(stream);
        Ok(Self { device, raw, stream, counted, capture, undeclared, waits, _held: held })
    }

    /// A call on a stream that no [`Stream`] stands for. That is a thread's own, or one of cudarc's that Aquifer does
    /// not keep alive. No capture of it is declared.
    pub(crate) fn without_gate(device: &'a Device, raw: RawStream) -> Self {
        let (undeclared, waits) = (Cell::new(None), Cell::new(false));
        let (stream, counted, capture) = (None, false, None);
        Self { device, raw, stream, counted, capture, undeclared, waits, _held: None }
    }

    pub(crate) fn device(&self) -> &'a Device {
        self.device
    }

    /// Whether this is a call on that very stream.
    #[doc(hidden)]
    pub fn is(&self, stream: &Stream) -> bool {
        self.stream == Some(stream)
    }

    /// The driver's handle, to be used as long as this lives.
    #[doc(hidden)]
    pub fn raw(&self) -> RawStream {
        self.raw
    }

    /// The status of the stream. It asks the driver once, and only where a capture may have begun behind our back.
    pub(crate) fn status(&self) -> Result<Status<'_>> {
        if let Some(capture) = self.capture.as_ref().filter(|it| it.recorder().is_active()) {
            return Ok(Status::Declared(capture));
        }
        if self.undeclared.get().is_none() {
            let status = self.device.driver().capture_status(self.raw);
            let status = status.with_context(|| format!("asking whether {self} is in capture"))?;
            self.undeclared.set(Some(status != CaptureStatus::None));
        }
        Ok(if self.undeclared.get() == Some(true) { Status::Undeclared } else { Status::Runs })
    }

    #[doc(hidden)]
    pub fn is_capturing(&self) -> Result<bool> {
        Ok(!matches!(self.status()?, Status::Runs))
    }

    /// Returns an error if the stream is in capture. Work on host memory, say, must not become a node of a graph, which
    /// would run it again when the memory is long gone.
    #[doc(hidden)]
    pub fn refuse_capture(&self, what: &str) -> Result<()> {
        let advice = "do it before the capture or after it, or on another stream";
        let runs = !self.is_capturing()?;
        ensure!(runs, Capture, advice, "{what} is not possible while {self} is in capture");
        Ok(())
    }

    /// An event after all that the stream was given so far. It is a point of the graph, if the stream is in capture.
    #[doc(hidden)]
    pub fn record(&self) -> Result<Event> {
        let event =
            Event::new(self.device).with_context(|| format!("recording an event on {self}"))?;
        self.record_into(&event)?;
        Ok(match self.status()? {
            Status::Declared(capture) => event.in_graph(capture.recorder()),
            Status::Undeclared => event.in_undeclared_graph(),
            Status::Runs => event,
        })
    }

    /// Records an event that was made before, on a stream that is in no declared capture.
    pub(crate) fn record_into(&self, event: &Event) -> Result<()> {
        self.device
            .driver()
            .event_record(event.raw(), self.raw)
            .with_context(|| format!("recording an event on {self}"))
    }

    /// Makes the stream wait for `event`, if both are points of one graph, or of none. In a declared capture, the
    /// graph's launches wait for an event from outside, and so does the stream after the capture.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        if self.device.kind() != event.device().kind() {
            self.device.require(event.device(), "the event")?;
        }
        match (self.status()?, event.recorder()) {
            (Status::Declared(own), Some(other)) if Arc::ptr_eq(own.recorder(), other) => {}
            (Status::Declared(own), None) if event.is_of_no_graph() => {
                own.wait_for_outside(event.share());
                return Ok(());
            }
            (Status::Runs | Status::Undeclared, None) => {}
            // To make either wait for the other would cost the graph, and fail.
            _ => return Err(self.wait_refused_error(event)),
        }
        if event.is_undeclared() {
            // It joins that capture: from here on the driver has to be asked.
            self.stream.inspect(|stream| stream.expose());
            self.undeclared.set(None);
        }
        self.enqueue_wait(event)
    }

    /// Like [`wait`](Self::wait). A stream outside that waits for an event of this thread's capture joins it.
    pub(super) fn wait_or_join(self, event: &Event) -> Result<()> {
        if let Some(recorder) = event.recorder()
            && recorder.is_here()
            && let Status::Runs = self.status()?
            && let Some(capture) = capture_of(recorder)
        {
            return self.join(&capture, event).map(drop);
        }
        self.wait(event)
    }

    fn enqueue_wait(&self, event: &Event) -> Result<()> {
        let _no_launch = self.stream.map(Stream::lock_launch_or_wait);
        let waited = self.device.driver().stream_wait_event(self.raw, event.raw());
        waited.with_context(|| format!("making {self} wait for an event"))
    }

    fn wait_refused_error(&self, event: &Event) -> Error {
        let what = match event.recorder() {
            Some(recorder) if !recorder.is_active() => "a point of a graph whose capture is over",
            Some(_) => "a point of another capture",
            None => "a point of a capture that Aquifer was not told of",
        };
        Error::new(ErrorKind::Capture, format!("{self} cannot wait for an event that is {what}"))
            .with_advice("make the streams of a capture wait for each other alone, on its thread")
    }

    /// Takes the stream into a capture of this thread, by a wait for an event of it. Leaves the gate and enters it as
    /// the capture's. So this call is over, and the returned one has the state of the stream from then on.
    pub(crate) fn join(self, capture: &Arc<Capture>, event: &Event) -> Result<Self> {
        let Some(stream) = self.stream else {
            let what = format!("{self} cannot join a capture, which could not order it at the end");
            let error = Error::new(ErrorKind::Capture, what);
            return Err(error.with_advice("use a stream of Device::new_stream"));
        };
        drop(self);
        capture.close_gate_and_add(stream)?;
        let joined = Self::new(stream, &Patience::none())
            .and_then(|call| call.enqueue_wait(event).map(|()| call));
        // The stream is not in the capture, or the driver does not say.
        joined.inspect_err(|_| capture.remove_unless_capturing(stream))
    }

    /// Marks that the next call may wait for the device. No capture begins by waiting for it.
    #[doc(hidden)]
    pub fn mark_blocking(&self) {
        if let (Some(stream), true, false) = (self.stream, self.counted, self.waits.get()) {
            self.waits.set(true);
            stream.gate().mark_blocking();
        }
    }

    /// Blocks until the device has passed all that the stream was given.
    #[doc(hidden)]
    pub fn synchronize(&self) -> Result<()> {
        assert_unlocked("a wait for a stream");
        self.mark_blocking();
        let driver = self.device.driver();
        driver.stream_synchronize(self.raw).with_context(|| format!("waiting for {self}"))
    }
}

impl fmt::Display for StreamCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stream {
            Some(stream) => stream.fmt(f),
            None => write!(f, "a stream of {}", self.device),
        }
    }
}

impl fmt::Debug for StreamCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamCall").field("raw", &self.raw).finish_non_exhaustive()
    }
}
