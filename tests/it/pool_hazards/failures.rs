//! Driver calls that fail under the pool's hands.

use super::fixture::{Fixture, SEEDS, UNIT, Upstream, holds, policies, try_vec, vec};
use super::log::Log;
use aquifer::{DeviceLayout, DeviceResource, ErrorKind, PoolResource};
use std::sync::Arc;
use tracing::Level;

const OUT_OF_MEMORY: u32 = 2;
const UNKNOWN: u32 = 999;

/// RMM's ninth: a record that fails says nothing about the stream, and yet the block is published
/// under the event's last, stale record. The record fails at the free or when the block is wanted.
#[test]
fn a_record_that_fails_publishes_nothing() {
    for policy in policies() {
        for seed in SEEDS {
            for nth in 1..4 {
                let fixture = Fixture::new(seed);
                let pool =
                    fixture.options(2 * UNIT).initial_size(2 * UNIT).miss_policy(policy.clone());
                let pool = pool.build().unwrap();
                let [a, b, c] = fixture.streams();
                // Every stream has an event that was recorded once, to be stale.
                for stream in [&a, &b, &c, &a] {
                    drop(vec(&pool, stream, 2 * UNIT, 1));
                }
                let held = [vec(&pool, &a, UNIT, 2), vec(&pool, &a, UNIT, 3)];
                fixture.simulator.fail_call("cuEventRecord", nth, UNKNOWN).unwrap();
                drop(held);
                for stream in [&b, &c, &b] {
                    let layout = DeviceLayout::new(UNIT).unwrap();
                    match pool.allocate(stream, layout) {
                        // SAFETY: the block is the pool's, and no work uses it.
                        Ok(block) => unsafe { pool.deallocate(stream, block) },
                        Err(error) => assert_ne!(error.kind(), ErrorKind::Simulation, "{error}"),
                    }
                }
                // Whoever comes next makes the record, if nobody did.
                while a.record().is_err() {}
                for (stream, tag) in [(&b, 4), (&c, 5), (&a, 6)] {
                    if let Ok(vec) = try_vec(&pool, stream, UNIT, tag) {
                        holds(&vec, tag);
                    }
                }
                fixture.clean();
            }
        }
    }
}

/// A wait that fails orders nothing: whoever was to wait must not get the block, then or later,
/// without another wait.
#[test]
fn a_wait_that_fails_orders_nothing() {
    for policy in policies() {
        for seed in SEEDS {
            let fixture = Fixture::new(seed);
            let pool = fixture.options(2 * UNIT).initial_size(2 * UNIT).miss_policy(policy.clone());
            let pool = pool.build().unwrap();
            let [a, b] = fixture.streams();
            drop(vec(&pool, &a, 2 * UNIT, 1));
            fixture.simulator.fail_call("cuStreamWaitEvent", 1, UNKNOWN).unwrap();
            let layout = DeviceLayout::new(UNIT).unwrap();
            let first = pool.allocate(&b, layout);
            // The failure hits the pool, or else this.
            let event = a.record().unwrap();
            while a.wait(&event).is_err() {}
            if let Ok(block) = first {
                // SAFETY: the block is the pool's, and no work uses it.
                unsafe { pool.deallocate(&b, block) };
            }
            let again = vec(&pool, &b, 2 * UNIT, 2);
            holds(&again, 2);
            drop((again, pool));
            fixture.all_is_back();
        }
    }
}

/// Upstream has no more than it says: the pool tells, keeps its books, and gets on when there is.
#[test]
fn an_upstream_that_fails_is_told_of_and_forgotten() {
    let fixture = Fixture::new(0);
    for (call, upstream) in
        [("cuMemAlloc", fixture.plain()), ("cuMemAllocFromPoolAsync", fixture.stream_ordered())]
    {
        let pool = aquifer::PoolResource::builder(upstream)
            .growth_step(UNIT)
            .maximum_size(4 * UNIT)
            .build()
            .unwrap();
        let stream = fixture.stream();
        let held = vec(&pool, &stream, UNIT, 1);
        let before = pool.statistics().reserved;
        for nth in 1..=16 {
            fixture.simulator.fail_call(call, nth, OUT_OF_MEMORY).unwrap();
        }
        let error = try_vec(&pool, &stream, 2 * UNIT, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(pool.statistics().reserved, before, "what failed is not held");
        // The rest of the failures go elsewhere.
        let raw = pool.upstream().clone();
        let layout = DeviceLayout::new(256).unwrap();
        let mut left = 16;
        while let Err(error) = raw.allocate(&stream, layout).map(|block| {
            // SAFETY: the block is upstream's, and no work uses it.
            unsafe { raw.deallocate(&stream, block) }
        }) {
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            left -= 1;
            assert!(left > 0, "the failures do not end");
        }
        let all = vec(&pool, &stream, 3 * UNIT, 3);
        holds(&all, 3);
        holds(&held, 1);
        drop((all, held, pool, raw));
        fixture.clean();
    }
    fixture.all_is_back();
}

/// Memory that is complete goes back though the driver has no stream left for that, wherever it comes
/// from: for a larger block, by a trim, and when the pool ends after its streams.
#[test]
fn memory_goes_back_where_no_stream_can_be_made() {
    for over in 0..3 {
        for policy in policies() {
            let fixture = Fixture::new(0);
            let upstream: Upstream = match over {
                0 => fixture.plain(),
                1 => fixture.stream_ordered(),
                _ => Arc::new(fixture.options(64 * UNIT).build().unwrap()),
            };
            let options = PoolResource::builder(upstream).maximum_size(2 * UNIT).growth_step(UNIT);
            let pool = options.miss_policy(policy).build().unwrap();
            let stream = fixture.stream();
            drop([vec(&pool, &stream, UNIT, 1), vec(&pool, &stream, UNIT, 2)]);
            assert_eq!(pool.statistics().upstream_blocks, 2, "the test is about this");
            let ((), log) = Log::of(|| {
                for nth in 1..=4 {
                    fixture.simulator.fail_call("cuStreamCreate", nth, OUT_OF_MEMORY).unwrap();
                }
                holds(&vec(&pool, &stream, 2 * UNIT, 3), 3);
                assert_eq!(pool.statistics().returns, 2);
                assert_eq!(pool.wait_and_trim(0).unwrap(), 2 * UNIT);
                assert_eq!(pool.statistics().reserved, 0);
                holds(&vec(&pool, &stream, 2 * UNIT, 4), 4);
                drop(stream);
                drop(pool);
            });
            assert_eq!(log.lines(), [], "upstream {over}");
            // As many as were to fail.
            while fixture.device.new_stream().is_err() {}
            fixture.all_is_back();
        }
    }
}

/// An upstream whose memory has another user: what one pool has free the other one gets, and no more.
#[test]
fn a_full_device_is_shared() {
    let fixture = Fixture::with(aquifer::sim::SimConfig::default().capacity(8 * UNIT));
    let one = fixture.pool(8 * UNIT);
    let other = fixture.pool(8 * UNIT);
    let [a, b] = fixture.streams();
    let held = vec(&one, &a, 8 * UNIT, 1);
    let error = try_vec(&other, &b, UNIT, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    holds(&held, 1);
    drop(held);
    holds(&vec(&other, &b, 8 * UNIT, 3), 3);
    assert_eq!(one.statistics().reserved, 0);
    drop((one, other));
    fixture.all_is_back();
}

/// The context is gone: allocations are errors, frees are quiet, nothing panics or hangs.
#[test]
fn a_lost_context_is_an_error_and_no_noise() {
    let fixture = Fixture::new(0);
    let pool = fixture.pool(8 * UNIT);
    let [a, b] = fixture.streams();
    let held = [vec(&pool, &a, UNIT, 1), vec(&pool, &b, UNIT, 2)];
    drop(vec(&pool, &b, UNIT, 3));
    let ((), log) = Log::of(|| {
        fixture.simulator.lose_context();
        let layout = DeviceLayout::new(6 * UNIT).unwrap();
        let error = pool.allocate(&a, layout).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ContextLost, "{error}");
        drop(held);
        drop((a, b, pool));
    });
    // The pool says it once, and nothing that is dropped then says more.
    let told = (log.count(Level::ERROR, ""), log.count(Level::ERROR, "device lost"));
    assert_eq!(told, (1, 1), "{:?}", log.lines());
}
