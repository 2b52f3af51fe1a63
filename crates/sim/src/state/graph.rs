//! Events, stream captures, and the executable graphs that captured operations become.

use super::fence::SimFence;
use super::op::{OpWork, TouchedRange};
use crate::check::{OpName, VectorClock};
use aquifer_driver::CaptureStatus;
use aquifer_sync::Arc;
use aquifer_sync::thread_id;

/// One record of an event.
#[derive(Clone, Debug)]
pub(crate) struct EventRecord {
    pub(crate) fence: Arc<SimFence>,
    /// Everything that is ordered before the record, itself included.
    pub(crate) clock: Arc<VectorClock>,
}

/// One event. Its last record is `record` or `captured`, never both. Without a record it has neither.
#[derive(Debug)]
pub(crate) struct SimEvent {
    pub(crate) device: u64,
    pub(crate) record: Option<EventRecord>,
    pub(crate) captured: Option<CapturePoint>,
}

/// One capture that has not ended.
///
/// # State table
///
/// | state | fields | next |
/// | --- | --- | --- |
/// | active | `valid`; calls on its members are recorded; a stream that waits for one joins | ended, invalidated |
/// | invalidated | not `valid`; calls on its members fail | ended |
/// | ended | gone; `SimStream::capture` of its members is `None` | |
#[derive(Debug)]
pub(crate) struct SimCapture {
    pub(crate) device: u64,
    /// The thread that began it.
    pub(crate) thread: u64,
    pub(crate) valid: bool,
    pub(crate) recording: CaptureRecording,
}

impl SimCapture {
    pub(crate) fn new(device: u64) -> Self {
        let recording = CaptureRecording::default();
        Self { device, thread: thread_id::assign(), valid: true, recording }
    }

    pub(crate) fn status(&self) -> CaptureStatus {
        if self.valid { CaptureStatus::Active } else { CaptureStatus::Invalidated }
    }

    /// Whether a stream of this device takes part.
    pub(crate) fn is_on(&self, device: u64) -> bool {
        self.recording.members.iter().any(|member| member.device == device)
    }

    /// Whether the capture began on this stream.
    pub(crate) fn began_on(&self, stream: u64) -> bool {
        self.recording.members.first().is_some_and(|origin| origin.stream == stream)
    }
}

/// The operations of a capture.
#[derive(Debug, Default)]
pub(crate) struct CaptureRecording {
    /// The stream that began the capture, then those that joined by a wait for one of its events.
    pub(crate) members: Vec<CaptureMember>,
    /// In the order of the calls, which is one in which they can run.
    pub(crate) ops: Vec<CapturedOp>,
}

/// A stream that takes part in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CaptureMember {
    pub(crate) stream: u64,
    pub(crate) device: u64,
}

/// One captured operation.
#[derive(Debug)]
pub(crate) struct CapturedOp {
    /// The index of its stream among the members.
    pub(crate) member: usize,
    pub(crate) name: OpName,
    pub(crate) work: CapturedWork,
}

/// What a captured operation does.
#[derive(Debug)]
pub(crate) enum CapturedWork {
    Memory {
        touched: Vec<TouchedRange>,
        watched: Option<usize>,
        work: OpWork,
    },
    Record,
    /// Waits for the record at this index.
    Wait(usize),
}

/// A record inside a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CapturePoint {
    pub(crate) capture: u64,
    pub(crate) index: usize,
}

impl CaptureRecording {
    /// Whether the first member ends after all operations of the others.
    pub(crate) fn is_joined(&self) -> bool {
        let count = self.members.len();
        let mut recorded = vec![0_usize; count];
        // For each member, how many operations of each one come before its next operation.
        let mut clocks = vec![vec![0_usize; count]; count];
        let mut points = vec![Vec::new(); self.ops.len()];
        for (index, op) in self.ops.iter().enumerate() {
            let member = op.member;
            match op.work {
                CapturedWork::Memory { .. } => {
                    recorded[member] += 1;
                    clocks[member][member] = recorded[member];
                }
                CapturedWork::Record => points[index].clone_from(&clocks[member]),
                CapturedWork::Wait(point) => {
                    for (own, other) in clocks[member].iter_mut().zip(&points[point]) {
                        *own = (*own).max(*other);
                    }
                }
            }
        }
        clocks.first() == Some(&recorded)
    }
}

/// One executable graph.
#[derive(Debug)]
pub(crate) struct SimGraph {
    pub(crate) device: u64,
    pub(crate) recording: Arc<CaptureRecording>,
    /// Streams of the graph's own, for the operations that were captured on joined streams.
    pub(crate) branches: Vec<u64>,
    /// The end of the last launch, on whatever stream. The next launch comes after it.
    pub(crate) last_launch: Option<EventRecord>,
}
