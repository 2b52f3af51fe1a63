//! One program: made from its seed, played, and judged when all is quiet again.

use crate::complaints::Complaints;
use crate::counts::Tally;
use crate::managers::Managed;
use crate::patterns::{Pattern, THOUSAND};
use crate::player::Player;
use crate::random::Random;
use crate::setup::{Pool, Setup, Upstream};
use crate::shared::{Failure, Shared, Step, lock, unexpected};
use crate::support;
use crate::tally::add_statistics;
use crate::turns::{Participant, Turns};
use aquifer::{Device, DeviceResource, DeviceVec};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How a program runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mode {
    /// Threads race instead of taking turns.
    pub(crate) free: bool,
    /// Some programs fork.
    pub(crate) forks: bool,
    /// The program is one of a pattern, by its seed.
    pub(crate) patterns: bool,
    /// The operations are kept, to be printed.
    pub(crate) trace: bool,
}

/// One of so many programs waits for a second.
const PATIENT: u64 = 1 << 14;

/// One of so many programs forks, and one of so many whose threads race. A fork takes as long as a program.
const FORKS: u64 = 199;
const FORKS_OF_RACING: u64 = 17;

/// A program that went wrong: why, and what it did where that was kept.
pub(crate) struct Failed {
    pub(crate) why: Failure,
    pub(crate) trace: Vec<String>,
}

/// What the program's vectors are to come from, made of its pool.
pub(crate) type Over<'a> = &'a dyn Fn(Pool) -> aquifer::Result<Arc<dyn DeviceResource>>;

/// Runs the program of `seed`.
pub(crate) fn run(seed: u64, mode: Mode, complaints: &Complaints) -> Result<Tally, Failed> {
    run_over(seed, mode, complaints, &|pool| Ok(Arc::new(pool)))
}

/// As [`run`], with something between the program and its pool, which lets go of the pool when the
/// program does.
pub(crate) fn run_over(
    seed: u64,
    mode: Mode,
    complaints: &Complaints,
    over: Over<'_>,
) -> Result<Tally, Failed> {
    let early = |why| Failed { why, trace: Vec::new() };
    let (mut random, on_gpu) = (Random::new(seed, 0), support::on_gpu());
    let mut setup = match mode.patterns {
        true => Setup::of(Pattern::of(seed), &mut random, on_gpu),
        false => Setup::new(&mut random, on_gpu),
    };
    setup.map(seed, on_gpu);
    if !mode.patterns && !mode.free && seed % PATIENT == PATIENT / 2 {
        setup.be_patient();
    }
    if mode.forks && cfg!(unix) && !on_gpu {
        setup.forks = seed.is_multiple_of(if mode.free { FORKS_OF_RACING } else { FORKS });
    }
    if mode.free {
        (setup.threads, setup.injects, setup.captures) = (setup.threads.max(2), false, false);
        setup.operations = vec![if mode.patterns { 16 } else { 40 }; setup.threads];
    }
    let device = match support::on_gpu() {
        true => Device::open(0).map_err(unexpected("opening the GPU")).map_err(early)?,
        false => setup.device(seed),
    };
    complaints.clear();
    let shared = Shared::new(seed, setup, device, mode).map_err(early)?;
    match play(&shared, mode, complaints, over) {
        Ok(()) => Ok(lock(&shared.tally).clone()),
        Err(why) => {
            let mut trace = shared.trace();
            trace.insert(0, format!("{:?}", shared.setup));
            Err(Failed { why, trace })
        }
    }
}

fn play(shared: &Shared, mode: Mode, complaints: &Complaints, over: Over<'_>) -> Step {
    let setup = &shared.setup;
    let (pool, lower) = setup
        .pool(&shared.device, |upstream| shared.over(upstream))
        .map_err(unexpected("building the pool"))?;
    if matches!(setup.upstream, Upstream::PoolOverPlain | Upstream::PoolOverStreamOrdered) {
        shared.count("pools over pools");
    }
    if setup.upstream == Upstream::Mapped {
        shared.count("pools that map");
    }
    let erased = over(pool.clone()).map_err(unexpected("building over the pool"))?;
    let erased = match setup.managed {
        true => {
            let managed = Managed::new(erased, !mode.free);
            let managed = managed.map_err(unexpected("building a memory manager"))?;
            shared.count("programs with a memory manager");
            *lock(&shared.managed) = Some(managed.clone());
            managed as Arc<dyn DeviceResource>
        }
        false => erased,
    };
    *lock(&shared.pool) = Some((pool, erased));

    if setup.streams >= THOUSAND {
        shared.count("programs of a thousand streams");
    }
    threads(shared, mode);
    if let Some(failure) = lock(&shared.failure).take() {
        return Err(failure);
    }
    if let Some(callbacks) = &shared.callbacks {
        drop(callbacks.stop());
        lock(&shared.tally).join(&lock(&callbacks.tally));
        if let Some(failure) = lock(&callbacks.failure).take() {
            return Err(failure);
        }
    }
    if let Some(waits) = shared.waits() {
        lock(&shared.tally).join(&waits.stop()?);
    }
    let mut random = Random::new(shared.seed, 1);
    quiet(shared, complaints)?;
    settle(shared, &mut random).map_err(|failure| format!("at the end: {failure}"))?;
    let managed = lock(&shared.managed).take();
    if let Some(managed) = managed {
        // Else what waits goes with the last user of the manager.
        if random.one_in(2) {
            managed.reset()?;
        }
        managed.verdict()?;
    }
    let pool = lock(&shared.pool).take();
    if let Some((pool, erased)) = pool {
        drop(erased);
        quiescent(shared, &pool, complaints, &mut random)
            .map_err(|failure| format!("when all was quiet: {failure}"))?;
    }
    gone(shared, lower).map_err(|failure| format!("when the pool was gone: {failure}"))?;
    quiet(shared, complaints)?;
    all_is_back(shared, !complaints.take().is_empty())
}

/// Fails if the crate complained, and no driver call was made to fail.
fn quiet(shared: &Shared, complaints: &Complaints) -> Step {
    match complaints.first() {
        Some(first) if !shared.may_leak.load(Ordering::Relaxed) => {
            Err(format!("the crate complained: {first}"))
        }
        _ => Ok(()),
    }
}

/// Starts the threads and joins each as it ends, so that its end is part of the order.
fn threads(shared: &Shared, mode: Mode) {
    let count = shared.setup.threads;
    let turns = Turns::new(count, Random::new(shared.seed, 99), mode.free);
    std::thread::scope(|scope| {
        let start = |me| {
            let turns = &turns;
            scope.spawn(move || {
                let participant = Participant::take(turns, me);
                let played = Player::new(shared, participant, me, !mode.free).play();
                if let Err(failure) = played {
                    shared.fail(failure);
                }
            })
        };
        let mut handles: Vec<_> = (0..count).map(|me| Some(start(me))).collect();
        turns.go();
        for _ in 0..count {
            let who = turns.ended();
            // Waits for the thread itself, with all that is torn down after its own code.
            if handles[who].take().is_some_and(|handle| handle.join().is_err()) {
                shared.fail(format!("thread {who} panicked"));
            }
            turns.go();
        }
    });
}

/// What is left is read and dropped; then a pool that nobody uses has to give all it may.
fn settle(shared: &Shared, random: &mut Random) -> Step {
    for item in std::mem::take(&mut *lock(&shared.mailbox)) {
        item.check()?;
        shared.count("reads that agreed");
    }
    if shared.setup.waits {
        // What copies use goes with them.
        shared.device.synchronize().map_err(unexpected("waiting for copies"))?;
    }
    shared.verdict()?;
    if shared.alive() != 0 {
        return Err(format!("{} vectors were forgotten by the soak itself", shared.alive()));
    }
    let setup = &shared.setup;
    let whole = !shared.may_leak.load(Ordering::Relaxed)
        && setup.climbs_all()
        && setup.maximum_is_the_limit();
    let (pool, maximum) = (lock(&shared.pool).clone(), setup.maximum);
    if let (true, Some((_, resource)), Some(maximum)) = (whole && random.one_in(2), pool, maximum) {
        let streams = lock(&shared.streams);
        let stream = &streams[random.below(streams.len())];
        let mut all = DeviceVec::<u8>::with_capacity_in(stream, maximum, resource)
            .map_err(unexpected("the maximum, of a pool that nobody uses"))?;
        all.resize(maximum, 7).map_err(unexpected("writing all of a pool"))?;
        shared.count("most of a pool at once");
    }
    if random.one_in(2) || shared.may_leak.load(Ordering::Relaxed) {
        shared.detach_all()?;
    }
    if random.one_in(2) {
        // Gone, with frees pending on them.
        lock(&shared.streams).clear();
        lock(&shared.events).clear();
    }
    shared.device.synchronize().map_err(unexpected("waiting for all"))
}

/// The pool's own books when all is dropped and complete.
fn quiescent(shared: &Shared, pool: &Pool, complaints: &Complaints, random: &mut Random) -> Step {
    let found = pool.statistics();
    add_statistics(&mut lock(&shared.tally), &found);
    if shared.setup.maximum.is_some_and(|maximum| found.peak_reserved > maximum) {
        return Err(format!("more was reserved than the maximum: {found:?}"));
    }
    shared.judge_reserved(&found)?;
    if shared.setup.one_size().is_some() {
        shared.count("pools held to their bound");
    }
    // Memory may be lost to a failure, but not without a word.
    if complaints.first().is_some() {
        return Ok(());
    }
    if (found.live, found.live_blocks) != (0, 0) || found.free != found.reserved {
        return Err(format!("not all is free: {found:?}"));
    }
    if random.one_in(2) {
        let back = pool.wait_and_trim(0).map_err(unexpected("trimming"))?;
        let rest = pool.statistics();
        if back != found.reserved || rest.reserved != 0 || rest.upstream_blocks != 0 {
            return Err(format!("{back} bytes went back of {found:?}, which left {rest:?}"));
        }
    }
    Ok(())
}

/// The pool is dropped by now, and so is all that held it.
fn gone(shared: &Shared, lower: Option<Pool>) -> Step {
    shared.device.synchronize().map_err(unexpected("waiting for all"))?;
    if let Some(lower) = lower {
        let found = lower.statistics();
        if found.live != 0 && !shared.may_leak.load(Ordering::Relaxed) {
            return Err(format!("the pool below still lends: {found:?}"));
        }
    }
    shared.destroy_all()?;
    shared.device.synchronize().map_err(unexpected("waiting for all"))?;
    shared.verdict()
}

fn all_is_back(shared: &Shared, excused: bool) -> Step {
    let Some(simulator) = &shared.simulator else { return Ok(()) };
    let info = shared.device.memory_info().map_err(unexpected("asking for the memory"))?;
    let live = simulator.live_bytes();
    if (live == 0 && info.free == info.total) || excused {
        return Ok(());
    }
    Err(format!("{live} bytes were never freed, {} of {} are free", info.free, info.total))
}
