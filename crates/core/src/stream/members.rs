//! The streams that take part in declared captures.

use super::capture_state::Member;
use super::gate::Patience;
use super::handle::{Capture, Stream};
use crate::device::Device;
use crate::driver::{CaptureStatus, ErrorContext, RawStream};
use crate::error::Result;
use crate::event::{Event, Recorder};
use crate::sync::Arc;
use crate::sync::trusted::Mutex;

/// The captures that have begun and are not over. The lock is held over the calls that begin a capture and over those
/// that record all of a context, which a capture does not survive. Neither call waits.
pub(super) static CAPTURES: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

/// The capture that has recorded an event, unless it is over.
pub(super) fn capture_of(recorder: &Arc<Recorder>) -> Option<Arc<Capture>> {
    let captures = CAPTURES.lock();
    captures.iter().find(|capture| Arc::ptr_eq(capture.recorder(), recorder)).cloned()
}

impl Capture {
    /// Takes a stream in. Waits for calls of other threads that are under way on it, and notes all that it was given.
    /// The caller is inside of no gate.
    pub(super) fn close_gate_and_add(self: &Arc<Self>, stream: &Stream) -> Result<()> {
        let closed = stream.gate().close_and_wait(self, &Patience::new());
        let raw = closed.map_err(|refused| stream.refused(&refused))?;
        match note(stream, raw) {
            Ok(member) => {
                // A thread that records all of a context sees the stream there, or is done.
                let captures = CAPTURES.lock();
                self.members().push(member);
                drop(captures);
                stream.gate().set_published();
                Ok(())
            }
            Err(error) => {
                stream.gate().open();
                Err(error)
            }
        }
    }

    /// Lets go of a stream that did not come in, since the driver's wait that was to take it in failed.
    pub(super) fn remove_unless_capturing(&self, stream: &Stream) {
        let status = stream.device().driver().capture_status(stream.raw());
        if matches!(status, Ok(CaptureStatus::None)) {
            self.members().retain(|member| member.stream != *stream);
            stream.gate().open();
        }
    }

    /// Whether a context that is lost is that of all its streams.
    pub(super) fn is_on_one_device(&self) -> bool {
        let streams = self.streams();
        streams.iter().all(|stream| stream.device() == streams[0].device())
    }

    pub(super) fn has_stream_on(&self, device: &Device) -> bool {
        self.members().iter().any(|member| member.stream.device() == device)
    }
}

/// Makes the member of a stream. The caller has closed the stream's gate, which gave it the handle.
fn note(stream: &Stream, raw: RawStream) -> Result<Member<Stream>> {
    let what = || format!("recording an event on {stream}");
    let driver = stream.device().driver();
    if stream.is_exposed() && driver.capture_status(raw).with_context(what)? != CaptureStatus::None
    {
        return Err(stream.in_capture("is in a capture that Aquifer was not told of"));
    }
    Ok(Member { stream: stream.clone(), before: record_before(stream, raw)? })
}

/// An event after all that a stream was given so far, which has its gate closed and is in no capture.
pub(super) fn record_before(stream: &Stream, raw: RawStream) -> Result<Arc<Event>> {
    let what = || format!("recording an event on {stream}");
    let event = Event::new(stream.device()).with_context(what)?;
    let recorded = stream.device().driver().event_record(event.raw(), raw);
    recorded.with_context(what).map(|()| Arc::new(event))
}
