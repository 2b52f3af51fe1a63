//! Memory of one device, used by another: copies, and kernels that reach it where it lies.

use crate::two::Two;
use crate::{alone, kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceResource, DeviceVec, ErrorKind, PoolResource, Stream,
    mr::{AsyncResource, ManagedResource, StatisticsAdaptor, SystemResource, VirtualResource},
};
use std::sync::Arc;

#[test]
fn a_vector_moves_to_another_device_in_the_order_of_both() {
    let _alone = alone();
    let name = "a_vector_moves_to_another_device_in_the_order_of_both";
    let Some(both) = Two::open(name) else { return };
    let [here, there] = both.streams();
    for round in 0..10_u32 {
        let mut vec = DeviceVec::<u32>::zeroed(&here, 100_000).unwrap();
        vec.fill(round).unwrap();
        kernels::add_one(&here, &mut vec).unwrap();
        both.check("work at home");
        let mut moved = vec.to_device(&there).unwrap();
        both.check("to_device");
        // Freed at home, and its memory taken again, while the copy may run.
        drop(vec);
        let mut next = DeviceVec::<u32>::zeroed(&here, 100_000).unwrap();
        next.fill(99).unwrap();
        kernels::add_one(&there, &mut moved).unwrap();
        assert_eq!((moved.device(), moved.stream()), (&both.two, &there));
        assert_eq!(moved.to_vec().unwrap(), vec![round + 2; 100_000]);
        // And back, from a pool of its own.
        let pool = PoolResource::new(CudaResource::new(&both.one)).unwrap();
        let back = moved.to_device_in(&here, pool).unwrap();
        assert_eq!(back.to_vec().unwrap(), vec![round + 2; 100_000]);
    }
    drop((here, there));
    both.end();
}

/// Copies memory of `resource` from the other device by a kernel there.
fn reach(both: &Two, here: &Stream, there: &Stream, resource: Arc<dyn DeviceResource>) {
    let mut vec = DeviceVec::<u32>::zeroed_in(here, 1000, resource).unwrap();
    vec.fill(4).unwrap();
    let mut copy = DeviceVec::<u32>::zeroed(there, 1000).unwrap();
    for round in 0..5_u32 {
        // The kernel waits for home, and home's next write for the kernel.
        kernels::copy(there, &vec, &mut copy).unwrap();
        vec.fill(round).unwrap();
        assert_eq!(copy.get(999).unwrap(), if round == 0 { 4 } else { round - 1 });
        kernels::add_one(there, &mut vec).unwrap();
        assert_eq!(vec.get(0).unwrap(), round + 1);
        vec.fill(round).unwrap();
        both.check("a kernel of the other device");
    }
    kernels::copy(there, &vec, &mut copy).unwrap();
    // Freed while the kernel may run.
    drop(vec);
    assert_eq!(copy.to_vec().unwrap(), [4; 1000]);
}

#[test]
fn kernels_reach_memory_of_another_device_that_lets_them() {
    let _alone = alone();
    let name = "kernels_reach_memory_of_another_device_that_lets_them";
    let Some(both) = Two::open(name) else { return };
    if !both.two.can_access_peer(&both.one).unwrap() {
        return support::skipped(name, "the two GPUs do not reach each other's memory");
    }
    let [here, there] = both.streams();
    let driver_pool = Arc::new(AsyncResource::new(&both.one).unwrap());
    // A kernel of the other device is refused until then.
    let vec = DeviceVec::<u32>::zeroed_in(&here, 10, driver_pool.clone()).unwrap();
    let error = vec.on(&there).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice);
    assert!(error.to_string().contains("enable_peer_access"), "{error}");
    drop(vec);
    let pool = PoolResource::new(CudaResource::new(&both.one)).unwrap();
    let counted = StatisticsAdaptor::new(pool.clone());
    let over_driver_pool = PoolResource::new(driver_pool.clone()).unwrap();
    for resource in [
        Arc::new(CudaResource::new(&both.one)) as Arc<dyn DeviceResource>,
        Arc::new(pool),
        Arc::new(counted),
        driver_pool,
        Arc::new(over_driver_pool),
        Arc::new(PoolResource::new(VirtualResource::new(&both.one).unwrap()).unwrap()),
        Arc::new(VirtualResource::new(&both.one).unwrap()),
    ] {
        resource.enable_peer_access(&both.two).unwrap();
        resource.enable_peer_access(&both.two).unwrap();
        assert!(resource.has_peer_access(&both.two));
        both.check("enable_peer_access");
        reach(&both, &here, &there, resource);
    }
    let managed = ManagedResource::new(&both.one);
    if let (Ok(managed), false) = (managed, support::on_gpu()) {
        reach(&both, &here, &there, Arc::new(managed));
    }
    drop((here, there));
    both.end();
}

/// What was mapped before the other device was let in, what is mapped later, and what moves.
#[test]
fn mapped_memory_is_reached_wherever_it_is_mapped() {
    const MIB: usize = 1 << 20;
    let _alone = alone();
    let name = "mapped_memory_is_reached_wherever_it_is_mapped";
    let Some(both) = Two::open(name) else { return };
    if !both.two.can_access_peer(&both.one).unwrap() {
        return support::skipped(name, "the two GPUs do not reach each other's memory");
    }
    let [here, there] = both.streams();
    let upstream = VirtualResource::new(&both.one).unwrap();
    assert!(!upstream.has_peer_access(&both.two));
    let pool = PoolResource::builder(upstream).maximum_size(32 * MIB).build().unwrap();
    let words = |mib: usize, value: u32| {
        let mut vec = DeviceVec::<u32>::zeroed_in(&here, mib * MIB / 4, pool.clone()).unwrap();
        vec.fill(value).unwrap();
        vec
    };
    let reach = |vec: &DeviceVec<u32>, value| {
        let mut copy = DeviceVec::<u32>::zeroed(&there, vec.len()).unwrap();
        kernels::copy(&there, vec, &mut copy).unwrap();
        assert_eq!((copy.get(0).unwrap(), copy.get(vec.len() - 1).unwrap()), (value, value));
        both.check("a kernel of the other device");
    };
    let mut vecs: Vec<_> = (0..4).map(|value| words(4, value)).collect();
    pool.enable_peer_access(&both.two).unwrap();
    assert!(VirtualResource::new(&both.one).unwrap().has_peer_access(&both.two));
    vecs.extend((4..8).map(|value| words(4, value)));
    vecs.iter().zip(0..).for_each(|(vec, value)| reach(vec, value));
    // Every other one goes, and its memory moves to one long block.
    let mut number = 0;
    vecs.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    let long = words(16, 77);
    assert_eq!(pool.statistics().reserved, 32 * MIB);
    reach(&long, 77);
    vecs.iter().zip([1, 3, 5, 7]).for_each(|(vec, value)| reach(vec, value));
    drop((vecs, long, pool, here, there));
    both.end();
}

#[test]
fn copies_go_between_mapped_pools_of_two_devices() {
    const WORDS: usize = 40 << 18; // of several handles
    let _alone = alone();
    let name = "copies_go_between_mapped_pools_of_two_devices";
    let Some(both) = Two::open(name) else { return };
    let [here, there] = both.streams();
    let [from, to] = [&both.one, &both.two]
        .map(|device| PoolResource::new(VirtualResource::new(device).unwrap()).unwrap());
    let mut vec = DeviceVec::<u32>::zeroed_in(&here, WORDS, from.clone()).unwrap();
    vec.fill(7).unwrap();
    vec.slice_mut(..WORDS / 2).unwrap().fill(3).unwrap();
    let assert_whole = |vec: &DeviceVec<u32>| {
        let all = vec.to_vec().unwrap();
        assert!(all[..WORDS / 2].iter().all(|word| *word == 3));
        assert!(all[WORDS / 2..].iter().all(|word| *word == 7));
    };
    let mut moved = vec.to_device_in(&there, to.clone()).unwrap();
    both.check("to_device_in");
    assert_whole(&moved);
    drop(vec);
    let back = moved.to_device_in(&here, from.clone()).unwrap();
    assert_whole(&back);
    // A part, into memory that is there.
    let mut part = moved.slice_mut(1000..WORDS - 1000).unwrap();
    part.copy_from(&back.slice(1000..WORDS - 1000).unwrap()).unwrap();
    assert_whole(&moved);
    if let [first, second] = &*both.simulators {
        let copies = [first, second].map(|it| it.call_count("cuMemcpyPeerAsync"));
        assert_eq!(copies, [1, 2]);
    }
    drop((moved, back, from, to, here, there));
    both.end();
}

#[test]
fn devices_that_do_not_reach_each_other_say_so_and_copy_all_the_same() {
    let _alone = alone();
    let (one, first) = support::simulated(SimConfig::default().without_peer_access());
    let (two, second) = support::simulated(SimConfig::default().ordinal(1));
    assert!(!one.can_access_peer(&two).unwrap() && !two.can_access_peer(&one).unwrap());
    let [here, there] = [&one, &two].map(|device| device.new_stream().unwrap());
    let pool = PoolResource::new(CudaResource::new(&one)).unwrap();
    let error = pool.enable_peer_access(&two).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(
        text.contains("simulated device 1 cannot reach memory of simulated device 0"),
        "{text}"
    );
    let mapped = VirtualResource::new(&one).unwrap();
    let mapped_pool = PoolResource::new(mapped.clone()).unwrap();
    for resource in
        [&AsyncResource::new(&one).unwrap() as &dyn DeviceResource, &mapped, &mapped_pool]
    {
        let error = resource.enable_peer_access(&two).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(!resource.has_peer_access(&two));
    }
    // A resource that hands out memory of the host has none to reach.
    let error =
        aquifer::pinned::PinnedResource::new(&one).unwrap().enable_peer_access(&two).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for pool in [Arc::new(pool) as Arc<dyn DeviceResource>, Arc::new(mapped_pool)] {
        let vec = DeviceVec::from_slice_in(&here, &[1_u32, 2, 3], pool).unwrap();
        let refused = vec.on(&there).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WrongDevice);
        assert!(!refused.to_string().contains("enable_peer_access"), "{refused}");
        assert_eq!(vec.to_device(&there).unwrap().to_vec().unwrap(), [1, 2, 3]);
    }
    first.check().unwrap();
    second.check().unwrap();
}

#[test]
fn a_call_that_fails_leaves_the_access_as_it_was() {
    let _alone = alone();
    let both = Two::simulated(3);
    let [here, there] = both.streams();
    let pool = AsyncResource::new(&both.one).unwrap();
    both.simulators[0].fail_call("cuMemPoolSetAccess", 1, 2).unwrap();
    assert_eq!(pool.enable_peer_access(&both.two).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert!(!pool.has_peer_access(&both.two));
    pool.enable_peer_access(&both.two).unwrap();
    both.simulators[1].fail_call("cuCtxEnablePeerAccess", 1, 711).unwrap();
    let mapped = PoolResource::new(VirtualResource::new(&both.one).unwrap()).unwrap();
    let held = DeviceVec::<u8>::zeroed_in(&here, 10, mapped.clone()).unwrap();
    both.simulators[0].fail_call("cuMemSetAccess", 1, 2).unwrap();
    assert_eq!(mapped.enable_peer_access(&both.two).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert!(!mapped.has_peer_access(&both.two));
    assert_eq!(held.on(&there).map(drop).unwrap_err().kind(), ErrorKind::WrongDevice);
    // What is not ready is asked again.
    both.simulators[0].fail_call("cuMemSetAccess", 1, 600).unwrap();
    mapped.enable_peer_access(&both.two).unwrap();
    held.on(&there).map(drop).unwrap();
    drop((held, mapped));
    let plain = CudaResource::new(&both.one);
    assert_eq!(plain.enable_peer_access(&both.two).unwrap_err().kind(), ErrorKind::Driver);
    assert!(!plain.has_peer_access(&both.two));
    // A copy needs none, and gives kernels none.
    let vec = DeviceVec::from_slice_in(&here, &[5_u8; 10], plain).unwrap();
    assert_eq!(vec.to_device(&there).unwrap().to_vec().unwrap(), [5; 10]);
    assert_eq!(vec.on(&there).map(drop).unwrap_err().kind(), ErrorKind::WrongDevice);
    drop((vec, pool, here, there));
    both.end();
}

#[test]
fn an_unordered_use_across_devices_is_reported() {
    let _alone = alone();
    for seed in 0..8 {
        let both = Two::simulated(seed);
        let [here, there] = both.streams();
        let resource = Arc::new(CudaResource::new(&both.one));
        resource.enable_peer_access(&both.two).unwrap();
        let mut vec = DeviceVec::<u32>::zeroed_in(&here, 100, resource).unwrap();
        vec.fill(1).unwrap();
        let mut copy = DeviceVec::<u32>::zeroed(&there, 100).unwrap();
        let block = aquifer::DeviceBlock::new(vec.as_device_ptr(), 400, 0);
        let (home, resource) = (there.clone(), CudaResource::new(&both.two));
        // SAFETY: wrong on purpose: the address is used on a stream that waits for nothing.
        let stolen = unsafe { DeviceVec::<u32>::from_raw_parts(home, block, 100, resource) };
        let stolen = stolen.unwrap();
        kernels::copy(&there, &stolen, &mut copy).unwrap();
        std::mem::forget(stolen);
        let _ = there.synchronize();
        let reports = both.simulators[1].take_reports();
        assert_eq!(reports.len(), 1, "seed {seed}: {reports:?}");
        assert_eq!(reports[0].kind(), aquifer::sim::Violation::UnorderedAccess);
        drop((vec, copy, here, there));
        both.end();
    }
}

#[test]
fn errors_tell_two_simulated_devices_of_one_number_apart() {
    let _alone = alone();
    let config = SimConfig::default().without_peer_access().without_managed_memory();
    let [(one, first), (two, second)] = [(); 2].map(|()| support::simulated(SimConfig::default()));
    let (apart, lost) = support::simulated(config);
    assert_eq!(one.to_string(), apart.to_string());
    let vec = DeviceVec::<u8>::zeroed(&one.new_stream().unwrap(), 8).unwrap();
    let elsewhere = two.new_stream().unwrap();
    let told = vec.on(&elsewhere).unwrap_err().to_string();
    assert!(told.contains("the memory belongs to another simulated device 0 ("), "{told}");
    assert!(told.contains("), not to simulated device 0 ("), "{told}");
    let refused = |refused: aquifer::Result<()>, told: &str| {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    };
    let told = "simulated device 0 cannot reach memory of another simulated device 0";
    refused(CudaResource::new(&one).enable_peer_access(&apart), told);
    let told = "simulated device 0 reaches no managed memory of another simulated device 0";
    refused(ManagedResource::new(&one).unwrap().enable_peer_access(&apart), told);
    let told = "of simulated device 0 cannot let another simulated device 0 reach its memory";
    refused(SystemResource::new(&one).unwrap().enable_peer_access(&two), told);
    // And what a call of the driver failed at.
    lost.lose_context();
    let told = "asking whether simulated device 0 reaches memory of another simulated device 0";
    refused(apart.can_access_peer(&one).map(drop), told);
    second.fail_call("cuCtxEnablePeerAccess", 1, 999).unwrap();
    let told = "enabling access of simulated device 0 to memory of another simulated device 0";
    refused(CudaResource::new(&one).enable_peer_access(&two), told);
    first.fail_call("cuMemPoolSetAccess", 1, 999).unwrap();
    let told = "giving simulated device 0 access to a driver pool on another simulated device 0";
    refused(AsyncResource::new(&one).unwrap().enable_peer_access(&two), told);
    second.fail_call("cuMemcpyPeerAsync", 1, 999).unwrap();
    let told = "copying 8 bytes from simulated device 0 to another simulated device 0";
    refused(vec.to_device(&elsewhere).map(drop), told);
}
