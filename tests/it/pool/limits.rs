//! Limits that change while a pool is used, and the default pool of a device.

use super::{MIB, allocate, builder, drain, free, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceResource, DeviceVec, ErrorKind, PoolResource,
    mr::{
        MissPolicy, MissStep, current_device_resource, default_device_pool,
        reset_current_device_resource, set_current_device_resource,
    },
};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_maximum_that_changes_holds_from_then_on() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    assert_eq!((pool.maximum_size(), pool.soft_limit()), (None, None));
    let mut held: Vec<_> = (0..4).map(|_| allocate(&pool, &stream, 4 * MIB).unwrap()).collect();
    let reserved = pool.statistics().reserved;

    // Less than the pool holds: it serves what it has, and grows no more.
    pool.set_maximum_size(Some(8 * MIB)).unwrap();
    assert_eq!((pool.maximum_size(), pool.soft_limit()), (Some(8 * MIB), Some(8 * MIB)));
    let (more, text) = drain(&pool, &stream, 4 * MIB);
    assert!(text.contains("whose maximum is 8388608 bytes: it has "), "{text}");
    assert_eq!(pool.statistics().reserved, reserved);
    more.into_iter().for_each(|block| free(&pool, &stream, block));
    free(&pool, &stream, held.remove(0));
    held.push(allocate(&pool, &stream, 4 * MIB).unwrap());

    // What is free above it goes back by a trim, and is not taken again.
    held.drain(..).for_each(|block| free(&pool, &stream, block));
    pool.wait_and_trim(0).unwrap();
    assert_eq!((pool.statistics().reserved, simulator.live_bytes()), (0, 0));
    let (two, _) = drain(&pool, &stream, 4 * MIB);
    assert_eq!((two.len(), pool.statistics().reserved), (2, 8 * MIB));

    pool.set_maximum_size(Some(12 * MIB)).unwrap();
    let third = allocate(&pool, &stream, 4 * MIB).unwrap();
    assert_eq!(allocate(&pool, &stream, 4 * MIB).unwrap_err().kind(), ErrorKind::OutOfMemory);
    pool.set_maximum_size(None).unwrap();
    let fourth = allocate(&pool, &stream, 4 * MIB).unwrap();
    two.into_iter().chain([third, fourth]).for_each(|block| free(&pool, &stream, block));
}

#[test]
fn a_soft_limit_is_rounded_and_capped_whoever_sets_it() {
    let device = support::device();
    for (bytes, read) in [(300, 256), (8192, 1024), (usize::MAX, 1024)] {
        let built = builder(&device).maximum_size(1024).soft_limit(bytes).build().unwrap();
        let set = builder(&device).maximum_size(1024).build().unwrap();
        set.set_soft_limit(Some(bytes)).unwrap();
        assert_eq!((built.soft_limit(), set.soft_limit()), (Some(read), Some(read)), "{bytes}");
    }
}

#[test]
fn a_soft_limit_that_changes_ends_growth() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let policy = MissPolicy::new([MissStep::Complete, MissStep::Grow]);
    let options = builder(&device).miss_policy(policy).growth_step(MIB).soft_limit(4 * MIB);
    let pool = options.build().unwrap();
    assert_eq!(pool.soft_limit(), Some(4 * MIB));
    let (held, _) = drain(&pool, &stream, MIB);
    assert_eq!(held.len(), 4);
    pool.set_soft_limit(Some(6 * MIB)).unwrap();
    let (more, _) = drain(&pool, &stream, MIB);
    assert_eq!(more.len(), 2);
    // It is never above the maximum.
    pool.set_maximum_size(Some(5 * MIB)).unwrap();
    assert_eq!(pool.soft_limit(), Some(5 * MIB));
    pool.set_soft_limit(None).unwrap();
    pool.set_maximum_size(None).unwrap();
    assert_eq!(pool.soft_limit(), None);
    let last = allocate(&pool, &stream, MIB).unwrap();
    held.into_iter().chain(more).chain([last]).for_each(|block| free(&pool, &stream, block));
}

#[test]
fn a_maximum_that_cannot_be_changes_nothing() {
    let device = support::device();
    let pool = builder(&device).alignment(4096).maximum_size(8192).build().unwrap();
    for bytes in [0, 256, 4097, usize::MAX] {
        let error = pool.set_maximum_size(Some(bytes)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    assert_eq!(pool.maximum_size(), Some(8192));
}

/// Whatever the threads meet, it is served or out of memory, and the last maximum holds in the end.
#[test]
fn a_maximum_changes_beside_threads_that_allocate() {
    let (device, _) = support::simulated(SimConfig::default());
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let (is_over, workers) = (AtomicBool::new(false), 3);
    pool.set_maximum_size(Some(256)).unwrap();
    let first = Barrier::new(workers + 1);
    std::thread::scope(|scope| {
        for number in 1..=workers {
            let (pool, first, is_over) = (&pool, &first, &is_over);
            let stream = device.new_stream().unwrap();
            scope.spawn(move || {
                let is_refused = |bytes| match allocate(pool, &stream, bytes) {
                    Ok(block) => {
                        free(pool, &stream, block);
                        false
                    }
                    Err(error) => error.kind() == ErrorKind::OutOfMemory || panic!("{error}"),
                };
                let all_refused = [number * MIB / 2, 5000].map(is_refused);
                first.wait();
                assert_eq!(all_refused, [true; 2], "no more than 256 bytes");
                while !is_over.load(Ordering::Relaxed) {
                    for part in 1..=7 {
                        is_refused(part * number * MIB / 3);
                    }
                }
            });
        }
        first.wait();
        for _ in 0..20 {
            for maximum in [None, Some(4 * MIB), Some(256)] {
                pool.set_maximum_size(maximum).unwrap();
                pool.wait_and_trim(0).unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    pool.set_maximum_size(Some(2 * MIB)).unwrap();
    pool.wait_and_trim(0).unwrap();
    let stream = device.new_stream().unwrap();
    let (blocks, _) = drain(&pool, &stream, MIB);
    assert_eq!((blocks.len(), pool.statistics().reserved), (2, 2 * MIB));
    blocks.into_iter().for_each(|block| free(&pool, &stream, block));
}

#[test]
fn the_default_pool_is_what_vectors_live_in() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = default_device_pool(&device).unwrap();
    let current = current_device_resource(&device).unwrap();
    assert_eq!(current.identity(), pool.identity());
    let vec = DeviceVec::<u8>::zeroed(&stream, 1024).unwrap();
    assert_eq!(pool.statistics().live, 1024);

    // It stays the default, and its own, while another is set.
    let before = set_current_device_resource(CudaResource::new(&device));
    assert!(before.is_none());
    let elsewhere = DeviceVec::<u8>::zeroed(&stream, 1024).unwrap();
    assert_eq!(pool.statistics().live, 1024);
    assert_eq!(default_device_pool(&device).unwrap().identity(), pool.identity());
    reset_current_device_resource(&device);
    drop((vec, elsewhere));

    pool.set_maximum_size(Some(MIB)).unwrap();
    pool.wait_and_trim(0).unwrap();
    let refused = DeviceVec::<u8>::zeroed(&stream, 2 * MIB).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    pool.wait_and_trim(0).unwrap();
    assert_eq!((pool.statistics().reserved, simulator.live_bytes()), (0, 0));
}

#[test]
fn a_default_that_is_asked_for_first_is_kept_by_its_handle() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = default_device_pool(&device).unwrap();
    drop(DeviceVec::<u8>::zeroed(&stream, MIB).unwrap());
    assert!(pool.statistics().reserved >= MIB, "the handle keeps it");
    drop(pool);
    assert_eq!(simulator.live_bytes(), 0, "nothing keeps it");
    let again = default_device_pool(&device).unwrap();
    assert_eq!(again.statistics().reserved, 0);
}
