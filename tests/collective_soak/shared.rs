//! What the threads of a program share.

use crate::counts::Tally;
use crate::plan::{Plan, Way};
use aquifer::sim::Simulator;
use aquifer::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most collectives that a rank is ahead of its device, unless one group is longer.
const MOST_AHEAD: usize = 256;

/// Why a thread of a program ends early.
pub(crate) enum Stop {
    /// It found something wrong.
    Failed(String),
    /// It was told that a rank is lost.
    Lost,
    /// Its own rank gives nothing more.
    Left,
}

pub(crate) type Step<T = ()> = std::result::Result<T, Stop>;

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) simulators: Vec<Simulator>,
    /// How many calls each rank has begun, or has no part in.
    begun: Vec<AtomicUsize>,
    /// The step that each thread is at.
    pub(crate) at: Vec<AtomicUsize>,
    /// Threads that were told of a lost rank.
    pub(crate) told: AtomicUsize,
    /// Threads whose ranks use no memory of the others any more.
    pub(crate) gone: AtomicUsize,
    pub(crate) failure: Mutex<Option<String>>,
    failed: AtomicBool,
    pub(crate) tally: Mutex<Tally>,
}

impl Shared {
    pub(crate) fn new(plan: Plan, simulators: Vec<Simulator>) -> Self {
        let (ranks, threads) = (plan.setup.ranks, plan.setup.threads.len());
        let zeros = |count: usize| (0..count).map(|_| AtomicUsize::new(0)).collect();
        Self {
            plan,
            simulators,
            begun: zeros(ranks),
            at: zeros(threads),
            told: AtomicUsize::new(0),
            gone: AtomicUsize::new(0),
            failure: Mutex::default(),
            failed: AtomicBool::new(false),
            tally: Mutex::default(),
        }
    }

    /// From before a rank gives call number `at`.
    pub(crate) fn begin(&self, rank: usize, at: usize) {
        self.begun[rank].store(at + 1, Ordering::SeqCst);
    }

    /// The calls that the ranks have begun, all together.
    pub(crate) fn all_begun(&self) -> usize {
        self.begun.iter().map(|begun| begun.load(Ordering::SeqCst)).sum()
    }

    /// How many of its collectives the device of `rank` has not passed for sure, when it has given call number `at`: a
    /// rank that the first of them waits for has not begun it.
    fn ahead(&self, rank: usize, at: usize) -> usize {
        let (calls, ranks) = (&self.plan.calls[..=at], self.plan.setup.ranks);
        let begun: Vec<usize> = self.begun.iter().map(|it| it.load(Ordering::SeqCst)).collect();
        let first = begun.iter().copied().min().unwrap_or(0);
        let waits = |at: &usize| {
            let mut others = (0..ranks).filter(|other| *other != rank && begun[*other] <= *at);
            others.any(|other| calls[*at].has_both(rank, other, ranks))
        };
        let stuck = (first..=at).find(waits).unwrap_or(at + 1);
        calls[stuck..].iter().map(|call| call.own(rank, ranks)).sum()
    }

    /// Fails if a rank that has given call number `at` is ahead of its device by more than it may be. How far it was
    /// ahead.
    pub(crate) fn require_not_far_ahead(&self, rank: usize, at: usize) -> Step<usize> {
        let (ahead, own) =
            (self.ahead(rank, at), self.plan.calls[at].own(rank, self.plan.setup.ranks));
        match ahead <= MOST_AHEAD.max(own) {
            true => Ok(ahead),
            false => Err(Stop::Failed(format!(
                "rank {rank} runs ahead of its device by {ahead} collectives, after call {at} of {own}"
            ))),
        }
    }

    /// Fails if a simulated device has seen anything that no stream order allows.
    pub(crate) fn verdict(&self) -> Step {
        match self.simulators.iter().flat_map(Simulator::reports).next() {
            None => Ok(()),
            Some(report) => {
                Err(Stop::Failed(format!("the device saw {:?}: {report}", report.kind())))
            }
        }
    }

    /// What an error means that nothing in the program explains.
    pub(crate) fn unexpected(&self, what: &str, error: &Error) -> Stop {
        // Errors of all threads follow from a violation of one.
        if let Err(stop) = self.verdict() {
            return stop;
        }
        match (self.plan.setup.way(), error.kind()) {
            (Some(_), ErrorKind::CommunicatorLost)
            | (Some(Way::LosesDevice), ErrorKind::ContextLost) => Stop::Lost,
            (_, kind) => Stop::Failed(format!("{what}: {kind:?}: {error}")),
        }
    }

    pub(crate) fn fail(&self, why: String) {
        self.failed.store(true, Ordering::SeqCst);
        lock(&self.failure).get_or_insert(why);
    }

    /// Waits until `count` is reached, or a thread has failed.
    pub(crate) fn wait_for(&self, count: &AtomicUsize, wanted: usize) {
        while count.load(Ordering::SeqCst) < wanted && !self.failed.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
