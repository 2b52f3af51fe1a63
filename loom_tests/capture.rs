#![cfg(aquifer_loom)]
//! Declared captures: nobody gives a stream work of his own while it records a graph, and what the
//! graph uses is nobody else's until all that it was launched on is ordered before.

mod harness;

use aquifer::models::Rung::{Complete, GrowToMaximum, Wait};
use harness::ground::{Rig, plan};
use harness::model;

fn capture_nothing(rig: &Rig, stream: usize) {
    if let Some(graph) = rig.capture(stream) {
        rig.end_capture(stream, graph);
        rig.release(graph, stream, &[]);
    }
}

/// A thief would record on a stream that begins a capture.
#[test]
fn capture_and_thief() {
    model(
        "capture_and_thief",
        2_200,
        || plan(1, &[Wait, GrowToMaximum]).with_captures().build().prepared(&[0], 0),
        &[|rig: &Rig| capture_nothing(rig, 0), |rig| rig.visit(1)],
        |rig| {
            let block = rig.must_take(2);
            rig.free(2, block);
            rig.end();
        },
    );
}

/// A thief's own stream begins a capture on another thread: it cannot be made to wait.
#[test]
fn capture_of_the_thief() {
    model(
        "capture_of_the_thief",
        40_000,
        || plan(2, &[Wait, GrowToMaximum]).with_captures().build().prepared(&[1, 0], 1),
        &[|rig: &Rig| capture_nothing(rig, 1), |rig| rig.visit(1)],
        |rig| {
            rig.free_held(1, 0);
            rig.end();
        },
    );
}

/// A graph that was launched on another stream is gone, while a third one looks for memory.
#[test]
fn a_launched_graph_is_gone() {
    fn begin() -> Rig {
        let mut rig = plan(1, &[Wait, Complete, GrowToMaximum]).with_captures().build();
        let graph = rig.capture(0).expect("a capture");
        let block = rig.must_take(0);
        rig.end_capture(0, graph);
        rig.free(0, block);
        // The launch comes after what its stream was given, and works on the block.
        rig.driver.wait_for(1, 0).expect("a wait");
        rig.driver.work(1, block.address, block.bytes);
        rig.graph = graph;
        rig
    }
    model(
        "a_launched_graph_is_gone",
        580,
        begin,
        &[|rig: &Rig| rig.release(rig.graph, 0, &[1]), |rig| rig.visit(2)],
        |rig| {
            let block = rig.must_take(3);
            rig.free(3, block);
            rig.end();
        },
    );
}
