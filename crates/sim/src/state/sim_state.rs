//! All simulated devices, their streams, events and blocks, behind the one lock of the process.
//!
//! There is one lock, since an event of one device may be waited for on another, and page-locked memory belongs to all
//! devices. A schedule depends on the generator and on the list of active queues. Each device has its own, so that the
//! devices of other tests change nothing.

use super::blocks::BlockTable;
use super::clique::Cliques;
use super::context::SimContext;
use super::fence::SimFence;
use super::graph::{EventRecord, SimCapture, SimEvent, SimGraph};
use super::op::{OpWork, SimOp};
use super::pool::SimPool;
use super::random::Random;
use super::stream::SimStream;
use super::virtual_memory::VirtualMemory;
use crate::check::{OpName, VectorClock};
use aquifer_driver::DefaultPoolEnd;
use aquifer_driver::RawStream;
use aquifer_sync::thread_id;
use aquifer_sync::trusted::{Condvar, WaitMutex, WaitMutexGuard, unique};
use aquifer_sync::{Arc, LazyLock};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

static STATE: LazyLock<WaitMutex<SimState>> = LazyLock::new(WaitMutex::default);

/// Signaled when an operation has run, was discarded, or was enqueued for a background thread.
static CHANGED: Condvar = Condvar::new();

pub(crate) type StateGuard = WaitMutexGuard<'static, SimState>;

pub(crate) fn lock_state() -> StateGuard {
    STATE.lock()
}

/// Releases the lock until the state has changed.
pub(crate) fn wait_changed(state: &mut StateGuard) {
    CHANGED.wait(state);
}

/// Releases the lock until the state has changed, for `limit` at most.
pub(crate) fn wait_changed_for(state: &mut StateGuard, limit: Duration) {
    CHANGED.wait_for(state, limit);
}

pub(crate) fn notify_changed() {
    CHANGED.notify_all();
}

/// An operation that runs without the lock.
#[derive(Debug)]
pub(crate) struct RunningOp {
    pub(crate) device: u64,
    pub(crate) stream: u64,
    /// The thread that runs it, unless it is a function of the program, which has a thread of its own.
    pub(crate) thread: Option<u64>,
    /// The memory that it touches, and whether it writes there.
    pub(crate) memory: Vec<(usize, bool)>,
}

/// One device.
#[derive(Debug)]
pub(crate) struct SimDevice {
    pub(crate) context: Arc<SimContext>,
    pub(crate) random: Random,
    /// A thread of the device runs the queues.
    pub(crate) background: bool,
    /// All its streams, in the order of creation.
    pub(crate) streams: Vec<u64>,
    /// A stream was made behind the crate's back, or is a thread's own.
    pub(crate) has_foreign_streams: bool,
    /// Its streams with operations in the queue, in an order that depends on the calls alone.
    pub(crate) active: Vec<u64>,
    /// Bytes of its capacity that are allocated. A free in stream order counts once it has run.
    pub(crate) used: u64,
    /// Bytes of managed memory beside those, which may be more than it has.
    pub(crate) managed: u64,
    /// Frees in stream order that have not run.
    pub(crate) pending_frees: usize,
    /// Event queries in a row that ran nothing.
    pub(crate) idle_queries: u32,
    pub(crate) default_pool: Option<u64>,
    pub(crate) next_address: u64,
    pub(crate) last_address: u64,
}

impl SimDevice {
    fn new(context: Arc<SimContext>, background: bool) -> Self {
        Self {
            random: Random::new(context.config.seed),
            context,
            background,
            streams: Vec::new(),
            has_foreign_streams: false,
            active: Vec::new(),
            used: 0,
            managed: 0,
            pending_frees: 0,
            idle_queries: 0,
            default_pool: None,
            next_address: 0,
            last_address: 0,
        }
    }
}

/// Everything behind the lock, by handle.
#[derive(Debug, Default)]
pub(crate) struct SimState {
    pub(crate) devices: HashMap<u64, SimDevice>,
    pub(crate) streams: HashMap<u64, SimStream>,
    /// The streams behind handles that were another stream's before. Any other handle is its stream's key.
    pub(crate) behind_used_handles: HashMap<u64, u64>,
    /// Handles that streams of other libraries have or had.
    pub(crate) foreign_handles: HashSet<u64>,
    pub(crate) events: HashMap<u64, SimEvent>,
    pub(crate) blocks: BlockTable,
    pub(crate) captures: HashMap<u64, SimCapture>,
    pub(crate) graphs: HashMap<u64, SimGraph>,
    pub(crate) pools: HashMap<u64, SimPool>,
    /// Pools that were imported, with the device and the pool that each stands for.
    pub(crate) imported_pools: HashMap<u64, (u64, u64)>,
    /// The default stream of each thread on each device.
    pub(crate) thread_streams: HashMap<(u64, u64), u64>,
    pub(crate) running: Vec<RunningOp>,
    pub(crate) cliques: Cliques,
    pub(crate) virtual_memory: VirtualMemory,
}

impl SimState {
    /// Adds a device and its legacy stream.
    pub(crate) fn add_device(&mut self, context: Arc<SimContext>, background: bool) {
        let (id, legacy) = (context.id, context.legacy_stream);
        self.devices.insert(id, SimDevice::new(context, background));
        self.insert_stream(legacy, id);
    }

    pub(crate) fn add_stream(&mut self, device: u64) -> u64 {
        let id = unique();
        self.insert_stream(id, device);
        id
    }

    /// The key of the stream behind a handle.
    pub(crate) fn stream_behind(&self, raw: RawStream) -> u64 {
        self.behind_used_handles.get(&raw.0).copied().unwrap_or(raw.0)
    }

    pub(crate) fn note_foreign_stream(&mut self, device: u64) {
        if let Some(device) = self.devices.get_mut(&device) {
            device.has_foreign_streams = true;
        }
    }

    /// Holds up one stream of a device or all, or lets them go on. `false` if there is none.
    pub(crate) fn stall_streams(&mut self, device: u64, only: Option<u64>, stalled: bool) -> bool {
        let mut any = false;
        for (&id, stream) in &mut self.streams {
            if stream.device == device && only.is_none_or(|only| only == id) {
                stream.stalled = stalled;
                any = true;
            }
        }
        any
    }

    fn insert_stream(&mut self, id: u64, device: u64) {
        self.streams.insert(id, SimStream::new(device));
        if let Some(device) = self.devices.get_mut(&device) {
            device.streams.push(id);
        }
    }

    /// Removes a device that is closed and all that belongs to it, its graphs' branches on other
    /// devices included. Memory that the host may have pointers to is leaked.
    pub(crate) fn remove_device(&mut self, id: u64) {
        self.devices.remove(&id);
        self.streams.retain(|_, stream| stream.device != id);
        self.events.retain(|_, event| event.device != id);
        self.pools.retain(|_, pool| pool.device != id);
        self.imported_pools.retain(|_, (device, _)| *device != id);
        self.thread_streams.retain(|(device, _), _| *device != id);
        self.captures.retain(|_, capture| capture.device != id);
        for stream in self.streams.values_mut() {
            stream.capture = stream.capture.filter(|id| self.captures.contains_key(id));
        }
        let graphs: Vec<SimGraph> =
            self.graphs.extract_if(|_, graph| graph.device == id).map(|(_, graph)| graph).collect();
        for branch in graphs.iter().flat_map(|graph| &graph.branches) {
            self.destroy_stream(*branch);
        }
        self.virtual_memory.remove_device(id);
        for block in self.blocks.remove_device(id).filter(|block| block.kind.is_host_visible()) {
            std::mem::forget(block.backing);
        }
    }

    /// The streams of a device, in the order of creation.
    pub(crate) fn streams_of(&self, device: u64) -> impl Iterator<Item = (u64, &SimStream)> {
        let ids = self.devices.get(&device).map_or(&[][..], |device| &device.streams);
        ids.iter().filter_map(|id| Some((*id, self.streams.get(id)?)))
    }

    /// Whether the calling thread is inside of an operation, from which it may not call the device.
    pub(crate) fn is_running_here(&self) -> bool {
        if self.running.is_empty() {
            return false;
        }
        let this_thread = thread_id::assign();
        self.running.iter().any(|running| running.thread == Some(this_thread))
    }

    /// Everything before the next operation of a stream, the stream itself included.
    pub(crate) fn clock_of(&self, id: u64) -> VectorClock {
        let Some(stream) = self.streams.get(&id) else { return VectorClock::default() };
        let mut clock = stream.clock.clone();
        clock.raise(id, stream.tick);
        clock.remove_seen(|stream, tick| is_seen(&self.streams, stream, tick));
        clock
    }

    /// Everything enqueued on a device so far.
    pub(crate) fn clock_of_device(&self, device: u64) -> VectorClock {
        let mut clock = VectorClock::default();
        for (id, _) in self.streams_of(device) {
            clock.join(&self.clock_of(id));
        }
        clock
    }

    /// Orders the next operations of a stream after everything in `clock`.
    pub(crate) fn order_after(&mut self, id: u64, clock: &VectorClock) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let mut own = std::mem::take(&mut stream.clock);
        own.join(clock);
        own.remove_seen(|stream, tick| is_seen(&self.streams, stream, tick));
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.clock = own;
        }
    }

    /// Notes that the host has seen everything in `clock` complete. At the end of a default pool, pools
    /// alone have.
    pub(crate) fn observe(&mut self, clock: &VectorClock) {
        if DefaultPoolEnd::is_here() {
            // A stream that is gone stays, or all of its work would count as seen.
            for (id, tick) in clock.entries() {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.seen_at_ends = stream.seen_at_ends.max(tick);
                }
            }
            return;
        }
        for (id, tick) in clock.entries() {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.seen = stream.seen.max(tick);
            }
            self.prune_stream(id);
        }
    }

    /// Notes that pools have seen everything in `clock` complete.
    pub(crate) fn observe_for_pools(&mut self, clock: &VectorClock) {
        for (id, tick) in clock.entries() {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.seen_by_pools = stream.seen_by_pools.max(tick);
            }
            self.prune_stream(id);
        }
    }

    pub(crate) fn destroy_stream(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.destroyed = true;
        }
        self.prune_stream(id);
    }

    /// Removes a destroyed stream once the host or a pool has seen all of its operations.
    pub(crate) fn prune_stream(&mut self, id: u64) {
        let Some(stream) = self.streams.get(&id) else { return };
        let seen = stream.seen.max(stream.seen_by_pools);
        if stream.destroyed && stream.is_idle() && seen >= stream.tick {
            let device = stream.device;
            self.streams.remove(&id);
            if let Some(device) = self.devices.get_mut(&device) {
                device.streams.retain(|&other| other != id);
            }
        }
    }

    /// Whether a stream has passed an operation.
    pub(crate) fn has_passed(&self, id: u64, tick: u64) -> bool {
        self.streams.get(&id).is_none_or(|stream| stream.passed >= tick)
    }

    pub(crate) fn last_tick(&self, id: u64) -> u64 {
        self.streams.get(&id).map_or(0, |stream| stream.tick)
    }

    /// Appends an operation to a stream's queue, with the stream's next tick, which it returns.
    pub(crate) fn push(&mut self, id: u64, mut op: SimOp) -> u64 {
        let Some(stream) = self.streams.get_mut(&id) else { return 0 };
        stream.tick += 1;
        op.tick = stream.tick;
        let Some(device) = self.devices.get_mut(&stream.device) else { return op.tick };
        if stream.queue.is_empty() {
            device.active.push(id);
        }
        if matches!(op.work, OpWork::Free { .. }) {
            device.pending_frees += 1;
        }
        stream.queue.push_back(op);
        if device.background {
            notify_changed();
        }
        stream.tick
    }

    /// Enqueues a point of a stream of `device` that others can wait for.
    pub(crate) fn record(&mut self, device: u64, id: u64, name: OpName) -> EventRecord {
        let fence = SimFence::new(device, 1);
        self.push(id, SimOp::new(name, OpWork::Record(Arc::clone(&fence))));
        EventRecord { fence, clock: Arc::new(self.clock_of(id)) }
    }

    /// Orders a stream's next operations after a recorded point.
    pub(crate) fn wait_for(&mut self, id: u64, name: OpName, record: EventRecord) {
        self.order_after(id, &record.clock);
        if !record.fence.is_signaled() {
            self.push(id, SimOp::new(name, OpWork::Wait(record.fence)));
        }
    }
}

/// Whether the host or a pool has seen a stream pass `tick`. A stream that is gone was seen to its end.
pub(crate) fn is_seen_by_pools(streams: &HashMap<u64, SimStream>, stream: u64, tick: u64) -> bool {
    let seen = |stream: &SimStream| stream.seen.max(stream.seen_by_pools).max(stream.seen_at_ends);
    streams.get(&stream).is_none_or(|stream| seen(stream) >= tick)
}

/// Whether the host has seen a stream pass `tick`. A stream that is gone was seen to its end.
pub(crate) fn is_seen(streams: &HashMap<u64, SimStream>, stream: u64, tick: u64) -> bool {
    streams.get(&stream).is_none_or(|stream| stream.seen >= tick)
}
