//! One program: made from its seed, run by the threads of its ranks, and judged when all is quiet again.

use crate::complaints::Complaints;
use crate::counts::Tally;
use crate::plan::{Plan, Setup, Step as Planned, Way};
use crate::player::{Player, patience};
use crate::rank::Rank;
use crate::shared::{Shared, Step, Stop, lock};
use crate::support;
use aquifer::sim::{Schedule, SimConfig};
use aquifer::{
    Communicator, Device, Error, Result as Outcome,
    collective::{CommunicatorId, Group, ReduceOp},
};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A program that went wrong: why, and what it did.
pub(crate) struct Failed {
    pub(crate) why: String,
    pub(crate) trace: Vec<String>,
}

/// How long memory may take to go back that waits for its end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a rank stops and says nothing: a wait that should have ended before is reported.
const RANK_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the program of `seed`.
pub(crate) fn run(seed: u64, complaints: &Complaints) -> Result<Tally, Failed> {
    complaints.clear();
    let plan = Plan::new(seed);
    let early = |error: Error| Failed { why: format!("at its start: {error}"), trace: Vec::new() };
    let ranks = open(seed, &plan.setup).and_then(|ranks| join(ranks, &plan.setup));
    let ranks = ranks.map_err(early)?;
    let shared = Shared::new(plan, ranks.iter().map(|rank| rank.simulator.clone()).collect());
    let ranks = threads(&shared, ranks);
    let failure = lock(&shared.failure).take();
    let why = match failure {
        Some(why) => why,
        None => match settle(&shared, ranks, seed, complaints) {
            Ok(()) => return Ok(lock(&shared.tally).clone()),
            Err(Stop::Failed(why)) => format!("at the end: {why}"),
            Err(Stop::Lost | Stop::Left) => "at the end: a rank is lost".into(),
        },
    };
    Err(Failed { why, trace: trace(&shared) })
}

/// The devices of one machine, and a rank on each that has not joined.
fn open(seed: u64, setup: &Setup) -> Outcome<Vec<Rank>> {
    let config = |number: usize| {
        // Every second one takes a pool's way without a lock, which a pool that is followed does not.
        let config = match support::pool_checks().unwrap_or(seed.is_multiple_of(2)) {
            true => SimConfig::default(),
            false => SimConfig::default().without_pool_checks(),
        };
        let config = config.seed(seed + number as u64).ordinal(number);
        let config = match setup.way() {
            Some(Way::Stops) => config.rank_timeout(RANK_TIMEOUT),
            _ => config,
        };
        if setup.background { config.schedule(Schedule::Background) } else { config }
    };
    let first = Device::simulated(config(0));
    let others = (1..setup.ranks).map(|number| first.simulated_beside(config(number)));
    let devices: Vec<Device> = std::iter::once(first.clone()).chain(others).collect();
    devices.iter().enumerate().map(|(number, device)| Rank::new(number, device, setup)).collect()
}

/// Joins all ranks.
fn join(mut ranks: Vec<Rank>, setup: &Setup) -> Outcome<Vec<Rank>> {
    let (id, count) = (CommunicatorId::new(&ranks[0].device)?, ranks.len());
    let join = |rank: &mut Rank| -> Outcome<()> {
        let options = Communicator::builder(&rank.streams[0]).timeout(patience(setup.way()));
        // SAFETY: the ranks of a plan give the same collectives. One that is lost is waited for before memory is
        // used again.
        rank.communicator = Some(unsafe { options.join(&id, rank.number, count)? });
        Ok(())
    };
    std::thread::scope(|threads| {
        let joins: Vec<_> =
            ranks.iter_mut().map(|rank| threads.spawn(move || join(rank))).collect();
        joins.into_iter().try_for_each(|join| join.join().expect("it panics nowhere"))
    })?;
    Ok(ranks)
}

/// Plays the plan, and gives the ranks back.
fn threads(shared: &Shared, ranks: Vec<Rank>) -> Vec<Rank> {
    let mut ranks = ranks.into_iter();
    std::thread::scope(|scope| {
        let players: Vec<_> = shared
            .plan
            .setup
            .threads
            .iter()
            .enumerate()
            .map(|(me, own)| {
                // The ranks of the threads follow each other.
                let own: Vec<Rank> = ranks.by_ref().take(own.len()).collect();
                scope.spawn(move || Player::new(shared, me, own).play())
            })
            .collect();
        let mut back = Vec::new();
        for (me, player) in players.into_iter().enumerate() {
            match player.join() {
                Ok(ranks) => back.extend(ranks),
                Err(panic) => {
                    let said = panic.downcast_ref::<String>().map(String::as_str);
                    let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
                    shared.fail(format!("thread {me} panicked: {}", said.unwrap_or("no text")));
                }
            }
        }
        back
    })
}

/// What is left goes back, and then nothing may be left.
fn settle(shared: &Shared, mut ranks: Vec<Rank>, seed: u64, complaints: &Complaints) -> Step {
    let loses_device = shared.plan.setup.way() == Some(Way::LosesDevice);
    let lost = shared.plan.setup.loss.filter(|_| loses_device).map(|loss| loss.rank);
    ranks.iter_mut().for_each(|rank| rank.communicator = None);
    let is_there = |rank: &Rank| Some(rank.number) != lost;
    if shared.plan.setup.loss.is_some() && seed.is_multiple_of(2) {
        let mut left: Vec<&mut Rank> = ranks.iter_mut().filter(|rank| is_there(rank)).collect();
        let joined =
            join_again(&mut left).map_err(|error| shared.unexpected("joining again", &error))?;
        if !joined {
            return Err(Stop::Failed("wrong data of those that are left".into()));
        }
        lock(&shared.tally).add("communicators of those that are left", 1);
    }
    for rank in &mut ranks {
        rank.items.clear();
    }
    for rank in ranks.into_iter().filter(is_there) {
        let Rank { device, simulator, memory, streams, .. } = rank;
        drop((memory, streams));
        let started = Instant::now();
        loop {
            // Each call frees some of what waited for its end.
            let waited = device.default_stream().synchronize();
            waited.map_err(|error| shared.unexpected("waiting for what is freed late", &error))?;
            let left = simulator.live_bytes();
            if left == 0 {
                break;
            }
            if started.elapsed() > PATIENCE {
                return Err(Stop::Failed(format!("{left} bytes are leaked")));
            }
        }
    }
    shared.verdict()?;
    match complaints.first() {
        // What is on a lost device is leaked, and said to be.
        Some(first) if !loses_device => Err(format!("the crate complained: {first}").into()),
        _ => Ok(()),
    }
}

/// A new communicator of the ranks that are left, and an all-reduce. Whether it gives the sum.
fn join_again(left: &mut [&mut Rank]) -> Outcome<bool> {
    let streams: Vec<_> = left.iter().map(|rank| rank.streams[0].clone()).collect();
    // SAFETY: this thread gives the collectives of all ranks.
    let ranks = unsafe { Communicator::from_streams(&streams)? };
    let mut views = Vec::new();
    for rank in left {
        let mut view = rank.items[0].view_mut()?;
        view.fill(3)?;
        views.push(view);
    }
    let mut group = Group::new();
    for (rank, view) in ranks.iter().zip(&mut views) {
        group.all_reduce_in_place(rank, view, ReduceOp::Sum)?;
    }
    group.run()?;
    ranks.iter().try_for_each(|rank| rank.synchronize(PATIENCE))?;
    let (found, sum) = (views[0].to_vec()?, 3 * ranks.len() as u32);
    Ok(found.iter().all(|&found| found == sum))
}

/// The program, and where its threads were.
fn trace(shared: &Shared) -> Vec<String> {
    let at = shared.at.iter().map(|at| at.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let steps = shared.plan.steps.iter().enumerate().map(|(number, step)| match step {
        Planned::Call(call) => format!("{number}: call {call}: {:?}", shared.plan.calls[*call]),
        Planned::Local { rank, op } => format!("{number}: rank {rank}: {op:?}"),
    });
    let begin = [format!("{:?}", shared.plan.setup), format!("its threads ended at {at:?}")];
    begin.into_iter().chain(steps).collect()
}
