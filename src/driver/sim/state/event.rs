//! Events, and the points of streams that they record.

use super::capture::CapturePoint;
use super::op::SimFence;
use crate::driver::sim::check::VectorClock;
use crate::sync::Arc;

/// One record of an event.
#[derive(Clone, Debug)]
pub(crate) struct EventRecord {
    pub(crate) fence: Arc<SimFence>,
    /// Everything that is ordered before the record, itself included.
    pub(crate) clock: Arc<VectorClock>,
}

/// One event. Its last record is `record` or `captured`, never both; neither if there is none.
#[derive(Debug)]
pub(crate) struct SimEvent {
    pub(crate) device: u64,
    pub(crate) record: Option<EventRecord>,
    pub(crate) captured: Option<CapturePoint>,
}
