//! Calls on a stream, such as events, waits, and the question whether it is in capture.

use super::call::{Status, StreamCall};
use super::context::any_capturing;
use super::deferred;
use super::gate::Patience;
use super::handle::Stream;
use crate::driver::{CallSite, ErrorContext};
use crate::driver::{is_in_host_function, not_forked};
use crate::error::{ErrorKind, Result};
use crate::event::Event;
use crate::sync::Arc;

impl Stream {
    /// Begins a call of the driver on the stream, which ends when the result is dropped. Waits for a short capture on
    /// another thread. The caller is inside of no gate, and has no lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] while a longer capture has it, and [`ErrorKind::Forked`].
    pub(crate) fn begin_call(&self) -> Result<StreamCall<'_>> {
        self.begin_call_within(&Patience::new())
    }

    /// Like [`begin_call`](Self::begin_call), for one of several calls that share `patience`.
    pub(crate) fn begin_call_within(&self, patience: &Patience) -> Result<StreamCall<'_>> {
        not_forked("a stream")?;
        StreamCall::new(self, patience)
    }

    /// Like [`begin_call`](Self::begin_call), for a caller that is inside of another gate or has a lock. So it does not
    /// wait.
    pub(crate) fn begin_nested_call(&self) -> Result<StreamCall<'_>> {
        self.begin_call_within(&Patience::none())
    }

    /// Begins a call that may wait for the device, or for other ranks of a communicator.
    pub(crate) fn begin_blocking_call(&self, patience: &Patience) -> Result<StreamCall<'_>> {
        not_forked("a stream")?;
        StreamCall::blocking(self, patience)
    }

    /// Begins a call, unless a capture on another thread has the stream.
    fn begin_call_unless_in_use(&self) -> Result<Option<StreamCall<'_>>> {
        match self.begin_nested_call() {
            Err(error) if error.kind() == ErrorKind::Capture => Ok(None),
            call => call.map(Some),
        }
    }

    /// Records an event, which comes after everything that the stream was given so far.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] while a capture on another thread has the stream, and the errors of the driver call.
    #[track_caller]
    pub fn record(&self) -> Result<Event> {
        let _site = CallSite::enter();
        self.begin_call()?.record()
    }

    /// Makes the stream wait for `event`, of this device or another, without blocking the host.
    ///
    /// In [`capture`](Self::capture), a stream that waits for an event of the capture joins it. If a stream of the
    /// capture waits for an event from outside, each launch of the graph waits for that event. The stream itself waits
    /// when the capture has ended.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Capture`] between two captures, or a capture and a point of a graph, which are not disturbed.
    /// - [`ErrorKind::WrongDevice`] between a GPU and a simulated device.
    /// - The errors of the driver call.
    #[track_caller]
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _site = CallSite::enter();
        self.begin_call()?.wait_or_join(event)
    }

    /// Makes the stream wait for all that `other` was given so far, without blocking the host.
    ///
    /// # Errors
    ///
    /// The errors of [`wait`](Self::wait) and [`record`](Self::record).
    #[track_caller]
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        let _site = CallSite::enter();
        if self == other { Ok(()) } else { self.wait(&other.record()?) }
    }

    /// Whether the stream has done all it was given so far (`cuStreamQuery`). A stream in capture has not, and the
    /// default one has not while any stream of the device is in capture, whose graph the question would cost.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let vec = DeviceVec::<u8>::zeroed(&stream, 1000)?;
    /// stream.synchronize()?;
    /// assert!(stream.is_idle()?);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ContextLost`] if that work failed, and the other errors of the driver call.
    #[track_caller]
    pub fn is_idle(&self) -> Result<bool> {
        let _site = CallSite::enter();
        self.query()
    }

    fn query(&self) -> Result<bool> {
        let device = self.device();
        if *self == device.default_stream() && any_capturing(device) {
            return Ok(false);
        }
        match self.begin_call_unless_in_use()? {
            Some(call) if !call.is_capturing()? => {
                let asked = device.driver().stream_query(call.raw());
                asked.with_context(|| format!("asking whether {self} has work to do"))
            }
            _ => Ok(false),
        }
    }

    /// Blocks the calling thread until the stream has done all it was given so far.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::ContextLost`] if that work failed.
    /// - [`ErrorKind::Capture`] if the stream is in capture, which is not disturbed.
    /// - [`ErrorKind::Panicked`] if a [host function](Self::launch_host_fn) of it has panicked.
    /// - [`ErrorKind::Simulation`] if the simulated device saw an access out of order.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let _site = CallSite::enter();
        if self.is_capturing().unwrap_or(false) {
            self.refuse_capture("waiting for the stream")?;
        }
        let synchronized = self.synchronize_uncaptured();
        deferred::collect_all();
        synchronized.and_then(|()| self.host_panics().report(self))
    }

    /// Like [`synchronize`](Self::synchronize), without a deferred drop. For a stream in a declared capture, waits for
    /// all that the capture's streams were given before it. The caller is inside of no gate.
    #[doc(hidden)]
    pub fn synchronize_uncaptured(&self) -> Result<()> {
        loop {
            match self.begin_nested_call() {
                Ok(call) => match call.status() {
                    Ok(Status::Declared(_)) => {}
                    Ok(Status::Undeclared) => return call.refuse_capture("waiting for the stream"),
                    // A lost context may still have work under way.
                    Ok(Status::Runs) | Err(_) => return call.synchronize(),
                },
                Err(error) if error.kind() == ErrorKind::Capture => {}
                Err(error) => return Err(error),
            }
            // The stream may be ordered in the graph alone after real work of another of the capture's.
            match self.gate().owner().and_then(|capture| capture.all_before_if_member(self)) {
                Some(before) => return before.iter().try_for_each(|event| event.synchronize()),
                None => self.gate().wait_open_or_published(),
            }
        }
    }

    /// An event after all work that the stream was given to run. If a declared capture has the stream, it is the event
    /// from before the capture. `None` while a capture is about to record that one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] in a capture that Aquifer was not told of, and the errors of the driver call.
    #[doc(hidden)]
    pub fn record_uncaptured(&self) -> Result<Option<Arc<Event>>> {
        not_forked("a stream")?;
        let capture = self.gate().owner();
        if let Some(capture) =
            capture.filter(|it| it.recorder().is_active() || !it.recorder().is_here())
        {
            return Ok(capture.before(self));
        }
        // `None`: a capture has begun since.
        let Some(call) = self.begin_call_unless_in_use()? else { return Ok(None) };
        call.refuse_capture("an event for earlier work")?;
        call.record().map(|event| Some(Arc::new(event)))
    }

    /// Defers `free` of a block to a later call of the crate, when the stream is out of its capture and has passed all
    /// that it was given. After an error, `free` is called at once with it, since the stream may never say.
    pub(crate) fn free_block_later(&self, free: impl FnOnce(Result<()>) + Send + 'static) {
        if is_in_host_function() {
            let stream = self.clone();
            return deferred::defer(None, move || stream.free_block_later(free));
        }
        match self.record_unless_capturing() {
            Ok(Some(event)) => deferred::defer_block(Some(Arc::new(event)), || free(Ok(()))),
            Ok(None) => {
                let stream = self.clone();
                deferred::defer_block(None, move || stream.free_block_later(free));
            }
            Err(error) => free(Err(error)),
        }
    }

    /// An event after all that the stream was given. `None` while it is in a capture, which may order the event after
    /// other work in the graph alone.
    fn record_unless_capturing(&self) -> Result<Option<Event>> {
        let Some(call) = self.begin_call_unless_in_use()? else { return Ok(None) };
        if call.is_capturing()? { Ok(None) } else { call.record().map(Some) }
    }

    /// Waits while a capture is about to begin on the stream. The caller is inside of no gate.
    pub(crate) fn wait_published(&self) {
        self.gate().wait_open_or_published();
    }

    /// Whether the stream is recording a graph, or a capture on another thread has it. The question never disturbs the
    /// capture.
    ///
    /// # Errors
    ///
    /// The errors of the driver call.
    #[track_caller]
    pub fn is_capturing(&self) -> Result<bool> {
        let _site = CallSite::enter();
        // No capture begins but by a close of the gate, or behind our back by the raw handle.
        if !self.is_exposed() && self.gate().is_open() {
            return not_forked("a stream").map(|()| false);
        }
        self.begin_call_unless_in_use()?.map_or(Ok(true), |call| call.is_capturing())
    }

    /// Whether the stream is in a capture that this thread, or nobody, declared. Waits for a short capture on another
    /// thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] while a longer capture has it, and the errors of the driver call.
    pub(crate) fn is_capturing_here(&self, patience: &Patience) -> Result<bool> {
        self.begin_call_within(patience)?.is_capturing()
    }

    /// Whether a capture that could not order its streams has it for good.
    pub(crate) fn is_broken(&self) -> bool {
        self.gate().owner().is_some_and(|capture| capture.recorder().is_broken())
    }

    /// The error of giving the stream work on host memory while it is in capture.
    #[doc(hidden)]
    pub fn refuse_capture(&self, what: &str) -> Result<()> {
        self.begin_call()?.refuse_capture(what)
    }
}
