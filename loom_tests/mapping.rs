#![cfg(aquifer_loom)]
//! Memory apart from its addresses: a handle moves to another stream, or back to the device, only where it is free as a
//! whole, behind its last use, and no address of it goes away under work.

mod harness;

use aquifer::models::Block;
use aquifer::models::MissStep::{Complete, Gather, GrowToMaximum, Ordered, Trim, Wait};
use harness::pool::{Fixture, plan};
use harness::{large_model, model};

/// Three blocks of the first stream in a row, of which the second is held: two units are free, and not one piece.
fn two_holes(mut fixture: Fixture) -> Fixture {
    let blocks: Vec<Block> = (0..3).map(|_| fixture.must_take(0)).collect();
    fixture.free(0, blocks[0]);
    fixture.free(0, blocks[2]);
    fixture.held = vec![blocks[1]];
    fixture
}

/// Another stream takes two units, which are one piece nowhere: it waits, and both handles move, while their stream goes on.
#[test]
fn holes_move_to_another_stream() {
    model(
        "holes_move_to_another_stream",
        2_500,
        || two_holes(plan(3, &[Wait, GrowToMaximum, Gather]).with_handles().build()),
        &[|fixture: &Fixture| fixture.take_units_for_good(1, 2), |fixture| fixture.free_held(0, 0)],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "blocks of two units");
            fixture.end();
        },
    );
}

/// The stream itself takes them in its own order, and the device passes its work meanwhile.
#[test]
fn holes_move_in_their_own_order() {
    model(
        "holes_move_in_their_own_order",
        1_400,
        || two_holes(plan(3, &[Complete, GrowToMaximum]).with_handles().build()),
        &[
            |fixture: &Fixture| {
                fixture.take_units_for_good(0, 2);
                fixture.take_for_good(1);
            },
            |fixture| {
                fixture.driver.finish(0);
                fixture.free_held(0, 0);
            },
        ],
        |fixture| {
            assert!(fixture.taken() >= 1, "blocks of two units");
            fixture.end();
        },
    );
}

/// Two streams want the same two handles.
#[test]
fn two_takers_of_two_holes() {
    large_model(
        "two_takers_of_two_holes",
        750,
        || two_holes(plan(3, &[Ordered, GrowToMaximum, Gather]).with_handles().build()),
        &[
            |fixture: &Fixture| fixture.take_units_for_good(1, 2),
            |fixture| fixture.take_units_for_good(2, 2),
        ],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "blocks of two units");
            fixture.free_held(0, 0);
            fixture.end();
        },
    );
}

/// A trim gives handles back while another stream maps them, and a third is freed.
#[test]
fn a_trim_beside_a_move() {
    large_model(
        "a_trim_beside_a_move",
        5_800,
        || {
            let fixture = two_holes(plan(3, &[GrowToMaximum, Trim]).with_handles().build());
            fixture.driver.finish(0);
            fixture
        },
        &[
            |fixture: &Fixture| {
                fixture.trim();
            },
            |fixture| {
                fixture.take_units_for_good(1, 2);
                fixture.free_held(0, 0);
            },
        ],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "blocks of two units");
            fixture.end();
        },
    );
}

/// A trim that waits for nothing gives back what the device has passed by then, and another stream takes the rest.
#[test]
fn a_trim_without_a_wait() {
    large_model(
        "a_trim_without_a_wait",
        3_200,
        || two_holes(plan(3, &[Wait, GrowToMaximum, Gather]).with_handles().build()),
        &[
            |fixture: &Fixture| {
                fixture.trim_now();
                fixture.driver.finish(0);
                fixture.trim_now();
            },
            |fixture| fixture.take_units_for_good(1, 2),
        ],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "blocks of two units");
            fixture.free_held(0, 0);
            fixture.end();
        },
    );
}

/// A trim unmaps addresses where the stream that has them maps another handle at once.
#[test]
fn a_trim_beside_the_streams_own_growth() {
    fn begin() -> Fixture {
        let mut fixture = plan(3, &[GrowToMaximum, Trim]).with_handles().build();
        let blocks = [fixture.must_take(0), fixture.must_take(0)];
        fixture.free(0, blocks[0]);
        fixture.driver.finish(0);
        fixture.held = vec![blocks[1]];
        fixture
    }
    model(
        "a_trim_beside_the_streams_own_growth",
        4_200,
        begin,
        &[
            |fixture: &Fixture| {
                fixture.trim();
            },
            |fixture| fixture.take_for_good(0),
        ],
        |fixture| {
            assert_eq!(fixture.taken(), 1, "blocks of a unit");
            fixture.free_held(0, 0);
            fixture.end();
        },
    );
}

/// What is mapped at two addresses goes back to the device from the second one.
#[test]
fn a_trim_behind_a_move() {
    large_model(
        "a_trim_behind_a_move",
        7_500,
        || {
            let fixture = two_holes(plan(3, &[GrowToMaximum, Gather]).with_handles().build());
            let block = fixture.take_units(0, 2).expect("the holes move in their own order");
            fixture.free(0, block);
            fixture
        },
        &[
            |fixture: &Fixture| {
                fixture.trim();
            },
            |fixture| fixture.visit(1),
        ],
        |fixture| {
            fixture.free_held(0, 0);
            fixture.end();
        },
    );
}

/// Two blocks of the first stream, one above the other, and a unit that is free.
fn two_in_a_row(steps: &[aquifer::models::MissStep]) -> Fixture {
    let mut fixture = plan(3, steps).with_handles().build();
    fixture.held = vec![fixture.must_take(0), fixture.must_take(0)];
    let last = fixture.must_take(0);
    fixture.free(0, last);
    fixture
}

/// A block grows over what another stream frees above it: not before that is ready.
#[test]
fn a_block_grows_over_a_free() {
    model(
        "a_block_grows_over_a_free",
        55,
        || two_in_a_row(&[Complete, GrowToMaximum]).lent_to(&[1]),
        &[
            |fixture: &Fixture| fixture.extend_held_for_good(0, 0, 1),
            |fixture| {
                fixture.free_held(1, 1);
                fixture.driver.finish(1);
            },
        ],
        |fixture| {
            assert!((1..=2).contains(&fixture.taken_units()));
            fixture.end();
        },
    );
}

/// A block grows beside a trim, which takes the memory that is free behind it.
#[test]
fn a_block_grows_beside_a_trim() {
    large_model(
        "a_block_grows_beside_a_trim",
        70,
        || {
            let fixture = two_in_a_row(&[GrowToMaximum, Trim]);
            fixture.driver.finish(0);
            fixture
        },
        &[
            |fixture: &Fixture| fixture.extend_held_for_good(0, 1, 1),
            |fixture| {
                fixture.trim();
            },
        ],
        |fixture| {
            assert!((1..=2).contains(&fixture.taken_units()));
            fixture.free_held(0, 0);
            fixture.end();
        },
    );
}

/// A block grows while another stream wants the same handle.
#[test]
fn a_block_grows_beside_another_stream() {
    large_model(
        "a_block_grows_beside_another_stream",
        140,
        || {
            let mut fixture = plan(3, &[GrowToMaximum, Gather]).with_handles().build();
            let first = fixture.must_take(0);
            fixture.held = vec![fixture.must_take(0), fixture.must_take(0)];
            fixture.free(0, first);
            fixture
        },
        &[
            |fixture: &Fixture| fixture.extend_held_for_good(0, 1, 1),
            |fixture| fixture.take_for_good(1),
        ],
        |fixture| {
            assert_eq!(fixture.taken_units(), 2, "one of the two has it");
            fixture.free_held(0, 0);
            fixture.end();
        },
    );
}
