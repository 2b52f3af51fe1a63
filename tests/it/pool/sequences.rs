//! RMM's own sequences for its pool (`pool_mr_tests`, and `test_pool` of its Python), with its
//! numbers.

use super::{MIB, allocate, builder, free, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceVec, ErrorKind, PoolResource,
    mr::{LimitingAdaptor, PoolOptions},
};
use std::sync::Arc;

/// On a device of its own: nine tenths of a GPU are not a test's to take.
#[test]
fn nine_tenths_of_what_is_free_is_an_initial_size() {
    let (device, _) = support::simulated(SimConfig::default().capacity(64 << 20));
    let free_bytes = device.memory_info().unwrap().free;
    let most = free_bytes / 10 * 9 / 256 * 256;
    let pool = builder(&device).initial_size(most).build().unwrap();
    assert!(pool.statistics().reserved >= most);
    drop(pool);

    let half = free_bytes / 2;
    let pool = builder(&device).initial_size(half).maximum_size(half).build().unwrap();
    let stream = device.new_stream().unwrap();
    let quarters = [(); 2].map(|()| allocate(&pool, &stream, free_bytes / 4).unwrap());
    quarters.into_iter().for_each(|block| free(&pool, &stream, block));
}

/// RMM's `ForceGrowth`: under a limit, what is asked is what is taken. A pool that is not told to grow
/// by little takes a step as large as there is, and has less for what is larger than the rest of it.
#[test]
fn growth_takes_what_a_limit_below_leaves() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let unlimited = |pool: PoolOptions<_>| pool;
    let limited = |pool: PoolOptions<_>| pool.maximum_size(8192);
    for options in [unlimited, limited] {
        let upstream = LimitingAdaptor::new(CudaResource::new(&device), 6000);
        let builder = PoolResource::builder(upstream.clone()).growth_step(256);
        let pool = options(builder).build().unwrap();
        let mut held: Vec<_> =
            [1000, 4000, 500].map(|bytes| allocate(&pool, &stream, bytes).unwrap()).into();
        let error = allocate(&pool, &stream, 2000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert_eq!(upstream.allocated(), 1024 + 4096 + 512);
        // With the large one freed there is room in one piece. With a maximum, RMM refuses the 4000:
        // its first step took half of that.
        free(&pool, &stream, held.remove(1));
        held.push(allocate(&pool, &stream, 2000).unwrap());
        held.into_iter().for_each(|block| free(&pool, &stream, block));
    }
}

/// RMM's issue 527.
#[test]
fn a_pool_may_be_all_of_its_maximum_from_the_start() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).initial_size(1_000_192).maximum_size(1_000_192).build().unwrap();
    let block = allocate(&pool, &stream, 1000).unwrap();
    free(&pool, &stream, block);
    let whole = allocate(&pool, &stream, 1_000_192).unwrap();
    free(&pool, &stream, whole);
    for wrong in
        [builder(&device).initial_size(1_000_031), builder(&device).maximum_size(1_000_200)]
    {
        assert_eq!(wrong.build().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_vector_grows_to_the_cap_and_not_past_it() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).initial_size(4 * MIB).maximum_size(8 * MIB).build().unwrap();
    let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 10, Arc::new(pool.clone())).unwrap();
    vec.truncate(0);
    vec.shrink_to_fit().unwrap();
    vec.reserve_exact((1 << 23) - 1).unwrap();
    assert_eq!(pool.statistics().live, 8 * MIB);
    let error = vec.reserve_exact(1 << 24).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(vec.capacity() >= (1 << 23) - 1, "as it was");
    vec.resize(100, 3).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3; 100]);
}
