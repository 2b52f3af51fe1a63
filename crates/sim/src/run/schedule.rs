//! The scheduler, which decides which ready operation runs next and which call waits for whom.
//!
//! - INV-1: one operation of a device runs at a time, but for functions of the program, and no two operations that share a block,
//!   whatever their devices. So even a reported race has a defined outcome.
//! - INV-2: operations run without the lock of the state, so a host form may take its time. A call to the device from
//!   inside one is refused, since it could wait for itself.
//! - INV-3: every wait but for the ranks of a communicator is for a record that was enqueued before it. The order of the calls is thus one
//!   in which everything can run, and a queue that is not empty can always make progress.

use super::execute::{OpOutcome, execute};
use crate::check::{ReportedMemory, Violation};
use crate::state::{
    OpRange, OpWork, RunningOp, SimContext, SimFence, SimOp, SimState, SimStream, StateGuard,
    lock_state, notify_changed, wait_changed, wait_changed_for,
};
use aquifer_driver::{HostFunction, StreamOutcome, run_in_host_function};
use aquifer_sync::Arc;
use aquifer_sync::thread_id;
use aquifer_sync::trusted::WaitMutexGuard;
use std::time::{Duration, Instant};

/// Event queries in a row that may run nothing.
const IDLE_QUERIES: u32 = 3;

/// How long the scheduler waits for a function of the program before it goes on with other streams.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a wait for another rank sleeps before it looks at the clock.
const ROUND: Duration = Duration::from_millis(20);

/// The result of a step of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// An operation ran.
    Ran,
    /// Another thread is running operations, so the caller waits for a change of the state.
    Busy,
    /// No operation can run until another rank of a communicator calls.
    Awaits,
    /// No operation can run.
    Idle,
}

/// Whether the first operation of a queue can run.
enum QueueHead {
    Ready,
    /// It waits for records of other streams, or for ranks.
    Waits(Arc<SimFence>),
    /// A running operation shares one of its blocks.
    Blocked,
}

fn queue_head(state: &SimState, id: u64) -> QueueHead {
    let Some(stream) = state.streams.get(&id) else { return QueueHead::Blocked };
    let Some(op) = stream.queue.front() else { return QueueHead::Blocked };
    if stream.busy || stream.stalled {
        return QueueHead::Blocked;
    }
    if let OpWork::Wait(fence) = &op.work
        && !fence.is_signaled()
    {
        return QueueHead::Waits(Arc::clone(fence));
    }
    let mut running = state.running.iter().flat_map(|running| &running.memory);
    if running.any(|&(id, _)| op.ranges.iter().any(|range| range.memory_id() == id)) {
        return QueueHead::Blocked;
    }
    QueueHead::Ready
}

/// Runs one ready operation of `device`, or of a device that it waits for. Waits if another thread is at it. `false` if
/// there is nothing to run.
pub(crate) fn advance(state: &mut StateGuard, device: u64) -> bool {
    match step(state, device, false, &mut Vec::new()) {
        Progress::Ran => {}
        Progress::Busy if state.cliques.is_empty() => wait_changed(state),
        Progress::Busy | Progress::Awaits => wait_for_ranks(state),
        Progress::Idle => return false,
    }
    true
}

/// Waits until the state has changed, and gives up on ranks that do not come.
fn wait_for_ranks(state: &mut StateGuard) {
    wait_changed_for(state, ROUND);
    give_up_on_ranks(state);
}

fn give_up_on_ranks(state: &mut StateGuard) {
    for name in state.cliques.expire() {
        let stream = name.stream.and_then(|stream| state.streams.get(&stream));
        let device = stream.and_then(|stream| state.devices.get(&stream.device));
        if let Some(device) = device {
            let note =
                "all ranks make each call; one thread gives those of several ranks in one Group";
            let (memory, note) = (ReportedMemory::NONE, Some(String::from(note)));
            device.context.report(Violation::LostRank, name, None, memory, note);
        }
        notify_changed();
    }
}

fn step(
    state: &mut StateGuard,
    device: u64,
    is_background: bool,
    visited: &mut Vec<u64>,
) -> Progress {
    visited.push(device);
    // Asked first: a device that was dropped inside of a host form still runs that one. A function of the program holds up
    // its stream alone.
    if state.running.iter().any(|running| running.device == device && running.thread.is_some()) {
        return Progress::Busy;
    }
    let Some(own) = state.devices.get(&device) else { return Progress::Idle };
    let mut busy = state.running.iter().any(|running| running.device == device);
    if own.background && !is_background {
        return if own.active.is_empty() && !busy { Progress::Idle } else { Progress::Busy };
    }
    let (mut ready, mut others) = (Vec::new(), Vec::new());
    for &id in &own.active {
        match queue_head(state, id) {
            QueueHead::Ready => ready.push(id),
            QueueHead::Waits(fence) => others.push(fence),
            QueueHead::Blocked => busy = true,
        }
    }
    if let Some(own) = state.devices.get_mut(&device)
        && let Some(&id) = ready.get(own.random.below(ready.len()))
    {
        run(state, id);
        return Progress::Ran;
    }
    let mut awaits = false;
    for fence in others {
        awaits |= fence.is_of_ranks();
        for other in fence.devices() {
            if visited.contains(&other) {
                continue;
            }
            match step(state, other, false, visited) {
                Progress::Ran => return Progress::Ran,
                Progress::Busy => busy = true,
                Progress::Awaits => awaits = true,
                Progress::Idle => {}
            }
        }
    }
    match (busy, awaits) {
        (true, _) => Progress::Busy,
        (_, true) => Progress::Awaits,
        _ => Progress::Idle,
    }
}

/// Runs the first operation of a queue. It is ready.
fn run(state: &mut StateGuard, id: u64) {
    let Some(stream) = state.streams.get_mut(&id) else { return };
    let Some(op) = stream.queue.pop_front() else { return };
    let (device, emptied) = (stream.device, stream.queue.is_empty());
    stream.busy = op.work.runs_unlocked();
    if emptied && let Some(device) = state.devices.get_mut(&device) {
        device.active.retain(|&other| other != id);
    }
    let mut outcome = OpOutcome::default();
    if let OpWork::HostFunction { function, before } = &op.work {
        // What the function tells another thread is behind it.
        state.observe(before);
        let function = Arc::clone(function);
        return begin_host_function(state, device, id, &op, function);
    }
    if op.work.runs_unlocked() {
        let thread = Some(thread_id::assign());
        let memory = op.ranges.iter().map(|range| (range.memory_id(), range.writes)).collect();
        state.running.push(RunningOp { device, stream: id, thread, memory });
        // SAFETY: INV-1: `queue_head` saw no running operation that shares a block, and `running` now
        // keeps others from starting. The caller of the enqueueing call answers for its contract.
        outcome = WaitMutexGuard::unlocked(state, || unsafe { execute(&op) });
        for range in op.ranges.iter().filter(|range| range.writes && range.host_visible) {
            range.backing.after_write(range.pointer as usize, range.bytes);
        }
    }
    end(state, device, id, &op, outcome);
    drop(op);
}

/// Has a function of the program called on a thread of its own, as a driver does, which ends the operation. So the streams
/// that do not wait for it go on, whatever it waits for. Most functions return at once, and are waited for: so that a
/// schedule is the same each time.
fn begin_host_function(
    state: &mut StateGuard,
    device: u64,
    id: u64,
    op: &SimOp,
    function: Arc<dyn HostFunction>,
) {
    state.running.push(RunningOp { device, stream: id, thread: None, memory: Vec::new() });
    let ended = SimOp { tick: op.tick, ..SimOp::new(op.name, OpWork::Nothing) };
    let own = Arc::clone(&function);
    let body = move || {
        run_in_host_function(own, StreamOutcome::Done);
        end(&mut lock_state(), device, id, &ended, OpOutcome::default());
    };
    if call_on_own_thread(body).is_err() {
        // The system has no thread: on this one, which waits.
        WaitMutexGuard::unlocked(state, || run_in_host_function(function, StreamOutcome::Done));
        return end(state, device, id, op, OpOutcome::default());
    }
    let until = Instant::now() + PATIENCE;
    while state.running.iter().any(|running| running.stream == id) {
        match until.checked_duration_since(Instant::now()) {
            Some(left) => wait_changed_for(state, left),
            None => return,
        }
    }
}

fn call_on_own_thread(body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(String::from("aquifer host function"));
    thread.spawn(body).map(drop)
}

/// Has the functions dropped that wait behind a running one on a device that is removed.
pub(crate) fn drop_waiting_functions(state: &mut SimState, device: u64) {
    for stream in state.streams.values_mut().filter(|stream| stream.device == device) {
        stream.queue.retain(|op| match &op.work {
            OpWork::HostFunction { function, .. } => {
                drop_host_function(function);
                false
            }
            _ => true,
        });
    }
}

/// Has a function of the program dropped that will not be called. The caller has the lock of the state.
fn drop_host_function(function: &Arc<dyn HostFunction>) {
    let own = Arc::clone(function);
    let dropped = call_on_own_thread(move || run_in_host_function(own, StreamOutcome::Failed));
    if dropped.is_err() {
        // Leaked where the system has no thread: its drop is code of the program's.
        std::mem::forget(Arc::clone(function));
    }
}

/// Ends an operation of a stream that has run.
fn end(state: &mut SimState, device: u64, id: u64, op: &SimOp, outcome: OpOutcome) {
    state.running.retain(|running| running.stream != id);
    retire(state, device, op);
    if let Some(stream) = state.streams.get_mut(&id) {
        stream.busy = false;
        // A queue that was emptied meanwhile has passed the discarded operations, too.
        stream.passed = if stream.queue.is_empty() { stream.tick } else { op.tick };
    }
    apply_outcome(state, device, op, outcome);
    state.prune_stream(id);
    notify_changed();
}

/// The effects of an operation that do not depend on whether it ran or was discarded.
fn retire(state: &mut SimState, device: u64, op: &SimOp) {
    match &op.work {
        OpWork::Record(fence) => fence.pass(),
        OpWork::Bring { exchange, .. } => exchange.fence.pass(),
        OpWork::Free { bytes, pool } => {
            if let Some(pool) = state.pools.get_mut(pool) {
                pool.deallocate(*bytes);
            }
            if let Some(device) = state.devices.get_mut(&device) {
                device.used = device.used.saturating_sub(*bytes);
                device.pending_frees = device.pending_frees.saturating_sub(1);
            }
        }
        _ => {}
    }
}

/// Reports what an operation found, and loses the context of a kernel that failed.
fn apply_outcome(state: &mut SimState, device: u64, op: &SimOp, outcome: OpOutcome) {
    if let Some(own) = state.devices.get(&device) {
        if outcome.host_wrote {
            let range = op.watchpoint.as_ref().map_or((0, 0), |watchpoint| watchpoint.range);
            let reported = |range: &OpRange| state.blocks.reported(range.block + range.offset, 0);
            let vector = op.ranges.iter().find_map(|range| reported(range).vector);
            let memory = ReportedMemory::new(range, vector);
            own.context.report(Violation::HostWroteDuringCopy, op.name, None, memory, None);
        }
        if outcome.fault.is_some() {
            let kind = Violation::KernelFault;
            let memory = ReportedMemory::NONE;
            let fault = own.context.report(kind, op.name, None, memory, outcome.fault);
            own.context.lose_by(fault);
        }
    }
    if is_over(state, device) {
        discard_queues(state, device);
    }
}

/// Whether no operation in a device's queues will run, since it was dropped or its context is lost.
fn is_over(state: &SimState, device: u64) -> bool {
    state.devices.get(&device).is_none_or(|own| own.context.is_lost())
}

/// Whether no operation of a device runs, or will run without further calls. A host form that the
/// calling thread is inside of does not count, and no function of the program, which uses no memory of the device's.
pub(crate) fn has_stopped(state: &SimState, device: u64) -> bool {
    let this_thread = thread_id::assign();
    let elsewhere = |running: &RunningOp| {
        running.device == device && running.thread.is_some_and(|thread| thread != this_thread)
    };
    let queued = state.devices.get(&device).is_some_and(|own| !own.active.is_empty());
    !state.running.iter().any(elsewhere) && (!queued || is_over(state, device))
}

/// Discards the queues of a device that was dropped or lost, and invalidates what its streams capture. A stream with a
/// running operation does so when that has run, so that waits for its later records do not return before.
pub(crate) fn discard_queues(state: &mut SimState, device: u64) {
    if let Some(own) = state.devices.get_mut(&device) {
        own.active.clear();
    }
    // First, so that no rank takes what was never brought for a result.
    state.cliques.lose_device(device);
    for capture in state.captures.values_mut().filter(|capture| capture.is_on(device)) {
        capture.valid = false;
    }
    let idle = |(_, stream): &(&u64, &SimStream)| stream.device == device && !stream.busy;
    let streams: Vec<u64> = state.streams.iter().filter(idle).map(|(&id, _)| id).collect();
    for id in streams {
        let Some(stream) = state.streams.get_mut(&id) else { continue };
        stream.passed = stream.tick;
        for op in std::mem::take(&mut stream.queue) {
            if let Some(watchpoint) = &op.watchpoint {
                watchpoint.backing.unwatch(watchpoint.id, false);
            }
            if let OpWork::HostFunction { function, .. } = &op.work {
                drop_host_function(function);
            }
            retire(state, device, &op);
        }
    }
    notify_changed();
}

/// Runs the queues until `done`. `false` if they end before, which INV-3 excludes.
pub(crate) fn run_until(
    state: &mut StateGuard,
    device: u64,
    done: impl Fn(&SimState) -> bool,
) -> bool {
    while !done(state) {
        if !advance(state, device) {
            return false;
        }
    }
    true
}

/// Runs a few operations, as an event query lets happen.
pub(crate) fn run_some(state: &mut StateGuard, device: u64) {
    // A program that asks again and again waits, too.
    give_up_on_ranks(state);
    let Some(own) = state.devices.get_mut(&device) else { return };
    if own.background {
        return;
    }
    let mut steps = own.random.below(4);
    own.idle_queries = if steps == 0 { own.idle_queries + 1 } else { 0 };
    if own.idle_queries > IDLE_QUERIES {
        (steps, own.idle_queries) = (1, 0);
    }
    for _ in 0..steps {
        if step(state, device, false, &mut Vec::new()) != Progress::Ran {
            return;
        }
    }
}

/// The loop of a device's background thread, until the device is gone.
pub(crate) fn run_background(context: &SimContext) {
    let mut state = lock_state();
    while state.devices.contains_key(&context.id) {
        match step(&mut state, context.id, true, &mut Vec::new()) {
            Progress::Ran => WaitMutexGuard::unlocked(&mut state, || context.emit_reports()),
            Progress::Busy | Progress::Awaits | Progress::Idle => wait_changed(&mut state),
        }
    }
}
