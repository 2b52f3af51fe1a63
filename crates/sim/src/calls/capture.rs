//! Captures: what they record, and the calls that they do not survive.

use super::call::Call;
use crate::check::OpName;
use crate::state::{
    CaptureMember, CapturePoint, CaptureRecording, CapturedOp, CapturedWork, SimCapture, SimState,
};
use aquifer_driver::error::DriverError;
use aquifer_driver::{CaptureStatus, DriverResult, RawStream};
use aquifer_sync::trusted::unique;

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
}
