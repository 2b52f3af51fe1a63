//! Graphs: work that was captured once and is launched as often as wanted.
//!
//! What a stream is given between [`Stream::start_graph`] and [`Stream::finish_graph`] is recorded
//! instead of run. Who calls them decides what the graph may touch: this room knows streams and events,
//! and no memory.

use super::{Stream, after_capture};
use crate::backend::{RawGraph, Wanted, is_forked_child};
use crate::device::Device;
use crate::error::{DriverError, ErrorKind, Result};
use crate::event::Event;
use crate::sync::trusted::Mutex;
use std::fmt;
use std::mem::ManuallyDrop;

/// What a graph keeps for the work that it recorded: memory, say. Given back when the graph is gone.
pub(crate) trait Attachment: Send + Sync {
    /// The graph is destroyed and will not be launched again. It may still run: its last launches are
    /// on these streams, each named once. None, if it never was launched.
    ///
    /// Called in a drop: must not panic. Never called in the child of a fork, where it is leaked.
    fn give_back(self: Box<Self>, launched_on: &[Stream]);
}

/// Work that was captured on a stream, to be launched as one, as often as wanted. From
/// [`Stream::capture`].
///
/// The graph is destroyed when it is dropped; launches that are on their way still run to their end.
/// Use it from any thread. The driver has one launch of a graph run at a time, in the order of the
/// calls, on whatever streams they are.
///
/// The streams that it is launched on stay alive as long as the graph.
pub struct Graph {
    raw: RawGraph,
    device: Device,
    /// What the capturing stream was given before the capture: launches come after it.
    before: Option<Event>,
    /// The streams it was launched on. The lock is held over the driver's call, which asks that no
    /// two threads be in one graph.
    launched: Mutex<Vec<Stream>>,
    attachment: ManuallyDrop<Option<Box<dyn Attachment>>>,
}

impl Graph {
    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs the captured work on `stream`: after what that stream was given so far, after what the
    /// capturing stream was given before the capture, and after all former launches of this graph.
    /// Nothing waits on the host.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] on a stream of another device; [`ErrorKind::Capture`] on a stream
    /// in capture, which is not disturbed; those of the driver call.
    ///
    /// # Safety
    ///
    /// The work runs again with the addresses and values that it was captured with, and nothing else
    /// knows that it does: no vector owes or waits for it. So from here until `stream` has passed
    /// this launch,
    ///
    /// - all memory that the captured work touches is allocated and belongs to whom it belonged then.
    ///   What the graph itself keeps ([`Stream::capture`]) does;
    /// - every other use of that memory, by other streams, by the host, by the free or the next
    ///   owner of it, is ordered before this launch or after it. Former work elsewhere is made so by
    ///   [`Stream::wait_for`] on `stream` before the call, later work by waiting for `stream` after
    ///   it;
    /// - the contracts of the unsafe calls that were captured hold, those of kernels among them.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        self.device.require(stream.device(), "the stream")?;
        // The driver would refuse too, and the capture be lost. In the child of a fork this is the
        // call that fails, before a lock that a thread of the parent may hold.
        stream.refuse_capture("a launch of a graph")?;
        let mut launched = self.launched.lock();
        if !launched.contains(stream) {
            if let Some(before) = &self.before {
                stream.wait(before)?;
            }
            // Named before the call, whatever comes of it: one stream too many to wait for harms
            // nobody, one too few would.
            launched.push(stream.clone());
        }
        // SAFETY: the caller's contract; the lock keeps other threads out of this graph.
        unsafe { self.device.driver().graph_launch(self.raw, stream.raw()) }
            .wanted(|| format!("launching a graph on {stream}"))
    }

    /// The streams that it was launched on, each named once.
    #[cfg(test)]
    fn launched_on(&self) -> Vec<Stream> {
        self.launched.lock().clone()
    }

    /// Has the graph keep something until it is gone.
    pub(crate) fn attach(&mut self, attachment: Box<dyn Attachment>) {
        *self.attachment = Some(attachment);
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // In the child of a fork the graph is the parent's, and so is what it keeps.
        if is_forked_child() {
            return;
        }
        // SAFETY: this is the only handle, so no thread is in a launch, and none comes after.
        let destroyed = unsafe { self.device.driver().graph_destroy(self.raw) };
        // SAFETY: taken once, here.
        let attachment = unsafe { ManuallyDrop::take(&mut self.attachment) };
        // Launched it cannot be any more, even where the driver did not let go of it.
        if let Some(attachment) = attachment {
            attachment.give_back(self.launched.get_mut());
        }
        if let Err(error) = destroyed
            && !error.is_gone()
            && error.kind() != ErrorKind::ContextLost
        {
            crate::debug_log::event!(warn, %error, "a graph could not be destroyed, and stays with its device");
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Stream {
    /// Begins to record what this stream is given instead of running it. Streams that are made to
    /// wait for it meanwhile join.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] on a stream in capture, which is not disturbed, and on the default
    /// stream; those of the driver call.
    pub(crate) fn start_graph(&self) -> Result<()> {
        self.refuse_capture("another capture")?;
        after_capture::begin();
        self.device()
            .driver()
            .stream_begin_capture(self.raw())
            .wanted(|| format!("beginning a capture on {self}"))
    }

    /// Ends the capture that [`start_graph`](Self::start_graph) began. `before` is an event that was
    /// recorded on this stream before it, and that launches have to come after.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] if something inside invalidated it, or a stream that joined was not
    /// waited for at the end; those of the driver calls. The stream is out of capture all the same.
    pub(crate) fn finish_graph(&self, before: Option<Event>) -> Result<Graph> {
        let (ended, ordered) =
            after_capture::end(|| self.device().driver().stream_end_capture(self.raw()));
        if ended.is_err() && self.is_capturing().unwrap_or(false) {
            self.abandon_graph();
        }
        let raw =
            ended.wanted(|| format!("ending the capture on {self}")).map_err(
                |error| {
                    match error.driver().map(DriverError::code) {
                Some(DriverError::STREAM_CAPTURE_INVALIDATED) => error.advise(
                    "look for a call inside that waits, or that uses memory or events of streams \
                     outside of the capture",
                ),
                Some(DriverError::STREAM_CAPTURE_UNJOINED) => error.advise(
                    "make the capturing stream wait for every stream that worked for it",
                ),
                _ => error,
            }
                },
            )?;
        let graph = Graph {
            raw,
            device: self.device().clone(),
            before,
            launched: Mutex::default(),
            attachment: ManuallyDrop::new(None),
        };
        // Streams that worked together in the graph alone would be in no order outside of it.
        ordered.map(|()| graph)
    }

    /// Ends the capture that [`start_graph`](Self::start_graph) began and throws away what was
    /// recorded: whoever gave the work failed or unwound.
    pub(crate) fn abandon_graph(&self) {
        let (abandoned, ordered) =
            after_capture::end(|| self.device().driver().stream_abandon_capture(self.raw()));
        if let Err(error) = ordered {
            crate::debug_log::event!(error, %error, "streams of a capture that failed could not be ordered outside");
        }
        if let Err(error) = abandoned
            && !error.is_gone()
            && error.kind() != ErrorKind::ContextLost
        {
            crate::debug_log::event!(error, %error, stream = %self, "a capture that failed could not be ended");
        }
    }
}

#[cfg(test)]
mod tests;
