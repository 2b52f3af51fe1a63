//! Graphs, whose captured operations run at every launch.
//!
//! A launch enqueues all of them anew. Operations captured on the stream that began the capture go to
//! the launching stream. Those captured on joined streams go to branches, streams of the graph's own,
//! which the captured records and waits fork and join. So each replay is checked like ordinary work,
//! against former work of the launching stream and inside of the graph, and the scheduler draws its
//! order.

use super::call::Call;
use super::enqueue::OpRequest;
use crate::check::OpName;
use crate::driver::SimDriver;
use crate::state::{
    CaptureRecording, CapturedWork, EventRecord, LookupError, SimContext, SimGraph,
};
use aquifer_driver::error::DriverError;
use aquifer_driver::{
    CaptureStatus, DriverResult, GraphCalls, RawGraph, RawStream, has_ended_capture,
};
use aquifer_sync::Arc;
use aquifer_sync::trusted::unique;
use std::collections::HashMap;

impl SimDriver {
    fn end_capture(&self, stream: RawStream) -> DriverResult<CaptureRecording> {
        let mut call = self.call("cuStreamEndCapture")?;
        let id = call.stream(stream)?;
        call.end_capture(id)
    }
}

impl GraphCalls for SimDriver {
    fn capture_status(&self, stream: RawStream) -> DriverResult<CaptureStatus> {
        let call = self.call("cuStreamIsCapturing")?;
        Ok(call.capture_status(call.stream(stream)?))
    }

    fn stream_begin_capture(&self, stream: RawStream) -> DriverResult<()> {
        self.call("cuStreamBeginCapture")?.begin_capture(stream)
    }

    fn stream_end_capture(&self, stream: RawStream) -> DriverResult<RawGraph> {
        let recording = self.end_capture(stream)?;
        let mut call = self.call("cuGraphInstantiate")?;
        let joined = recording.members.iter().skip(1);
        let branches = joined.map(|member| call.state.add_stream(member.device)).collect();
        let (id, device, recording) = (unique(), call.context.id, Arc::new(recording));
        let graph = SimGraph { device, recording, branches, last_launch: None };
        call.state.graphs.insert(id, graph);
        Ok(RawGraph(id))
    }

    fn stream_abandon_capture(&self, stream: RawStream) -> DriverResult<()> {
        match self.end_capture(stream) {
            Err(error) if !has_ended_capture(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Enqueues all operations of the graph.
    unsafe fn graph_launch(&self, raw: RawGraph, stream: RawStream) -> DriverResult<()> {
        // Declared first: it ends after the call does.
        let _under_way = self.context.begin_launch(stream);
        let mut call = self.call("cuGraphLaunch")?;
        let id = call.stream(stream)?;
        call.forbid_in_capture(id)?;
        let graph = call.graph(raw)?;
        let (recording, last) = (Arc::clone(&graph.recording), graph.last_launch.clone());
        let streams: Vec<u64> = std::iter::once(id).chain(graph.branches.iter().copied()).collect();
        let contexts = recording.members.iter().map(|member| {
            let device = call.state.devices.get(&member.device);
            let gone = || call.error(DriverError::CONTEXT_IS_DESTROYED);
            let context = &device.ok_or_else(gone)?.context;
            context.check_alive(call.name).map(|()| Arc::clone(context))
        });
        let contexts: Vec<Arc<SimContext>> = contexts.collect::<DriverResult<_>>()?;
        // Before anything is enqueued, since half of a graph must not run.
        for op in &recording.ops {
            let CapturedWork::Memory { touched, .. } = &op.work else { continue };
            for range in touched {
                let found = call.state.blocks.find(range, true).err();
                if let Some(error) = found.filter(|it| !matches!(it, LookupError::Freed(_))) {
                    let name = op.name.of_graph(raw.0, id);
                    return Err(call.report_unmapped(call.context, name, range, error));
                }
            }
        }
        let own_name = OpName::call(call.name).of_graph(raw.0, id);
        if let Some(last) = last {
            call.state.wait_for(id, own_name, last);
        }
        let mut records: HashMap<usize, EventRecord> = HashMap::new();
        for (index, op) in recording.ops.iter().enumerate() {
            let name = op.name.of_graph(raw.0, id);
            let (Some(&stream), Some(context)) = (streams.get(op.member), contexts.get(op.member))
            else {
                continue;
            };
            match &op.work {
                CapturedWork::Record => {
                    records.insert(index, call.state.record(context.id, stream, name));
                }
                CapturedWork::Wait(point) => {
                    if let Some(record) = records.get(point) {
                        call.state.wait_for(stream, name, record.clone());
                    }
                }
                CapturedWork::Memory { touched, watched, work } => {
                    let request = OpRequest {
                        watched: *watched,
                        ..OpRequest::new(name, touched, work.clone())
                    };
                    call.enqueue(context, stream, request)?;
                }
            }
        }
        let end = call.state.record(call.context.id, id, own_name);
        call.graph(raw)?.last_launch = Some(end);
        Ok(())
    }

    /// Launches that are queued stay.
    unsafe fn graph_destroy(&self, raw: RawGraph) -> DriverResult<()> {
        let mut call = self.call("cuGraphExecDestroy")?;
        call.graph(raw)?;
        let branches = call.state.graphs.remove(&raw.0).map(|graph| graph.branches);
        for branch in branches.into_iter().flatten() {
            call.state.destroy_stream(branch);
        }
        Ok(())
    }
}

impl Call<'_> {
    fn graph(&mut self, raw: RawGraph) -> DriverResult<&mut SimGraph> {
        let error = self.error(DriverError::INVALID_HANDLE);
        let id = self.context.id;
        self.state.graphs.get_mut(&raw.0).filter(|graph| graph.device == id).ok_or(error)
    }
}
