//! How a pool is built, and what is refused.

use super::{KIB, MIB, allocate, builder, free, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, ErrorKind, PoolResource,
    mr::{MissPolicy, MissStep, PoolOptions},
};

type Change = fn(PoolOptions<CudaResource>) -> PoolOptions<CudaResource>;

#[test]
fn each_option_that_makes_no_sense_is_an_error_that_says_what_is_wrong() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let wrong: &[(Change, &str)] = &[
        (|pool| pool.alignment(0), "to align to 0 bytes"),
        (|pool| pool.alignment(1), "to align to 1 byte"),
        (|pool| pool.alignment(128), "to align to 128 bytes"),
        (|pool| pool.alignment(384), "to align to 384 bytes"),
        (|pool| pool.alignment(1 << 31), "to align to 2147483648 bytes"),
        (|pool| pool.alignment(usize::MAX), "to align to 18446744073709551615 bytes"),
        (
            |pool| pool.initial_size(100),
            "the initial size of a pool, 100 bytes, is no multiple of its alignment, 256 bytes",
        ),
        (
            |pool| pool.alignment(8192).initial_size(4096),
            "4096 bytes, is no multiple of its alignment, 8192 bytes",
        ),
        (|pool| pool.initial_size(usize::MAX), "is no multiple of its alignment, 256 bytes"),
        (
            |pool| pool.maximum_size(1000),
            "the maximum size of a pool, 1000 bytes, is no multiple of its alignment, 256 bytes",
        ),
        (|pool| pool.maximum_size(usize::MAX), "is no multiple of its alignment, 256 bytes"),
        (
            |pool| pool.alignment(4096).maximum_size(6144),
            "6144 bytes, is no multiple of its alignment, 4096 bytes",
        ),
        (|pool| pool.maximum_size(0), "to hold no more than 0 bytes"),
        (
            |pool| pool.initial_size(512).maximum_size(256),
            "initial size, 512 bytes, is more than its maximum size, 256 bytes",
        ),
        (|pool| pool.initial_size(usize::MAX & !255), "is more than an address space holds"),
        (|pool| pool.growth_step(0), "to grow by 0 bytes"),
        (|pool| pool.magazine_entries(9), "to keep 9 blocks of a size"),
        (|pool| pool.miss_policy(MissPolicy::new([])), "to take nothing from upstream on a miss"),
        (
            |pool| pool.miss_policy(MissPolicy::new([MissStep::Wait, MissStep::Gather])),
            "to take nothing from upstream on a miss",
        ),
    ];
    for (change, text) in wrong {
        let error = change(builder(&device)).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(text), "{text}: {error}");
        assert!(error.to_string().ends_with(')'), "says what to do: {error}");
    }
    assert!(!simulator.calls().iter().any(|(call, _)| call.starts_with("cuMem")));
}

#[test]
fn the_ends_of_each_range_are_allowed() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let right: &[Change] = &[
        |pool| pool.alignment(256),
        |pool| pool.alignment(1 << 30).magazine_entries(1),
        |pool| pool.initial_size(0),
        |pool| pool.initial_size(4096).maximum_size(4096),
        |pool| pool.maximum_size(usize::MAX & !255),
        |pool| pool.soft_limit(0),
        |pool| pool.soft_limit(1),
        |pool| pool.soft_limit(512).maximum_size(256),
        |pool| pool.soft_limit(usize::MAX),
        |pool| pool.miss_policy(MissPolicy::new([MissStep::Trim])),
        |pool| pool.growth_step(1),
        |pool| pool.growth_step(usize::MAX).maximum_size(MIB),
        |pool| pool.magazine_entries(8).magazine_bytes(usize::MAX),
        |pool| pool.magazine_entries(0).magazine_bytes(0),
    ];
    for (number, change) in right.iter().enumerate() {
        let pool = change(builder(&device)).build().unwrap();
        let stream = device.new_stream().unwrap();
        for _ in 0..5 {
            let block = allocate(&pool, &stream, 256).unwrap_or_else(|error| {
                panic!("option {number}: {error}");
            });
            free(&pool, &stream, block);
        }
        assert_eq!(pool.statistics().live, 0);
    }
    assert_eq!(simulator.live_blocks(), 0);
}

#[test]
fn the_initial_size_is_there_at_once_and_for_every_stream() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = builder(&device).initial_size(16 * MIB).maximum_size(16 * MIB).build().unwrap();
    let statistics = pool.statistics();
    assert_eq!((statistics.reserved, statistics.free, statistics.live), (16 * MIB, 16 * MIB, 0));
    assert_eq!((statistics.largest_free, statistics.upstream_blocks), (16 * MIB, 1));
    assert_eq!((statistics.growths, statistics.streams), (1, 0));
    assert_eq!(simulator.live_bytes(), 16 << 20);
    let mut held = Vec::new();
    for _ in 0..8 {
        let stream = device.new_stream().unwrap();
        held.push((allocate(&pool, &stream, 2 * MIB).unwrap(), stream));
    }
    let statistics = pool.statistics();
    assert_eq!((statistics.live, statistics.growths, statistics.streams), (16 * MIB, 1, 8));
    assert_eq!((statistics.waits, statistics.records), (0, 0), "nobody has used it before");
    for (block, stream) in held {
        free(&pool, &stream, block);
    }
    drop(pool);
    assert_eq!(simulator.live_blocks(), 0);
}

#[test]
fn the_initial_size_serves_whatever_the_policy() {
    let (device, _) = support::simulated(SimConfig::default());
    for policy in [MissPolicy::new([]), MissPolicy::new([MissStep::Grow]), MissPolicy::rmm()] {
        let options = builder(&device).initial_size(MIB).maximum_size(MIB);
        let pool = options.miss_policy(policy.clone()).build().unwrap();
        let stream = device.new_stream().unwrap();
        let block = allocate(&pool, &stream, MIB).unwrap_or_else(|error| {
            panic!("{policy:?}: {error}");
        });
        free(&pool, &stream, block);
    }
}

#[test]
fn an_initial_size_that_is_not_there_is_out_of_memory_and_leaves_nothing() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(MIB));
    let error = builder(&device).initial_size(2 * MIB).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("2097152 bytes"), "{error}");
    assert_eq!(simulator.live_bytes(), 0);
    assert_eq!(builder(&device).initial_size(MIB).build().unwrap().statistics().reserved, MIB);
}

#[test]
fn growth_is_by_the_step_or_by_what_is_asked_and_stops_at_the_soft_limit_and_the_maximum() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let options = builder(&device).growth_step(MIB).soft_limit(3 * MIB).maximum_size(4 * MIB);
    let pool = options.clone().build().unwrap();
    let reserved = || (pool.statistics().reserved, pool.statistics().upstream_blocks);
    let mut held = vec![allocate(&pool, &stream, 256).unwrap()];
    assert_eq!(reserved(), (MIB, 1), "a step");
    held.push(allocate(&pool, &stream, MIB + 1).unwrap());
    assert_eq!(reserved(), (2 * MIB + 256, 2), "what was asked");
    held.push(allocate(&pool, &stream, MIB - 256).unwrap());
    assert_eq!(reserved(), (2 * MIB + 256, 2), "there is room");
    held.push(allocate(&pool, &stream, 1024).unwrap());
    assert_eq!(reserved(), (3 * MIB, 3), "what the soft limit leaves");
    held.push(allocate(&pool, &stream, MIB - 256).unwrap());
    assert_eq!(reserved(), (4 * MIB, 4), "beyond it, where nothing else serves");
    assert_eq!(simulator.live_bytes(), 4 << 20);
    held.into_iter().for_each(|block| free(&pool, &stream, block));

    // The same options again, with a policy that does not go beyond.
    let pool = options.miss_policy(MissPolicy::new([MissStep::Grow])).build().unwrap();
    let (held, _) = super::drain(&pool, &stream, 512 * KIB);
    assert_eq!((held.len(), pool.statistics().reserved), (6, 3 * MIB));
    held.into_iter().for_each(|block| free(&pool, &stream, block));
}

#[test]
fn growth_makes_do_with_less_where_a_step_is_not_there() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(3 * MIB));
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).growth_step(8 * MIB).build().unwrap();
    let (held, text) = super::drain(&pool, &stream, MIB);
    assert_eq!((held.len(), simulator.live_bytes()), (3, 3 << 20));
    assert!(text.contains("0 bytes free of its 3145728 bytes"), "upstream's answer: {text}");
    held.into_iter().for_each(|block| free(&pool, &stream, block));
}

#[test]
fn handles_are_one_pool_and_options_can_be_used_again() {
    let (device, _) = support::simulated(SimConfig::default());
    let options = builder(&device).initial_size(MIB);
    let (one, two) = (options.clone().build().unwrap(), options.clone().build().unwrap());
    assert_eq!(one, one.clone());
    assert_ne!(one, two);
    assert_eq!(one.upstream(), &CudaResource::new(&device));
    let stream = device.new_stream().unwrap();
    let block = allocate(&one, &stream, 300).unwrap();
    assert_eq!((one.clone().statistics().live, two.statistics().live), (512, 0));
    free(&one.clone(), &stream, block);
    assert_eq!(one.statistics().live, 0);
    let text = format!("{one:?} {options:?}");
    for part in ["PoolResource", "CudaResource", "reserved: 1048576", "initial_size: 1048576"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let policy = MissPolicy::new([MissStep::Wait, MissStep::Grow]);
    assert_eq!(policy.steps(), [MissStep::Wait, MissStep::Grow]);
    assert_eq!(policy, policy.clone());
    assert_ne!(MissPolicy::default(), MissPolicy::rmm());
    let plain = PoolResource::new(CudaResource::new(&device)).unwrap();
    assert_eq!(plain.statistics(), aquifer::mr::PoolStatistics::default(), "it starts empty");
}
