//! Small numbers for the threads of the process that run now.

use super::till::DESKS;
use crate::backend::is_forked_child;
use crate::sync::trusted::{Mutex, unique};
use crate::sync::{MODELLED, thread_local};
use std::cell::Cell;

/// The seat of nobody: of a thread that has not counted, that ends, or that came when all were taken.
pub(super) const NO_SEAT: usize = 0;

/// Seats that were given out, and those of them that came back.
struct Seats {
    next: usize,
    free: Vec<usize>,
}

static SEATS: Mutex<Seats> = Mutex::new(Seats { next: NO_SEAT + 1, free: Vec::new() });

/// What a thread has of it. Dropped, its seat is the next thread's, and so are the desks there.
struct Sitting(usize);

thread_local! {
    /// Apart from the sitting: to look at what has a destructor costs a question more.
    static MINE: Cell<usize> = const { Cell::new(NO_SEAT) };
    static SITTING: Cell<Option<Sitting>> = const { Cell::new(None) };
}

/// The calling thread's seat, which no other thread has as long as it runs.
#[inline(always)]
pub(super) fn mine() -> usize {
    MINE.try_with(Cell::get).unwrap_or(NO_SEAT)
}

/// As [`mine`], and asks for one if the thread has none.
pub(super) fn take() -> usize {
    let mine = mine();
    if mine != NO_SEAT {
        return mine;
    }
    let Some(sitting) = Sitting::new() else { return NO_SEAT };
    let seat = sitting.0;
    // Dropped unkept where the thread is going away: the seat goes back at once.
    let kept = SITTING.try_with(|here| here.set(Some(sitting))).is_ok();
    if kept && MINE.try_with(|mine| mine.set(seat)).is_ok() { seat } else { NO_SEAT }
}

impl Sitting {
    fn new() -> Option<Self> {
        // The lock may have been held by a thread that a fork left behind.
        if is_forked_child() {
            return None;
        }
        if MODELLED {
            // The same in every execution, from 1 on.
            let seat = unique() as usize - 15;
            return (seat < DESKS).then(|| Self(seat));
        }
        let mut seats = SEATS.lock();
        let seat = seats.free.pop().unwrap_or_else(|| {
            let next = seats.next;
            seats.next = (next + 1).min(DESKS);
            next
        });
        (seat < DESKS).then(|| Self(seat))
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        // What the thread counts from here on, in other destructors, it counts without a seat.
        let _ = MINE.try_with(|mine| mine.set(NO_SEAT));
        if !MODELLED && !is_forked_child() {
            SEATS.lock().free.push(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::trusted::{AtomicUsize, Ordering};

    #[test]
    fn threads_that_run_have_seats_of_their_own_and_leave_them() {
        let here = take();
        assert_eq!((mine(), take()), (here, here));
        let seated = AtomicUsize::new(0);
        let mut seats: Vec<_> = std::thread::scope(|scope| {
            let sit = || {
                let before = mine();
                let seat = take();
                seated.fetch_add(1, Ordering::Relaxed);
                while seated.load(Ordering::Relaxed) < 2 * DESKS {
                    std::thread::yield_now();
                }
                (before, seat, mine())
            };
            let threads: Vec<_> = (0..2 * DESKS).map(|_| scope.spawn(sit)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(seats.iter().all(|(before, seat, after)| (*before, *after) == (NO_SEAT, *seat)));
        seats.retain(|(_, seat, _)| *seat != NO_SEAT);
        let most = seats.len();
        seats.push((NO_SEAT, here, here));
        seats.sort_unstable_by_key(|(_, seat, _)| *seat);
        seats.dedup();
        assert!(most < DESKS && seats.len() == most + 1, "{most} seats, one for each of them");
        for _ in 0..2 * DESKS {
            let seat = std::thread::spawn(take).join().unwrap();
            assert!(seat != NO_SEAT && seat < DESKS && seat != here, "a seat came back");
        }
    }
}
