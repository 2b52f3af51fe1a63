#![cfg(aquifer_loom)]
//! The ring of a log: each record that was pushed comes out once, whole and in its thread's order.

mod harness;

use aquifer::models::NumberRing;
use harness::{large_model, model};
use std::sync::Mutex;

/// A record is ten times its thread's number and its index in the thread: 10 is the first of thread 1.
struct State {
    ring: NumberRing,
    /// std's locks, which loom does not model.
    pushed: Mutex<Vec<u32>>,
    taken: Mutex<Vec<u32>>,
}

fn ring(capacity: usize) -> State {
    State { ring: NumberRing::new(capacity), pushed: Mutex::default(), taken: Mutex::default() }
}

impl State {
    fn push(&self, thread: u32, records: u32) {
        for number in 0..records {
            let record = thread * 10 + number;
            if self.ring.push(record) {
                self.pushed.lock().unwrap().push(record);
            }
        }
    }

    fn drain(&self, most: usize) {
        self.ring.drain(most, |record| self.taken.lock().unwrap().push(record));
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

/// One slot: a producer may claim it while the consumer reads the record before (INV-1).
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

/// Two producers: the later may complete first, and the consumer waits for the earlier.
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
