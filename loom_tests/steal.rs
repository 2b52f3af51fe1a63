#![cfg(aquifer_loom)]
//! Memory that changes hands between streams: whatever the moment, the new stream is ordered after
//! the former use, or does not get it.

mod harness;

use aquifer::models::MissStep::{Complete, Gather, GrowToMaximum, Ordered, Wait};
use aquifer::models::{Failure, Pool, Upstream};
use harness::pool::{Fixture, Plan, UNIT, plan};
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
        &[|fixture: &Fixture| fixture.free_held(0, 0), |fixture| fixture.visit(1)],
        Fixture::end,
    );
}

/// The same by the steps that ask the device, which moves on meanwhile.
#[test]
fn free_and_complete() {
    model(
        "free_and_complete",
        77,
        || plan(1, &[Complete, GrowToMaximum]).build().prepared(&[0], 1),
        &[
            |fixture: &Fixture| {
                fixture.free_held(0, 0);
                fixture.driver.finish(0);
            },
            |fixture| {
                fixture.visit(1);
                fixture.visit(1);
            },
        ],
        Fixture::end,
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
            |fixture: &Fixture| fixture.free_held(0, 0),
            |fixture| {
                fixture.take_for_good(1);
                fixture.take_for_good(1);
            },
        ],
        Fixture::end,
    );
}

/// One block of another stream: one of two gets it.
#[test]
fn two_thieves() {
    model(
        "two_thieves",
        750,
        || plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 0),
        &[|fixture: &Fixture| fixture.take_for_good(1), |fixture| fixture.take_for_good(2)],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "thieves that got the one block");
            fixture.end();
        },
    );
}

/// Two threads of one stream take what another stream freed: the second need not wait, but its work
/// comes after the wait of the first.
#[test]
fn two_threads_of_one_thief() {
    model(
        "two_threads_of_one_thief",
        3_000,
        || plan(2, &[Wait, GrowToMaximum]).build().prepared(&[0, 0], 0),
        &[|fixture: &Fixture| fixture.take_for_good(1), |fixture| fixture.take_for_good(1)],
        |fixture| {
            assert_eq!(fixture.taken(), 2, "blocks that were stolen");
            fixture.end();
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
        &[
            |fixture: &Fixture| fixture.free_held(0, 0),
            |fixture| fixture.visit(1),
            |fixture| fixture.visit(2),
        ],
        Fixture::end,
    );
}

/// The third stream is ordered after what the second was ordered after when its event was recorded,
/// and no more: the second comes to wait for the first while a thread records on it.
#[test]
fn the_clock_of_an_event() {
    fn begin() -> Fixture {
        let fixture = plan(5, &[Ordered, Wait, GrowToMaximum]).build();
        let small = fixture.must_take(1);
        let large = [fixture.take_units(0, 2).unwrap(), fixture.take_units(0, 2).unwrap()];
        fixture.free(1, small);
        large.into_iter().for_each(|block| fixture.free(0, block));
        fixture
    }
    model(
        "the_clock_of_an_event",
        2_100,
        begin,
        &[
            |fixture: &Fixture| fixture.take_units_for_good(1, 2),
            |fixture| {
                fixture.take_for_good(2);
                fixture.take_units_for_good(2, 2);
            },
        ],
        |fixture| {
            assert_eq!(fixture.taken(), 3, "blocks that were stolen");
            fixture.end();
        },
    );
}

/// The third stream waits for the second, which waited for the first: it is ordered after what the first
/// had freed by then, and after nothing that it freed since.
#[test]
fn a_clock_through_a_third_stream() {
    fn begin() -> Fixture {
        let mut fixture = plan(3, &[Ordered, Wait, GrowToMaximum]).build();
        let large = fixture.take_units(0, 2).unwrap();
        fixture.held = vec![fixture.must_take(0)];
        fixture.free(0, large);
        fixture
    }
    model(
        "a_clock_through_a_third_stream",
        850,
        begin,
        &[
            |fixture: &Fixture| fixture.free_held(0, 0),
            |fixture| {
                let large = fixture.take_units(1, 2).unwrap();
                fixture.free(1, large);
                fixture.take_units_for_good(2, 2);
                fixture.take_for_good(2);
            },
        ],
        Fixture::end,
    );
}

/// What is left of a growth is its stream's, though nothing has used it.
#[test]
fn growth_and_steal() {
    model(
        "growth_and_steal",
        // One grows at a time, so little of it interleaves.
        440,
        || plan(2, &[Wait, GrowToMaximum]).with_growth_step(2).build(),
        &[|fixture: &Fixture| fixture.take_for_good(0), |fixture| fixture.take_for_good(1)],
        Fixture::end,
    );
}

/// Blocks freed on two streams that do not own them, while the heap's own stream looks for
/// memory.
#[test]
fn frees_of_two_other_streams() {
    large_model(
        "frees_of_two_other_streams",
        8_000,
        || plan(2, &[Wait, GrowToMaximum]).build().prepared(&[0, 0], 2).lent_to(&[1, 2]),
        &[
            |fixture: &Fixture| fixture.free_held(1, 0),
            |fixture| fixture.free_held(2, 1),
            |fixture| fixture.take_for_good(0),
        ],
        Fixture::end,
    );
}

/// The driver refuses one record: that thief fails, and no stream gets the block unordered.
#[test]
fn a_refused_record() {
    model(
        "a_refused_record",
        1_500,
        || {
            let fixture = plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 0);
            fixture.driver.refuse_records(1);
            fixture
        },
        &[|fixture: &Fixture| fixture.visit(1), |fixture| fixture.visit(2)],
        |fixture| {
            let block = fixture.must_take(3);
            fixture.free(3, block);
            fixture.end();
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
            let fixture = plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 0);
            fixture.driver.refuse(1);
            fixture
        },
        &[|fixture: &Fixture| fixture.visit(1), |fixture| fixture.visit(1)],
        |fixture| {
            let block = fixture.must_take(3);
            fixture.free(3, block);
            fixture.end();
        },
    );
}

/// All free memory is gathered for one stream while another frees and takes.
#[test]
fn gather_and_free() {
    model(
        "gather_and_free",
        570,
        || plan(2, &[Gather, GrowToMaximum]).with_growth_step(2).build().prepared(&[0, 0], 1),
        &[|fixture: &Fixture| fixture.free_held(0, 0), |fixture| fixture.take_units_for_good(1, 2)],
        Fixture::end,
    );
}

/// The user's last handle goes away after a free, while another stream comes: it uses the slot,
/// or takes the memory with a wait.
#[test]
fn a_stream_goes_and_one_comes() {
    model(
        "a_stream_goes_and_one_comes",
        100,
        || plan(1, &[Wait, GrowToMaximum]).with_departures().build().prepared(&[0], 1),
        &[
            |fixture: &Fixture| {
                fixture.free_held(0, 0);
                fixture.abandon(0);
            },
            |fixture| fixture.visit(1),
        ],
        |fixture| {
            let block = fixture.must_take(2);
            fixture.free(2, block);
            fixture.end();
        },
    );
}

/// A stream is gone, and two come: one uses its slot.
#[test]
fn two_streams_come() {
    model(
        "two_streams_come",
        1_000,
        || {
            let fixture =
                plan(1, &[Wait, GrowToMaximum]).with_departures().build().prepared(&[0], 0);
            fixture.abandon(0);
            fixture
        },
        &[|fixture: &Fixture| fixture.visit(1), |fixture| fixture.visit(2)],
        |fixture| {
            let block = fixture.must_take(3);
            fixture.free(3, block);
            fixture.end();
        },
    );
}

/// One stream comes on two threads at once, after two others are gone: it uses the slot of one.
#[test]
fn one_stream_comes_twice() {
    model(
        "one_stream_comes_twice",
        1_400,
        || {
            let fixture =
                plan(2, &[Wait, GrowToMaximum]).with_departures().build().prepared(&[0, 1], 0);
            fixture.abandon(0);
            fixture.abandon(1);
            fixture
        },
        &[|fixture: &Fixture| fixture.take_for_good(2), |fixture| fixture.take_for_good(2)],
        |fixture| {
            assert_eq!(fixture.taken(), 2, "blocks of the streams that are gone");
            fixture.end();
        },
    );
}

/// A stream that the pool knows steals from one that goes away while a third one comes.
#[test]
fn a_stream_goes_while_another_steals() {
    model(
        "a_stream_goes_while_another_steals",
        600,
        || {
            let fixture = plan(2, &[Wait, GrowToMaximum]).with_departures().build();
            let fixture = fixture.prepared(&[1, 0], 1);
            fixture.abandon(0);
            fixture
        },
        &[|fixture: &Fixture| fixture.take_for_good(1), |fixture| fixture.take_for_good(2)],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "streams that got the one block");
            fixture.free_held(1, 0);
            fixture.end();
        },
    );
}

/// A free on another stream reaches the heap when its stream is gone and no other uses the slot yet: the
/// pool still knows when the block is ready.
#[test]
fn a_free_to_the_heap_of_a_stream_that_is_gone() {
    model(
        "a_free_to_the_heap_of_a_stream_that_is_gone",
        570,
        || {
            let fixture = plan(2, &[Wait, GrowToMaximum]).with_departures().build();
            let fixture = fixture.prepared(&[1, 0], 1);
            fixture.driver.wait_for(0, 1).expect("a wait");
            fixture
        },
        &[
            |fixture: &Fixture| fixture.free_held(0, 0),
            |fixture| {
                // Ordered after what the other stream has freed so far.
                fixture.visit(1);
                fixture.abandon(1);
                // The wait of the next stream in the slot.
                fixture.driver.refuse(1);
                fixture.visit(2);
            },
        ],
        |fixture| {
            fixture.driver.refuse(0);
            fixture.take_for_good(0);
            fixture.take_for_good(0);
            assert_eq!(fixture.taken(), 2, "blocks out of two units");
            fixture.end();
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
            let fixture = plan(2, &[Complete, GrowToMaximum]).build().prepared(&[0, 0], 1);
            // Closes the epoch of what is free.
            fixture.visit(1);
            fixture
        },
        &[
            |fixture: &Fixture| {
                fixture.driver.finish(0);
                fixture.free_held(0, 0);
            },
            |fixture| {
                fixture.take_for_good(1);
                fixture.take_for_good(1);
            },
        ],
        Fixture::end,
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
    type Block = ();
    type Error = Infallible;

    fn id(stream: &u64) -> u64 {
        *stream
    }

    fn clone_pool_handle(stream: &u64) -> u64 {
        *stream
    }

    fn is_abandoned(_: &u64) -> bool {
        false
    }

    fn drop_pool_handle(_: u64) {}

    fn record(&self, _: &u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn record_again(&self, _: &u64, (): &mut ()) -> Result<(), Infallible> {
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

    fn check_device(&self, _: &u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn allocate(&self, _: Option<&u64>, bytes: usize) -> Result<(u64, ()), Infallible> {
        assert_eq!(bytes, 2 * UNIT, "one growth has it all");
        Ok((1 << 20, ()))
    }

    fn is_exhausted(error: &Infallible) -> bool {
        match *error {}
    }

    fn deallocate(&self, _: Option<&u64>, (): ()) {}

    fn report_leak(&self, _: u64, _: usize, _: &Failure<Infallible>) {}

    fn is_forked(&self) -> bool {
        false
    }
}

#[test]
fn a_driver_without_order() {
    fn begin() -> Arc<Pool<Unordered>> {
        let Plan { settings, .. } = plan(2, &[Wait, GrowToMaximum]).with_growth_step(2);
        settings.limits.set_maximum(2 * UNIT);
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
