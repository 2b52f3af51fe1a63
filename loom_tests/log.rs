#![cfg(aquifer_loom)]
//! The queue of a log: what was taken in comes out once, whole and in each thread's order.

mod harness;

use aquifer::models::Line;
use harness::{large_model, model};
use std::sync::Mutex;

/// Records have the number of their thread and their place in it: 10 for the first of thread 1.
struct State {
    line: Line,
    /// std's locks: loom need not know of them.
    pushed: Mutex<Vec<u32>>,
    taken: Mutex<Vec<u32>>,
}

fn ring(capacity: usize) -> State {
    State { line: Line::new(capacity), pushed: Mutex::default(), taken: Mutex::default() }
}

impl State {
    fn push(&self, thread: u32, records: u32) {
        for number in 0..records {
            let record = thread * 10 + number;
            if self.line.push(record) {
                self.pushed.lock().unwrap().push(record);
            }
        }
    }

    fn drain(&self, most: usize) {
        self.line.drain(most, |record| self.taken.lock().unwrap().push(record));
    }

    fn end(&self, least: usize) {
        self.drain(usize::MAX);
        let taken = std::mem::take(&mut *self.taken.lock().unwrap());
        let mut pushed = std::mem::take(&mut *self.pushed.lock().unwrap());
        assert!(pushed.len() >= least, "{pushed:?} found room");
        for pair in taken.windows(2).filter(|pair| pair[0] / 10 == pair[1] / 10) {
            assert!(pair[0] < pair[1], "a thread's order: {taken:?}");
        }
        let mut sorted = taken.clone();
        sorted.sort_unstable();
        pushed.sort_unstable();
        assert_eq!(sorted, pushed, "each record comes out once");
    }
}

/// One place: a producer may be at it while the record before is read.
#[test]
fn a_place_in_turn() {
    model(
        "a_place_in_turn",
        1000,
        || {
            let state = ring(1);
            state.push(0, 1);
            state
        },
        &[
            |s: &State| s.push(1, 2),
            |s| {
                s.drain(1);
                s.drain(usize::MAX);
            },
        ],
        |s| s.end(1),
    );
}

/// Two producers meet: the later may be done first, and the consumer waits for the earlier.
#[test]
fn two_producers() {
    large_model(
        "two_producers",
        130_000,
        || ring(2),
        &[|s: &State| s.push(1, 1), |s| s.push(2, 2), |s| s.drain(usize::MAX)],
        |s| s.end(2),
    );
}
