#![cfg(aquifer_loom)]
//! Room: growth up to the maximum and not past it, memory that goes back to upstream, and the way
//! down to out of memory, which is no request's end while there is memory for it.

mod harness;

use aquifer::models::MissStep::{self, Complete, Gather, Grow, GrowToMaximum, Ordered, Trim, Wait};
use harness::pool::{Fixture, UNIT, plan};
use harness::{large_model, model};

/// All steps, in the order that ships.
const ALL_STEPS: [MissStep; 7] = [Complete, Ordered, Grow, Wait, GrowToMaximum, Gather, Trim];

/// Two grow where one fits.
#[test]
fn two_grow_at_the_limit() {
    model(
        "two_grow_at_the_limit",
        330,
        || plan(1, &[GrowToMaximum]).build(),
        &[|fixture: &Fixture| fixture.take_for_good(0), |fixture| fixture.take_for_good(1)],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "blocks out of one unit");
            fixture.end();
        },
    );
}

/// One grows while another takes memory for the shared heap, and there is room for one of them.
#[test]
fn a_growth_and_a_preparation() {
    model(
        "a_growth_and_a_preparation",
        70,
        || plan(1, &[GrowToMaximum]).build(),
        &[
            |fixture: &Fixture| fixture.take_for_good(0),
            |fixture| fixture.pool().prepare(UNIT).expect("room, or none"),
        ],
        |fixture| {
            assert!(fixture.taken() <= 1, "blocks out of one unit");
            fixture.end();
        },
    );
}

/// Two would each like to grow by more than fits beside the other.
#[test]
fn two_large_steps() {
    model(
        "two_large_steps",
        // As above.
        490,
        || plan(3, &ALL_STEPS).with_growth_step(2).build(),
        &[|fixture: &Fixture| fixture.take_for_good(0), |fixture| fixture.take_for_good(1)],
        |fixture| {
            assert_eq!(fixture.taken(), 2, "blocks out of three units");
            fixture.end();
        },
    );
}

/// Upstream has one unit of the two that the pool may have, and one of two asks for both.
#[test]
fn upstream_ends_before_the_maximum() {
    model(
        "upstream_ends_before_the_maximum",
        4_900,
        || {
            let fixture = plan(2, &ALL_STEPS).build();
            fixture.driver.set_left(UNIT);
            fixture
        },
        &[
            |fixture: &Fixture| fixture.take_units_for_good(0, 2),
            |fixture| fixture.take_for_good(1),
        ],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "blocks out of one unit");
            fixture.end();
        },
    );
}

/// One takes the pool's whole growth for a part of it; the other is not refused the rest.
#[test]
fn the_rest_of_a_growth() {
    model(
        "the_rest_of_a_growth",
        // One grows at a time, so little of it interleaves.
        480,
        || plan(2, &ALL_STEPS).with_growth_step(2).build(),
        &[|fixture: &Fixture| fixture.take_for_good(0), |fixture| fixture.take_for_good(1)],
        |fixture| {
            assert_eq!(fixture.taken(), 2, "blocks out of two units");
            fixture.end();
        },
    );
}

/// The same for complete memory, of which one takes all.
#[test]
fn the_rest_of_the_shared_heap() {
    model(
        "the_rest_of_the_shared_heap",
        340,
        || {
            let fixture = plan(2, &ALL_STEPS).build();
            fixture.pool().prepare(2 * UNIT).expect("two units");
            fixture
        },
        &[|fixture: &Fixture| fixture.take_for_good(0), |fixture| fixture.take_for_good(1)],
        |fixture| {
            assert_eq!(fixture.taken(), 2, "blocks out of two units");
            fixture.end();
        },
    );
}

/// One block of memory, and two that need it in turn.
#[test]
fn one_block_for_two() {
    model(
        "one_block_for_two",
        230,
        || plan(1, &ALL_STEPS).with_magazines().build().prepared(&[0], 0),
        &[|fixture: &Fixture| fixture.take_for_good(0), |fixture| fixture.take_for_good(1)],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "blocks out of one unit");
            fixture.end();
        },
    );
}

/// Two streams that each hold at most half of the memory are never refused, whatever lies in the
/// other's magazine or is on its way between heaps.
#[test]
fn half_for_each() {
    fn twice(fixture: &Fixture, stream: usize) {
        let block = fixture.must_take(stream);
        fixture.free(stream, block);
        let block = fixture.must_take(stream);
        fixture.free(stream, block);
    }
    model(
        "half_for_each",
        1_300,
        || plan(2, &ALL_STEPS).with_magazines().build().prepared(&[0, 0], 0),
        &[|fixture: &Fixture| twice(fixture, 0), |fixture| twice(fixture, 1)],
        Fixture::end,
    );
}

/// What one stream has freed, and another needs in one piece.
#[test]
fn whole_for_one_after_the_other() {
    model(
        "whole_for_one_after_the_other",
        2_300,
        || plan(2, &ALL_STEPS).build().prepared(&[0, 0], 1),
        &[|fixture: &Fixture| fixture.free_held(0, 0), |fixture| fixture.take_units_for_good(1, 2)],
        |fixture| {
            if fixture.taken() == 0 {
                fixture.take_units_for_good(1, 2);
            }
            assert_eq!(fixture.taken(), 1, "blocks out of two units");
            fixture.end();
        },
    );
}

/// One needs a larger block than the pool has, for which two go back; the other grows meanwhile.
#[test]
fn a_larger_block_and_a_growth() {
    model(
        "a_larger_block_and_a_growth",
        6_200,
        || plan(2, &[GrowToMaximum, Trim]).build().prepared(&[0, 0], 0),
        &[
            |fixture: &Fixture| fixture.take_units_for_good(0, 2),
            |fixture| fixture.take_for_good(1),
        ],
        |fixture| {
            assert!(fixture.taken() > 0, "two units serve one of the two");
            fixture.end();
        },
    );
}

/// Each of two needs a larger block than the pool has, and there is room for both.
#[test]
fn two_larger_blocks() {
    large_model(
        "two_larger_blocks",
        4_500,
        || plan(4, &[GrowToMaximum, Trim]).build().prepared(&[0, 0, 1, 1], 0),
        &[
            |fixture: &Fixture| fixture.take_units_for_good(0, 2),
            |fixture| fixture.take_units_for_good(1, 2),
        ],
        |fixture| {
            assert_eq!(fixture.taken(), 2, "blocks of two out of four units");
            fixture.end();
        },
    );
}

/// Memory goes back while a thread frees and takes.
#[test]
fn trim_and_take() {
    large_model(
        "trim_and_take",
        20_000,
        || plan(1, &[Wait, GrowToMaximum]).with_magazines().build().prepared(&[0], 0),
        &[
            |fixture: &Fixture| {
                fixture.warm_up(0);
                fixture.visit(0);
            },
            |fixture| {
                fixture.trim();
            },
        ],
        |fixture| {
            aquifer::models::drop_thread_locals();
            fixture.trim();
            assert_eq!(fixture.stats().reserved, 0, "bytes that are left after a trim");
            fixture.end();
        },
    );
}

/// Memory goes back without a wait while the device passes its last use, and a stream takes it.
#[test]
fn trim_without_a_wait() {
    model(
        "trim_without_a_wait",
        2_400,
        || plan(2, &[Wait, GrowToMaximum, Trim]).build().prepared(&[0, 0], 0),
        &[
            |fixture: &Fixture| {
                fixture.driver.finish(0);
                fixture.trim_now();
            },
            |fixture| fixture.take_for_good(1),
        ],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "blocks of a unit");
            fixture.end();
        },
    );
}

/// Memory goes back while it is freed on another stream than it lies at.
#[test]
fn trim_and_free() {
    model(
        "trim_and_free",
        215,
        || plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 1).lent_to(&[1]),
        &[
            |fixture: &Fixture| fixture.free_held(1, 0),
            |fixture| {
                fixture.trim();
            },
        ],
        Fixture::end,
    );
}
