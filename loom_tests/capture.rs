#![cfg(aquifer_loom)]
//! Declared captures: no other thread gives a stream work while it records a graph, and memory of the
//! graph is no other stream's until all streams that it was launched on are ordered before.

mod harness;

use aquifer::models::MissStep::{Complete, GrowToMaximum, Trim, Wait};
use aquifer::models::drop_thread_locals;
use harness::model;
use harness::pool::{Fixture, plan};

fn capture_nothing(fixture: &Fixture, stream: usize) {
    if let Some(graph) = fixture.capture(stream) {
        fixture.end_capture(stream, graph);
        fixture.end_graph(graph, stream, &[]);
    }
}

/// A thief would record on a stream that begins a capture.
#[test]
fn capture_and_thief() {
    model(
        "capture_and_thief",
        2_200,
        || plan(1, &[Wait, GrowToMaximum]).with_captures().build().prepared(&[0], 0),
        &[|fixture: &Fixture| capture_nothing(fixture, 0), |fixture| fixture.visit(1)],
        |fixture| {
            let block = fixture.must_take(2);
            fixture.free(2, block);
            fixture.end();
        },
    );
}

/// A thief's own stream begins a capture on another thread: it cannot be made to wait.
#[test]
fn capture_of_the_thief() {
    model(
        "capture_of_the_thief",
        15_000,
        || plan(2, &[Wait, GrowToMaximum]).with_captures().build().prepared(&[1, 0], 1),
        &[|fixture: &Fixture| capture_nothing(fixture, 1), |fixture| fixture.visit(1)],
        |fixture| {
            fixture.free_held(1, 0);
            fixture.end();
        },
    );
}

/// A graph that was launched on another stream is gone, while a third one looks for memory.
#[test]
fn a_launched_graph_is_gone() {
    fn begin() -> Fixture {
        let mut fixture = plan(1, &[Wait, Complete, GrowToMaximum]).with_captures().build();
        let graph = fixture.capture(0).expect("a capture");
        let block = fixture.must_take(0);
        fixture.end_capture(0, graph);
        fixture.free(0, block);
        // The launch comes after what its stream was given, and works on the block.
        fixture.driver.wait_for(1, 0).expect("a wait");
        fixture.driver.work(1, block.address, block.bytes);
        fixture.graph = graph;
        fixture
    }
    model(
        "a_launched_graph_is_gone",
        220,
        begin,
        &[
            |fixture: &Fixture| fixture.end_graph(fixture.graph, 0, &[1]),
            |fixture| fixture.visit(2),
        ],
        |fixture| {
            let block = fixture.must_take(3);
            fixture.free(3, block);
            fixture.end();
        },
    );
}

/// A thread comes to the stream while that records a graph, which uses a block from before. What it frees
/// there is kept until the graph is gone, whichever stream looks for memory.
#[test]
fn a_magazine_made_in_a_capture() {
    fn begin() -> Fixture {
        let plan = plan(6, &[Wait, GrowToMaximum]).with_magazines().with_captures();
        let mut fixture = plan.build().prepared(&[0], 1);
        drop_thread_locals();
        fixture.graph = fixture.capture(0).expect("a capture");
        fixture
    }
    model(
        "a_magazine_made_in_a_capture",
        18_000,
        begin,
        &[
            |fixture: &Fixture| {
                fixture.warm_up(0);
                fixture.free_held(0, 0);
                drop_thread_locals();
            },
            |fixture| fixture.visit(2),
        ],
        |fixture| {
            let block = fixture.held[0];
            fixture.end_capture(0, fixture.graph);
            fixture.driver.wait_for(1, 0).expect("a wait");
            fixture.driver.work(1, block.address, block.bytes);
            fixture.visit(0);
            fixture.end_graph(fixture.graph, 0, &[1]);
            fixture.end();
        },
    );
}

/// A stream that records a graph looks for memory while another one frees some: a graph does not wait.
#[test]
fn a_block_for_a_graph() {
    model(
        "a_block_for_a_graph",
        430,
        || plan(2, &[Wait, Complete, GrowToMaximum]).with_captures().build().prepared(&[1], 1),
        &[
            |fixture: &Fixture| fixture.free_held(1, 0),
            |fixture| {
                let graph = fixture.capture(0).expect("a capture");
                fixture.visit(0);
                fixture.end_capture(0, graph);
                fixture.end_graph(graph, 0, &[]);
            },
        ],
        Fixture::end,
    );
}

/// A graph needs a larger block than the pool has, for which two go back; another stream grows meanwhile.
#[test]
fn a_larger_block_for_a_graph() {
    fn begin() -> Fixture {
        let plan = plan(2, &[GrowToMaximum, Trim]).with_captures();
        let mut fixture = plan.build().prepared(&[0, 0], 0);
        fixture.graph = fixture.capture(0).expect("a capture");
        fixture
    }
    model(
        "a_larger_block_for_a_graph",
        16_500,
        begin,
        &[
            |fixture: &Fixture| fixture.take_units_for_good(0, 2),
            |fixture| fixture.take_for_good(1),
        ],
        |fixture| {
            assert!(fixture.taken() > 0, "two units serve one of the two");
            fixture.free_taken();
            fixture.end_capture(0, fixture.graph);
            fixture.end_graph(fixture.graph, 0, &[]);
            fixture.end();
        },
    );
}

/// Two streams capture in one graph pool. What one has freed is the other's, but not before the device is past its former
/// uses. One leaves its block over, and uses it.
#[test]
fn two_captures_of_one_graph_pool() {
    fn capture(fixture: &Fixture, stream: usize, leaves: bool) {
        let Some(graph) = fixture.capture(stream) else { return };
        let block = fixture.record(stream);
        if !leaves {
            block.into_iter().for_each(|block| fixture.free_recorded(stream, block));
        }
        fixture.end_capture(stream, graph);
        if leaves {
            block.into_iter().for_each(|block| fixture.use_left_over(stream, block));
        }
        fixture.end_graph(graph, stream, &[]);
    }
    model(
        "two_captures_of_one_graph_pool",
        20_000,
        || {
            let plan = plan(2, &[Wait, Complete, GrowToMaximum]).with_captures();
            plan.build().prepared(&[0], 0).with_graph_pool()
        },
        &[|fixture: &Fixture| capture(fixture, 0, false), |fixture| capture(fixture, 1, true)],
        Fixture::end,
    );
}
