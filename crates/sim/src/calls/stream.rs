//! Streams, events and synchronisation, which order operations and show the host what is complete.

use super::call::Call;
use crate::check::{OpName, ReportedMemory, VectorClock, Violation};
use crate::driver::SimDriver;
use crate::run::{has_stopped, run_some, run_until};
use crate::state::{
    CapturePoint, CapturedWork, EventRecord, OpWork, SimEvent, SimFence, SimOp, SimState,
    lock_state,
};
use aquifer_driver::error::DriverError;
use aquifer_driver::{
    DefaultPoolEnd, DriverResult, NewStream, RawEvent, RawStream, StreamCalls, StreamKeeper,
    call_not_forked, is_forked_child,
};
use aquifer_sync::Arc;
use aquifer_sync::thread_id;
use aquifer_sync::trusted::unique;

impl StreamCalls for SimDriver {
    fn stream_create(&self) -> DriverResult<NewStream> {
        let mut call = self.call("cuStreamCreate")?;
        let raw = RawStream(call.state.add_stream(call.context.id));
        Ok(NewStream { raw, keep: None })
    }

    /// The order with the legacy default stream is not simulated: a program that counts on it is told of accesses out of
    /// order.
    fn stream_create_blocking(&self) -> DriverResult<NewStream> {
        self.stream_create()
    }

    fn stream_destroy(&self, raw: RawStream, _keep: StreamKeeper) {
        let _ = self.call("cuStreamDestroy").and_then(|mut call| call.destroy_stream(raw));
    }

    fn stream_borrow(&self, raw: RawStream) -> DriverResult<StreamKeeper> {
        let name = "cuStreamGetCtx";
        call_not_forked(name)?;
        let state = lock_state();
        self.context.check_alive(name)?;
        let is_alive = state
            .streams
            .get(&state.stream_behind(raw))
            .is_some_and(|stream| stream.device == self.context.id && !stream.destroyed);
        if is_alive { Ok(None) } else { Err(DriverError::new(name, DriverError::INVALID_HANDLE)) }
    }

    fn stream_number(&self, raw: RawStream) -> DriverResult<u64> {
        let mut call = self.call("cuStreamGetId")?;
        let id = call.stream(raw)?;
        match call.capture_of(id) {
            None => Ok(id),
            // As on a GPU.
            Some(capture) => {
                call.invalidate_capture(capture);
                call.refuse(DriverError::STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    fn may_have_foreign_streams(&self) -> bool {
        lock_state().devices.get(&self.context.id).is_none_or(|device| device.has_foreign_streams)
    }

    fn legacy_stream(&self) -> RawStream {
        RawStream(self.context.legacy_stream)
    }

    fn per_thread_stream(&self) -> DriverResult<RawStream> {
        let name = "per-thread stream";
        call_not_forked(name)?;
        let mut state = lock_state();
        self.context.check_alive(name)?;
        let key = (self.context.id, thread_id::assign());
        if let Some(&stream) = state.thread_streams.get(&key) {
            return Ok(RawStream(stream));
        }
        let stream = state.add_stream(self.context.id);
        state.thread_streams.insert(key, stream);
        state.note_foreign_stream(self.context.id);
        Ok(RawStream(stream))
    }

    fn stream_synchronize(&self, stream: RawStream) -> DriverResult<()> {
        self.waiting("cuStreamSynchronize", |call| {
            let id = call.stream(stream)?;
            call.forbid_in_capture(id)?;
            let (clock, tick) = (call.state.clock_of(id), call.state.last_tick(id));
            call.wait_until(&clock, |state| state.has_passed(id, tick))
        })
    }

    fn stream_query(&self, stream: RawStream) -> DriverResult<bool> {
        let mut call = self.call("cuStreamQuery")?;
        let id = call.stream(stream)?;
        call.forbid_in_capture(id)?;
        run_some(&mut call.state, call.context.id);
        call.context.check_alive(call.name)?;
        let (clock, tick) = (call.state.clock_of(id), call.state.last_tick(id));
        let is_idle = call.state.has_passed(id, tick);
        if is_idle {
            call.state.observe(&clock);
        }
        Ok(is_idle)
    }

    /// Makes a stream wait for the last record of an event of any device.
    fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        let mut call = self.call("cuStreamWaitEvent")?;
        let (id, name) = call.on_stream(stream)?;
        if call.context.is_launched_on(stream) {
            call.context.report(Violation::LostWait, name, None, ReportedMemory::NONE, None);
        }
        let (record, captured) = call.last_record(name, event)?;
        call.check_capture_thread(name, captured.map(|point| point.capture));
        match (call.active_capture(id)?, captured) {
            (Some(own), Some(point)) if point.capture == own => {
                call.capture_op(own, id, name, CapturedWork::Wait(point.index));
            }
            (Some(own), Some(point)) if call.is_active_capture(point.capture) => {
                call.invalidate_capture(own);
                call.invalidate_capture(point.capture);
                return call.refuse(DriverError::STREAM_CAPTURE_MERGE);
            }
            // A wait for an event that was never recorded orders nothing, in a capture too.
            (Some(_), None) if record.is_none() => {}
            (Some(own), _) => {
                call.invalidate_capture(own);
                return call.refuse(DriverError::STREAM_CAPTURE_ISOLATION);
            }
            (None, Some(point)) if call.is_active_capture(point.capture) => {
                // A stream that waits for a point of a capture joins it, as on a GPU.
                call.join_capture(id, point.capture);
                call.capture_op(point.capture, id, name, CapturedWork::Wait(point.index));
            }
            (None, Some(_)) => return call.invalid(),
            (None, None) => {
                if let Some(record) = record {
                    if DefaultPoolEnd::is_here() {
                        // The host waits: the stream would be ordered for the user's work as well.
                        call.wait_for_record(&record)?;
                    } else {
                        call.state.wait_for(id, name, record);
                    }
                }
            }
        }
        Ok(())
    }

    fn event_create(&self) -> DriverResult<RawEvent> {
        let mut call = self.call("cuEventCreate")?;
        let id = unique();
        let event = SimEvent { device: call.context.id, record: None, captured: None };
        call.state.events.insert(id, event);
        Ok(RawEvent(id))
    }

    /// Waits for the event that are queued stay.
    unsafe fn event_destroy(&self, event: RawEvent) -> DriverResult<()> {
        let mut call = self.call("cuEventDestroy")?;
        call.event(OpName::call(call.name), event)?;
        call.state.events.remove(&event.0);
        Ok(())
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        let mut call = self.call("cuEventRecord")?;
        let (id, name) = call.on_stream(stream)?;
        call.check_recordable(name, event)?;
        let (record, captured) = match call.active_capture(id)? {
            Some(capture) => (None, Some(call.capture_op(capture, id, name, CapturedWork::Record))),
            None => (Some(call.state.record(call.context.id, id, name)), None),
        };
        let event = call.event(name, event)?;
        (event.record, event.captured) = (record, captured);
        Ok(())
    }

    fn event_query(&self, event: RawEvent) -> DriverResult<bool> {
        self.query(event, SimState::observe)
    }

    fn event_synchronize(&self, event: RawEvent) -> DriverResult<()> {
        self.waiting("cuEventSynchronize", |call| {
            let (record, captured) = call.last_record(OpName::call(call.name), event)?;
            call.forbid_captured_event(captured)?;
            if let Some(record) = record {
                call.wait_for_record(&record)?;
            }
            call.context.sync_result(call.name)
        })
    }

    fn context_record(&self, event: RawEvent) -> DriverResult<()> {
        let mut call = self.call("cuCtxRecordEvent")?;
        call.require(call.context.config.properties.context_events)?;
        let (name, device) = (OpName::call(call.name), call.context.id);
        call.check_recordable(name, event)?;
        call.forbid_in_any_capture()?;
        let clock = Arc::new(call.state.clock_of_device(device));
        let streams = call.state.streams_of(device).filter(|(_, stream)| !stream.is_idle());
        let pending: Vec<u64> = streams.map(|(id, _)| id).collect();
        let fence = SimFence::new(device, pending.len());
        for id in pending {
            let work = OpWork::Record(Arc::clone(&fence));
            call.state.push(id, SimOp::new(OpName::on(call.name, id), work));
        }
        let event = call.event(name, event)?;
        (event.record, event.captured) = (Some(EventRecord { fence, clock }), None);
        Ok(())
    }

    fn context_synchronize(&self) -> DriverResult<()> {
        self.waiting("cuCtxSynchronize", |call| {
            call.forbid_in_any_capture()?;
            let device = call.context.id;
            let clock = call.state.clock_of_device(device);
            let targets: Vec<(u64, u64)> =
                call.state.streams_of(device).map(|(id, stream)| (id, stream.tick)).collect();
            call.wait_until(&clock, |state| {
                targets.iter().all(|&(id, tick)| state.has_passed(id, tick))
            })
        })
    }
}

impl SimDriver {
    /// Whether the device has passed an event's last record. If so, `observe` gets the clock of the record.
    pub(super) fn query(
        &self,
        event: RawEvent,
        observe: impl FnOnce(&mut SimState, &VectorClock),
    ) -> DriverResult<bool> {
        let result =
            self.call("cuEventQuery").and_then(|mut call| call.query_event(event, observe));
        let is_lost = result.is_err() && self.context.is_lost() && !is_forked_child();
        // An event of a lost context has not passed the operation that still runs: its caller may free
        // memory that a host form uses.
        if is_lost && !has_stopped(&lock_state(), self.context.id) {
            return Ok(false);
        }
        result
    }
}

impl Call<'_> {
    /// Checks an event that the call names.
    fn event(&mut self, name: OpName, raw: RawEvent) -> DriverResult<&mut SimEvent> {
        self.state.events.get_mut(&raw.0).ok_or_else(|| {
            let note = Some(format!("event {}", raw.0));
            self.context.report_handle(Violation::DestroyedEvent, name, note)
        })
    }

    /// The last record of an event, or its point in a capture.
    fn last_record(
        &mut self,
        name: OpName,
        raw: RawEvent,
    ) -> DriverResult<(Option<EventRecord>, Option<CapturePoint>)> {
        let event = self.event(name, raw)?;
        Ok((event.record.clone(), event.captured))
    }

    /// Checks an event that is to be recorded, which must be this device's.
    fn check_recordable(&mut self, name: OpName, event: RawEvent) -> DriverResult<()> {
        if self.event(name, event)?.device == self.context.id {
            return Ok(());
        }
        let note = Some(format!("event {}", event.0));
        Err(self.context.report_handle(Violation::ForeignHandle, name, note))
    }

    /// Whether the device has passed an event's last record.
    fn query_event(
        &mut self,
        event: RawEvent,
        observe: impl FnOnce(&mut SimState, &VectorClock),
    ) -> DriverResult<bool> {
        let (record, captured) = self.last_record(OpName::call(self.name), event)?;
        self.forbid_captured_event(captured)?;
        run_some(&mut self.state, self.context.id);
        self.context.check_alive(self.name)?;
        let Some(record) = record else { return Ok(true) };
        let device = record.fence.device;
        if record.fence.is_signaled() {
            self.check_device_alive(device)?;
            observe(&mut self.state, &record.clock);
            return Ok(true);
        }
        if device != self.context.id {
            run_some(&mut self.state, device);
        }
        Ok(false)
    }

    /// An error if a device is lost. Its fences are signaled then without their operations having run.
    fn check_device_alive(&self, device: u64) -> DriverResult<()> {
        let device = self.state.devices.get(&device);
        device.map_or(Ok(()), |device| device.context.check_alive(self.name))
    }

    /// Has the host wait for a recorded point.
    fn wait_for_record(&mut self, record: &EventRecord) -> DriverResult<()> {
        let device = record.fence.device;
        self.run_until(device, |_| record.fence.is_signaled())?;
        if let Err(lost) = self.check_device_alive(device) {
            return self.context.sync_result(self.name).and(Err(lost));
        }
        self.state.observe(&record.clock);
        Ok(())
    }

    fn run_until(&mut self, device: u64, done: impl Fn(&SimState) -> bool) -> DriverResult<()> {
        let is_done = run_until(&mut self.state, device, done);
        if is_done { Ok(()) } else { self.refuse(DriverError::UNKNOWN) }
    }

    /// Runs the device's queues until `done`, when the host has seen everything in `clock`.
    fn wait_until(
        &mut self,
        clock: &VectorClock,
        done: impl Fn(&SimState) -> bool,
    ) -> DriverResult<()> {
        self.run_until(self.context.id, done)?;
        if !self.context.is_lost() {
            self.state.observe(clock);
        }
        self.context.sync_result(self.name)
    }
}
