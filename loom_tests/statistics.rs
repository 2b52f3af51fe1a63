#![cfg(aquifer_loom)]
//! A statistics adaptor's counts: exact sums and peaks while threads count at desks of their own,
//! take each other's away and read.

mod harness;

use aquifer::models::Counts;
use aquifer::{Counter, Counters};
use harness::{large_model, model};
use loom::sync::Mutex;

/// Bytes of every block.
const SIZE: i64 = 8;

#[derive(Default)]
struct State {
    counts: Counts,
    /// Held by who holds the only block.
    only: Mutex<()>,
}

/// As they are when nobody has counted: the first who does owns the account.
fn fresh() -> State {
    State::default()
}

/// The first role's thread owns the account.
fn owned() -> State {
    let state = State::default();
    state.pair();
    state
}

/// Two threads have counted, and the first role's has a desk, which has a spare block.
fn shared() -> State {
    let state = owned();
    let state = loom::sync::Arc::new(state);
    let other = state.clone();
    let thread = loom::thread::spawn(move || {
        other.pair();
        drop(other);
        aquifer::models::leave_thread();
    });
    thread.join().expect("a pair");
    // The first opens the desk, the second leaves the spare there.
    state.pair();
    state.pair();
    loom::sync::Arc::try_unwrap(state).ok().expect("the thread is gone")
}

impl State {
    fn add(&self) {
        self.counts.add(SIZE);
    }

    fn subtract(&self) {
        self.counts.subtract(SIZE);
    }

    fn pair(&self) {
        self.add();
        self.subtract();
    }

    /// A pair while no other is under way.
    fn pair_alone(&self) {
        let only = self.only.lock().unwrap();
        self.pair();
        drop(only);
    }

    /// Blocks, of which each has its bytes.
    fn read(&self) -> Counter {
        let Counters { bytes, allocations: blocks, .. } = self.counts.read();
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
        // What was read is there for whoever counts next.
        self.pair();
        assert_eq!(self.read().total, total + 1, "the total after one more");
    }
}

/// Who comes first owns the account, and the other takes it away in the middle.
#[test]
fn two_first_threads() {
    model("two_first_threads", 150, fresh, &[State::pair, State::pair], |s| s.end(0, 1..=2, 2));
}

/// The owner counts while the other takes the account away.
#[test]
fn the_owner_is_in_the_middle() {
    model(
        "the_owner_is_in_the_middle",
        850,
        owned,
        &[
            |s: &State| {
                s.pair();
                s.add();
            },
            |s| {
                s.add();
                s.subtract();
            },
        ],
        |s| s.end(1, 1..=2, 4),
    );
}

/// Each holds its block until the end: the peak is both, whatever is spare.
#[test]
fn two_blocks_at_once() {
    model(
        "two_blocks_at_once",
        700,
        shared,
        &[
            |s: &State| {
                s.pair();
                s.add();
            },
            |s| {
                s.pair();
                s.add();
            },
        ],
        |s| s.end(2, 2..=2, 8),
    );
}

/// There is never more than one block, and the peak says so, though each leaves a spare one.
#[test]
fn one_block_in_turn() {
    model("one_block_in_turn", 9, shared, &[State::pair_alone, State::pair_alone], |s| {
        s.end(0, 1..=1, 6)
    });
}

/// Each ends what another began, and one needs more than its own.
#[test]
fn frees_of_another_thread() {
    model(
        "frees_of_another_thread",
        130,
        || {
            let state = shared();
            state.add();
            state
        },
        &[
            |s: &State| {
                s.subtract();
                s.add();
            },
            |s| {
                s.subtract();
                s.add();
                s.add();
            },
        ],
        |s| s.end(2, 2..=2, 8),
    );
}

/// A reader while the owner counts and the other takes the account away.
#[test]
fn a_reader_and_the_owner() {
    large_model(
        "a_reader_and_the_owner",
        14_000,
        owned,
        &[State::pair, State::add, |s| s.look(2)],
        |s| s.end(1, 1..=2, 3),
    );
}

/// A reader while two are at desks.
#[test]
fn a_reader_and_two_desks() {
    large_model(
        "a_reader_and_two_desks",
        16_000,
        shared,
        &[State::pair, State::pair, |s| s.look(2)],
        |s| s.end(0, 1..=2, 6),
    );
}
