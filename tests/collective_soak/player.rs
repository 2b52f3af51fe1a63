//! One thread of a program: it does what the plan says of its ranks.

use crate::counts::Tally;
use crate::kernels;
use crate::memory::{Item, lend, run_alone, run_together};
use crate::plan::{self, Op, Source, Way};
use crate::rank::Rank;
use crate::shared::{Shared, Step, Stop, lock};
use aquifer::{Communicator, DeviceRead, Error, ErrorKind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a rank waits for the others. It never comes to that.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a rank waits where one of them stops and says nothing.
const SHORT_PATIENCE: Duration = Duration::from_millis(60);

/// How long registered memory may take to go back that waits for its end.
const FREED_LATE: Duration = Duration::from_secs(10);

/// A rank that is late goes on where no call was begun for so long.
const STANDSTILL: Duration = Duration::from_millis(2);

/// A number of NCCL's: `ncclInvalidUsage`, which costs no communicator.
const INVALID_USAGE: u32 = 5;

pub(crate) struct Player<'a> {
    pub(crate) shared: &'a Shared,
    /// The number of the thread.
    me: usize,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) tally: Tally,
}

/// How long the ranks of a program wait for each other.
pub(crate) fn patience(way: Option<Way>) -> Duration {
    if way == Some(Way::Stops) { SHORT_PATIENCE } else { PATIENCE }
}

impl<'a> Player<'a> {
    pub(crate) fn new(shared: &'a Shared, me: usize, ranks: Vec<Rank>) -> Self {
        Self { shared, me, ranks, tally: Tally::default() }
    }

    /// Does all that the plan says, and gives the ranks back.
    pub(crate) fn play(mut self) -> Vec<Rank> {
        let ended = match self.steps() {
            Ok(()) if self.shared.plan.setup.loss.is_none() => self.end(),
            Ok(()) | Err(Stop::Lost) => self.lost(),
            Err(Stop::Left) => self.left(),
            Err(failed) => Err(failed),
        };
        if let Err(Stop::Failed(why)) = ended {
            self.shared.fail(format!("thread {}: {why}", self.me));
            // Or the others would wait for it.
            for rank in &self.ranks {
                rank.communicator.iter().for_each(Communicator::abort);
            }
        }
        lock(&self.shared.tally).join(&self.tally);
        self.ranks
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        self.tally.add(what, 1);
    }

    pub(crate) fn unexpected(&self, what: &str) -> impl FnOnce(Error) -> Stop {
        let (shared, what) = (self.shared, what.to_owned());
        move |error| shared.unexpected(&what, &error)
    }

    pub(crate) fn patience(&self) -> Duration {
        patience(self.shared.plan.setup.way())
    }

    fn steps(&mut self) -> Step {
        let shared = self.shared;
        for (at, step) in shared.plan.steps.iter().enumerate() {
            shared.at[self.me].store(at, Ordering::Relaxed);
            match step {
                plan::Step::Call(call) => self.call(*call)?,
                plan::Step::Local { rank, op } => {
                    if let Some(own) = self.ranks.iter().position(|own| own.number == *rank) {
                        self.local(own, op)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives a call of the plan for all ranks of the thread.
    fn call(&mut self, at: usize) -> Step {
        let (shared, ranks) = (self.shared, self.shared.plan.setup.ranks);
        let call = &shared.plan.calls[at];
        let leaves = self.leave(at)?;
        let mut given = Vec::new();
        for rank in &mut self.ranks {
            shared.begin(rank.number, at);
            let long = rank.items.len() - 1;
            let parts = call.parts.iter();
            let shares: Vec<_> =
                parts.flat_map(|part| part.shares(rank.number, ranks, long)).collect();
            let communicator = rank.communicator.as_ref().expect("a rank that has not left");
            let lent = lend(communicator, &mut rank.items, &shares);
            given.extend(lent.map_err(|error| shared.unexpected("lending memory", &error))?);
        }
        let (count, is_alone) = (given.len(), given.len() == 1 && !call.is_group);
        let run = match (count, is_alone) {
            (0, _) => Ok(()),
            (_, true) => run_alone(&mut given),
            (_, false) => run_together(&mut given),
        };
        drop(given);
        self.tally.add("collectives", count);
        match (run, leaves) {
            (Err(error), Some(way)) => return Err(self.judge_failure(at, way, &error)),
            (Err(error), None) => return Err(self.unexpected("giving a call")(error)),
            (Ok(()), Some(way)) => {
                return Err(format!("a rank gives call {at} though it is lost: {way:?}").into());
            }
            (Ok(()), None) => {}
        }
        self.count(if is_alone { "calls alone" } else { "calls in groups" });
        for rank in &self.ranks {
            let (own, number) = (call.own(rank.number, ranks), rank.number);
            if own > 0 && shared.require_not_far_ahead(number, at)? > 200 {
                self.tally.add("calls far ahead", 1);
            }
            if own > 256 {
                self.tally.add("groups longer than the limit", 1);
            }
        }
        Ok(())
    }

    /// Before a wait that has no time of its own.
    fn wait_first(&self, own: usize) -> Step {
        if self.shared.plan.setup.way() != Some(Way::Stops) {
            return Ok(());
        }
        self.synchronize(own)
    }

    fn synchronize(&self, own: usize) -> Step {
        let communicator = self.ranks[own].communicator.as_ref().expect("a rank that has not left");
        communicator
            .synchronize(self.patience())
            .map_err(self.unexpected("waiting for collectives"))
    }

    fn local(&mut self, own: usize, op: &Op) -> Step {
        match op {
            Op::Read { item, expected } => return self.read(own, *item, expected),
            Op::Synchronize => {
                self.synchronize(own)?;
                self.count("waits for collectives");
                return Ok(());
            }
            Op::Register { failing } => return self.register(own, *failing),
            Op::Late => {
                self.wait_for_others();
                return Ok(());
            }
            Op::Write { .. } | Op::Trim => self.wait_first(own)?,
            _ => {}
        }
        let what = match op {
            Op::Renew { .. } => "items made",
            Op::Fill { .. } => "fills",
            Op::Write { .. } => "writes from the host",
            Op::AddOne { .. } | Op::Copy { .. } => "kernels",
            Op::Move { .. } => "moves to another home",
            Op::Passing { .. } => "memory used in passing",
            _ => "pools trimmed",
        };
        let length = self.shared.plan.setup.length;
        let done = self.ranks[own].work(op, length);
        done.map_err(self.unexpected(what))?;
        self.count(what);
        Ok(())
    }

    fn wait_for_others(&self) {
        let started = Instant::now();
        loop {
            let before = self.shared.all_begun();
            std::thread::sleep(STANDSTILL);
            if self.shared.all_begun() == before || started.elapsed() > 50 * STANDSTILL {
                return;
            }
        }
    }

    fn read(&mut self, own: usize, item: usize, expected: &[u32]) -> Step {
        self.wait_first(own)?;
        let rank = &self.ranks[own];
        let read = rank.items[item].view().and_then(|view| view.as_device_slice().to_vec());
        let found = read.map_err(self.unexpected("reading an item"))?;
        let Some(at) = found.iter().zip(expected).position(|(one, other)| one != other) else {
            self.count("reads");
            return Ok(());
        };
        let wrong = format!(
            "wrong data: element {at} of item {item} of rank {} is {:#x}, not {:#x}",
            rank.number, found[at], expected[at]
        );
        // A read does not know that a rank was lost, but who asks is told.
        match (self.shared.plan.setup.loss, self.synchronize(own)) {
            (Some(_), Err(stop)) => {
                self.count("reads of what a lost rank left");
                Err(stop)
            }
            (None, Err(Stop::Failed(why))) => Err(format!("{wrong}; then {why}").into()),
            _ => Err(wrong.into()),
        }
    }

    /// Registers the rank's memory with its communicator, after a try that fails, if one is to.
    fn register(&mut self, own: usize, failing: Option<u64>) -> Step {
        let rank = &self.ranks[own];
        let calls = |name| rank.simulator.call_count(name);
        let (made, taken_back) = (calls("ncclCommRegister"), calls("ncclCommDeregister"));
        if let Some(nth) = failing {
            let armed = rank.simulator.fail_call("ncclCommRegister", nth, INVALID_USAGE);
            armed.map_err(self.unexpected("arming a failure"))?;
        }
        let communicator = rank.communicator.as_ref().expect("a rank that has not left");
        let registered = &rank.memory.registered;
        let mut refused = 0;
        match registered.register_with(communicator) {
            Ok(()) => {}
            Err(error) if failing.is_some() && error.kind() == ErrorKind::InvalidArgument => {
                refused = 1;
                let back = calls("ncclCommDeregister") - taken_back;
                let wanted = calls("ncclCommRegister") - made - 1;
                if back != wanted || registered.registered_blocks() > 0 {
                    return Err(format!(
                        "rank {} took {back} of {wanted} registrations back when one failed",
                        rank.number
                    )
                    .into());
                }
                registered.register_with(communicator).map_err(self.unexpected("registering"))?;
            }
            Err(error) => return Err(self.unexpected("registering")(error)),
        }
        // A failure that did not come hits a block that is not registered then.
        while refused == 0 && failing.is_some_and(|nth| calls("ncclCommRegister") - made < nth) {
            let passing = rank.memory.vec(&rank.streams[0], 1, Source::Registered);
            drop(passing.map_err(self.unexpected("making registered memory"))?);
            // No memory is registered with one that is lost.
            communicator.check().map_err(self.unexpected("asking after a rank"))?;
        }
        self.ranks[own].refused += u64::from(failing.is_some());
        self.count(match (failing, refused) {
            (None, _) => "memory registered",
            (Some(_), 1) => "memory refused as a whole",
            (Some(_), _) => "blocks refused",
        });
        Ok(())
    }

    /// No rank was lost: all memory goes back, and with it what NCCL knew of it.
    fn end(&mut self) -> Step {
        for own in 0..self.ranks.len() {
            // Faster than a wait for the rank, which asks the simulated device again and again.
            let passed = self.ranks[own].streams[0].synchronize();
            passed.map_err(self.unexpected("waiting at the end"))?;
            self.synchronize(own)?;
            let rank = &mut self.ranks[own];
            if rank.number.is_multiple_of(2) {
                // It takes along what it knows.
                rank.communicator = None;
                rank.items.clear();
                continue;
            }
            rank.items.clear();
            let (rank, started) = (&self.ranks[own], Instant::now());
            loop {
                let trimmed = rank.memory.trim().and_then(|()| rank.device.synchronize());
                trimmed.map_err(self.unexpected("trimming at the end"))?;
                let calls = |name| rank.simulator.call_count(name);
                let made = calls("ncclCommRegister") - rank.refused;
                let left = made.abs_diff(calls("ncclCommDeregister"));
                if left == 0 {
                    break;
                }
                if started.elapsed() > FREED_LATE {
                    return Err(format!("rank {} leaves {left} registrations", rank.number).into());
                }
            }
            self.count("registrations all taken back");
            self.ranks[own].communicator = None;
        }
        Ok(())
    }
}

impl Rank {
    /// What needs nobody else and waits for no other rank.
    fn work(&mut self, op: &Op, length: usize) -> aquifer::Result<()> {
        let (streams, memory) = (&self.streams, &self.memory);
        match *op {
            Op::Renew { item, home, source, is_buffer, length, value } => {
                let mut made = match is_buffer {
                    true => Item::Buffer(memory.buffer(&streams[home], length, source)?),
                    false => Item::Vec(memory.vec(&streams[home], length, source)?),
                };
                made.view_mut()?.fill(value)?;
                match self.items.get_mut(item) {
                    Some(old) => *old = made,
                    None => self.items.push(made),
                }
                Ok(())
            }
            Op::Fill { place, value } => self.items[place.item].part_mut(place)?.fill(value),
            Op::Write { item, value } => {
                let values = vec![value; length];
                match &mut self.items[item] {
                    Item::Vec(vec) => vec.copy_from_slice(&values),
                    Item::Buffer(buffer) => buffer.copy_from_slice(bytemuck::cast_slice(&values)),
                }
            }
            Op::AddOne { place, stream } => {
                kernels::add_one(&streams[stream], &mut self.items[place.item].part_mut(place)?)
            }
            Op::Copy { from, to, stream } => {
                let [from, to] = self.items.get_disjoint_mut([from, to]).expect("two items");
                kernels::copy(&streams[stream], &from.view()?, &mut to.view_mut()?)
            }
            Op::Move { item, home } => self.items[item].move_to(&streams[home]),
            Op::Passing { home, source } => {
                memory.vec(&streams[home], length, source)?.fill(u32::MAX)
            }
            _ => memory.trim(),
        }
    }
}
