#![cfg(aquifer_loom)]
//! Memory that changes hands between streams: whatever the moment, the new stream is ordered after
//! the former use, or does not get it.

mod harness;

use aquifer::models::Rung::{Complete, Gather, GrowToMaximum, Ordered, Wait};
use harness::ground::{Rig, plan};
use harness::model;

/// A free on one stream while another looks for memory: it is found with its stamp, or not found.
#[test]
fn free_and_steal() {
    model(
        "free_and_steal",
        1,
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
        1,
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
        1,
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
        1,
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
        1,
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
        1,
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
        1,
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
        1,
        || plan(2, &[Wait, GrowToMaximum]).with_step(2).build(),
        &[|rig: &Rig| rig.keep(0), |rig| rig.keep(1)],
        Rig::end,
    );
}

/// Blocks freed on two streams that are not their heap's, while the heap's own stream looks for
/// memory.
#[test]
fn frees_of_two_other_streams() {
    model(
        "frees_of_two_other_streams",
        1,
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
        1,
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
        1,
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
        1,
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
        1,
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
        1,
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
        1,
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
        1,
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
