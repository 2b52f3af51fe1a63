//! Events and synchronisation: what puts operations in order, and what tells the host.

use super::capture::{self, Step};
use super::clock::Clock;
use super::ledger::Ledger;
use super::queue::{Event, Mark, Op, Record, Work};
use super::report::{OpName, Violation};
use super::schedule;
use super::world::{Held, State, UNKNOWN};
use crate::backend::{DriverResult, RawEvent, RawStream};
use crate::error::DriverError;
use crate::sync::Arc;

/// A new event.
pub(super) fn create(state: &mut State, ledger: &Ledger) -> RawEvent {
    let id = state.handle();
    state.events.insert(id, Event { device: ledger.device, record: None, captured: None });
    RawEvent(id)
}

/// Ends an event. Waits for it that are queued stay.
pub(super) fn destroy(state: &mut State, ledger: &Ledger, event: RawEvent) -> DriverResult<()> {
    state.event(ledger, OpName::call("cuEventDestroy"), event)?;
    state.events.remove(&event.0);
    Ok(())
}

/// Checks an event that is to be recorded: it must be this device's.
fn recordable(
    state: &mut State,
    ledger: &Ledger,
    name: OpName,
    event: RawEvent,
) -> DriverResult<()> {
    if state.event(ledger, name, event)?.device == ledger.device {
        return Ok(());
    }
    let note = Some(format!("event {}", event.0));
    let report = ledger.report(Violation::ForeignHandle, name, None, (0, 0), note);
    Err(DriverError::with_detail(name.call, DriverError::INVALID_HANDLE, report))
}

/// Records an event on a stream.
pub(super) fn record(
    held: &mut Held,
    ledger: &Ledger,
    event: RawEvent,
    stream: RawStream,
) -> DriverResult<()> {
    let call = "cuEventRecord";
    let id = held.stream(ledger, call, stream)?;
    let name = OpName::on(call, id);
    recordable(held, ledger, name, event)?;
    if let Some(capture) = capture::current(held, id, call)? {
        let point = capture::keep(held, capture, id, name, Step::Record);
        let event = held.event(ledger, name, event)?;
        (event.record, event.captured) = (None, Some(point));
        return Ok(());
    }
    let record = mark(held, ledger.device, id, name);
    let event = held.event(ledger, name, event)?;
    (event.record, event.captured) = (Some(record), None);
    Ok(())
}

/// Enqueues a point of a stream that others can follow.
pub(super) fn mark(held: &mut Held, device: u64, id: u64, name: OpName) -> Record {
    let mark = Arc::new(Mark::new(device, 1));
    let tick = held.tick(id);
    let record = Record { mark: Arc::clone(&mark), clock: Arc::new(held.clock_of(id)) };
    let work = Work::Record(mark);
    held.push(id, Op { name, tick, work, holds: Vec::new(), watched: None });
    record
}

/// Puts a stream's next operations after a point of another.
pub(super) fn follow(held: &mut Held, id: u64, name: OpName, record: Record) {
    held.order_after(id, &record.clock);
    if !record.mark.is_passed() {
        let tick = held.tick(id);
        let work = Work::Wait(record.mark);
        held.push(id, Op { name, tick, work, holds: Vec::new(), watched: None });
    }
}

/// Everything enqueued on the device so far.
fn clock_of_device(state: &State, device: u64) -> Clock {
    let mut clock = Clock::default();
    for &id in state.devices.get(&device).map_or(&[][..], |device| &device.streams) {
        clock.join(&state.clock_of(id));
    }
    clock
}

/// Records an event that covers every stream of the device.
pub(super) fn record_all(held: &mut Held, ledger: &Ledger, event: RawEvent) -> DriverResult<()> {
    let call = "cuCtxRecordEvent";
    if !ledger.config.context_events {
        return Err(DriverError::new(call, DriverError::NOT_SUPPORTED));
    }
    recordable(held, ledger, OpName::call(call), event)?;
    capture::forbid_all(held, ledger.device, call)?;
    let clock = Arc::new(clock_of_device(held, ledger.device));
    let streams = held.devices.get(&ledger.device).map(|device| device.streams.clone());
    let pending: Vec<u64> = streams
        .into_iter()
        .flatten()
        .filter(|id| held.streams.get(id).is_some_and(|stream| !stream.is_idle()))
        .collect();
    let mark = Arc::new(Mark::new(ledger.device, pending.len()));
    for id in pending {
        let (name, tick) = (OpName::on(call, id), held.tick(id));
        let work = Work::Record(Arc::clone(&mark));
        held.push(id, Op { name, tick, work, holds: Vec::new(), watched: None });
    }
    let event = held.event(ledger, OpName::call(call), event)?;
    (event.record, event.captured) = (Some(Record { mark, clock }), None);
    Ok(())
}

/// Makes a stream wait for an event's last record, of any device.
pub(super) fn wait(
    held: &mut Held,
    ledger: &Ledger,
    stream: RawStream,
    event: RawEvent,
) -> DriverResult<()> {
    let call = "cuStreamWaitEvent";
    let id = held.stream(ledger, call, stream)?;
    let name = OpName::on(call, id);
    let event = held.event(ledger, name, event)?;
    let (record, captured) = (event.record.clone(), event.captured);
    match (capture::current(held, id, call)?, captured) {
        (Some(own), Some(point)) if point.capture == own => {
            capture::keep(held, own, id, name, Step::Wait(point.index));
        }
        (Some(own), Some(point)) if capture::is_active(held, point.capture) => {
            capture::invalidate(held, own);
            capture::invalidate(held, point.capture);
            return Err(DriverError::new(call, capture::MERGE));
        }
        (Some(own), captured) => {
            // A wait for what was never recorded orders nothing, in a capture too.
            if captured.is_some() || record.is_some() {
                capture::invalidate(held, own);
                return Err(DriverError::new(call, capture::ISOLATION));
            }
        }
        (None, Some(point)) if capture::is_active(held, point.capture) => {
            // As on a GPU: who waits for a point of a capture joins it.
            capture::join(held, id, point.capture);
            capture::keep(held, point.capture, id, name, Step::Wait(point.index));
        }
        (None, Some(_)) => return Err(DriverError::new(call, DriverError::INVALID_VALUE)),
        (None, None) => {
            if let Some(record) = record {
                follow(held, id, name, record);
            }
        }
    }
    Ok(())
}

/// Whether the device has passed an event's last record.
pub(super) fn query(held: &mut Held, ledger: &Ledger, event: RawEvent) -> DriverResult<bool> {
    let call = "cuEventQuery";
    let found = held.event(ledger, OpName::call(call), event)?;
    let (record, captured) = (found.record.clone(), found.captured);
    capture::forbid_event(held, captured, call)?;
    schedule::pulse(held, ledger.device);
    ledger.alive(call)?;
    let Some(record) = record else { return Ok(true) };
    if record.mark.is_passed() {
        owner_alive(held, record.mark.device, call)?;
        held.observe(&record.clock);
        return Ok(true);
    }
    if record.mark.device != ledger.device {
        schedule::pulse(held, record.mark.device);
    }
    Ok(false)
}

/// A mark of a device whose context is lost was passed without its work.
fn owner_alive(state: &State, device: u64, call: &'static str) -> DriverResult<()> {
    state.devices.get(&device).map_or(Ok(()), |device| device.ledger.alive(call))
}

/// Waits until the device has passed an event's last record.
pub(super) fn synchronize_event(
    held: &mut Held,
    ledger: &Ledger,
    event: RawEvent,
) -> DriverResult<()> {
    let call = "cuEventSynchronize";
    let found = held.event(ledger, OpName::call(call), event)?;
    let (record, captured) = (found.record.clone(), found.captured);
    capture::forbid_event(held, captured, call)?;
    if let Some(record) = record {
        let device = record.mark.device;
        finish(held, device, call, |_| record.mark.is_passed())?;
        if device_is_lost(held, device) {
            return ledger.verdict(call).and_then(|()| owner_alive(held, device, call));
        }
        held.observe(&record.clock);
    }
    ledger.verdict(call)
}

fn device_is_lost(state: &State, device: u64) -> bool {
    owner_alive(state, device, "").is_err()
}

fn finish(
    held: &mut Held,
    device: u64,
    call: &'static str,
    done: impl Fn(&State) -> bool,
) -> DriverResult<()> {
    if schedule::drive(held, device, done) { Ok(()) } else { Err(DriverError::new(call, UNKNOWN)) }
}

/// Waits until a stream has passed everything enqueued so far.
pub(super) fn synchronize_stream(
    held: &mut Held,
    ledger: &Ledger,
    stream: RawStream,
) -> DriverResult<()> {
    let call = "cuStreamSynchronize";
    let id = held.stream(ledger, call, stream)?;
    capture::forbid(held, id, call)?;
    let clock = held.clock_of(id);
    let tick = held.streams.get(&id).map_or(0, |stream| stream.tick);
    finish(held, ledger.device, call, |state| has_passed(state, id, tick))?;
    if !device_is_lost(held, ledger.device) {
        held.observe(&clock);
    }
    ledger.verdict(call)
}

fn has_passed(state: &State, id: u64, tick: u64) -> bool {
    state.streams.get(&id).is_none_or(|stream| stream.passed >= tick)
}

/// Waits until every stream of the device has passed everything enqueued so far.
pub(super) fn synchronize_device(held: &mut Held, ledger: &Ledger) -> DriverResult<()> {
    let call = "cuCtxSynchronize";
    capture::forbid_all(held, ledger.device, call)?;
    let clock = clock_of_device(held, ledger.device);
    let mut targets = Vec::new();
    for &id in held.devices.get(&ledger.device).map_or(&[][..], |device| &device.streams) {
        targets.push((id, held.streams.get(&id).map_or(0, |stream| stream.tick)));
    }
    finish(held, ledger.device, call, |state| {
        targets.iter().all(|&(id, tick)| has_passed(state, id, tick))
    })?;
    if !device_is_lost(held, ledger.device) {
        held.observe(&clock);
    }
    ledger.verdict(call)
}
