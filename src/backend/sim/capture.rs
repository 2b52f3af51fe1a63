//! Stream capture: operations that become a graph instead of running.

use super::report::OpName;
use super::world::State;
use crate::backend::{CaptureStatus, DriverResult};
use crate::error::DriverError;

/// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`: a wait would lead out of the capture.
pub(super) const ISOLATION: u32 = 905;
/// `CUDA_ERROR_CAPTURED_EVENT`: the event is a point of a graph that was captured before.
pub(super) const CAPTURED_EVENT: u32 = 907;

/// One capture: the stream that began it, and those that joined by waiting for its events.
#[derive(Debug)]
pub(super) struct Capture {
    device: u64,
    origin: u64,
    valid: bool,
    /// What the graph would do. It never runs: this device has no graphs.
    kept: Vec<OpName>,
}

/// Begins a capture on a stream that is not capturing.
pub(super) fn begin(state: &mut State, device: u64, stream: u64) -> DriverResult<()> {
    let call = "cuStreamBeginCapture";
    let legacy = state.devices.get(&device).is_some_and(|device| device.legacy == stream);
    if legacy {
        return Err(DriverError::new(call, DriverError::STREAM_CAPTURE_UNSUPPORTED));
    }
    if status(state, stream) != CaptureStatus::None {
        return Err(DriverError::new(call, DriverError::INVALID_VALUE));
    }
    let id = state.handle();
    state.captures.insert(id, Capture { device, origin: stream, valid: true, kept: Vec::new() });
    join(state, stream, id);
    Ok(())
}

/// Ends the capture that began on a stream, and says what it was.
pub(super) fn end(state: &mut State, stream: u64) -> CaptureStatus {
    let found = status(state, stream);
    let Some(id) = state.streams.get(&stream).and_then(|stream| stream.capture) else {
        return found;
    };
    // Ending on a stream that merely joined spoils the capture, as on a GPU.
    let spoiled = state.captures.get(&id).is_some_and(|capture| capture.origin != stream);
    state.captures.remove(&id);
    for stream in state.streams.values_mut().filter(|stream| stream.capture == Some(id)) {
        stream.capture = None;
    }
    if spoiled { CaptureStatus::Invalidated } else { found }
}

pub(super) fn status(state: &State, stream: u64) -> CaptureStatus {
    let capture = state.streams.get(&stream).and_then(|stream| stream.capture);
    match capture.and_then(|id| state.captures.get(&id)) {
        None => CaptureStatus::None,
        Some(capture) if capture.valid => CaptureStatus::Active,
        Some(_) => CaptureStatus::Invalidated,
    }
}

pub(super) fn join(state: &mut State, stream: u64, capture: u64) {
    if let Some(stream) = state.streams.get_mut(&stream) {
        stream.capture = Some(capture);
    }
}

pub(super) fn invalidate(state: &mut State, capture: u64) {
    if let Some(capture) = state.captures.get_mut(&capture) {
        capture.valid = false;
    }
}

/// Keeps an operation for the graph if its stream is capturing; `None` if it is to run.
pub(super) fn keep(state: &mut State, stream: u64, name: OpName) -> DriverResult<Option<u64>> {
    let Some(id) = state.streams.get(&stream).and_then(|stream| stream.capture) else {
        return Ok(None);
    };
    match state.captures.get_mut(&id) {
        Some(capture) if capture.valid => {
            capture.kept.push(name);
            Ok(Some(id))
        }
        _ => Err(DriverError::new(name.call, DriverError::STREAM_CAPTURE_INVALIDATED)),
    }
}

/// Refuses a call that a capture of this stream does not survive.
pub(super) fn forbid(state: &mut State, stream: u64, call: &'static str) -> DriverResult<()> {
    let code = match status(state, stream) {
        CaptureStatus::None => return Ok(()),
        CaptureStatus::Active => DriverError::STREAM_CAPTURE_UNSUPPORTED,
        CaptureStatus::Invalidated => DriverError::STREAM_CAPTURE_INVALIDATED,
    };
    if let Some(id) = state.streams.get(&stream).and_then(|stream| stream.capture) {
        invalidate(state, id);
    }
    Err(DriverError::new(call, code))
}

/// Refuses a call that no capture of this device survives.
pub(super) fn forbid_all(state: &mut State, device: u64, call: &'static str) -> DriverResult<()> {
    let mut active = false;
    for capture in state.captures.values_mut().filter(|capture| capture.device == device) {
        active |= std::mem::replace(&mut capture.valid, false);
    }
    if active {
        return Err(DriverError::new(call, DriverError::STREAM_CAPTURE_UNSUPPORTED));
    }
    Ok(())
}

/// Refuses to ask after an event that is a point of a graph.
pub(super) fn forbid_event(
    state: &mut State,
    captured: Option<u64>,
    call: &'static str,
) -> DriverResult<()> {
    let Some(id) = captured else { return Ok(()) };
    let was_valid =
        state.captures.get_mut(&id).map(|capture| std::mem::replace(&mut capture.valid, false));
    let code = match was_valid {
        None => CAPTURED_EVENT,
        Some(true) => DriverError::STREAM_CAPTURE_UNSUPPORTED,
        Some(false) => DriverError::STREAM_CAPTURE_INVALIDATED,
    };
    Err(DriverError::new(call, code))
}

/// Forgets the captures of a device that is closed.
pub(super) fn close(state: &mut State, device: u64) {
    state.captures.retain(|_, capture| capture.device != device);
    let captures = &state.captures;
    for stream in state.streams.values_mut() {
        if stream.capture.is_some_and(|id| !captures.contains_key(&id)) {
            stream.capture = None;
        }
    }
}
