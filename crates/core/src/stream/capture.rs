//! Declared captures. One thread has the streams of a capture to itself, from before its begin until the order that its
//! graph alone had is made for real.
//!
//! # State table
//!
//! | state | gates of its streams | recorder | the owner's calls | other threads |
//! | --- | --- | --- | --- | --- |
//! | prepared | closed | idle | run | `ErrorKind::Capture` |
//! | begun | closed | active | are recorded | the same; waits for its streams are waits for `before` |
//! | ended | closed | idle | run: each of its streams waits for all others | the same |
//! | over | open | idle | - | run |
//! | broken | closed | broken | `ErrorKind::Capture` | the same |
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | - | prepared | `acquire`: closes the gate, records `before` and publishes it |
//! | prepared | begun | `begin`: the driver begins, the recorder starts |
//! | begun | ended | `finish` or `abandon`: the driver ends, the recorder stops |
//! | prepared | over | `abandon` |
//! | ended | over | the streams are in order |
//! | begun, ended | broken | the driver does not end it, or does not order its streams |
//!
//! A stream that is made to wait for one of the capture joins it, and its gate closes in the same way.
//!
//! - `INV-1`. While the driver records, only the recorder's thread names one of the streams.
//! - `INV-2`. The event `before` of each stream can be found from its gate's publish to the gate's open.
//! - `INV-3`. A gate opens only when the capture's streams are in order for real, and not in the graph alone.

use super::gate::Owning;
use super::graph::Graph;
use super::handle::{Capture, Stream};
use super::members::{CAPTURES, record_before};
use crate::debug_log::{defer_events, event};
use crate::driver::{CaptureStatus, DriverResult, ErrorContext, is_forked_child, not_forked};
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::event::Recorder;
use crate::impls::debug_struct;
use crate::sync::Arc;

impl Capture {
    /// Orders each stream of the capture after all others, as they perhaps were in the graph alone.
    fn order_all_streams(&self) -> Result<()> {
        let streams = self.streams();
        let Some((origin, joined)) = streams.split_first() else { return Ok(()) };
        let outside = self.outside();
        let ordered = outside
            .iter()
            .try_for_each(|event| origin.wait(event))
            .and_then(|()| joined.iter().try_for_each(|stream| origin.wait_for(stream)))
            .and_then(|()| joined.iter().try_for_each(|stream| stream.wait_for(origin)));
        // The host can wait where the streams cannot.
        let on_host = || {
            outside.iter().try_for_each(|event| event.synchronize())?;
            streams.iter().try_for_each(Stream::synchronize_uncaptured)
        };
        match ordered.or_else(|_| on_host()) {
            // No work runs any more that could be out of order.
            Err(error) if self.is_on_one_device() && self.has_ended_with(&error) => Ok(()),
            ordered => ordered,
        }
    }

    /// Whether the device runs nothing any more, where waiting for it returned `error`.
    fn has_ended_with(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::ContextLost => true,
            // A report of the simulated device that was not taken comes first, also after a loss.
            ErrorKind::Simulation => {
                self.streams().first().is_some_and(|stream| stream.device().driver().has_stopped())
            }
            _ => false,
        }
    }
}

fn is_lost_or_forked(error: &DriverError) -> bool {
    matches!(error.kind(), ErrorKind::ContextLost | ErrorKind::Forked)
}

/// A capture that this thread makes. Dropped before [`finish`](Self::finish), it is abandoned.
pub(crate) struct Recording {
    capture: Arc<Capture>,
    origin: Stream,
    /// The driver has begun it and has not ended it.
    begun: bool,
    /// Its gates are open again, or its streams broken.
    over: bool,
    _owning: Owning,
}

impl Recording {
    /// Keeps other threads off the stream. Waits for their calls that are under way on it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] on a stream in capture, which is not disturbed, and the errors of the driver.
    pub(crate) fn acquire(origin: &Stream) -> Result<Self> {
        not_forked("a capture")?;
        let capture = Arc::new(Capture::new(Recorder::new()));
        capture.close_gate_and_add(origin)?;
        let (origin, owning) = (origin.clone(), Owning::new());
        Ok(Self { capture, origin, begun: false, over: false, _owning: owning })
    }

    /// Begins to record the work that the stream is given instead of running it. Streams that are made to wait for it
    /// meanwhile join.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] on the default stream, and the errors of the driver.
    pub(crate) fn begin(&mut self) -> Result<()> {
        let _held = defer_events();
        let mut captures = CAPTURES.lock();
        // The pool of the capture has given the stream work since it was acquired: waits for memory that the
        // graph may use. A launch on another stream has to come after that, too.
        let before = record_before(&self.origin, self.origin.raw())?;
        self.capture.members().iter_mut().take(1).for_each(|origin| origin.before = before.clone());
        let begun = self.origin.device().driver().stream_begin_capture(self.origin.raw());
        let begun = begun.with_context(|| format!("beginning a capture on {}", self.origin));
        begun.map_err(|error| match self.origin.is_legacy_default() {
            true => error.with_advice(
                "it is the default stream, which CUDA cannot capture: use one of Device::new_stream",
            ),
            false => error,
        })?;
        self.begun = true;
        self.capture.recorder().start();
        captures.push(self.capture.clone());
        Ok(())
    }

    /// Ends the capture. Launches of the graph come after all that its streams were given before they took part.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] if something inside invalidated it, or a stream that joined and was given work was not
    /// waited for at the end. Other errors are those of the driver calls. The stream is out of capture all the same.
    pub(crate) fn finish(&mut self) -> Result<Graph> {
        not_forked("a capture")?;
        let ended = self.end(|origin| origin.device().driver().stream_end_capture(origin.raw()));
        let graph = ended.map(|raw| Graph::new(raw, self.origin.device(), &self.capture));
        let released = self.order_and_open_gates();
        let graph = graph.with_context(|| format!("ending the capture on {}", self.origin));
        let graph = graph.map_err(|error| match error.driver().map(DriverError::code) {
            Some(DriverError::STREAM_CAPTURE_INVALIDATED) => error.with_advice(
                "look for a call inside that waits, or that uses memory or events of streams \
                 outside of the capture",
            ),
            Some(DriverError::STREAM_CAPTURE_UNJOINED) => error.with_advice(
                "make the capturing stream wait, at the end, for every stream that joined and was \
                     given work",
            ),
            _ => error,
        })?;
        released.map(|()| graph)
    }

    fn end<R>(&mut self, end: impl FnOnce(&Stream) -> DriverResult<R>) -> DriverResult<R> {
        let ended = end(&self.origin);
        let driver = self.origin.device().driver();
        self.begun = match &ended {
            Ok(_) => false,
            // Its streams on other devices are in it still.
            Err(error) if is_lost_or_forked(error) => !self.capture.is_on_one_device(),
            // The driver may have refused the call before it did anything.
            Err(_) => match driver.capture_status(self.origin.raw()) {
                Ok(CaptureStatus::None) => false,
                _ => driver
                    .stream_abandon_capture(self.origin.raw())
                    .is_err_and(|error| !is_lost_or_forked(&error)),
            },
        };
        ended
    }

    /// Opens the gates, when the streams are out of the capture and in order.
    fn order_and_open_gates(&mut self) -> Result<()> {
        self.over = true;
        let recorder = self.capture.recorder();
        let released = if self.begun {
            let what = format!("{} cannot be taken out of its capture", self.origin);
            Err(Error::new(ErrorKind::Capture, what))
        } else {
            recorder.stop();
            CAPTURES.lock().retain(|other| !Arc::ptr_eq(other, &self.capture));
            self.capture.order_all_streams()
        };
        if let Err(error) = released {
            recorder.break_off();
            return Err(
                error.with_advice("use other streams: those of this capture are of no use now")
            );
        }
        // INV-2.
        self.capture.streams().iter().for_each(|stream| stream.gate().open());
        drop(self.capture.take_members());
        // Without a graph nothing is kept for it.
        self.capture.close_attachments().into_iter().for_each(|detach| detach(&[]));
        Ok(())
    }

    /// Ends the capture without a graph, unless it is over.
    pub(crate) fn abandon(&mut self) {
        // In the child of a fork the capture is the parent's, and its threads may hold the locks on the
        // way.
        if self.over || is_forked_child() {
            return;
        }
        let abandoned = match self.begun {
            true => {
                self.end(|origin| origin.device().driver().stream_abandon_capture(origin.raw()))
            }
            false => Ok(()),
        };
        let released = self.order_and_open_gates();
        let stream = &self.origin;
        if let Err(error) = abandoned
            && !is_lost_or_forked(&error)
        {
            event!(error, %error, %stream, "a capture that failed could not be ended");
        }
        if let Err(error) = released {
            event!(error, %error, %stream, "the streams of a capture that failed cannot be used any more");
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.abandon();
    }
}

debug_struct!(Recording { origin, .. });
