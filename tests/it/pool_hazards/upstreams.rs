//! Pools over an upstream that hands memory out in stream order: what it gives is ready for one
//! stream alone, and what it gets back it hands out at once.

use super::fixture::{Fixture, Pool, SEEDS, UNIT, Upstream, holds, vec};
use aquifer::{
    DeviceResource, PoolResource,
    mr::{FailureCallbackAdaptor, LimitingAdaptor},
};
use std::sync::{Arc, OnceLock};

/// Upstreams in stream order, each with memory in it that another stream still writes.
fn dirty_upstreams(fixture: &Fixture) -> Vec<(&'static str, Upstream)> {
    let lower = fixture.options(64 * UNIT).initial_size(16 * UNIT).build().unwrap();
    let before = fixture.stream();
    drop(vec(&lower, &before, 16 * UNIT, 99));
    vec![("a driver's pool", fixture.stream_ordered()), ("a pool", Arc::new(lower))]
}

fn over(upstream: &Upstream) -> aquifer::mr::PoolOptions<Upstream> {
    PoolResource::builder(upstream.clone())
}

/// RMM's third: memory that the pool took when it was built was taken in some stream's order. C has
/// to come after that.
#[test]
fn preallocated_memory_is_ordered_after_its_allocation() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        for (name, upstream) in dirty_upstreams(&fixture) {
            let pool = over(&upstream).initial_size(4 * UNIT).maximum_size(4 * UNIT);
            let pool = pool.build().unwrap();
            let [a, b] = fixture.streams();
            let (first, second) = (vec(&pool, &a, UNIT, 1), vec(&pool, &b, 3 * UNIT, 2));
            holds(&first, 1);
            holds(&second, 2);
            fixture.simulator.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        fixture.all_is_back();
    }
}

/// RMM's fourth: the pool grows on A. Upstream made A wait for the memory's last user, or allocated
/// it in A's order; the rest of it, taken by C, comes after nothing unless the pool says so.
#[test]
fn the_rest_of_a_growth_is_ordered_after_the_growth() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        for (name, upstream) in dirty_upstreams(&fixture) {
            let pool = over(&upstream).growth_step(8 * UNIT).maximum_size(8 * UNIT);
            let pool = pool.build().unwrap();
            let [a, c] = fixture.streams();
            let of_a = vec(&pool, &a, UNIT, 1);
            let of_c = vec(&pool, &c, 7 * UNIT, 2);
            holds(&of_c, 2);
            holds(&of_a, 1);
            fixture.simulator.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        fixture.all_is_back();
    }
}

/// RMM's fifth: the same with small blocks, of which one growth or one refill makes many at once.
#[test]
fn small_blocks_of_one_chunk_are_each_ordered_after_its_growth() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        for (name, upstream) in dirty_upstreams(&fixture) {
            let pool = over(&upstream).growth_step(UNIT).maximum_size(UNIT).build().unwrap();
            let streams: [_; 3] = fixture.streams();
            let blocks: Vec<_> = (0..UNIT / 1024)
                .map(|n| (vec(&pool, &streams[n % 3], 1024, n as u8), n as u8))
                .collect();
            super::fixture::whole(&blocks);
            fixture.simulator.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        fixture.all_is_back();
    }
}

/// RMM's sixth: the pool goes, and gives its blocks to an upstream that hands them out at once,
/// while streams that used parts of them still run.
#[test]
fn a_dropped_pool_gives_memory_back_in_the_order_of_all_who_used_it() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let lower = fixture.options(8 * UNIT).initial_size(8 * UNIT).build().unwrap();
        for upstream in [fixture.stream_ordered(), Arc::new(lower.clone()) as Upstream] {
            let pool = over(&upstream).initial_size(8 * UNIT).build().unwrap();
            let streams: [_; 4] = fixture.streams();
            let vecs: Vec<_> = streams.iter().map(|on| vec(&pool, on, 2 * UNIT, 1)).collect();
            drop((vecs, pool));
            fixture.simulator.check().unwrap();
        }
        // The very memory, for a stream that nobody in the upper pool knew.
        holds(&vec(&lower, &fixture.stream(), 8 * UNIT, 2), 2);
        drop(lower);
        fixture.all_is_back();
    }
}

/// The same by another thread, which takes the memory while the pool is being dropped.
#[test]
fn memory_of_a_pool_that_is_being_dropped_is_taken_in_order() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let lower = fixture.options(4 * UNIT).initial_size(4 * UNIT).build().unwrap();
        let upstream: Upstream = Arc::new(lower.clone());
        let pool: Pool = over(&upstream).initial_size(4 * UNIT).build().unwrap();
        let [a, b] = fixture.streams();
        drop((vec(&pool, &a, 2 * UNIT, 1), vec(&pool, &b, 2 * UNIT, 2)));
        let c = fixture.stream();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(pool));
            scope.spawn(|| {
                let taken = loop {
                    match super::fixture::try_vec(&lower, &c, 4 * UNIT, 3) {
                        Ok(vec) => break vec,
                        Err(_) => std::thread::yield_now(),
                    }
                };
                holds(&taken, 3);
            });
        });
        fixture.clean();
    }
}

/// Trimming gives blocks back, to a plain upstream only when the device has passed their uses, to
/// one in stream order in that order.
#[test]
fn trimmed_memory_is_given_back_in_order() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let lower = fixture.options(8 * UNIT).build().unwrap();
        for upstream in
            [fixture.plain(), fixture.stream_ordered(), Arc::new(lower.clone()) as Upstream]
        {
            let pool = over(&upstream).growth_step(2 * UNIT).build().unwrap();
            let streams: [_; 3] = fixture.streams();
            for round in 0..3 {
                let vecs: Vec<_> =
                    (0..9).map(|n| vec(&pool, &streams[n % 3], UNIT / 2, n as u8)).collect();
                drop(vecs);
                let reserved = pool.statistics().reserved;
                assert!(reserved >= 4 * UNIT, "round {round}: {:?}", pool.statistics());
                assert_eq!(pool.wait_and_trim(0).unwrap(), reserved);
                let rest = pool.statistics();
                assert_eq!((rest.reserved, rest.upstream_blocks), (0, 0), "{rest:?}");
                fixture.simulator.check().unwrap();
            }
            assert_eq!(pool.device(), &fixture.device);
        }
        holds(&vec(&lower, &fixture.stream(), 8 * UNIT, 2), 2);
        drop(lower);
        fixture.all_is_back();
    }
}

/// `trim` keeps what it is told to keep, and what is in use.
#[test]
fn trimming_leaves_what_is_kept_and_what_lives() {
    let fixture = Fixture::new(0);
    let pool = fixture.pool(16 * UNIT);
    let stream = fixture.stream();
    let mut vecs: Vec<_> = (0..8).map(|tag| vec(&pool, &stream, UNIT, tag)).collect();
    let kept = vecs.pop().unwrap();
    drop(vecs);
    let before = pool.statistics().reserved;
    let back = pool.wait_and_trim(4 * UNIT).unwrap();
    let after = pool.statistics();
    assert_eq!(before - back, after.reserved);
    assert!(after.reserved >= 4 * UNIT && back > 0, "{after:?}");
    pool.wait_and_trim(0).unwrap();
    assert!(pool.statistics().reserved >= UNIT, "what lives was trimmed");
    holds(&kept, 7);
    drop((kept, pool));
    fixture.all_is_back();
}

/// The pool asks upstream for more than there is, and the callback gives back what the pool has.
#[test]
fn a_callback_below_a_pool_trims_the_pool() {
    let fixture = Fixture::new(0);
    let upper: Arc<OnceLock<PoolResource<Upstream>>> = Arc::default();
    let limited = LimitingAdaptor::new(fixture.plain(), 8 * UNIT);
    let trims = upper.clone();
    let patient: Upstream = Arc::new(FailureCallbackAdaptor::new(limited, move |_| {
        trims.get().is_some_and(|pool| pool.wait_and_trim(0).unwrap() > 0)
    }));
    let pool = PoolResource::builder(patient).growth_step(256).build().unwrap();
    upper.set(pool.clone()).unwrap();
    let [a, b] = fixture.streams();
    drop(vec(&pool, &a, 6 * UNIT, 1));
    drop(vec(&pool, &b, 7 * UNIT, 2));
    holds(&vec(&pool, &a, 8 * UNIT, 3), 3);
    assert!(pool.statistics().returns >= 2, "{:?}", pool.statistics());
    // The callback has a handle of the pool, which has the callback.
    pool.wait_and_trim(0).unwrap();
    assert_eq!(fixture.simulator.live_bytes(), 0);
}
