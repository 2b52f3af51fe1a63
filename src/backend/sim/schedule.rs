//! The scheduler: which ready operation runs next, and who waits for whom.
//!
//! One operation of a device runs at a time, and no two operations that share a block, whatever
//! their devices: even a race that was reported stays a defined one. Operations run without the
//! world's lock, so a host form may take its time; a call to the device from inside one is
//! refused, since it could wait for itself.
//!
//! Every wait is for a record that was enqueued before it, so the order of the calls is one in
//! which everything can run: a queue that is not empty can always make progress.

use super::execute::{Outcome, execute};
use super::ledger::Ledger;
use super::queue::{Op, Work};
use super::report::Violation;
use super::world::{Held, Running, State, WORLD, world};
use crate::error::DriverError;
use crate::sync::Arc;
use crate::sync::trusted::MutexGuard;

/// Queries in a row that may run nothing.
const DRY: u32 = 3;

/// What a step of the scheduler came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// An operation ran.
    Ran,
    /// Another thread is at it: wait for the signal.
    Busy,
    /// There is nothing to run.
    Idle,
}

/// Whether the first operation of a queue can run.
enum Head {
    Ready,
    /// It waits for a record on this device.
    Waits(u64),
    /// A running operation holds one of its blocks.
    Held,
}

fn head(state: &State, id: u64) -> Head {
    let Some(stream) = state.streams.get(&id) else { return Head::Held };
    let Some(op) = stream.queue.front() else { return Head::Held };
    if stream.busy {
        return Head::Held;
    }
    if let Work::Wait(mark) = &op.work
        && !mark.is_passed()
    {
        return Head::Waits(mark.device);
    }
    let mut running = state.running.iter().flat_map(|running| &running.blocks);
    if running.any(|&(block, _)| op.holds.iter().any(|hold| hold.block() == block)) {
        return Head::Held;
    }
    Head::Ready
}

/// Runs one ready operation of `device`, or of a device that it waits for.
pub(super) fn advance(held: &mut Held, device: u64) -> Progress {
    step(held, device, false, &mut Vec::new())
}

fn step(held: &mut Held, device: u64, worker: bool, visited: &mut Vec<u64>) -> Progress {
    visited.push(device);
    let Some(own) = held.devices.get(&device) else { return Progress::Idle };
    if held.running.iter().any(|running| running.device == device) {
        return Progress::Busy;
    }
    if own.background && !worker {
        return if own.active.is_empty() { Progress::Idle } else { Progress::Busy };
    }
    let (mut ready, mut others, mut busy) = (Vec::new(), Vec::new(), false);
    for &id in &own.active {
        match head(held, id) {
            Head::Ready => ready.push(id),
            Head::Waits(other) => others.push(other),
            Head::Held => busy = true,
        }
    }
    if let Some(own) = held.devices.get_mut(&device)
        && let Some(&id) = ready.get(own.random.below(ready.len()))
    {
        run(held, id);
        return Progress::Ran;
    }
    for other in others {
        if visited.contains(&other) {
            continue;
        }
        match step(held, other, false, visited) {
            Progress::Ran => return Progress::Ran,
            Progress::Busy => busy = true,
            Progress::Idle => {}
        }
    }
    if busy { Progress::Busy } else { Progress::Idle }
}

/// Runs the first operation of a queue. It is ready.
fn run(held: &mut Held, id: u64) {
    let Some(stream) = held.streams.get_mut(&id) else { return };
    let Some(mut op) = stream.queue.pop_front() else { return };
    let (device, emptied) = (stream.device, stream.queue.is_empty());
    let on_memory =
        !matches!(op.work, Work::Nothing | Work::Record(_) | Work::Wait(_) | Work::Free { .. });
    stream.busy = on_memory;
    if emptied && let Some(device) = held.devices.get_mut(&device) {
        device.active.retain(|&other| other != id);
    }
    let mut outcome = Outcome::default();
    if on_memory {
        let thread = std::thread::current().id();
        let blocks = op.holds.iter().map(|hold| (hold.block(), hold.writes)).collect();
        held.running.push(Running { device, thread, blocks });
        // SAFETY: `head` saw that no running operation shares a block, and `running` now keeps
        // others from starting; the contract of the call that enqueued it is its caller's.
        outcome = MutexGuard::unlocked(held, || unsafe { execute(&mut op) });
        held.running.retain(|running| running.device != device);
        for hold in op.holds.iter().filter(|hold| hold.writes && hold.host_visible) {
            hold.backing.after_write(hold.start, hold.bytes);
        }
    }
    let tick = op.tick;
    retire(held, device, &op);
    if let Some(stream) = held.streams.get_mut(&id) {
        stream.busy = false;
        // An emptied queue has passed what was given up meanwhile, too.
        stream.passed = if stream.queue.is_empty() { stream.tick } else { tick };
    }
    judge(held, device, &op, outcome);
    held.prune(id);
    drop(op);
    WORLD.turn.notify_all();
}

/// What an operation leaves behind, whether it ran or was given up.
fn retire(state: &mut State, device: u64, op: &Op) {
    match &op.work {
        Work::Record(mark) => mark.pass(),
        Work::Free { bytes, pool } => {
            if let Some(pool) = state.pools.get_mut(pool) {
                pool.take_back(*bytes);
            }
            if let Some(device) = state.devices.get_mut(&device) {
                device.used = device.used.saturating_sub(*bytes);
                device.pending_frees = device.pending_frees.saturating_sub(1);
            }
        }
        _ => {}
    }
}

fn judge(state: &mut State, device: u64, op: &Op, outcome: Outcome) {
    let Some(ledger) = state.devices.get(&device).map(|device| Arc::clone(&device.ledger)) else {
        return;
    };
    if outcome.host_wrote {
        let range = op.watched.as_ref().map_or((0, 0), |watched| watched.range);
        ledger.report(Violation::HostWroteDuringCopy, op.name, None, range, None);
    }
    if outcome.fault.is_some() {
        ledger.report(Violation::KernelFault, op.name, None, (0, 0), outcome.fault);
        ledger.lose(DriverError::LAUNCH_FAILED);
        abandon(state, device);
    }
}

/// Gives up what is queued on a device whose context is lost.
pub(super) fn abandon(state: &mut State, device: u64) {
    let Some(own) = state.devices.get_mut(&device) else { return };
    own.active.clear();
    for id in own.streams.clone() {
        let Some(stream) = state.streams.get_mut(&id) else { continue };
        let queue = std::mem::take(&mut stream.queue);
        if !stream.busy {
            stream.passed = stream.tick;
        }
        for op in queue {
            if let Some(watched) = &op.watched {
                watched.backing.unwatch(watched.id, false);
            }
            retire(state, device, &op);
        }
    }
    WORLD.turn.notify_all();
}

/// Runs the queues until `done`. `false` if they end before, which cannot be.
pub(super) fn drive(held: &mut Held, device: u64, done: impl Fn(&State) -> bool) -> bool {
    while !done(held) {
        match advance(held, device) {
            Progress::Ran => {}
            Progress::Busy => WORLD.turn.wait(held),
            Progress::Idle => return false,
        }
    }
    true
}

/// Runs as much as an event query lets happen.
pub(super) fn pulse(held: &mut Held, device: u64) {
    let Some(own) = held.devices.get_mut(&device) else { return };
    if own.background {
        return;
    }
    let mut steps = own.random.below(4);
    own.dry = if steps == 0 { own.dry + 1 } else { 0 };
    if own.dry > DRY {
        (steps, own.dry) = (1, 0);
    }
    for _ in 0..steps {
        if advance(held, device) != Progress::Ran {
            return;
        }
    }
}

/// What the thread of a device in the background does until the device is gone.
pub(super) fn work(ledger: &Ledger) {
    let mut held = world();
    while held.devices.contains_key(&ledger.device) {
        match step(&mut held, ledger.device, true, &mut Vec::new()) {
            Progress::Ran => MutexGuard::unlocked(&mut held, || ledger.tell()),
            Progress::Busy | Progress::Idle => WORLD.turn.wait(&mut held),
        }
    }
}
