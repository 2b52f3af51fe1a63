//! One program: made from its seed, run by threads that race, and judged when all is quiet again.

use crate::complaints::Complaints;
use crate::counts::Tally;
use crate::lost;
use crate::player::Player;
use crate::random::Random;
use crate::shared::{Pool, Setup, Shared, Step, Stop, lock};
use crate::support;
use aquifer::sim::{Schedule, SimConfig};
use aquifer::{Device, Error};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A program that went wrong: why, and what it did.
pub(crate) struct Failed {
    pub(crate) why: String,
    pub(crate) trace: Vec<String>,
}

/// How long memory may take to go back that waits for its end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Calls that look for what waits for its end, enough to look at all of it.
const REAPS: usize = 20;

/// Runs the program of `seed`.
pub(crate) fn run(seed: u64, complaints: &Complaints) -> Result<Tally, Failed> {
    complaints.clear();
    let setup = Setup::new(&mut Random::new(seed, 0), support::on_gpu());
    let early = |error: Error| Failed { why: format!("at its start: {error}"), trace: Vec::new() };
    let device = match (support::on_gpu(), setup.loses) {
        (true, _) => Device::open(0).map_err(early)?,
        (false, loses) => {
            // Every second one takes a pool's way without a lock, which a pool that is followed does not.
            let config = match support::pool_checks().unwrap_or(seed.is_multiple_of(2)) {
                true => SimConfig::default(),
                false => SimConfig::default().without_pool_checks(),
            };
            let config = config.seed(seed);
            // A host form runs beside the calls of all threads then.
            Device::simulated(if loses { config.schedule(Schedule::Background) } else { config })
        }
    };
    let shared = Shared::new(seed, setup, device).map_err(early)?;
    threads(&shared);
    let failure = lock(&shared.failure).take();
    let why = match failure {
        Some(why) => why,
        None => match settle(&shared, complaints) {
            Ok(()) | Err(Stop::Lost) => return Ok(lock(&shared.tally).clone()),
            Err(Stop::Failed(why)) => match complaints.first() {
                Some(first) => format!("at the end: {why}; the crate complained: {first}"),
                None => format!("at the end: {why}"),
            },
        },
    };
    let mut trace = std::mem::take(&mut *lock(&shared.trace));
    trace.sort();
    let lines = trace.into_iter().map(|(_, line)| line);
    Err(Failed {
        why,
        trace: std::iter::once(format!("{:?}", shared.setup)).chain(lines).collect(),
    })
}

fn threads(shared: &Shared) {
    let count = shared.setup.threads;
    let (start, over) = (Barrier::new(count), lost::meeting(shared));
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..count)
            .map(|me| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    match Player::new(shared, me).and_then(|player| player.play()) {
                        Ok(()) | Err(Stop::Lost) => {}
                        Err(Stop::Failed(why)) => shared.fail(format!("thread {me}: {why}")),
                    }
                })
            })
            .collect();
        for (me, handle) in handles.into_iter().enumerate() {
            if let Err(panic) = handle.join() {
                let said = panic.downcast_ref::<String>().map(String::as_str);
                let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
                shared.fail(format!("thread {me} panicked: {}", said.unwrap_or("no text")));
            }
        }
    });
    drop(over);
}

/// What is left is read and dropped, and then nothing may be left.
fn settle(shared: &Shared, complaints: &Complaints) -> Step {
    let strict = |what: &'static str| move |error: Error| shared.unexpected(what, &error);
    for (host, value) in std::mem::take(&mut *lock(&shared.hosts)) {
        if host.iter().any(|&found| found != value) {
            return Err(format!("a form wrote {host:x?}, which is its owner's again").into());
        }
    }
    lock(&shared.graphs).clear();
    if shared.is_lost() {
        lock(&shared.items).clear();
        // What waits for its end on a lost context is leaked, and said to be: in this program.
        for _ in 0..REAPS {
            let _ = shared.device.default_stream().synchronize();
        }
        let _ = shared.pinned.trim();
        return shared.verdict();
    }
    for item in std::mem::take(&mut *lock(&shared.items)) {
        let found = item.vec.to_vec().map_err(strict("reading what is left"))?;
        item.agrees("a read of what is left", &found)?;
    }
    lock(&shared.events).clear();
    shared.verdict()?;
    shared.device.synchronize().map_err(strict("waiting for the device"))?;
    drop(lock(&shared.graph_pool).take());
    let pool = lock(&shared.pool).take();
    // Else what is freed late keeps it.
    if shared.seed.is_multiple_of(2) {
        all_is_back(shared, complaints, "vectors", || {
            let live = |pool: &Pool| {
                // Tries again to free graphs: a capture that was then refused was in the way.
                let _ = pool.wait_and_trim(usize::MAX);
                pool.statistics().live
            };
            pool.iter().map(live).sum()
        })?;
    }
    drop(pool);
    let simulator = shared.simulator.as_ref();
    let blocks = || simulator.map_or(0, |it| it.live_bytes() + it.host_blocks());
    all_is_back(shared, complaints, "memory of the device", blocks)?;
    shared.verdict()?;
    match complaints.first() {
        Some(first) => Err(format!("the crate complained: {first}").into()),
        None => Ok(()),
    }
}

fn all_is_back(
    shared: &Shared,
    complaints: &Complaints,
    what: &str,
    left: impl Fn() -> usize,
) -> Step {
    let started = Instant::now();
    loop {
        // Each call frees some of what waited for its end.
        let waited =
            shared.device.default_stream().synchronize().and_then(|()| shared.pinned.trim());
        waited.map_err(|error| shared.unexpected("waiting for what is freed late", &error))?;
        match left() {
            0 => return Ok(()),
            left if started.elapsed() > PATIENCE => {
                let said = complaints.first();
                return Err(format!("{what}: {left} bytes are leaked; said: {said:?}").into());
            }
            _ => {}
        }
    }
}
