//! Executable graphs.

use super::capture::CaptureRecording;
use super::event::EventRecord;
use crate::sync::Arc;

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
