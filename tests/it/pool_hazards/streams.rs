//! Streams that die, streams that wait for nobody, memory that several streams use.

use super::fixture::{Fixture, SEEDS, UNIT, holds, policies, try_vec, vec};
use super::kernels;
use aquifer::{DeviceVec, ErrorKind};
use std::sync::Arc;

/// A stream is dropped with work and frees pending on it: no event can be recorded on it any more,
/// unless the pool kept the stream or recorded one in time.
#[test]
fn memory_freed_on_a_stream_that_is_gone_is_handed_out_in_order() {
    for policy in policies() {
        for seed in SEEDS {
            let fixture = Fixture::new(seed);
            let pool = fixture.options(4 * UNIT).miss_policy(policy.clone()).build().unwrap();
            for round in 0..8_u8 {
                let gone = fixture.stream();
                let vecs = [vec(&pool, &gone, UNIT, round), vec(&pool, &gone, 3 * UNIT, round)];
                // The vectors hold the last handles on it.
                drop(gone);
                drop(vecs);
                let stays = fixture.stream();
                let all = vec(&pool, &stays, 4 * UNIT, 100 + round);
                holds(&all, 100 + round);
            }
            drop(pool);
            fixture.all_is_back();
        }
    }
}

/// As before, where the pool goes too, right after the stream.
#[test]
fn a_pool_whose_streams_are_gone_gives_everything_back() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        for upstream in [fixture.plain(), fixture.stream_ordered()] {
            let pool = aquifer::PoolResource::builder(upstream).build().unwrap();
            let vecs: Vec<_> = (0..4).map(|tag| vec(&pool, &fixture.stream(), UNIT, tag)).collect();
            drop((vecs, pool));
            fixture.simulator.check().unwrap();
        }
        fixture.all_is_back();
    }
}

/// Short-lived streams leave no event behind each: in RMM's pool ten thousand of them do.
#[test]
fn streams_that_come_and_go_leave_nothing() {
    let fixture = Fixture::new(0);
    let pool = fixture.pool(4 * UNIT);
    let round = |tag| {
        let stream = fixture.stream();
        let vec = vec(&pool, &stream, UNIT, tag);
        drop(vec);
        stream.synchronize().unwrap();
    };
    (0..20).for_each(round);
    let before = fixture.simulator.call_count("cuEventCreate");
    (0..200).for_each(round);
    let made = fixture.simulator.call_count("cuEventCreate") - before;
    assert!(made <= 20, "{made} events were made for 200 streams");
    assert!(pool.statistics().reserved <= 4 * UNIT);
    drop(pool);
    fixture.all_is_back();
}

/// Streams of the crate do not wait for the legacy default stream, nor it for them. A pool that
/// thinks so hands memory over without an event.
#[test]
fn the_default_stream_orders_nobody() {
    for policy in policies() {
        for seed in SEEDS {
            let fixture = Fixture::new(seed);
            let pool = fixture.options(2 * UNIT).initial_size(2 * UNIT).miss_policy(policy.clone());
            let pool = pool.build().unwrap();
            let (default, other) = (fixture.device.default_stream(), fixture.stream());
            for (from, to) in [(&default, &other), (&other, &default)] {
                drop(vec(&pool, from, 2 * UNIT, 1));
                let taken = vec(&pool, to, 2 * UNIT, 2);
                holds(&taken, 2);
                drop(taken);
            }
            fixture.clean();
        }
    }
}

/// A vector at home on A that B writes and C reads, freed while both still do: the next user comes
/// after all three.
#[test]
fn memory_in_use_on_several_streams_is_free_when_all_have_passed() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.options(2 * UNIT).initial_size(UNIT).build().unwrap();
        let [a, b, c, d] = fixture.streams();
        for _ in 0..4 {
            let mut shared = DeviceVec::<u32>::zeroed_in(&a, UNIT / 4, Arc::new(pool.clone()));
            let shared = shared.as_mut().unwrap();
            kernels::add_one(&b, shared).unwrap();
            let mut copy = DeviceVec::<u32>::zeroed_in(&c, UNIT / 4, Arc::new(pool.clone()));
            let copy = copy.as_mut().unwrap();
            kernels::copy(&c, shared, copy).unwrap();
            assert_eq!(copy.get(7).unwrap(), 1);
        }
        let all = [vec(&pool, &d, UNIT, 8), vec(&pool, &d, UNIT, 9)];
        holds(&all[0], 8);
        holds(&all[1], 9);
        fixture.clean();
    }
}

/// A vector that moved house is freed in the new home's order, which came after the old one's.
#[test]
fn a_vector_that_moved_is_freed_in_its_new_home() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.options(UNIT).initial_size(UNIT).build().unwrap();
        let [a, b, c] = fixture.streams();
        let mut moved = vec(&pool, &a, UNIT, 1);
        moved.set_stream(&b).unwrap();
        moved.fill(2).unwrap();
        drop(moved);
        for (stream, tag) in [(&a, 3), (&c, 4), (&b, 5)] {
            holds(&vec(&pool, stream, UNIT, tag), tag);
        }
        fixture.clean();
    }
}

/// A capture that the pool was not told of: an allocation in it is served or a typed error, the
/// captures of others are left alone, and the pool is whole afterwards.
#[test]
fn a_capture_gets_memory_or_an_error_and_spoils_nothing() {
    for policy in policies() {
        let fixture = Fixture::new(0);
        let pool = fixture.options(4 * UNIT).initial_size(2 * UNIT).miss_policy(policy);
        let pool = pool.build().unwrap();
        let [captured, other, third] = fixture.streams();
        let held = vec(&pool, &captured, UNIT, 1);
        drop(vec(&pool, &other, UNIT, 2));
        fixture.simulator.start_capture(&captured).unwrap();
        // A free in a capture makes no driver call on its stream.
        drop(held);
        // Nothing of the captured stream's may go to others now: its event would be a point of the
        // graph, and they would join it.
        for round in 0..4 {
            match try_vec(&pool, &third, (1 + round) * UNIT, 3) {
                Ok(vec) => holds(&vec, 3),
                Err(error) => {
                    let kind = error.kind();
                    assert!(matches!(kind, ErrorKind::OutOfMemory | ErrorKind::Capture), "{error}");
                }
            }
        }
        assert!(!third.is_capturing().unwrap() && !other.is_capturing().unwrap());
        let mut refused = false;
        let layout = aquifer::DeviceLayout::new(4 * UNIT).unwrap();
        match aquifer::DeviceResource::allocate(&pool, &captured, layout) {
            // SAFETY: the block is the pool's, and no work uses it.
            Ok(block) => unsafe { aquifer::DeviceResource::deallocate(&pool, &captured, block) },
            Err(error) => {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::OutOfMemory | ErrorKind::Capture), "{error}");
                refused = true;
            }
        }
        let valid = fixture.simulator.stop_capture(&captured);
        assert!(valid || refused, "the capture was spoilt by an allocation that succeeded");
        for stream in [&captured, &other, &third] {
            holds(&vec(&pool, stream, 4 * UNIT, 9), 9);
        }
        drop(pool);
        fixture.all_is_back();
    }
}
