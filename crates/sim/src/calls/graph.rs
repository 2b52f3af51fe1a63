//! Captures, and graphs, whose captured operations run at every launch.
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
    CaptureMember, CapturePoint, CaptureRecording, CapturedOp, CapturedWork, EventRecord,
    LookupError, SimCapture, SimContext, SimGraph, SimState,
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
    /// Begins a capture on a stream that is not capturing.
    pub(crate) fn begin_capture(&mut self, stream: RawStream) -> DriverResult<()> {
        let stream = self.stream(stream)?;
        if stream == self.context.legacy_stream {
            return self.refuse(DriverError::STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.capture_status(stream) != CaptureStatus::None {
            return self.refuse(DriverError::ILLEGAL_STATE);
        }
        let id = unique();
        self.state.captures.insert(id, SimCapture::new(self.context.id));
        self.join_capture(stream, id);
        Ok(())
    }

    /// Ends the capture that began on a stream.
    pub(crate) fn end_capture(&mut self, stream: u64) -> DriverResult<CaptureRecording> {
        let Some(id) = self.capture_of(stream) else {
            return self.refuse(DriverError::ILLEGAL_STATE);
        };
        // On a stream that merely joined, this invalidates the capture without ending it, as on a GPU.
        if self.state.captures.get(&id).is_some_and(|capture| !capture.began_on(stream)) {
            self.invalidate_capture(id);
            return self.refuse(DriverError::STREAM_CAPTURE_UNMATCHED);
        }
        for stream in self.state.streams.values_mut().filter(|it| it.capture == Some(id)) {
            stream.capture = None;
        }
        match self.state.captures.remove(&id) {
            Some(SimCapture { valid: true, recording, .. }) if recording.is_joined() => {
                Ok(recording)
            }
            Some(SimCapture { valid: true, .. }) => {
                self.refuse(DriverError::STREAM_CAPTURE_UNJOINED)
            }
            _ => self.refuse(DriverError::STREAM_CAPTURE_INVALIDATED),
        }
    }

    pub(super) fn capture_of(&self, stream: u64) -> Option<u64> {
        self.state.streams.get(&stream).and_then(|stream| stream.capture)
    }

    pub(super) fn capture_status(&self, stream: u64) -> CaptureStatus {
        let capture = self.capture_of(stream).and_then(|id| self.state.captures.get(&id));
        capture.map_or(CaptureStatus::None, SimCapture::status)
    }

    /// Adds a stream to a capture.
    pub(super) fn join_capture(&mut self, stream: u64, capture: u64) {
        let SimState { streams, captures, .. } = &mut *self.state;
        let (Some(own), Some(found)) = (streams.get_mut(&stream), captures.get_mut(&capture))
        else {
            return;
        };
        own.capture = Some(capture);
        let member = CaptureMember { stream, device: own.device };
        if !found.recording.members.contains(&member) {
            found.recording.members.push(member);
        }
    }

    pub(super) fn invalidate_capture(&mut self, capture: u64) {
        if let Some(capture) = self.state.captures.get_mut(&capture) {
            capture.valid = false;
        }
    }

    /// The capture that a stream takes part in, if any. An invalidated one is an error.
    pub(super) fn active_capture(&self, stream: u64) -> DriverResult<Option<u64>> {
        if self.capture_status(stream) == CaptureStatus::Invalidated {
            return self.refuse(DriverError::STREAM_CAPTURE_INVALIDATED);
        }
        Ok(self.capture_of(stream).filter(|&id| self.is_active_capture(id)))
    }

    pub(super) fn is_active_capture(&self, capture: u64) -> bool {
        self.state.captures.get(&capture).is_some_and(|capture| capture.valid)
    }

    /// Records an operation of a member for the graph.
    pub(super) fn capture_op(
        &mut self,
        capture: u64,
        stream: u64,
        name: OpName,
        work: CapturedWork,
    ) -> CapturePoint {
        let mut point = CapturePoint { capture, index: 0 };
        if let Some(capture) = self.state.captures.get_mut(&capture) {
            let CaptureRecording { members, ops } = &mut capture.recording;
            if let Some(member) = members.iter().position(|member| member.stream == stream) {
                point.index = ops.len();
                ops.push(CapturedOp { member, name, work });
            }
        }
        point
    }

    /// Refuses a call that a capture of this stream does not survive.
    pub(super) fn forbid_in_capture(&mut self, stream: u64) -> DriverResult<()> {
        let code = match self.capture_status(stream) {
            CaptureStatus::None => return Ok(()),
            CaptureStatus::Active => DriverError::STREAM_CAPTURE_UNSUPPORTED,
            CaptureStatus::Invalidated => DriverError::STREAM_CAPTURE_INVALIDATED,
        };
        if let Some(id) = self.capture_of(stream) {
            self.invalidate_capture(id);
        }
        self.refuse(code)
    }

    /// Refuses a call that no capture of this device survives.
    pub(super) fn forbid_in_any_capture(&mut self) -> DriverResult<()> {
        let (device, mut active) = (self.context.id, false);
        for capture in self.state.captures.values_mut().filter(|it| it.device == device) {
            active |= std::mem::replace(&mut capture.valid, false);
        }
        if active { self.refuse(DriverError::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Refuses to query an event that is a point of a capture. After the end or the loss of the
    /// capture, that is merely an invalid value, as on a GPU.
    pub(super) fn forbid_captured_event(
        &mut self,
        captured: Option<CapturePoint>,
    ) -> DriverResult<()> {
        let Some(CapturePoint { capture, .. }) = captured else { return Ok(()) };
        self.check_capture_thread(OpName::call(self.name), Some(capture));
        let active = self.is_active_capture(capture);
        self.invalidate_capture(capture);
        self.refuse(if active { DriverError::CAPTURED_EVENT } else { DriverError::INVALID_VALUE })
    }

    /// Destroys a stream. Its operations stay in its capture. A capture that began on it can no longer end, and is
    /// invalidated.
    pub(crate) fn destroy_stream(&mut self, stream: RawStream) -> DriverResult<()> {
        let id = self.stream(stream)?;
        if let Some(capture) = self.capture_of(id)
            && self.state.captures.get(&capture).is_some_and(|capture| capture.began_on(id))
        {
            self.invalidate_capture(capture);
        }
        if let Some(stream) = self.state.streams.get_mut(&id) {
            stream.capture = None;
        }
        self.state.destroy_stream(id);
        Ok(())
    }

    fn graph(&mut self, raw: RawGraph) -> DriverResult<&mut SimGraph> {
        let error = self.error(DriverError::INVALID_HANDLE);
        let id = self.context.id;
        self.state.graphs.get_mut(&raw.0).filter(|graph| graph.device == id).ok_or(error)
    }
}
