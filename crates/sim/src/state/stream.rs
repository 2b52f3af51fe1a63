//! Streams, which are queues of operations, and what is ordered before the next one.

use super::op::SimOp;
use crate::check::{AccessStamp, VectorClock};
use std::collections::VecDeque;

/// One stream.
///
/// Its ticks number its operations, with `seen <= passed <= tick`.
///
/// # State table
///
/// | state | fields | next |
/// | --- | --- | --- |
/// | idle | `queue` empty, not `busy` | queued; removed, if `destroyed` and `seen == tick` |
/// | queued | `queue` not empty, not `busy`; the stream is in `SimDevice::active` | busy, idle |
/// | busy | `busy`: an operation of it runs without the lock | queued, idle |
/// | capturing | `capture` is set, on top of any of these: new operations go to the capture | |
/// | destroyed | `destroyed`, on top of any of these: calls that name it are reported | |
#[derive(Debug, Default)]
pub(crate) struct SimStream {
    pub(crate) device: u64,
    pub(crate) queue: VecDeque<SimOp>,
    pub(crate) busy: bool,
    /// The last operation enqueued.
    pub(crate) tick: u64,
    /// The last operation that has run or was discarded.
    pub(crate) passed: u64,
    /// The last operation that the host has seen complete.
    pub(crate) seen: u64,
    /// The last operation that a pool has seen complete, and the host maybe not.
    pub(crate) seen_by_pools: u64,
    /// The last operation that a default pool has seen complete when it ended.
    pub(crate) seen_at_ends: u64,
    /// The operations of other streams that are ordered before the next one.
    pub(crate) clock: VectorClock,
    pub(crate) destroyed: bool,
    /// A test holds the stream up, so none of its operations runs.
    pub(crate) stalled: bool,
    /// The capture that the stream takes part in.
    pub(crate) capture: Option<u64>,
}

impl SimStream {
    pub(crate) fn new(device: u64) -> Self {
        Self { device, ..Self::default() }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.busy
    }

    /// Whether a former access is ordered before the next operation of this stream, `own`.
    pub(crate) fn follows(&self, own: u64, former: &AccessStamp) -> bool {
        former.stream == own || self.clock.get(former.stream) >= former.tick
    }
}
