#![cfg(aquifer_loom)]
//! Memory that changes hands between streams: whatever the moment, the new stream is ordered after
//! the former use, or does not get it.

mod harness;

use aquifer::models::Rung;
use harness::ground::{Rig, plan};
use harness::model;

/// One block, which stream 0 holds, and no more memory.
fn one_block() -> Rig {
    let mut rig = plan(1, &[Rung::Wait, Rung::GrowToMaximum]).build();
    rig.held.push(rig.take(0).expect("the first block"));
    rig
}

/// A free on one stream while another looks for memory: it is found with its stamp, or not found.
#[test]
fn free_and_steal() {
    model(
        "free_and_steal",
        1,
        one_block,
        &[
            |rig: &Rig| rig.free_held(0, 0),
            |rig| {
                if let Some(block) = rig.take(1) {
                    rig.free(1, block);
                }
            },
        ],
        Rig::expect_idle,
    );
}
