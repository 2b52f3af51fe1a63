//! The process-wide state: all simulated devices, their streams, events and blocks.
//!
//! One world, since an event of one device may be waited for on another and page-locked memory
//! belongs to all of them. What a schedule depends on, the generator and the list of queues with
//! work, is kept with each device, so that devices of other tests change nothing.

use super::capture::Capture;
use super::clock::{Clock, Stamp};
use super::graph::Graph;
use super::ledger::Ledger;
use super::pool::Pool;
use super::queue::{Event, Op, Stream, Work};
use super::random::Random;
use super::report::{OpName, Violation};
use super::table::Table;
use crate::backend::{DriverResult, RawEvent, RawStream};
use crate::error::DriverError;
use crate::sync::trusted::{Condvar, Mutex, MutexGuard, unique};
use crate::sync::{Arc, LazyLock};
use std::collections::HashMap;
use std::thread::ThreadId;

/// `CUDA_ERROR_NOT_PERMITTED`: the call came from inside a host form.
pub(super) const NOT_PERMITTED: u32 = 800;
/// `CUDA_ERROR_UNKNOWN`: something that cannot be.
pub(super) const UNKNOWN: u32 = 999;

/// The state and the signal that an operation has run or was enqueued.
pub(super) struct World {
    pub(super) state: Mutex<State>,
    pub(super) turn: Condvar,
}

pub(super) static WORLD: LazyLock<World> =
    LazyLock::new(|| World { state: Mutex::new(State::default()), turn: Condvar::new() });

pub(super) type Held = MutexGuard<'static, State>;

/// Locks the world.
pub(super) fn world() -> Held {
    WORLD.state.lock()
}

/// An operation that is being run without the lock.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) device: u64,
    pub(super) thread: ThreadId,
    /// The blocks that it touches, and whether it writes.
    pub(super) blocks: Vec<(usize, bool)>,
}

/// One device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) ledger: Arc<Ledger>,
    pub(super) random: Random,
    /// A thread of the device runs the queues.
    pub(super) background: bool,
    /// All its streams, in the order of creation.
    pub(super) streams: Vec<u64>,
    /// Its streams with something in the queue, in an order that depends on the calls alone.
    pub(super) active: Vec<u64>,
    pub(super) legacy: u64,
    /// Bytes taken; those of a free in stream order until it has run.
    pub(super) used: u64,
    pub(super) pending_frees: usize,
    /// Event queries in a row that ran nothing.
    pub(super) dry: u32,
    /// The device's own pool, once somebody asked for it.
    pub(super) default_pool: Option<u64>,
    pub(super) next_address: u64,
    pub(super) last_address: u64,
}

/// Everything behind the lock.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) devices: HashMap<u64, Device>,
    pub(super) streams: HashMap<u64, Stream>,
    pub(super) events: HashMap<u64, Event>,
    pub(super) table: Table,
    pub(super) captures: HashMap<u64, Capture>,
    pub(super) graphs: HashMap<u64, Graph>,
    /// Memory pools that are not destroyed.
    pub(super) pools: HashMap<u64, Pool>,
    pub(super) threads: HashMap<(u64, ThreadId), u64>,
    pub(super) running: Vec<Running>,
}

impl State {
    /// A handle or number that is never used again in this process.
    pub(super) fn handle(&mut self) -> u64 {
        unique()
    }

    pub(super) fn add_stream(&mut self, device: u64) -> u64 {
        let id = self.handle();
        self.streams.insert(id, Stream::new(device));
        if let Some(device) = self.devices.get_mut(&device) {
            device.streams.push(id);
        }
        id
    }

    /// The calling thread is running an operation: it may not call the device.
    pub(super) fn is_running_here(&self) -> bool {
        if self.running.is_empty() {
            return false;
        }
        let me = std::thread::current().id();
        self.running.iter().any(|running| running.thread == me)
    }

    /// Checks a stream that a call of `ledger`'s device names.
    pub(super) fn stream(
        &self,
        ledger: &Ledger,
        call: &'static str,
        raw: RawStream,
    ) -> DriverResult<u64> {
        let kind = match self.streams.get(&raw.0) {
            Some(stream) if stream.device != ledger.device => Violation::ForeignHandle,
            Some(stream) if !stream.destroyed => return Ok(raw.0),
            _ => Violation::DestroyedStream,
        };
        let report = ledger.report(kind, OpName::on(call, raw.0), None, (0, 0), None);
        Err(DriverError::with_detail(call, DriverError::INVALID_HANDLE, report))
    }

    /// Checks an event that a call of `ledger`'s device names.
    pub(super) fn event(
        &mut self,
        ledger: &Ledger,
        name: OpName,
        raw: RawEvent,
    ) -> DriverResult<&mut Event> {
        match self.events.get_mut(&raw.0) {
            Some(event) => Ok(event),
            None => {
                let note = Some(format!("event {}", raw.0));
                let kind = Violation::DestroyedEvent;
                let report = ledger.report(kind, name, None, (0, 0), note);
                Err(DriverError::with_detail(name.call, DriverError::INVALID_HANDLE, report))
            }
        }
    }

    /// The host has seen an access complete. Streams that are gone were seen to their end.
    pub(super) fn is_seen(&self, stamp: &Stamp) -> bool {
        is_seen(&self.streams, stamp.stream, stamp.tick)
    }

    /// Everything before the next operation of a stream, the stream itself included.
    pub(super) fn clock_of(&self, id: u64) -> Clock {
        let Some(stream) = self.streams.get(&id) else { return Clock::default() };
        let mut clock = stream.clock.clone();
        clock.raise(id, stream.tick);
        clock.forget(|stream, tick| is_seen(&self.streams, stream, tick));
        clock
    }

    /// The next operations of a stream come after everything in `clock`.
    pub(super) fn order_after(&mut self, id: u64, clock: &Clock) {
        let Some(mut own) =
            self.streams.get_mut(&id).map(|stream| std::mem::take(&mut stream.clock))
        else {
            return;
        };
        own.join(clock);
        own.forget(|stream, tick| is_seen(&self.streams, stream, tick));
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.clock = own;
        }
    }

    /// The host has seen everything in `clock` complete.
    pub(super) fn observe(&mut self, clock: &Clock) {
        for (id, tick) in clock.entries() {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.seen = stream.seen.max(tick);
            }
            self.prune(id);
        }
    }

    /// Forgets a destroyed stream once the host has seen all of its work.
    pub(super) fn prune(&mut self, id: u64) {
        let Some(stream) = self.streams.get(&id) else { return };
        if stream.destroyed && stream.is_idle() && stream.seen >= stream.tick {
            let device = stream.device;
            self.streams.remove(&id);
            if let Some(device) = self.devices.get_mut(&device) {
                device.streams.retain(|&other| other != id);
            }
        }
    }

    /// Puts an operation at the end of a stream's queue. Its tick is the stream's latest.
    pub(super) fn push(&mut self, id: u64, op: Op) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(device) = self.devices.get_mut(&stream.device) else { return };
        if stream.queue.is_empty() {
            device.active.push(id);
        }
        if matches!(op.work, Work::Free { .. }) {
            device.pending_frees += 1;
        }
        stream.queue.push_back(op);
        if device.background {
            WORLD.turn.notify_all();
        }
    }

    /// The next tick of a stream, for one operation that is pushed before the lock is let go.
    pub(super) fn tick(&mut self, id: u64) -> u64 {
        match self.streams.get_mut(&id) {
            Some(stream) => {
                stream.tick += 1;
                stream.tick
            }
            None => 0,
        }
    }
}

/// Whether the host has seen a stream pass `tick`.
pub(super) fn is_seen(streams: &HashMap<u64, Stream>, stream: u64, tick: u64) -> bool {
    streams.get(&stream).is_none_or(|stream| stream.seen >= tick)
}
