//! How a rank is lost, what the others are told, and what becomes of their memory.

use crate::memory::function_of;
use crate::plan::Way;
use crate::player::Player;
use crate::rank::Rank;
use crate::shared::{Step, Stop};
use crate::support;
use aquifer::{Communicator, DeviceResource, Error, ErrorKind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// A number of NCCL's: `ncclSystemError`, which costs the communicator.
const SYSTEM_ERROR: (u32, &str) = (2, "ncclSystemError");

/// Threads that register memory while a rank waits, and the most blocks that each takes.
const COMPANY: usize = 2;
const BLOCKS: usize = 300;

impl Player<'_> {
    /// Loses a rank of this thread, if call number `at` is the one that it is lost at. The way, where the thread gives the
    /// call nonetheless.
    pub(crate) fn leave(&mut self, at: usize) -> Step<Option<Way>> {
        let (plan, ranks) = (&self.shared.plan, self.shared.plan.setup.ranks);
        let Some(loss) = plan.setup.loss.filter(|loss| loss.at == at) else { return Ok(None) };
        let Some(rank) = self.ranks.iter_mut().find(|rank| rank.number == loss.rank) else {
            return Ok(None);
        };
        let mut shares =
            plan.calls[at].parts.iter().flat_map(|part| part.shares(loss.rank, ranks, 0));
        let first = shares.next();
        let mut ended = Err(Stop::Left);
        let what = match (loss.way, first) {
            (Way::Stops, _) => "ranks that stop",
            (Way::Drops, _) => {
                rank.communicator = None;
                "ranks that end early"
            }
            (Way::Unwinds, _) => {
                let communicator = rank.communicator.take();
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    let _dropped = communicator;
                    resume_unwind(Box::new("on purpose"))
                }));
                drop::<std::result::Result<(), _>>(unwound);
                "ranks that a panic unwinds"
            }
            (Way::Fails, Some(share)) => {
                let function = function_of(share.action);
                let armed = rank.simulator.fail_call(function, 1, SYSTEM_ERROR.0);
                armed.map_err(|error| Stop::Failed(error.to_string()))?;
                ended = Ok(Some(Way::Fails));
                "calls of NCCL that fail"
            }
            (Way::LosesDevice, Some(_)) => {
                rank.simulator.lose_context();
                ended = Ok(Some(Way::LosesDevice));
                "devices lost"
            }
            // Also where it has no part in the call, which then says nothing of it.
            (way, share) => {
                rank.communicator.iter().for_each(Communicator::abort);
                ended = match share {
                    Some(_) => Ok(Some(Way::Aborts)),
                    None if way == Way::LosesDevice => Err(Stop::Left),
                    None => Err(Stop::Lost),
                };
                "ranks aborted"
            }
        };
        self.count(what);
        ended
    }

    /// What the call of a rank that is lost by it has to say.
    pub(crate) fn judge_failure(&mut self, at: usize, way: Way, error: &Error) -> Stop {
        let text = error.to_string();
        let is_right = match way {
            Way::LosesDevice => {
                [ErrorKind::ContextLost, ErrorKind::CommunicatorLost].contains(&error.kind())
            }
            _ => error.kind() == ErrorKind::CommunicatorLost,
        };
        if !is_right || (way == Way::Fails && !text.contains(SYSTEM_ERROR.1)) {
            return Stop::Failed(format!("{way:?}: {:?}: {text}", error.kind()));
        }
        if way == Way::Fails {
            // The ranks of a group fail together, and each says why.
            let (call, ranks) = (&self.shared.plan.calls[at], self.shared.plan.setup.ranks);
            let is_in_it = |rank: &&Rank| call.own(rank.number, ranks) > 0;
            for rank in self.ranks.iter().filter(is_in_it) {
                let told = rank.communicator.as_ref().map(Communicator::check);
                match told {
                    Some(Err(error)) if error.to_string().contains(SYSTEM_ERROR.1) => {}
                    told => {
                        return Stop::Failed(format!(
                            "rank {} is not told why its group failed: {told:?}",
                            rank.number
                        ));
                    }
                }
            }
            self.tally.add("ranks told why a group failed", self.ranks.len());
        }
        Stop::Lost
    }

    /// The ranks of this thread were told that one is lost, or have given all they had: each knows of it soon.
    pub(crate) fn lost(&mut self) -> Step {
        for own in 0..self.ranks.len() {
            if self.is_without_device(own) {
                continue;
            }
            let (patience, company) = (self.patience(), self.shared.plan.setup.company);
            let rank = &mut self.ranks[own];
            let communicator = rank.communicator.as_ref().expect("a rank that has not left");
            let registered = &rank.memory.registered;
            // It does not ask whether a rank is lost.
            let in_company = company && registered.register_with(communicator).is_ok();
            let waited = match in_company {
                true => beside_others(rank, || communicator.synchronize(patience)),
                false => communicator.synchronize(patience),
            };
            let number = rank.number;
            let told = match waited {
                Err(error) if error.kind() == ErrorKind::CommunicatorLost => error,
                Err(error) => return Err(self.unexpected("waiting for a lost rank")(error)),
                Ok(()) => return Err(format!("rank {number} is not told of a lost rank").into()),
            };
            let data = &mut rank.items[0].view_mut().map_err(|error| error.to_string())?;
            for again in [communicator.check(), communicator.broadcast_in_place(data, 0)] {
                let again = again.err().map_or_else(|| "nothing".into(), |error| error.to_string());
                if again != told.to_string() {
                    return Err(format!("rank {number} is told `{told}`, then `{again}`").into());
                }
            }
            self.count("ranks told of a lost one");
            if in_company {
                self.count("ranks told beside other calls");
            }
        }
        self.shared.told.fetch_add(1, Ordering::SeqCst);
        self.use_again()
    }

    /// The rank of this thread has left.
    pub(crate) fn left(&mut self) -> Step {
        let shared = self.shared;
        if shared.plan.setup.way() == Some(Way::Stops) {
            shared.wait_for(&shared.told, shared.plan.setup.threads.len() - 1);
        }
        self.ranks.iter_mut().for_each(|rank| rank.communicator = None);
        self.use_again()
    }

    /// Whether the device of a rank of this thread is lost.
    fn is_without_device(&self, own: usize) -> bool {
        let loss = self.shared.plan.setup.loss;
        loss.is_some_and(|loss| loss.way == Way::LosesDevice && loss.rank == self.ranks[own].number)
    }

    /// When all ranks are told or have left, their memory is their own again.
    fn use_again(&mut self) -> Step {
        let shared = self.shared;
        shared.gone.fetch_add(1, Ordering::SeqCst);
        shared.wait_for(&shared.gone, shared.plan.setup.threads.len());
        for own in 0..self.ranks.len() {
            if self.is_without_device(own) {
                continue;
            }
            for item in 0..self.ranks[own].items.len() {
                let (value, used) = (!(item as u32), &mut self.ranks[own].items[item]);
                let read = used.view_mut().and_then(|mut view| {
                    view.fill(value)?;
                    view.to_vec()
                });
                let found = read.map_err(self.unexpected("using memory after a loss"))?;
                if found.iter().any(|&found| found != value) {
                    return Err(format!("wrong data after a loss: {found:x?}").into());
                }
                self.count("items used after a loss");
            }
        }
        Ok(())
    }
}

/// Waits while other threads register memory with the rank.
fn beside_others(rank: &Rank, wait: impl FnOnce() -> Result<()>) -> Result<()> {
    let (is_over, stream) = (AtomicBool::new(false), &rank.streams[0]);
    let registered = &rank.memory.registered;
    std::thread::scope(|threads| {
        let others = [(); COMPANY].map(|()| {
            threads.spawn(|| {
                let mut blocks = Vec::new();
                while !is_over.load(Ordering::Relaxed) && blocks.len() < BLOCKS {
                    blocks.push(registered.allocate(stream, support::layout(8)));
                }
                blocks
            })
        });
        let waited = wait();
        is_over.store(true, Ordering::Relaxed);
        for blocks in others.map(|other| other.join().expect("it panics nowhere")) {
            for block in blocks {
                support::free(registered, stream, block?);
            }
        }
        waited
    })
}
