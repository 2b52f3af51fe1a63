#![cfg(aquifer_loom)]
//! Memory that changes hands between streams: whatever the moment, the new stream is ordered after
//! the former use, or does not get it.

mod harness;

use aquifer::models::Rung::{Complete, Gather, GrowToMaximum, Ordered, Wait};
use aquifer::models::{Failure, Pool, Upstream};
use harness::ground::{Plan, Rig, UNIT, plan};
use harness::{large_model, model};
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::convert::Infallible;
use std::sync::Arc;

/// A free on one stream while another looks for memory: it is found with its stamp, or not found.
#[test]
fn free_and_steal() {
    model(
        "free_and_steal",
        45,
        || plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 1),
        &[|rig: &Rig| rig.free_held(0, 0), |rig| rig.visit(1)],
        Rig::end,
    );
}

/// The same by the rungs that ask the device, which moves on meanwhile.
#[test]
fn free_and_complete() {
    model(
        "free_and_complete",
        77,
        || plan(1, &[Complete, GrowToMaximum]).build().prepared(&[0], 1),
        &[
            |rig: &Rig| {
                rig.free_held(0, 0);
                rig.driver.finish(0);
            },
            |rig| {
                rig.visit(1);
                rig.visit(1);
            },
        ],
        Rig::end,
    );
}

/// A second block is freed while the epoch of the first is closed: the event may miss its last work.
#[test]
fn free_while_the_epoch_closes() {
    model(
        "free_while_the_epoch_closes",
        170,
        || plan(2, &[Wait, GrowToMaximum]).build().prepared(&[0, 0], 1),
        &[
            |rig: &Rig| rig.free_held(0, 0),
            |rig| {
                rig.keep(1);
                rig.keep(1);
            },
        ],
        Rig::end,
    );
}

/// One block of another stream: one of two gets it.
#[test]
fn two_thieves() {
    model(
        "two_thieves",
        1_300,
        || plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 0),
        &[|rig: &Rig| rig.keep(1), |rig| rig.keep(2)],
        |rig| {
            assert_eq!(rig.kept(), 1, "thieves that got the one block");
            rig.end();
        },
    );
}

/// Two threads of one stream take what another stream freed: the second need not wait, but its work
/// comes after the wait of the first.
#[test]
fn two_threads_of_one_thief() {
    model(
        "two_threads_of_one_thief",
        3_100,
        || plan(2, &[Wait, GrowToMaximum]).build().prepared(&[0, 0], 0),
        &[|rig: &Rig| rig.keep(1), |rig| rig.keep(1)],
        |rig| {
            assert_eq!(rig.kept(), 2, "blocks that were stolen");
            rig.end();
        },
    );
}

/// A block goes from the first stream to the second and on to the third.
#[test]
fn three_streams() {
    model(
        "three_streams",
        59_000,
        || plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 1),
        &[|rig: &Rig| rig.free_held(0, 0), |rig| rig.visit(1), |rig| rig.visit(2)],
        Rig::end,
    );
}

/// The third stream is ordered after what the second was ordered after when its event was recorded,
/// and no more: the second comes to wait for the first while a thread records on it.
#[test]
fn the_clock_of_an_event() {
    fn begin() -> Rig {
        let rig = plan(5, &[Ordered, Wait, GrowToMaximum]).build();
        let small = rig.must_take(1);
        let large = [rig.take_units(0, 2).unwrap(), rig.take_units(0, 2).unwrap()];
        rig.free(1, small);
        large.into_iter().for_each(|block| rig.free(0, block));
        rig
    }
    model(
        "the_clock_of_an_event",
        2_100,
        begin,
        &[
            |rig: &Rig| rig.keep_units(1, 2),
            |rig| {
                rig.keep(2);
                rig.keep_units(2, 2);
            },
        ],
        |rig| {
            assert_eq!(rig.kept(), 3, "blocks that were stolen");
            rig.end();
        },
    );
}

/// What is left of a growth is its stream's, though nobody has used it.
#[test]
fn growth_and_steal() {
    model(
        "growth_and_steal",
        890,
        || plan(2, &[Wait, GrowToMaximum]).with_step(2).build(),
        &[|rig: &Rig| rig.keep(0), |rig| rig.keep(1)],
        Rig::end,
    );
}

/// Blocks freed on two streams that are not their heap's, while the heap's own stream looks for
/// memory.
#[test]
fn frees_of_two_other_streams() {
    large_model(
        "frees_of_two_other_streams",
        8_000,
        || plan(2, &[Wait, GrowToMaximum]).build().prepared(&[0, 0], 2).lent_to(&[1, 2]),
        &[|rig: &Rig| rig.free_held(1, 0), |rig| rig.free_held(2, 1), |rig| rig.keep(0)],
        Rig::end,
    );
}

/// The driver refuses one record: that thief fails, and nobody gets the block unordered.
#[test]
fn a_refused_record() {
    model(
        "a_refused_record",
        1_800,
        || {
            let rig = plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 0);
            rig.driver.refuse_records(1);
            rig
        },
        &[|rig: &Rig| rig.visit(1), |rig| rig.visit(2)],
        |rig| {
            let block = rig.must_take(3);
            rig.free(3, block);
            rig.end();
        },
    );
}

/// The driver refuses one wait.
#[test]
fn a_refused_wait() {
    model(
        "a_refused_wait",
        1_300,
        || {
            let rig = plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 0);
            rig.driver.refuse(1);
            rig
        },
        &[|rig: &Rig| rig.visit(1), |rig| rig.visit(1)],
        |rig| {
            let block = rig.must_take(3);
            rig.free(3, block);
            rig.end();
        },
    );
}

/// All free memory is gathered for one stream while another frees and takes.
#[test]
fn gather_and_free() {
    model(
        "gather_and_free",
        570,
        || plan(2, &[Gather, GrowToMaximum]).with_step(2).build().prepared(&[0, 0], 1),
        &[|rig: &Rig| rig.free_held(0, 0), |rig| rig.keep_units(1, 2)],
        Rig::end,
    );
}

/// The user's last handle goes away after a free, while another stream comes: it inherits the slot,
/// or takes the memory with a wait.
#[test]
fn a_stream_goes_and_one_comes() {
    model(
        "a_stream_goes_and_one_comes",
        100,
        || plan(1, &[Wait, GrowToMaximum]).with_departures().build().prepared(&[0], 1),
        &[
            |rig: &Rig| {
                rig.free_held(0, 0);
                rig.abandon(0);
            },
            |rig| rig.visit(1),
        ],
        |rig| {
            let block = rig.must_take(2);
            rig.free(2, block);
            rig.end();
        },
    );
}

/// A stream is gone, and two come: one is the heir.
#[test]
fn two_streams_come() {
    model(
        "two_streams_come",
        1_000,
        || {
            let rig = plan(1, &[Wait, GrowToMaximum]).with_departures().build().prepared(&[0], 0);
            rig.abandon(0);
            rig
        },
        &[|rig: &Rig| rig.visit(1), |rig| rig.visit(2)],
        |rig| {
            let block = rig.must_take(3);
            rig.free(3, block);
            rig.end();
        },
    );
}

/// One stream comes on two threads at once, after two others are gone: it is the heir of one.
#[test]
fn one_stream_comes_twice() {
    model(
        "one_stream_comes_twice",
        1_400,
        || {
            let rig =
                plan(2, &[Wait, GrowToMaximum]).with_departures().build().prepared(&[0, 1], 0);
            rig.abandon(0);
            rig.abandon(1);
            rig
        },
        &[|rig: &Rig| rig.keep(2), |rig| rig.keep(2)],
        |rig| {
            assert_eq!(rig.kept(), 2, "blocks of the streams that are gone");
            rig.end();
        },
    );
}

/// A stream that the pool knows steals from one that goes away while a third one comes.
#[test]
fn a_stream_goes_while_another_steals() {
    model(
        "a_stream_goes_while_another_steals",
        1_000,
        || {
            let rig = plan(2, &[Wait, GrowToMaximum]).with_departures().build();
            let rig = rig.prepared(&[1, 0], 1);
            rig.abandon(0);
            rig
        },
        &[|rig: &Rig| rig.keep(1), |rig| rig.keep(2)],
        |rig| {
            assert_eq!(rig.kept(), 1, "thieves and heirs that got the one block");
            rig.free_held(1, 0);
            rig.end();
        },
    );
}

/// A free on another stream comes home when the heap's own stream is gone and has no heir yet: the
/// pool still knows when the block is ready.
#[test]
fn a_free_comes_home_to_a_stream_that_is_gone() {
    model(
        "a_free_comes_home_to_a_stream_that_is_gone",
        570,
        || {
            let rig = plan(2, &[Wait, GrowToMaximum]).with_departures().build();
            let rig = rig.prepared(&[1, 0], 1);
            rig.driver.wait_for(0, 1).expect("a wait");
            rig
        },
        &[
            |rig: &Rig| rig.free_held(0, 0),
            |rig| {
                // Ordered after what the other stream has freed so far.
                rig.visit(1);
                rig.abandon(1);
                // The wait of the heir.
                rig.driver.refuse(1);
                rig.visit(2);
            },
        ],
        |rig| {
            rig.driver.refuse(0);
            rig.keep(0);
            rig.keep(0);
            assert_eq!(rig.kept(), 2, "blocks out of two units");
            rig.end();
        },
    );
}

/// A second block is freed after the epoch of the first was closed, while the device gets done with
/// the first.
#[test]
fn complete_in_turn() {
    model(
        "complete_in_turn",
        70,
        || {
            let rig = plan(2, &[Complete, GrowToMaximum]).build().prepared(&[0, 0], 1);
            // Closes the epoch of what is free.
            rig.visit(1);
            rig
        },
        &[
            |rig: &Rig| {
                rig.driver.finish(0);
                rig.free_held(0, 0);
            },
            |rig| {
                rig.keep(1);
                rig.keep(1);
            },
        ],
        Rig::end,
    );
}

/// A driver that orders nothing between threads: a wait is one store, and a stream's work looks
/// whether it is there. What orders the two is the pool alone.
struct Unordered {
    waited: AtomicUsize,
}

impl Upstream for Unordered {
    type Stream = u64;
    type Event = ();
    type Range = ();
    type Error = Infallible;

    fn id(stream: &u64) -> u64 {
        *stream
    }

    fn keep(stream: &u64) -> u64 {
        *stream
    }

    fn is_abandoned(_: &u64) -> bool {
        false
    }

    fn let_go(_: u64) {}

    fn record(&self, _: &u64, _: Option<()>) -> Result<(), Infallible> {
        Ok(())
    }

    fn wait(&self, _: &u64, _: &()) -> Result<(), Infallible> {
        self.waited.store(1, Relaxed);
        Ok(())
    }

    fn is_passed(&self, _: &()) -> Result<bool, Infallible> {
        Ok(false)
    }

    fn synchronize(&self, _: &()) -> Result<(), Infallible> {
        Ok(())
    }

    fn is_capturing(&self, _: &u64) -> Result<bool, Infallible> {
        Ok(false)
    }

    fn check(&self, _: &u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn obtain(&self, _: Option<&u64>, bytes: usize) -> Result<(u64, ()), Infallible> {
        assert_eq!(bytes, 2 * UNIT, "one growth has it all");
        Ok((1 << 20, ()))
    }

    fn is_exhausted(error: &Infallible) -> bool {
        match *error {}
    }

    fn give_back(&self, _: Option<&u64>, (): ()) {}

    fn leaked(&self, _: usize, _: &Failure<Infallible>) {}

    fn is_forked(&self) -> bool {
        false
    }
}

#[test]
fn a_driver_without_order() {
    fn begin() -> Arc<Pool<Unordered>> {
        let Plan { mut settings, .. } = plan(2, &[Wait, GrowToMaximum]).with_step(2);
        settings.maximum = 2 * UNIT;
        let pool = Pool::new(Unordered { waited: AtomicUsize::new(0) }, settings);
        let block = pool.allocate(&1, 1, 2 * UNIT, UNIT as u64).unwrap();
        // SAFETY: the block is the pool's, and freed once.
        unsafe { pool.deallocate(&1, 1, block) };
        pool
    }
    fn take(pool: &Arc<Pool<Unordered>>) {
        pool.allocate(&2, 2, UNIT, UNIT as u64).unwrap();
        let waited = pool.upstream().waited.load(Relaxed);
        assert_eq!(
            waited, 1,
            "device race: a stream works before the wait that another thread made"
        );
    }
    model("a_driver_without_order", 2_600, begin, &[take, take], |_| ());
}
