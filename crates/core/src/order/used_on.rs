//! The streams on which memory is used, and how home waits for them.

use super::pending_uses::Timeline;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::{Status, Stream, StreamCall, record_context};
use crate::sync::thread_id;

/// The stream or streams on which memory was used, away from home.
#[derive(Clone, Debug)]
pub enum UseTimeline {
    /// A stream that the use keeps alive. The wait of home records an event on it.
    Stream(Stream),
    /// The default stream of one thread. Only that thread can record an event on it.
    PerThread(Device, u64),
    /// A stream that Aquifer does not keep alive. Home waits for the whole context.
    Context(Device),
}

impl Timeline for UseTimeline {
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stream(a), Self::Stream(b)) => a == b,
            (Self::PerThread(a, thread), Self::PerThread(b, other)) => a == b && thread == other,
            // Two uses through the context may be two streams, in no order.
            _ => false,
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Context(a), Self::Context(b)) => a == b,
            _ => self.same(other),
        }
    }
}

/// Why home does not wait for a use.
pub(super) enum WaitError {
    /// The stream of the use is about to begin a capture. Try again when the capture has begun, and wait for that
    /// inside of no gate.
    CaptureBegins(Stream),
    /// The driver refuses, or a capture does not allow it.
    Failed(Error),
}

impl From<Error> for WaitError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl UseTimeline {
    /// Makes `home` wait for all that was given so far. If both are in one declared capture, it waits in the graph. If
    /// home alone is in capture, it waits at the graph's launches. A home outside of the capture waits for what a
    /// stream was given before its capture. The contract of the graph's launch orders the graph's own work.
    pub(super) fn make_wait(&self, home: &StreamCall<'_>) -> Result<(), WaitError> {
        match self {
            Self::Stream(other) if home.is(other) => {}
            Self::Stream(other) => match home.status()? {
                Status::Declared(_) => {
                    let event = other.begin_nested_call()?.record()?;
                    // Work that is done needs no wait, and the graph could have none.
                    if !(event.is_of_no_graph() && event.is_complete()?) {
                        home.wait(&event)
                            .map_err(|error| error.with_advice(used_elsewhere(other)))?;
                    }
                }
                Status::Runs => match other.record_uncaptured()? {
                    Some(event) => home.wait(&event)?,
                    None => return Err(WaitError::CaptureBegins(other.clone())),
                },
                Status::Undeclared => return Err(error_across_captures(home).into()),
            },
            Self::PerThread(device, thread) if *thread == thread_id::assign() => {
                let own = device.per_thread_stream()?;
                let call = own.begin_call();
                call.refuse_capture("work on a vector of another stream")?;
                home.refuse_capture("a wait for a thread's own stream")?;
                home.wait(&call.record()?)?;
            }
            Self::PerThread(device, _) | Self::Context(device) => {
                home.refuse_capture("a wait for a whole device")?;
                if device.properties().context_events {
                    home.wait(&record_context(device)?)?;
                } else {
                    device.synchronize_without_drops()?;
                }
            }
        }
        Ok(())
    }

    /// Like [`make_wait`](Self::make_wait), on the host.
    pub(super) fn wait_on_host(&self) -> Result<(), WaitError> {
        match self {
            Self::Stream(stream) => match stream.record_uncaptured()? {
                Some(event) => event.synchronize()?,
                None => return Err(WaitError::CaptureBegins(stream.clone())),
            },
            Self::PerThread(device, _) | Self::Context(device) => {
                device.synchronize_without_drops()?
            }
        }
        Ok(())
    }
}

/// Advice where a capture cannot have the wait for `other`.
fn used_elsewhere(other: &Stream) -> String {
    format!("the vector was used on {other}, which is in another capture: end that first")
}

/// The error of an order between two streams of which one is in a capture that cannot have it.
pub(super) fn error_across_captures(stream: &StreamCall<'_>) -> Error {
    Error::new(
        ErrorKind::Capture,
        format!(
            "{stream} cannot be put in order with another stream, of which one is in a capture and the \
             other is not"
        ),
    )
    .with_advice(
        "capture with Stream::capture, use a vector on its home stream meanwhile, or before the \
         capture or after it",
    )
}
