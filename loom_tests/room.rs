#![cfg(aquifer_loom)]
//! Room: growth up to the maximum and not past it, memory that goes back to upstream, and the way
//! down to out of memory, which nobody is told while there is memory for him.

mod harness;

use aquifer::models::Rung::{self, Complete, Gather, Grow, GrowToMaximum, Ordered, Trim, Wait};
use harness::ground::{Rig, UNIT, plan};
use harness::{large_model, model};

/// All rungs, in the order that ships.
const LADDER: [Rung; 7] = [Complete, Ordered, Grow, Wait, GrowToMaximum, Gather, Trim];

/// Two grow where one fits.
#[test]
fn two_grow_at_the_limit() {
    model(
        "two_grow_at_the_limit",
        330,
        || plan(1, &[GrowToMaximum]).build(),
        &[|rig: &Rig| rig.keep(0), |rig| rig.keep(1)],
        |rig| {
            assert_eq!(rig.kept(), 1, "blocks out of one unit");
            rig.end();
        },
    );
}

/// Two would each like to grow by more than fits beside the other.
#[test]
fn two_large_steps() {
    model(
        "two_large_steps",
        1_400,
        || plan(3, &LADDER).with_step(2).build(),
        &[|rig: &Rig| rig.keep(0), |rig| rig.keep(1)],
        |rig| {
            assert_eq!(rig.kept(), 2, "blocks out of three units");
            rig.end();
        },
    );
}

/// Upstream has one unit of the two that the pool may have, and one of two asks for both.
#[test]
fn upstream_ends_before_the_maximum() {
    model(
        "upstream_ends_before_the_maximum",
        13_000,
        || {
            let rig = plan(2, &LADDER).build();
            rig.driver.set_room(UNIT);
            rig
        },
        &[|rig: &Rig| rig.keep_units(0, 2), |rig| rig.keep(1)],
        |rig| {
            assert_eq!(rig.kept(), 1, "blocks out of one unit");
            rig.end();
        },
    );
}

/// One takes the pool's whole growth for a part of it; the other is not refused the rest.
#[test]
fn the_rest_of_a_growth() {
    model(
        "the_rest_of_a_growth",
        1_200,
        || plan(2, &LADDER).with_step(2).build(),
        &[|rig: &Rig| rig.keep(0), |rig| rig.keep(1)],
        |rig| {
            assert_eq!(rig.kept(), 2, "blocks out of two units");
            rig.end();
        },
    );
}

/// The same for complete memory, which one draws whole.
#[test]
fn the_rest_of_the_bank() {
    model(
        "the_rest_of_the_bank",
        340,
        || {
            let rig = plan(2, &LADDER).build();
            rig.pool().prepare(2 * UNIT).expect("two units");
            rig
        },
        &[|rig: &Rig| rig.keep(0), |rig| rig.keep(1)],
        |rig| {
            assert_eq!(rig.kept(), 2, "blocks out of two units");
            rig.end();
        },
    );
}

/// One block of memory, and two that need it in turn.
#[test]
fn one_block_for_two() {
    model(
        "one_block_for_two",
        230,
        || plan(1, &LADDER).with_magazines().build().prepared(&[0], 0),
        &[|rig: &Rig| rig.keep(0), |rig| rig.keep(1)],
        |rig| {
            assert_eq!(rig.kept(), 1, "blocks out of one unit");
            rig.end();
        },
    );
}

/// Two streams that each hold at most half of the memory are never refused, whatever lies in the
/// other's magazine or is on its way between heaps.
#[test]
fn half_for_each() {
    fn twice(rig: &Rig, stream: usize) {
        let block = rig.must_take(stream);
        rig.free(stream, block);
        let block = rig.must_take(stream);
        rig.free(stream, block);
    }
    model(
        "half_for_each",
        1_300,
        || plan(2, &LADDER).with_magazines().build().prepared(&[0, 0], 0),
        &[|rig: &Rig| twice(rig, 0), |rig| twice(rig, 1)],
        Rig::end,
    );
}

/// What one stream has freed, and another needs in one piece.
#[test]
fn whole_for_one_after_the_other() {
    model(
        "whole_for_one_after_the_other",
        2_300,
        || plan(2, &LADDER).build().prepared(&[0, 0], 1),
        &[|rig: &Rig| rig.free_held(0, 0), |rig| rig.keep_units(1, 2)],
        |rig| {
            if rig.kept() == 0 {
                rig.keep_units(1, 2);
            }
            assert_eq!(rig.kept(), 1, "blocks out of two units");
            rig.end();
        },
    );
}

/// Memory goes back while a thread frees and takes.
#[test]
fn trim_and_take() {
    large_model(
        "trim_and_take",
        46_000,
        || plan(1, &[Wait, GrowToMaximum]).with_magazines().build().prepared(&[0], 0),
        &[
            |rig: &Rig| {
                rig.warm_up(0);
                rig.visit(0);
            },
            |rig| {
                rig.trim();
            },
        ],
        |rig| {
            aquifer::models::leave_thread();
            rig.trim();
            assert_eq!(rig.totals().reserved, 0, "bytes that are left after a trim");
            rig.end();
        },
    );
}

/// Memory goes back while it is freed on another stream than it lies at.
#[test]
fn trim_and_free() {
    model(
        "trim_and_free",
        270,
        || plan(1, &[Wait, GrowToMaximum]).build().prepared(&[0], 1).lent_to(&[1]),
        &[
            |rig: &Rig| rig.free_held(1, 0),
            |rig| {
                rig.trim();
            },
        ],
        Rig::end,
    );
}
