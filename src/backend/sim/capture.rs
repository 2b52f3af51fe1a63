//! Stream capture: operations that become a graph instead of running.

use super::plan::Plan;
use super::report::OpName;
use super::table::Touch;
use super::world::State;
use crate::backend::{CaptureStatus, DriverResult};
use crate::error::DriverError;

/// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`: a wait would lead out of the capture.
pub(super) const ISOLATION: u32 = 905;
/// `CUDA_ERROR_STREAM_CAPTURE_MERGE`: a wait would make one of two captures.
pub(super) const MERGE: u32 = 902;
/// `CUDA_ERROR_CAPTURED_EVENT`: the event is a point of a capture that goes on.
const CAPTURED_EVENT: u32 = 907;

/// One capture that has not ended.
#[derive(Debug)]
pub(super) struct Capture {
    device: u64,
    valid: bool,
    recorded: Recorded,
}

/// What a capture recorded.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// First the stream that began it, then those that joined by waiting for its events.
    pub(super) members: Vec<Member>,
    /// In the order of the calls, which is one in which they can run.
    pub(super) nodes: Vec<Node>,
}

/// A stream that takes part in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) stream: u64,
    pub(super) device: u64,
}

/// One captured operation.
#[derive(Debug)]
pub(super) struct Node {
    /// Which of the members it was given to.
    pub(super) member: usize,
    pub(super) name: OpName,
    pub(super) step: Step,
}

/// What a captured operation does.
#[derive(Debug)]
pub(super) enum Step {
    Work {
        touches: Vec<Touch>,
        watched: Option<usize>,
        plan: Plan,
    },
    Record,
    /// Waits for the record at this index.
    Wait(usize),
}

/// A record inside a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) capture: u64,
    pub(super) index: usize,
}

impl Recorded {
    /// Whether the first member ends after all that the others were given.
    fn is_joined(&self) -> bool {
        let count = self.members.len();
        let mut given = vec![0_usize; count];
        // For each member, how much of each one's work comes before its next operation.
        let mut known = vec![vec![0_usize; count]; count];
        let mut points = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let member = node.member;
            match node.step {
                Step::Work { .. } => {
                    given[member] += 1;
                    known[member][member] = given[member];
                }
                Step::Record => points[index].clone_from(&known[member]),
                Step::Wait(point) => {
                    for (own, other) in known[member].iter_mut().zip(&points[point]) {
                        *own = (*own).max(*other);
                    }
                }
            }
        }
        known.first() == Some(&given)
    }
}

/// Begins a capture on a stream that is not capturing.
pub(super) fn begin(state: &mut State, device: u64, stream: u64) -> DriverResult<()> {
    let call = "cuStreamBeginCapture";
    let legacy = state.devices.get(&device).is_some_and(|device| device.legacy == stream);
    if legacy {
        return Err(DriverError::new(call, DriverError::STREAM_CAPTURE_UNSUPPORTED));
    }
    if status(state, stream) != CaptureStatus::None {
        return Err(DriverError::new(call, DriverError::ILLEGAL_STATE));
    }
    let id = state.handle();
    let recorded = Recorded::default();
    state.captures.insert(id, Capture { device, valid: true, recorded });
    join(state, stream, id);
    Ok(())
}

/// Ends the capture that began on a stream.
pub(super) fn end(state: &mut State, stream: u64) -> DriverResult<Recorded> {
    let refused = |code| Err(DriverError::new("cuStreamEndCapture", code));
    let Some(id) = state.streams.get(&stream).and_then(|stream| stream.capture) else {
        return refused(DriverError::ILLEGAL_STATE);
    };
    // Ending on a stream that merely joined spoils the capture and does not end it, as on a GPU.
    let origin = state.captures.get(&id).and_then(|capture| capture.recorded.members.first());
    if origin.is_some_and(|origin| origin.stream != stream) {
        invalidate(state, id);
        return refused(DriverError::STREAM_CAPTURE_UNMATCHED);
    }
    for stream in state.streams.values_mut().filter(|stream| stream.capture == Some(id)) {
        stream.capture = None;
    }
    match state.captures.remove(&id) {
        Some(Capture { valid: true, recorded, .. }) if recorded.is_joined() => Ok(recorded),
        Some(Capture { valid: true, .. }) => refused(DriverError::STREAM_CAPTURE_UNJOINED),
        _ => refused(DriverError::STREAM_CAPTURE_INVALIDATED),
    }
}

pub(super) fn status(state: &State, stream: u64) -> CaptureStatus {
    let capture = state.streams.get(&stream).and_then(|stream| stream.capture);
    match capture.and_then(|id| state.captures.get(&id)) {
        None => CaptureStatus::None,
        Some(capture) if capture.valid => CaptureStatus::Active,
        Some(_) => CaptureStatus::Invalidated,
    }
}

/// Takes a stream into a capture.
pub(super) fn join(state: &mut State, stream: u64, capture: u64) {
    let State { streams, captures, .. } = state;
    let (Some(own), Some(found)) = (streams.get_mut(&stream), captures.get_mut(&capture)) else {
        return;
    };
    own.capture = Some(capture);
    let member = Member { stream, device: own.device };
    if !found.recorded.members.contains(&member) {
        found.recorded.members.push(member);
    }
}

pub(super) fn invalidate(state: &mut State, capture: u64) {
    if let Some(capture) = state.captures.get_mut(&capture) {
        capture.valid = false;
    }
}

/// The capture that a stream takes part in, if any; an error if it is lost.
pub(super) fn current(state: &State, stream: u64, call: &'static str) -> DriverResult<Option<u64>> {
    match status(state, stream) {
        CaptureStatus::None => Ok(None),
        CaptureStatus::Active => Ok(state.streams.get(&stream).and_then(|stream| stream.capture)),
        CaptureStatus::Invalidated => {
            Err(DriverError::new(call, DriverError::STREAM_CAPTURE_INVALIDATED))
        }
    }
}

/// Whether a capture goes on and is whole.
pub(super) fn is_active(state: &State, capture: u64) -> bool {
    state.captures.get(&capture).is_some_and(|capture| capture.valid)
}

/// Keeps an operation of a member for the graph.
pub(super) fn keep(
    state: &mut State,
    capture: u64,
    stream: u64,
    name: OpName,
    step: Step,
) -> Point {
    let mut point = Point { capture, index: 0 };
    if let Some(capture) = state.captures.get_mut(&capture) {
        let Recorded { members, nodes } = &mut capture.recorded;
        if let Some(member) = members.iter().position(|member| member.stream == stream) {
            point.index = nodes.len();
            nodes.push(Node { member, name, step });
        }
    }
    point
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

/// Refuses to ask after an event that is a point of a graph. That of a capture which is over, or lost,
/// is merely no point of a stream, as on a GPU.
pub(super) fn forbid_event(
    state: &mut State,
    captured: Option<Point>,
    call: &'static str,
) -> DriverResult<()> {
    let Some(Point { capture, .. }) = captured else { return Ok(()) };
    let active = is_active(state, capture);
    invalidate(state, capture);
    Err(DriverError::new(call, if active { CAPTURED_EVENT } else { DriverError::INVALID_VALUE }))
}

/// A stream is destroyed. What it was given stays in the capture; one that nobody can end is lost.
pub(super) fn leave(state: &mut State, stream: u64) {
    let Some(id) = state.streams.get_mut(&stream).and_then(|stream| stream.capture.take()) else {
        return;
    };
    let origin = state.captures.get(&id).and_then(|capture| capture.recorded.members.first());
    if origin.is_some_and(|origin| origin.stream == stream) {
        invalidate(state, id);
    }
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
