//! Events and synchronisation: what orders operations, and what the host sees complete.

use super::call::Call;
use crate::driver::sim::check::{OpName, Violation};
use crate::driver::sim::run::{run_some, run_until};
use crate::driver::sim::state::{
    CapturedWork, EventRecord, OpWork, SimContext, SimEvent, SimFence, SimOp, SimState,
};
use crate::driver::{DriverResult, RawEvent, RawStream};
use crate::sync::Arc;
use crate::sync::trusted::unique;

/// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`: a wait would lead out of the capture.
const ISOLATION: u32 = 905;
/// `CUDA_ERROR_STREAM_CAPTURE_MERGE`: a wait would join two captures.
const MERGE: u32 = 902;

impl Call<'_> {
    pub(crate) fn create_event(&mut self) -> RawEvent {
        let id = unique();
        let event = SimEvent { device: self.context.id, record: None, captured: None };
        self.state.events.insert(id, event);
        RawEvent(id)
    }

    /// Destroys an event. Waits for it that are queued stay.
    pub(crate) fn destroy_event(&mut self, event: RawEvent) -> DriverResult<()> {
        self.event(OpName::call(self.name), event)?;
        self.state.events.remove(&event.0);
        Ok(())
    }

    /// Checks an event that is to be recorded: it must be this device's.
    fn check_recordable(&mut self, name: OpName, event: RawEvent) -> DriverResult<()> {
        if self.event(name, event)?.device == self.context.id {
            return Ok(());
        }
        let note = Some(format!("event {}", event.0));
        Err(self.report(Violation::ForeignHandle, name, note))
    }

    /// Records an event on a stream.
    pub(crate) fn record_event(&mut self, raw: RawEvent, stream: RawStream) -> DriverResult<()> {
        let id = self.stream(stream)?;
        let name = OpName::on(self.name, id);
        self.check_recordable(name, raw)?;
        let (record, captured) = match self.active_capture(id)? {
            Some(capture) => (None, Some(self.capture_op(capture, id, name, CapturedWork::Record))),
            None => (Some(self.record(id, name)), None),
        };
        let event = self.event(name, raw)?;
        (event.record, event.captured) = (record, captured);
        Ok(())
    }

    /// Enqueues a point of a stream of this device that others can wait for.
    pub(super) fn record(&mut self, id: u64, name: OpName) -> EventRecord {
        let fence = SimFence::new(self.context.id, 1);
        self.state.push(id, SimOp::new(name, OpWork::Record(Arc::clone(&fence))));
        EventRecord { fence, clock: Arc::new(self.state.clock_of(id)) }
    }

    /// Orders a stream's next operations after a recorded point.
    pub(super) fn wait_for(&mut self, id: u64, name: OpName, record: EventRecord) {
        self.state.order_after(id, &record.clock);
        if !record.fence.is_signaled() {
            self.state.push(id, SimOp::new(name, OpWork::Wait(record.fence)));
        }
    }

    /// Records an event that covers every stream of the device.
    pub(crate) fn record_context(&mut self, raw: RawEvent) -> DriverResult<()> {
        self.require(self.context.config.properties.context_events)?;
        let (name, device) = (OpName::call(self.name), self.context.id);
        self.check_recordable(name, raw)?;
        self.forbid_in_any_capture()?;
        let clock = Arc::new(self.state.clock_of_device(device));
        let streams = self.state.streams_of(device).filter(|(_, stream)| !stream.is_idle());
        let pending: Vec<u64> = streams.map(|(id, _)| id).collect();
        let fence = SimFence::new(device, pending.len());
        for id in pending {
            let work = OpWork::Record(Arc::clone(&fence));
            self.state.push(id, SimOp::new(OpName::on(self.name, id), work));
        }
        let event = self.event(name, raw)?;
        (event.record, event.captured) = (Some(EventRecord { fence, clock }), None);
        Ok(())
    }

    /// Makes a stream wait for the last record of an event of any device.
    pub(crate) fn wait_event(&mut self, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        let id = self.stream(stream)?;
        let name = OpName::on(self.name, id);
        let (record, captured) = self.last_record(name, event)?;
        self.check_capture_thread(name, captured.map(|point| point.capture));
        match (self.active_capture(id)?, captured) {
            (Some(own), Some(point)) if point.capture == own => {
                self.capture_op(own, id, name, CapturedWork::Wait(point.index));
            }
            (Some(own), Some(point)) if self.is_active_capture(point.capture) => {
                self.invalidate_capture(own);
                self.invalidate_capture(point.capture);
                return self.refuse(MERGE);
            }
            // A wait for an event that was never recorded orders nothing, in a capture too.
            (Some(_), None) if record.is_none() => {}
            (Some(own), _) => {
                self.invalidate_capture(own);
                return self.refuse(ISOLATION);
            }
            (None, Some(point)) if self.is_active_capture(point.capture) => {
                // A stream that waits for a point of a capture joins it, as on a GPU.
                self.join_capture(id, point.capture);
                self.capture_op(point.capture, id, name, CapturedWork::Wait(point.index));
            }
            (None, Some(_)) => return self.invalid(),
            (None, None) => {
                if let Some(record) = record {
                    self.wait_for(id, name, record);
                }
            }
        }
        Ok(())
    }

    /// Whether the device has passed an event's last record.
    pub(crate) fn query_event(&mut self, event: RawEvent) -> DriverResult<bool> {
        let (record, captured) = self.last_record(OpName::call(self.name), event)?;
        self.forbid_captured_event(captured)?;
        run_some(self.state, self.context.id);
        self.context.check_alive(self.name)?;
        let Some(record) = record else { return Ok(true) };
        let device = record.fence.device;
        if record.fence.is_signaled() {
            self.check_device_alive(device)?;
            self.state.observe(&record.clock);
            return Ok(true);
        }
        if device != self.context.id {
            run_some(self.state, device);
        }
        Ok(false)
    }

    /// An error if a device is lost: its fences are signaled then without their operations having run.
    fn check_device_alive(&self, device: u64) -> DriverResult<()> {
        let device = self.state.devices.get(&device);
        device.map_or(Ok(()), |device| device.context.check_alive(self.name))
    }

    /// Waits until the device has passed an event's last record.
    pub(crate) fn synchronize_event(&mut self, event: RawEvent) -> DriverResult<()> {
        let (record, captured) = self.last_record(OpName::call(self.name), event)?;
        self.forbid_captured_event(captured)?;
        if let Some(record) = record {
            let device = record.fence.device;
            self.run_until(device, |_| record.fence.is_signaled())?;
            if let Err(lost) = self.check_device_alive(device) {
                return self.context.sync_result(self.name).and(Err(lost));
            }
            self.state.observe(&record.clock);
        }
        self.context.sync_result(self.name)
    }

    fn run_until(&mut self, device: u64, done: impl Fn(&SimState) -> bool) -> DriverResult<()> {
        let is_done = run_until(self.state, device, done);
        if is_done { Ok(()) } else { self.refuse(SimContext::UNKNOWN) }
    }

    /// Waits until a stream has passed every operation enqueued so far.
    pub(crate) fn synchronize_stream(&mut self, stream: RawStream) -> DriverResult<()> {
        let id = self.stream(stream)?;
        self.forbid_in_capture(id)?;
        let (clock, tick) = (self.state.clock_of(id), self.state.last_tick(id));
        self.run_until(self.context.id, |state| state.has_passed(id, tick))?;
        if !self.context.is_lost() {
            self.state.observe(&clock);
        }
        self.context.sync_result(self.name)
    }

    /// Waits until every stream of the device has passed every operation enqueued so far.
    pub(crate) fn synchronize_context(&mut self) -> DriverResult<()> {
        self.forbid_in_any_capture()?;
        let device = self.context.id;
        let clock = self.state.clock_of_device(device);
        let targets: Vec<(u64, u64)> =
            self.state.streams_of(device).map(|(id, stream)| (id, stream.tick)).collect();
        self.run_until(device, |state| {
            targets.iter().all(|&(id, tick)| state.has_passed(id, tick))
        })?;
        if !self.context.is_lost() {
            self.state.observe(&clock);
        }
        self.context.sync_result(self.name)
    }
}
