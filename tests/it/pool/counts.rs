//! Statistics, exact after each step.

use super::{KIB, MIB, allocate, builder, free, support};
use aquifer::mr::{MissPolicy, PoolStatistics};
use aquifer::sim::SimConfig;

#[test]
fn statistics_are_exact_after_each_step() {
    let (device, _) = support::simulated(SimConfig::default().without_pool_checks());
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = builder(&device).growth_step(MIB).build().unwrap();
    let mut want = PoolStatistics::default();
    let check = |mut want: PoolStatistics, what: &str| {
        want.free = want.reserved - want.live;
        assert_eq!(pool.statistics(), want, "{what}");
    };
    check(want, "empty");
    allocate(&pool, &a, 1 << 38).unwrap_err();
    (want.streams, want.misses) = (1, 1);
    check(want, "a growth that upstream refused is not counted");

    let one = allocate(&pool, &a, 1000).unwrap();
    (want.reserved, want.peak_reserved, want.upstream_blocks, want.growths) = (MIB, MIB, 1, 1);
    (want.live, want.live_blocks, want.misses) = (1024, 1, 2);
    want.largest_free = MIB - 1024;
    check(want, "the first block");
    let two = allocate(&pool, &a, 1000).unwrap();
    let three = allocate(&pool, &a, 1000).unwrap();
    (want.live, want.live_blocks, want.largest_free) = (3072, 3, MIB - 3072);
    check(want, "three blocks");
    free(&pool, &a, three);
    (want.live, want.live_blocks, want.cached) = (2048, 2, 1024);
    check(want, "one is kept ready, since its size has come back");
    let three = allocate(&pool, &a, 1000).unwrap();
    (want.live, want.live_blocks, want.cached) = (3072, 3, 0);
    check(want, "and is taken again");
    [one, two, three].into_iter().for_each(|block| free(&pool, &a, block));
    (want.live, want.live_blocks, want.cached) = (0, 0, 3072);
    check(want, "all are kept ready");

    let whole = allocate(&pool, &a, MIB).unwrap();
    (want.live, want.live_blocks, want.cached) = (MIB, 1, 0);
    (want.misses, want.largest_free) = (3, 0);
    check(want, "all of it in one piece");
    free(&pool, &a, whole);
    (want.live, want.live_blocks, want.largest_free) = (0, 0, MIB);
    check(want, "free");

    // The other stream has the device asked, which has passed the free.
    let elsewhere = allocate(&pool, &b, 512 * KIB).unwrap();
    (want.live, want.live_blocks, want.largest_free) = (512 * KIB, 1, 512 * KIB);
    (want.misses, want.steals, want.records, want.streams) = (4, 1, 1, 2);
    check(want, "taken from the first stream");
    free(&pool, &b, elsewhere);
    (want.live, want.live_blocks) = (0, 0);
    check(want, "back, and not merged: the halves are two streams'");

    assert_eq!(pool.wait_and_trim(0).unwrap(), MIB);
    (want.reserved, want.upstream_blocks, want.largest_free, want.returns) = (0, 0, 0, 1);
    want.records = 2;
    check(want, "nothing is left, and the host has waited for the stream that freed last alone");
}

/// The pool's own counts are those of the driver.
#[test]
fn events_waits_growths_and_returns_are_those_that_the_driver_saw() {
    for policy in [MissPolicy::default(), MissPolicy::rmm()] {
        let (device, simulator) = support::simulated(SimConfig::default().without_pool_checks());
        let options = builder(&device).growth_step(MIB).maximum_size(6 * MIB).miss_policy(policy);
        let pool = options.build().unwrap();
        let counted = || {
            let PoolStatistics { records, waits, growths, returns, .. } = pool.statistics();
            let calls = ["cuEventRecord", "cuStreamWaitEvent", "cuMemAlloc", "cuMemFree"];
            let calls = calls.map(|call| simulator.call_count(call) as usize);
            assert_eq!([records, waits, growths, returns], calls);
        };
        for round in 1..=4 {
            let streams = [(); 3].map(|()| device.new_stream().unwrap());
            for stream in streams.iter().cycle().take(9) {
                let held = [300, 5000, MIB, MIB].map(|bytes| allocate(&pool, stream, bytes));
                counted();
                held.into_iter().for_each(|block| free(&pool, stream, block.unwrap()));
            }
            let whole = allocate(&pool, &streams[1], round * MIB + MIB).unwrap();
            counted();
            free(&pool, &streams[1], whole);
            // The streams of the next round inherit from these.
            drop(streams);
            pool.wait_and_trim(2 * MIB).unwrap();
            counted();
        }
        assert!(pool.statistics().returns > 0 && pool.statistics().records > 0);
    }
}

/// What one stream frees is its own again without an event, whatever it does.
#[test]
fn one_stream_alone_records_nothing_and_waits_for_nothing() {
    let (device, simulator) = support::simulated(SimConfig::default().without_pool_checks());
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).growth_step(MIB).maximum_size(8 * MIB).build().unwrap();
    for round in 0..50 {
        let sizes = [300, 300, 5000, 70 * KIB, MIB, 3 * MIB];
        let mut held: Vec<_> =
            sizes.iter().map(|bytes| allocate(&pool, &stream, *bytes).unwrap()).collect();
        held.rotate_left(round % sizes.len());
        held.into_iter().for_each(|block| free(&pool, &stream, block));
    }
    let calls = ["cuEventRecord", "cuStreamWaitEvent", "cuEventCreate", "cuStreamSynchronize"];
    assert_eq!(calls.map(|call| simulator.call_count(call)), [0; 4], "{calls:?}");
    assert_eq!((pool.statistics().records, pool.statistics().waits), (0, 0));
}
