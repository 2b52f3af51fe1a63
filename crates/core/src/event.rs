//! Points in a stream.

use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{DriverResult, ErrorContext, RawEvent, call_not_forked, is_forked_child};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::sync::thread_id;
use crate::sync::trusted::{AtomicBool, Mutex, Ordering};
use crate::sync::{Arc, assert_unlocked};

/// The thread that records a graph. The events that are points of the graph name it.
#[derive(Debug)]
pub(crate) struct Recorder {
    thread: u64,
    /// Between the driver's begin of the capture and its end.
    active: AtomicBool,
    /// Its streams could not be taken out of it, so no thread may use them any more.
    broken: AtomicBool,
    /// Events that were dropped while it is active. Recorded again by another thread, they would touch
    /// the graph.
    dropped: Mutex<Vec<Arc<Handle>>>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            thread: thread_id::assign(),
            active: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            dropped: Mutex::default(),
        }
    }

    /// Whether this is the thread that records.
    pub(crate) fn is_here(&self) -> bool {
        // Relaxed: the thread itself has set it.
        self.thread == thread_id::assign() && !self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn is_active(&self) -> bool {
        // Acquire: with `stop`. An event that is dropped after it can be recorded on any thread.
        self.active.load(Ordering::Acquire)
    }

    pub(crate) fn start(&self) {
        self.active.store(true, Ordering::Release);
    }

    /// No thread records from here on, and none may use the streams.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// The capture is over.
    pub(crate) fn stop(&self) {
        self.active.store(false, Ordering::Release);
        let dropped = std::mem::take(&mut *self.dropped.lock());
        drop(dropped);
    }
}

/// A point in a stream, which comes after everything that the stream had been given when the event was recorded.
///
/// [`Stream::record`](crate::Stream::record) makes it. Other streams wait for it without the host
/// ([`Stream::wait`](crate::Stream::wait)). The host asks or waits for it here. A drop costs no driver call, since a
/// later `Event` records the driver's event again. That disturbs no wait that was enqueued before.
///
/// ```
/// use aquifer::{Device, sim::SimConfig};
///
/// let device = Device::simulated(SimConfig::default());
/// let stream = device.new_stream()?;
/// let event = stream.record()?;
/// event.synchronize()?;
/// assert!(event.is_complete()?);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Debug)]
pub struct Event {
    handle: Arc<Handle>,
    /// Set if it is a point of a graph, where a declared capture recorded it.
    recorder: Option<Arc<Recorder>>,
    /// It is a point of a graph that Aquifer was not told of. A stream that waits for it joins the capture.
    undeclared: bool,
}

/// The driver's event, which goes back to the device's spare ones.
#[derive(Debug)]
struct Handle {
    device: Device,
    raw: RawEvent,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !is_forked_child() {
            self.device.give_event(self.raw);
        }
    }
}

impl Event {
    /// An event that is not recorded yet.
    pub(crate) fn new(device: &Device) -> DriverResult<Self> {
        call_not_forked("cuEventCreate")?;
        let raw = match device.take_event() {
            Some(raw) => raw,
            None => device.driver().event_create()?,
        };
        let handle = Arc::new(Handle { device: device.clone(), raw });
        Ok(Self { handle, recorder: None, undeclared: false })
    }

    /// Another handle on the same point of a stream, which is not recorded again.
    #[doc(hidden)]
    pub fn share(&self) -> Self {
        let Self { handle, recorder, undeclared } = self;
        Self { handle: handle.clone(), recorder: recorder.clone(), undeclared: *undeclared }
    }

    /// The event as a point of the graph that `recorder` records.
    pub(crate) fn in_graph(mut self, recorder: &Arc<Recorder>) -> Self {
        self.recorder = Some(recorder.clone());
        self
    }

    /// The event as a point of a graph that Aquifer was not told of.
    pub(crate) fn in_undeclared_graph(mut self) -> Self {
        self.undeclared = true;
        self
    }

    pub(crate) fn is_undeclared(&self) -> bool {
        self.undeclared
    }

    /// Whether it is a point of work that a stream runs, and not of a graph.
    pub(crate) fn is_of_no_graph(&self) -> bool {
        self.recorder.is_none() && !self.undeclared
    }

    pub(crate) fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.recorder.as_ref()
    }

    /// The error of asking the device for a point of a graph, which would cost the graph.
    fn outside_of_graphs(&self, call: &str) -> Result<()> {
        let advice = "record an event when the capture has ended";
        let of_a_stream = self.recorder.is_none();
        let whole = "a point of a graph, which no stream passes";
        ensure!(of_a_stream, Capture, advice, "{call}: the event is {whole}");
        Ok(())
    }

    pub(crate) fn raw(&self) -> RawEvent {
        self.handle.raw
    }

    /// The device whose stream recorded it.
    pub fn device(&self) -> &Device {
        &self.handle.device
    }

    /// Whether the device has passed the event.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Capture`] if it was recorded in a capture. A declared capture
    ///   ([`Stream::capture`](crate::Stream::capture)) is not disturbed.
    /// - [`ErrorKind::ContextLost`] if earlier work on the device failed.
    /// - [`ErrorKind::Simulation`] if the simulated device saw an access out of order.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    #[track_caller]
    pub fn is_complete(&self) -> Result<bool> {
        let _site = CallSite::enter();
        self.ask(|event| self.device().driver().event_query(event))
    }

    /// Like [`is_complete`](Self::is_complete), for a pool on a device that follows pools.
    pub(crate) fn is_complete_for_pool(&self) -> Result<bool> {
        match self.device().driver().regions() {
            Some(regions) => self.ask(|event| regions.event_query_for_pool(event)),
            None => self.is_complete(),
        }
    }

    /// Asks by `query`. An error names the place in the crate, not the caller's.
    fn ask(&self, query: impl FnOnce(RawEvent) -> DriverResult<bool>) -> Result<bool> {
        self.outside_of_graphs("asking whether an event is complete")?;
        query(self.raw())
            .with_context(|| format!("asking whether an event of {} is complete", self.device()))
    }

    /// The result of [`synchronize`](Self::synchronize), where [`is_complete`](Self::is_complete) has returned `asked`.
    /// It is an error, or says that the device has passed the event.
    pub(crate) fn end(&self, asked: Result<bool>) -> Result<()> {
        let is_lost = |error: &Error| error.kind() == ErrorKind::ContextLost;
        if asked.as_ref().err().is_none_or(is_lost) {
            self.device()
                .driver()
                .check()
                .with_context(|| format!("waiting for an event of {}", self.device()))?;
        }
        asked.map(drop)
    }

    /// Blocks the calling thread until the device has passed the event.
    ///
    /// # Errors
    ///
    /// The errors of [`is_complete`](Self::is_complete).
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let _site = CallSite::enter();
        self.outside_of_graphs("waiting for an event")?;
        self.block(|| format!("waiting for an event of {}", self.device()))
    }

    /// Like [`synchronize`](Self::synchronize), for an event of no graph that stands for what the caller waits for.
    pub(crate) fn block(&self, what: impl FnOnce() -> String) -> Result<()> {
        assert_unlocked("a wait for the device");
        self.device().driver().event_synchronize(self.raw()).with_context(what)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(recorder) = &self.recorder
            && !is_forked_child()
            && recorder.is_active()
        {
            recorder.dropped.lock().push(self.handle.clone());
        }
    }
}
