#![cfg(aquifer_loom)]
//! A pool that sleeps and wakes beside threads that use it: nobody has memory that is not mapped, and nothing is unmapped
//! under work.

mod harness;

use aquifer::models::MissStep::{Complete, GrowToMaximum, Trim, Wait};
use harness::pool::{Fixture, plan};
use harness::{large_model, model};

/// The first stream holds a block, and has freed another one.
fn one_held() -> Fixture {
    plan(3, &[Complete, Wait, GrowToMaximum]).with_handles().build().prepared(&[0, 0], 1)
}

fn end(fixture: &Fixture) {
    assert!(!fixture.pool().is_asleep());
    fixture.end();
    // It sleeps, and serves, as before.
    assert!(fixture.sleep_and_wake());
    fixture.visit(0);
    fixture.expect_idle();
}

#[test]
fn a_sleep_beside_a_free() {
    model(
        "a_sleep_beside_a_free",
        12_000,
        one_held,
        &[
            |fixture: &Fixture| {
                fixture.sleep_and_wake();
            },
            |fixture| fixture.free_beside_sleep(0, fixture.held[0]),
        ],
        end,
    );
}

#[test]
fn a_sleep_beside_allocations() {
    large_model(
        "a_sleep_beside_allocations",
        10_000,
        || {
            let fixture = one_held();
            fixture.free_held(0, 0);
            fixture
        },
        &[
            |fixture: &Fixture| {
                fixture.sleep_and_wake();
            },
            |fixture| {
                if let Some(block) = fixture.take_beside_sleep(0) {
                    fixture.free_beside_sleep(0, block);
                }
            },
        ],
        end,
    );
}

/// The second stream maps memory, or takes what the first has freed.
#[test]
fn a_sleep_beside_growth() {
    large_model(
        "a_sleep_beside_growth",
        3_900,
        || {
            let mut fixture = plan(2, &[GrowToMaximum, Trim]).with_handles().build();
            fixture.held = vec![fixture.must_take(0)];
            fixture
        },
        &[
            |fixture: &Fixture| {
                fixture.sleep_and_wake();
            },
            |fixture| {
                if let Some(block) = fixture.take_beside_sleep(1) {
                    fixture.free_beside_sleep(1, block);
                }
            },
        ],
        |fixture| {
            fixture.free_held(0, 0);
            end(fixture);
        },
    );
}

/// Magazines give nothing while it sleeps.
#[test]
fn a_sleep_beside_a_magazine() {
    large_model(
        "a_sleep_beside_a_magazine",
        9_000,
        || {
            let mut fixture =
                plan(3, &[Complete, GrowToMaximum]).with_magazines().with_handles().build();
            fixture.warm_up(0);
            fixture.held = vec![fixture.must_take(0)];
            fixture
        },
        &[
            |fixture: &Fixture| {
                fixture.sleep_and_wake();
            },
            |fixture| {
                fixture.free_beside_sleep(0, fixture.held[0]);
                if let Some(block) = fixture.take_beside_sleep(0) {
                    fixture.free_beside_sleep(0, block);
                }
            },
        ],
        end,
    );
}

#[test]
fn a_sleep_beside_a_trim() {
    large_model(
        "a_sleep_beside_a_trim",
        1_000,
        one_held,
        &[
            |fixture: &Fixture| {
                fixture.sleep_and_wake();
            },
            |fixture| {
                fixture.trim_now();
                fixture.trim();
            },
        ],
        |fixture| {
            fixture.free_held(0, 0);
            end(fixture);
        },
    );
}

/// A trim that began before gives nothing back of what is freed meanwhile.
#[test]
fn a_sleep_beside_a_trim_and_a_free() {
    large_model(
        "a_sleep_beside_a_trim_and_a_free",
        60_000,
        || {
            let mut fixture = plan(1, &[GrowToMaximum]).with_handles().build();
            fixture.held = vec![fixture.must_take(0)];
            fixture
        },
        &[
            |fixture: &Fixture| {
                fixture.sleep_and_wake();
            },
            |fixture| {
                fixture.trim_now();
            },
            |fixture| fixture.free_beside_sleep(0, fixture.held[0]),
        ],
        end,
    );
}

/// Of a capture and a sleep one comes first, and the other is refused.
#[test]
fn a_sleep_beside_a_capture() {
    large_model(
        "a_sleep_beside_a_capture",
        190,
        || {
            let plan = plan(3, &[Complete, GrowToMaximum]).with_handles().with_captures();
            let mut fixture = plan.build();
            fixture.held = vec![fixture.must_take(0)];
            fixture
        },
        &[
            |fixture: &Fixture| {
                fixture.sleep_and_wake();
            },
            |fixture| {
                if let Some(graph) = fixture.capture(1) {
                    assert!(!fixture.pool().is_asleep(), "a capture began in a pool that sleeps");
                    let block = fixture.take(1);
                    block.into_iter().for_each(|block| fixture.free(1, block));
                    fixture.end_capture(1, graph);
                    fixture.end_graph(graph, 1, &[]);
                }
            },
        ],
        |fixture| {
            fixture.free_held(0, 0);
            end(fixture);
        },
    );
}

/// Two sleeps: one is refused, or comes after the other.
#[test]
fn two_sleeps() {
    large_model(
        "two_sleeps",
        20,
        one_held,
        &[
            |fixture: &Fixture| {
                fixture.sleep_and_wake();
            },
            |fixture| {
                fixture.sleep_and_wake();
            },
        ],
        |fixture| {
            fixture.free_held(0, 0);
            end(fixture);
        },
    );
}
