#![cfg(aquifer_loom)]
//! PendingUses: a vector that several threads use on several streams at once, as far as the borrow rules
//! let them.

mod harness;

use aquifer::models::{PendingUses, Timeline};
use harness::driver::{Access::Read, Access::Write, Driver, Refused, WHOLE};
use harness::model;
use harness::vector::{Plain, Unknown, Vector};
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::convert::Infallible;
use std::sync::Arc;

const A: Plain = Plain(1);
const B: Plain = Plain(2);
const WRITER: Plain = Plain(3);

fn fresh() -> Vector<Plain> {
    Vector::new(&Arc::new(Driver::new(1)))
}

/// A stream has written the vector, and home has not waited for it yet.
fn written() -> Vector<Plain> {
    let vector = fresh();
    vector.use_on(&WRITER, WHOLE, Write).unwrap();
    vector
}

fn write_and_free(vector: &Vector<Plain>) {
    vector.use_at_home(WHOLE, Write).unwrap();
    vector.free().unwrap();
}

#[test]
fn two_readers() {
    model(
        "two_readers",
        250,
        written,
        &[|v| v.use_on(&A, WHOLE, Read).unwrap(), |v| v.use_on(&B, WHOLE, Read).unwrap()],
        write_and_free,
    );
}

#[test]
fn reader_and_home() {
    model(
        "reader_and_home",
        150,
        written,
        &[|v| v.use_on(&A, WHOLE, Read).unwrap(), |v| v.read_on_host(WHOLE).unwrap()],
        write_and_free,
    );
}

#[test]
fn two_readers_and_home() {
    model(
        "two_readers_and_home",
        45_000,
        written,
        &[
            |v| v.use_on(&A, WHOLE, Read).unwrap(),
            |v| v.use_on(&B, WHOLE, Read).unwrap(),
            |v| v.use_at_home(WHOLE, Read).unwrap(),
        ],
        write_and_free,
    );
}

#[test]
fn the_writer_reads_too() {
    model(
        "the_writer_reads_too",
        250,
        written,
        &[|v| v.use_on(&WRITER, WHOLE, Read).unwrap(), |v| v.use_on(&A, WHOLE, Read).unwrap()],
        write_and_free,
    );
}

#[test]
fn two_halves() {
    model(
        "two_halves",
        250,
        written,
        &[|v| v.use_on(&A, 0..4, Write).unwrap(), |v| v.use_on(&B, 4..8, Write).unwrap()],
        write_and_free,
    );
}

#[test]
fn one_stream_from_two_threads() {
    model(
        "one_stream_from_two_threads",
        250,
        written,
        &[|v| v.use_on(&A, 0..6, Read).unwrap(), |v| v.use_on(&A, 2..8, Read).unwrap()],
        |v| {
            // Either end is one thread's alone.
            v.use_at_home(0..2, Write).unwrap();
            v.use_at_home(6..8, Write).unwrap();
            write_and_free(v);
        },
    );
}

/// Streams that only the context can be asked for: one event covers them all, and none is ordered
/// after another by itself.
#[test]
fn streams_of_the_context() {
    model(
        "streams_of_the_context",
        250,
        || {
            let vector = Vector::new(&Arc::new(Driver::new(1)));
            vector.use_on(&Unknown(3), WHOLE, Write).unwrap();
            vector
        },
        &[
            |v: &Vector<Unknown>| v.use_on(&Unknown(1), WHOLE, Read).unwrap(),
            |v| v.use_on(&Unknown(2), WHOLE, Read).unwrap(),
        ],
        |v| {
            v.use_at_home(WHOLE, Write).unwrap();
            v.free().unwrap();
        },
    );
}

/// One half comes home while a guard on the other half, of the same stream, has still to be used.
#[test]
fn one_half_comes_home() {
    model(
        "one_half_comes_home",
        300,
        fresh,
        &[
            |v| v.use_on(&A, 0..4, Write).unwrap(),
            |v| {
                v.use_on(&A, 4..8, Write).unwrap();
                v.use_at_home(4..8, Write).unwrap();
            },
        ],
        write_and_free,
    );
}

/// As [`one_half_comes_home`], where the stream has a pending use of the whole.
#[test]
fn one_half_of_a_written_vector_comes_home() {
    model(
        "one_half_of_a_written_vector_comes_home",
        200,
        written,
        &[|v| v.use_on(&WRITER, 0..4, Write).unwrap(), |v| v.use_on(&A, 4..8, Write).unwrap()],
        write_and_free,
    );
}

/// Two ends are read on one stream while home writes between them.
#[test]
fn home_writes_between_readers() {
    model(
        "home_writes_between_readers",
        13_000,
        fresh,
        &[
            |v| v.use_on(&A, 0..2, Read).unwrap(),
            |v| v.use_on(&A, 6..8, Read).unwrap(),
            |v| v.use_at_home(3..5, Write).unwrap(),
        ],
        write_and_free,
    );
}

/// The driver refuses one wait, on any thread: that use does not happen, and the earlier one stays
/// pending. The second try has to wait for it.
#[test]
fn a_refused_wait() {
    fn twice(attempt: impl Fn() -> Result<(), Refused>) {
        attempt().or_else(|Refused| attempt()).unwrap();
    }
    fn begin() -> Vector<Plain> {
        let vector = written();
        vector.driver().refuse(1);
        vector
    }
    model(
        "a_refused_wait",
        150,
        begin,
        &[|v| twice(|| v.use_on(&A, WHOLE, Read)), |v| twice(|| v.use_at_home(WHOLE, Read))],
        write_and_free,
    );
}

/// A driver that orders nothing between threads: a wait is one store, and a use looks whether it is
/// there. What orders the two is the uses alone.
struct Unordered {
    waited: AtomicUsize,
    uses: PendingUses<Once>,
}

#[derive(Debug)]
struct Once;

impl Timeline for Once {
    fn same(&self, _: &Self) -> bool {
        true
    }
}

#[test]
fn a_driver_without_order() {
    fn begin() -> Unordered {
        let uses = PendingUses::default();
        uses.record_use(Once, WHOLE, true);
        Unordered { waited: AtomicUsize::new(0), uses }
    }
    fn wait(state: &Unordered) {
        let wait_for = |_: &Once| -> Result<(), Infallible> {
            state.waited.store(1, Relaxed);
            Ok(())
        };
        state.uses.wait_conflicting(&WHOLE, false, wait_for).unwrap();
        let waited = state.waited.load(Relaxed);
        assert_eq!(waited, 1, "device race: home reads before the wait that another thread made");
    }
    model("a_driver_without_order", 20, begin, &[wait, wait], |state| {
        assert!(state.uses.is_empty())
    });
}
