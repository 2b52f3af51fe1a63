//! Threads that take turns, so that a log keeps its order.

use crate::plan::Step;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Thread};

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
        match runs.last_mut() {
            Some(run) if run.thread == step.thread => run.steps.end = at + 1,
            _ => runs.push(Run { thread: step.thread, steps: at..at + 1 }),
        }
    }
    runs
}

/// A turn that nobody has: a thread panicked.
const BROKEN: usize = usize::MAX;

/// Calls `make` with the steps of each run, in their order, on one thread for each of the log's.
/// With a single one, on the calling thread and without synchronisation.
pub(crate) fn take(runs: &[Run], threads: usize, make: &(dyn Fn(Range<usize>) + Sync)) {
    let single = runs.windows(2).all(|two| two[0].thread == two[1].thread);
    if single {
        runs.iter().for_each(|run| make(run.steps.clone()));
        return;
    }
    let turn = AtomicUsize::new(0);
    let handles: OnceLock<Vec<Thread>> = OnceLock::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|own| {
                let (turn, handles) = (&turn, &handles);
                scope.spawn(move || worker(runs, own, turn, handles, make))
            })
            .collect();
        // The workers wait for this before they hand over.
        let _ = handles.set(workers.iter().map(|worker| worker.thread().clone()).collect());
    });
}

fn worker(
    runs: &[Run],
    own: usize,
    turn: &AtomicUsize,
    handles: &OnceLock<Vec<Thread>>,
    make: &(dyn Fn(Range<usize>) + Sync),
) {
    let guard = Guard { turn, handles };
    for (number, run) in runs.iter().enumerate().filter(|(_, run)| run.thread == own) {
        loop {
            // Acquire: what the thread before did is seen.
            match turn.load(Ordering::Acquire) {
                BROKEN => return,
                now if now == number => break,
                _ => thread::park(),
            }
        }
        make(run.steps.clone());
        turn.store(number + 1, Ordering::Release);
        if let Some(next) = runs.get(number + 1)
            && let Some(thread) = handles.wait().get(next.thread)
        {
            thread.unpark();
        }
    }
    drop(guard);
}

/// Lets the others go when a thread panics.
struct Guard<'a> {
    turn: &'a AtomicUsize,
    handles: &'a OnceLock<Vec<Thread>>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.turn.store(BROKEN, Ordering::Release);
            self.handles.wait().iter().for_each(Thread::unpark);
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
        take(&runs, 5, &|range| {
            let me = thread::current().id();
            seen.lock().unwrap().extend(range.map(|at| (at, me)));
        });
        let seen = seen.into_inner().unwrap();
        assert!(seen.iter().map(|(at, _)| *at).eq(0..999));
        // One thread of ours for each of theirs.
        let pairs: HashSet<_> = seen.iter().map(|(at, me)| (of[*at], *me)).collect();
        assert_eq!(pairs.len(), 5);
    }

    #[test]
    fn a_single_thread_is_the_callers() {
        let here = thread::current().id();
        take(&runs(&steps(&[3, 3, 3])), 4, &|range| {
            assert_eq!((range, thread::current().id()), (0..3, here));
        });
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let runs = runs(&steps(&[0, 1, 2, 0, 1, 2]));
        let caught = std::panic::catch_unwind(|| {
            take(&runs, 3, &|range| assert_ne!(range.start, 2, "on purpose"));
        });
        assert!(caught.is_err());
    }
}
