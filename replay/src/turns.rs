//! Threads that take turns, so that a log keeps its order.

use crate::plan::Step;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Thread};

/// Threads of a replay at most; where a log has more, they share these.
pub(crate) const THREADS: usize = 64;

/// Steps that one thread makes in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) thread: usize,
    pub(crate) steps: Range<usize>,
}

/// The runs of a log: the turn changes hands only where the thread changes.
pub(crate) fn runs(steps: &[Step]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let thread = step.thread % THREADS;
        match runs.last_mut() {
            Some(run) if run.thread == thread => run.steps.end = at + 1,
            _ => runs.push(Run { thread, steps: at..at + 1 }),
        }
    }
    runs
}

/// How often a thread looks for its turn before it sleeps, where each has a core: waking one takes longer
/// than most runs. `benches/peers/rmm_log.hpp` does the same.
const SPINS: u32 = 20_000;

/// A turn that nobody has: a thread panicked, or could not be made.
const BROKEN: usize = usize::MAX;

/// Calls `make` with the steps of each run, in their order, on one thread for each of the log's.
/// With a single one, on the calling thread and without synchronisation.
///
/// # Errors
///
/// If a thread cannot be made. Then `make` was not called.
pub(crate) fn take(runs: &[Run], make: &(dyn Fn(Range<usize>) + Sync)) -> io::Result<()> {
    let single = runs.windows(2).all(|two| two[0].thread == two[1].thread);
    if single {
        runs.iter().for_each(|run| make(run.steps.clone()));
        return Ok(());
    }
    let mut turns: Vec<Vec<usize>> = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        turns.resize(turns.len().max(run.thread + 1), Vec::new());
        turns[run.thread].push(number);
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let spins = if turns.len() <= cores { SPINS } else { 0 };
    let turn = AtomicUsize::new(0);
    let handles: OnceLock<Vec<Thread>> = OnceLock::new();
    thread::scope(|scope| {
        let (mut made, mut workers) = (Vec::new(), Vec::new());
        for (index, own) in turns.iter().enumerate() {
            let (turn, handles) = (&turn, &handles);
            let worker = move || {
                worker(runs, own, turn, handles, spins, make);
                wait_for(turn, runs.len() + index, 0);
            };
            match thread::Builder::new().spawn_scoped(scope, worker) {
                Ok(worker) => {
                    made.push(worker.thread().clone());
                    workers.push(worker);
                }
                Err(error) => {
                    turn.store(BROKEN, Ordering::Release);
                    let _ = handles.set(Vec::new());
                    return Err(error);
                }
            }
        }
        // The workers wait for this before they begin.
        let handles = handles.get_or_init(|| made);
        // A thread that ends gives what it kept back to the pool. They end one after the other when all turns are
        // over, or no two replays would be the same.
        for (index, worker) in workers.into_iter().enumerate() {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
            turn.fetch_max(runs.len() + index + 1, Ordering::Release);
            handles.get(index + 1).into_iter().for_each(Thread::unpark);
        }
        Ok(())
    })
}

fn worker(
    runs: &[Run],
    own: &[usize],
    turn: &AtomicUsize,
    handles: &OnceLock<Vec<Thread>>,
    spins: u32,
    make: &(dyn Fn(Range<usize>) + Sync),
) {
    let handles = handles.wait();
    let guard = Guard { turn, handles };
    for &number in own {
        if wait_for(turn, number, spins) == BROKEN {
            return;
        }
        make(runs[number].steps.clone());
        turn.store(number + 1, Ordering::Release);
        match runs.get(number + 1) {
            Some(next) => handles.get(next.thread).into_iter().for_each(Thread::unpark),
            None => handles.iter().for_each(Thread::unpark),
        }
    }
    drop(guard);
}

/// Waits for a turn, and returns it, or [`BROKEN`].
fn wait_for(turn: &AtomicUsize, number: usize, mut spins: u32) -> usize {
    loop {
        // Acquire: what the thread before did is seen.
        match turn.load(Ordering::Acquire) {
            now if now >= number => return now,
            _ if spins > 0 => {
                spins -= 1;
                std::hint::spin_loop();
            }
            _ => thread::park(),
        }
    }
}

/// Lets the others go when a thread panics.
struct Guard<'a> {
    turn: &'a AtomicUsize,
    handles: &'a [Thread],
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.turn.store(BROKEN, Ordering::Release);
            self.handles.iter().for_each(Thread::unpark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::What;
    use std::collections::HashSet;
    use std::sync::Mutex;

    fn steps(threads: &[usize]) -> Vec<Step> {
        threads
            .iter()
            .map(|&thread| Step {
                line: 0,
                thread,
                stream: 0,
                time: None,
                what: What::Free { slot: 0 },
            })
            .collect()
    }

    #[test]
    fn threads_keep_the_order() {
        let of: Vec<usize> = (0..999).map(|at| (at * at + at / 7) % 5).collect();
        let runs = runs(&steps(&of));
        assert!(runs.len() < of.len());
        let seen = Mutex::new(Vec::new());
        take(&runs, &|range| {
            let me = thread::current().id();
            seen.lock().unwrap().extend(range.map(|at| (at, me)));
        })
        .unwrap();
        let seen = seen.into_inner().unwrap();
        assert!(seen.iter().map(|(at, _)| *at).eq(0..999));
        // One thread of ours for each of theirs.
        let pairs: HashSet<_> = seen.iter().map(|(at, me)| (of[*at], *me)).collect();
        assert_eq!(pairs.len(), 5);
    }

    #[test]
    fn a_single_thread_is_the_callers() {
        let here = thread::current().id();
        take(&runs(&steps(&[3, 3, 3])), &|range| {
            assert_eq!((range, thread::current().id()), (0..3, here));
        })
        .unwrap();
    }

    #[test]
    fn many_threads_share_a_few() {
        let runs = runs(&steps(&(0..3 * THREADS).collect::<Vec<_>>()));
        let seen = Mutex::new(HashSet::new());
        take(&runs, &|_| {
            seen.lock().unwrap().insert(thread::current().id());
        })
        .unwrap();
        assert_eq!(seen.into_inner().unwrap().len(), THREADS);
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let runs = runs(&steps(&[0, 1, 2, 0, 1, 2]));
        let caught = std::panic::catch_unwind(|| {
            take(&runs, &|range| assert_ne!(range.start, 2, "on purpose"))
        });
        assert!(caught.is_err());
    }
}
