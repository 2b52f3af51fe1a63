#![cfg(aquifer_loom)]
//! A statistics adaptor's counters: exact sums and peaks while one thread counts without a lock, another
//! one ends that, and threads read.

mod harness;

use aquifer::models::SharedCounters;
use aquifer::mr::{Counter, Counters};
use harness::{large_model, model};
use loom::sync::Mutex;

/// Bytes of every block.
const SIZE: i64 = 8;

#[derive(Default)]
struct State {
    counters: SharedCounters,
    /// Held by the thread that holds the only block.
    only: Mutex<()>,
    /// The blocks of before a scope.
    aside: Mutex<Counter>,
}

/// No thread has counted: the first one owns the counters.
fn fresh() -> State {
    State::default()
}

/// The first role's thread owns the counters.
fn owned() -> State {
    let state = State::default();
    state.pair();
    state
}

/// Two threads have counted: the counters are all threads'.
fn shared() -> State {
    let state = loom::sync::Arc::new(owned());
    let other = state.clone();
    let thread = loom::thread::spawn(move || {
        other.pair();
        drop(other);
        aquifer::models::drop_thread_locals();
    });
    thread.join().expect("a pair");
    loom::sync::Arc::try_unwrap(state).ok().expect("the thread is gone")
}

impl State {
    fn record_allocation(&self) {
        self.counters.record_allocation(SIZE);
    }

    fn record_free(&self) {
        self.counters.record_free(SIZE);
    }

    fn pair(&self) {
        self.record_allocation();
        self.record_free();
    }

    /// A pair while no other is under way.
    fn pair_alone(&self) {
        let only = self.only.lock().unwrap();
        self.pair();
        drop(only);
    }

    /// As a scope of all threads begins.
    fn put_aside(&self) {
        let counters = self.counters.exchange(std::mem::take);
        *self.aside.lock().unwrap() = counters.allocations;
    }

    /// What was counted before a scope, and in it, is all that was counted.
    fn end_of_scope(&self, current: i64, total: i64) {
        let (before, inside) = (*self.aside.lock().unwrap(), self.read());
        assert_eq!(before.current + inside.current, current, "current before and inside");
        assert_eq!(before.total + inside.total, total, "total before and inside");
        let peak = before.peak.max(before.current + inside.peak);
        assert!((1..=2).contains(&peak), "the peak is {peak}");
    }

    /// Blocks, of which each has its bytes.
    fn read(&self) -> Counter {
        let Counters { bytes, allocations: blocks, .. } = self.counters.read();
        let of_bytes = [bytes.current, bytes.peak, bytes.total];
        let of_blocks = [blocks.current, blocks.peak, blocks.total].map(|blocks| blocks * SIZE);
        assert_eq!(of_bytes, of_blocks, "bytes and blocks of one moment");
        blocks
    }

    /// What is read while others count is something that was.
    fn look(&self, most: i64) {
        let before = self.read();
        let after = self.read();
        for seen in [before, after] {
            assert!((0..=most).contains(&seen.current), "{} blocks are current", seen.current);
            assert!((1..=most).contains(&seen.peak.max(1)), "the peak is {}", seen.peak);
            assert!(seen.current <= seen.peak, "more are current than were at the peak");
        }
        assert!(before.peak <= after.peak, "the peak has fallen");
        assert!(before.total <= after.total, "the total has fallen");
    }

    fn end(&self, current: i64, peaks: std::ops::RangeInclusive<i64>, total: i64) {
        let end = self.read();
        assert_eq!((end.current, end.total), (current, total), "current and total at the end");
        assert!(peaks.contains(&end.peak), "the peak is {}, of {peaks:?}", end.peak);
        // Reading takes nothing away.
        self.pair();
        assert_eq!(self.read().total, total + 1, "the total after one more");
    }
}

/// The first thread owns the counters, and the other one ends that in the middle.
#[test]
fn two_first_threads() {
    model("two_first_threads", 400, fresh, &[State::pair, State::pair], |s| s.end(0, 1..=2, 2));
}

/// The owner counts while the other one ends its bias.
#[test]
fn the_owner_is_in_the_middle() {
    model(
        "the_owner_is_in_the_middle",
        1_200,
        owned,
        &[
            |s: &State| {
                s.pair();
                s.record_allocation();
            },
            |s| {
                s.record_allocation();
                s.record_free();
            },
        ],
        |s| s.end(1, 1..=2, 4),
    );
}

/// Each holds its block until the end: the peak is both.
#[test]
fn two_blocks_at_once() {
    model(
        "two_blocks_at_once",
        45,
        shared,
        &[
            |s: &State| {
                s.pair();
                s.record_allocation();
            },
            |s| {
                s.pair();
                s.record_allocation();
            },
        ],
        |s| s.end(2, 2..=2, 6),
    );
}

/// There is never more than one block, and the peak says so.
#[test]
fn one_block_in_turn() {
    model("one_block_in_turn", 9, shared, &[State::pair_alone, State::pair_alone], |s| {
        s.end(0, 1..=1, 4)
    });
}

/// Each frees what the other allocated.
#[test]
fn frees_of_another_thread() {
    model(
        "frees_of_another_thread",
        30,
        || {
            let state = shared();
            state.record_allocation();
            state
        },
        &[
            |s: &State| {
                s.record_free();
                s.record_allocation();
            },
            |s| {
                s.record_free();
                s.record_allocation();
                s.record_allocation();
            },
        ],
        |s| s.end(2, 2..=2, 6),
    );
}

/// A reader while the owner counts and another thread ends its bias.
#[test]
fn a_reader_and_the_owner() {
    large_model(
        "a_reader_and_the_owner",
        10_000,
        owned,
        &[State::pair, State::record_allocation, |s| s.look(2)],
        |s| s.end(1, 1..=2, 3),
    );
}

/// A reader while two count under the mutex.
#[test]
fn a_reader_and_two_threads() {
    large_model(
        "a_reader_and_two_threads",
        380,
        shared,
        &[State::pair, State::pair, |s| s.look(2)],
        |s| s.end(0, 1..=2, 4),
    );
}

/// A scope of all threads begins while the owner counts.
#[test]
fn a_scope_beside_the_owner() {
    model("a_scope_beside_the_owner", 100, owned, &[State::pair, State::put_aside], |s| {
        s.end_of_scope(0, 2)
    });
}

/// A scope of all threads begins while the owner and another thread count.
#[test]
fn a_scope_beside_two_threads() {
    large_model(
        "a_scope_beside_two_threads",
        1_000,
        owned,
        &[State::pair, State::record_allocation, State::put_aside],
        |s| s.end_of_scope(1, 3),
    );
}
