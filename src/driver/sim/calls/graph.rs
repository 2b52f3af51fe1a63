//! Graphs: captured operations that run at every launch.
//!
//! A launch enqueues all of them anew. Operations captured on the stream that began the capture go to
//! the launching stream. Those captured on joined streams go to branches, streams of the graph's own,
//! which the captured records and waits fork and join. So each replay is checked like ordinary work,
//! against former work of the launching stream and inside of the graph, and the scheduler draws its
//! order.

use super::call::Call;
use super::enqueue::OpRequest;
use crate::driver::sim::check::OpName;
use crate::driver::sim::state::{
    CaptureRecording, CapturedWork, EventRecord, LookupError, SimContext, SimGraph,
};
use crate::driver::{DriverResult, RawGraph, RawStream};
use crate::error::DriverError;
use crate::sync::Arc;
use crate::sync::trusted::unique;
use std::collections::HashMap;

impl Call<'_> {
    /// Makes an executable graph of a recording.
    pub(crate) fn instantiate(&mut self, recording: CaptureRecording) -> RawGraph {
        let joined = recording.members.iter().skip(1);
        let branches = joined.map(|member| self.state.add_stream(member.device)).collect();
        let (id, device, recording) = (unique(), self.context.id, Arc::new(recording));
        let graph = SimGraph { device, recording, branches, last_launch: None };
        self.state.graphs.insert(id, graph);
        RawGraph(id)
    }

    fn graph(&mut self, raw: RawGraph) -> DriverResult<&mut SimGraph> {
        let error = self.error(DriverError::INVALID_HANDLE);
        let id = self.context.id;
        self.state.graphs.get_mut(&raw.0).filter(|graph| graph.device == id).ok_or(error)
    }

    /// Enqueues all operations of a graph.
    pub(crate) fn launch_graph(&mut self, raw: RawGraph, stream: RawStream) -> DriverResult<()> {
        let id = self.stream(stream)?;
        self.forbid_in_capture(id)?;
        let graph = self.graph(raw)?;
        let (recording, last) = (Arc::clone(&graph.recording), graph.last_launch.clone());
        let streams: Vec<u64> = std::iter::once(id).chain(graph.branches.iter().copied()).collect();
        let contexts = recording.members.iter().map(|member| {
            let device = self.state.devices.get(&member.device);
            let gone = || self.error(DriverError::CONTEXT_IS_DESTROYED);
            let context = &device.ok_or_else(gone)?.context;
            context.check_alive(self.name).map(|()| Arc::clone(context))
        });
        let contexts: Vec<Arc<SimContext>> = contexts.collect::<DriverResult<_>>()?;
        // Before anything is enqueued, since half of a graph must not run.
        for op in &recording.ops {
            let CapturedWork::Memory { touched, .. } = &op.work else { continue };
            for range in touched {
                if self.state.blocks.find(range).err() == Some(LookupError::Unmapped) {
                    let name = op.name.of_graph(raw.0, id);
                    return Err(self.report_unmapped(name, (range.address, range.span())));
                }
            }
        }
        let own_name = OpName::call(self.name).of_graph(raw.0, id);
        if let Some(last) = last {
            self.wait_for(id, own_name, last);
        }
        let mut records: HashMap<usize, EventRecord> = HashMap::new();
        for (index, op) in recording.ops.iter().enumerate() {
            let name = op.name.of_graph(raw.0, id);
            let (Some(&stream), Some(context)) = (streams.get(op.member), contexts.get(op.member))
            else {
                continue;
            };
            let mut call = Call { state: &mut *self.state, context, name: name.call };
            match &op.work {
                CapturedWork::Record => {
                    records.insert(index, call.record(stream, name));
                }
                CapturedWork::Wait(point) => {
                    if let Some(record) = records.get(point) {
                        call.wait_for(stream, name, record.clone());
                    }
                }
                CapturedWork::Memory { touched, watched, work } => {
                    let request = OpRequest {
                        watched: *watched,
                        ..OpRequest::new(name, touched, work.clone())
                    };
                    call.enqueue(stream, request)?;
                }
            }
        }
        let end = self.record(id, own_name);
        self.graph(raw)?.last_launch = Some(end);
        Ok(())
    }

    /// Destroys a graph. Launches that are queued stay.
    pub(crate) fn destroy_graph(&mut self, raw: RawGraph) -> DriverResult<()> {
        self.graph(raw)?;
        let branches = self.state.graphs.remove(&raw.0).map(|graph| graph.branches);
        for branch in branches.into_iter().flatten() {
            self.state.destroy_stream(branch);
        }
        Ok(())
    }
}
