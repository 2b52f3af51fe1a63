//! Graphs, which are work that was captured once and is launched as often as wanted.
//!
//! A capture decides what a graph may touch. So this module knows streams and events, and no memory.

use super::call::StreamCall;
use super::capture_state::Attachment;
use super::deferred;
use super::gate::Patience;
use super::handle::{Capture, Stream};
use crate::debug_log::defer_events;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{ErrorContext, RawGraph, is_forked_child, is_in_host_function, not_forked};
use crate::error::{ErrorKind, Result, ensure};
use crate::event::Event;
use crate::impls::debug_struct;
use crate::sync::Arc;
use crate::sync::trusted::{Backoff, Mutex, MutexGuard};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

/// Work that was captured on a stream, to be launched as one, as often as wanted. From
/// [`Stream::capture`].
///
/// The graph is destroyed when it is dropped. Launches that are on their way still run to their end. Use it from any
/// thread, beside other calls of Aquifer on the same stream. The driver runs one launch of a graph at a time, in the
/// order of the calls, on whatever streams they are.
///
/// The streams that it is launched on stay alive as long as the graph and its [`GraphPool`](crate::mr::GraphPool).
pub struct Graph {
    raw: RawGraph,
    device: Device,
    /// Events after all that the streams of the capture were given before they took part, or waited for from outside.
    /// Launches wait for these.
    before: Vec<Arc<Event>>,
    /// The streams it was launched on. The lock is held over the driver's call, which asks that no
    /// two threads be in one graph.
    launched: Mutex<Vec<Stream>>,
    attachments: ManuallyDrop<Vec<Attachment<Stream>>>,
    memory: Option<Box<dyn GraphMemory>>,
    /// Of the graphs that share memory with this one.
    order: Option<Arc<LaunchOrder>>,
}

/// How long the end of a capture waits for a launch on another thread: longer than a busy machine keeps that from its core.
/// A launch on a queue that is full may wait for what this thread gives the device next.
const PATIENCE: Duration = Duration::from_secs(1);

/// The name of a launch in the error of a capture, which refuses it.
const LAUNCH: &str = "launching a graph";

/// The memory that a graph keeps.
pub(crate) trait GraphMemory: Send + Sync {
    /// Has a launch on a stream come after other uses of it. The caller is inside of no gate. An error if the memory has
    /// another user now. Until the launch no capture ends in the same [`LaunchOrder`].
    fn order(&self, stream: &Stream) -> Result<()>;

    /// An error if it is not there now.
    fn require(&self) -> Result<()>;

    /// Its bytes.
    fn bytes(&self) -> usize;
}

/// The order of the launches of graphs that share memory: one after the other, on whatever streams they are.
#[derive(Default)]
pub(crate) struct LaunchOrder {
    /// The lock is held over a launch.
    last: Mutex<Option<LastLaunch>>,
}

struct LastLaunch {
    stream: Stream,
    /// After the launch. `None` where it could not be recorded.
    event: Option<Event>,
}

/// The turn of one launch, or of the end of a capture.
struct Turn<'a> {
    last: MutexGuard<'a, Option<LastLaunch>>,
}

impl LaunchOrder {
    /// The turn of a launch on `stream`, and the call that it is made in. Waits for a short capture on another thread, without
    /// the turn, which the end of that capture may need. The caller is inside of no gate.
    fn turn<'a>(
        &'a self,
        stream: &'a Stream,
        memory: Option<&dyn GraphMemory>,
    ) -> Result<(Turn<'a>, StreamCall<'a>)> {
        let patience = Patience::new();
        loop {
            StreamCall::new(stream, &patience)?.refuse_capture(LAUNCH)?;
            let mut last = self.last.lock();
            if let Some(last) = &mut *last
                && last.stream != *stream
            {
                last.record_if_missing()?;
            }
            memory.map_or(Ok(()), |memory| memory.order(stream))?;
            match stream.begin_nested_call() {
                Ok(call) => return Ok((Turn { last }, call)),
                // A capture has begun since.
                Err(error) if error.kind() == ErrorKind::Capture => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the body of a capture on `stream`. `note` says whether it leaves memory over, which graphs of this order may
    /// have used: its next use comes after their launches. Gives up after a second where `may_fail`, while another
    /// thread's launch waits for its device.
    pub(crate) fn end_body(
        &self,
        stream: &Stream,
        may_fail: bool,
        note: impl FnOnce() -> bool,
    ) -> Result<()> {
        let mut last = match may_fail {
            true => self.lock_within(PATIENCE)?,
            false => self.last.lock(),
        };
        let is_left = note();
        let elsewhere = last.as_mut().filter(|last| is_left && last.stream != *stream);
        let Some(launched) = elsewhere else { return Ok(()) };
        let ordered = launched.order_before(stream);
        let on = launched.stream.clone();
        drop(last);
        // The host can wait where the streams cannot. No launch that is given now writes over what is left.
        ordered.or_else(|_| on.synchronize_uncaptured())
    }

    fn lock_within(&self, limit: Duration) -> Result<MutexGuard<'_, Option<LastLaunch>>> {
        let (begun, backoff) = (Instant::now(), Backoff::new());
        loop {
            if let Some(last) = self.last.try_lock() {
                return Ok(last);
            }
            ensure!(
                begun.elapsed() < limit,
                Capture,
                "capture again when fewer launches are queued",
                "a capture cannot end while a launch of another graph of its graph pool waits for its device"
            );
            match backoff.is_completed() {
                true => std::thread::sleep(Duration::from_micros(50)),
                false => backoff.snooze(),
            }
        }
    }
}

impl LastLaunch {
    fn record_if_missing(&mut self) -> Result<&Event> {
        let event = match self.event.take() {
            Some(event) => event,
            None => {
                let call = self.stream.begin_nested_call()?;
                // A point of a graph orders nothing.
                call.refuse_capture("an event for the last launch")?;
                call.record()?
            }
        };
        Ok(self.event.insert(event))
    }

    /// Has a stream in a declared capture of this thread come after the launch: its launches, and itself after the capture.
    fn order_before(&mut self, stream: &Stream) -> Result<()> {
        self.record_if_missing().and_then(|event| stream.begin_nested_call()?.wait(event))
    }
}

impl Turn<'_> {
    /// Makes the stream of the call wait for the last launch.
    fn wait(&self, call: &StreamCall<'_>) -> Result<()> {
        match &*self.last {
            Some(LastLaunch { stream, event: Some(event) }) if !call.is(stream) => call.wait(event),
            _ => Ok(()),
        }
    }

    /// The launch was given to the stream, which waited for the last one, or the driver refused it.
    fn end(&mut self, stream: &Stream, call: &StreamCall<'_>) {
        // Without an event the next launch elsewhere asks again, for a later one.
        let event = call.record().ok();
        *self.last = Some(LastLaunch { stream: stream.clone(), event });
    }
}

impl Graph {
    /// The graph of a capture that the driver has ended.
    pub(super) fn new(raw: RawGraph, device: &Device, capture: &Capture) -> Self {
        Self {
            raw,
            device: device.clone(),
            before: capture.all_before(),
            launched: Mutex::default(),
            attachments: ManuallyDrop::new(capture.close_attachments()),
            memory: None,
            order: None,
        }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The bytes that the graph keeps in the pool of its capture, those of vectors that outlived the capture among them.
    /// Graphs of one [`GraphPool`](crate::mr::GraphPool) have bytes in common.
    pub fn held(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.bytes())
    }

    /// Runs the captured work on `stream`. It runs after all that `stream` was given so far, and after all former
    /// launches of this graph, and of those of its [`GraphPool`](crate::mr::GraphPool). It also runs after all that the
    /// streams of the capture were given before they took part, or were made to wait for in it. The host does not wait.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::WrongDevice`] on a stream of another device.
    /// - [`ErrorKind::Capture`] on a stream in capture, which is not disturbed. The same if the launch has to come after the
    ///   last use of a vector that a graph of the same [`GraphPool`](crate::mr::GraphPool) had left, on a stream in capture.
    /// - [`ErrorKind::InvalidArgument`] where the launch would write over a vector that another graph of the same
    ///   [`GraphPool`](crate::mr::GraphPool) has left.
    /// - [`ErrorKind::Asleep`] while the pool of the capture sleeps.
    /// - [`ErrorKind::Forked`] in the child of a fork, and the errors of the driver call.
    ///
    /// # Safety
    ///
    /// The work runs again with the addresses and values that it was captured with. No other part of the program is
    /// told, so no vector waits for it. These conditions hold from here until `stream` has passed this launch:
    ///
    /// - All memory that the captured work touches is allocated and has the owner that it had then. Memory that the
    ///   graph itself keeps ([`Stream::capture`]) does.
    /// - Every other use of that memory, by other streams, by the host, by its free or by its next owner, is ordered
    ///   before this launch or after it. [`Stream::wait_for`] on `stream` before the call orders former work elsewhere.
    ///   A wait for `stream` after the call orders later work.
    /// - The contracts of the unsafe calls that were captured hold, those of kernels among them.
    ///
    /// And while this call runs, no other library makes `stream` wait for an event on another thread, since the driver
    /// loses that wait. Aquifer keeps its own waits apart.
    #[track_caller]
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let _site = CallSite::enter();
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.enqueue(stream) }
    }

    /// Enqueues the launch. An error names the place in the crate, not the caller's.
    ///
    /// # Safety
    ///
    /// The conditions of [`launch`](Self::launch).
    unsafe fn enqueue(&self, stream: &Stream) -> Result<()> {
        self.device.require(stream.device(), "the stream")?;
        // Before a lock that a thread of the parent may hold.
        not_forked("a graph")?;
        let memory = self.memory.as_deref();
        // No subscriber runs under the lock.
        let _held = defer_events();
        let (mut turn, call) = match &self.order {
            Some(order) => {
                let (turn, call) = order.turn(stream, memory)?;
                (Some(turn), call)
            }
            None => (None, stream.begin_call()?),
        };
        // The driver would refuse too, and the capture be lost.
        call.refuse_capture(LAUNCH)?;
        // Inside of the gate: a pool that falls asleep passes it.
        memory.map_or(Ok(()), |memory| memory.require())?;
        // The driver waits for the device where the stream's queue is full.
        call.mark_blocking();
        let mut launched = self.launched.lock();
        turn.as_ref().map_or(Ok(()), |turn| turn.wait(&call))?;
        if !launched.contains(stream) {
            self.before.iter().try_for_each(|before| call.wait(before))?;
            // Listed before the call, even if it fails: one stream too many to wait for does no harm,
            // one too few would.
            launched.push(stream.clone());
        }
        let result = {
            let _no_wait = stream.lock_launch_or_wait();
            // SAFETY: the caller's contract; the lock of `launched` keeps other threads out of this graph.
            unsafe { self.device.driver().graph_launch(self.raw, call.raw()) }
        };
        if let Some(turn) = &mut turn {
            turn.end(stream, &call);
        }
        result.with_context(|| format!("launching a graph on {stream}"))
    }

    /// Has each launch ask for the memory that the graph keeps, and come in an order with others.
    pub(crate) fn set_memory(
        &mut self,
        memory: Box<dyn GraphMemory>,
        order: Option<Arc<LaunchOrder>>,
    ) {
        self.memory = Some(memory);
        self.order = order;
    }

    /// Gives the graph something to keep until it is gone.
    pub(crate) fn attach(&mut self, attachment: Attachment<Stream>) {
        self.attachments.push(attachment);
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // In the child of a fork the graph is the parent's, and so is what it keeps.
        if is_forked_child() {
            return;
        }
        // SAFETY: taken once, here.
        let attachments = unsafe { ManuallyDrop::take(&mut self.attachments) };
        let launched_on = std::mem::take(self.launched.get_mut());
        if is_in_host_function() {
            let (device, raw) = (self.device.clone(), self.raw);
            return deferred::defer(None, move || destroy(&device, raw, attachments, &launched_on));
        }
        destroy(&self.device, self.raw, attachments, &launched_on);
    }
}

/// Destroys a graph whose only handle is gone, and lets go what it kept.
fn destroy(
    device: &Device,
    raw: RawGraph,
    attachments: Vec<Attachment<Stream>>,
    launched_on: &[Stream],
) {
    // SAFETY: the only handle is gone, so no thread is in a launch, and none comes after.
    let destroyed = unsafe { device.driver().graph_destroy(raw) };
    // It cannot be launched any more, even where the driver did not destroy it.
    attachments.into_iter().for_each(|detach| detach(launched_on));
    if let Err(error) = destroyed
        && !error.is_gone()
        && error.kind() != ErrorKind::ContextLost
    {
        crate::debug_log::event!(warn, %error, "a graph could not be destroyed, and stays with its device");
    }
}

debug_struct!(Graph { device, .. });

#[cfg(test)]
mod tests;
