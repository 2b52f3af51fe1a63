//! Two devices of one machine: freed page-locked memory waits for the work of both.

use crate::{alone, support};
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    Device, DeviceVec, ErrorKind,
    pinned::{PinnedPool, PinnedResource, Registered},
};
use std::alloc::Layout;

const LENGTH: usize = 1000;

/// Two devices of a machine, of which the second is slow to begin anything.
fn machine(config: &SimConfig) -> [(Device, Simulator); 2] {
    let (one, first) = support::simulated(config.clone());
    let two = one.simulated_beside(support::as_asked(config.clone().ordinal(1)));
    let second = two.simulator().unwrap();
    [(one, first), (two, second)]
}

#[test]
fn a_block_of_one_device_is_not_unpinned_while_another_copies_from_it() {
    let _alone = alone();
    for config in [SimConfig::default(), SimConfig::default().without_context_events()] {
        let [(one, first), (two, second)] = machine(&config);
        let pinned = PinnedResource::new(&one).unwrap();
        let mut target = DeviceVec::<u32>::zeroed(&two.new_stream().unwrap(), LENGTH).unwrap();
        let mut host = AllocVec::with_capacity_in(LENGTH, pinned.clone());
        host.extend(0..LENGTH as u32);
        // SAFETY: freed blocks wait for the devices, and nobody touches this one before the copy has run.
        unsafe { target.copy_from_slice_async(&host).unwrap() };
        drop(host);
        // Asked for the second device's fence first, and then for the answer to it.
        second.fail_call("cuEventQuery", 1, 600).unwrap();
        let other = AllocVec::<u32, _>::with_capacity_in(10, pinned.clone());
        pinned.trim().unwrap();
        assert!(target.to_vec().unwrap().into_iter().eq(0..LENGTH as u32));
        first.check().unwrap();
        second.check().unwrap();
        drop(other);
        pinned.trim().unwrap();
        assert_eq!(first.host_blocks(), 0);
    }
}

#[test]
fn a_pools_block_is_not_handed_out_while_another_device_copies_from_it() {
    let _alone = alone();
    let [(one, first), (two, second)] = machine(&SimConfig::default());
    let pool = PinnedPool::builder(PinnedResource::new(&one).unwrap())
        .initial_size(2 << 20)
        .maximum_size(2 << 20)
        .build()
        .unwrap();
    let stream = two.new_stream().unwrap();
    let length = (2 << 20) / 4;
    let mut target = DeviceVec::<u32>::zeroed(&stream, length).unwrap();
    for round in 0..4 {
        // All of the pool, so that the next block is this one.
        let mut host = AllocVec::with_capacity_in(length, pool.clone());
        host.extend(std::iter::repeat_n(round, length));
        // SAFETY: as above.
        unsafe { target.copy_from_slice_async(&host).unwrap() };
        drop(host);
        pool.trim().unwrap();
        assert_eq!(target.to_vec().unwrap(), vec![round; length]);
    }
    drop(target);
    first.check().unwrap();
    second.check().unwrap();
}

#[test]
fn beside_a_stream_that_is_stuck_a_block_waits_for_the_copies_of_another_device() {
    let _alone = alone();
    let [(one, first), (two, second)] = machine(&SimConfig::default());
    let bytes = 2 << 20;
    let pool = PinnedPool::builder(PinnedResource::new(&one).unwrap())
        .initial_size(bytes)
        .maximum_size(bytes)
        .build()
        .unwrap();
    let (stuck, stream) = (one.new_stream().unwrap(), two.new_stream().unwrap());
    let mut work = DeviceVec::<u8>::zeroed(&stuck, 10).unwrap();
    let mut target = DeviceVec::<u8>::zeroed(&stream, bytes).unwrap();
    first.stall(&stuck).unwrap();
    second.stall(&stream).unwrap();
    work.fill(1).unwrap();
    let mut host = AllocVec::with_capacity_in(bytes, pool.clone());
    host.resize(bytes, 7_u8);
    // SAFETY: freed blocks wait for the devices, and nobody touches this one before the copy has run.
    unsafe { target.copy_from_slice_async(&host).unwrap() };
    drop(host);
    let layout = Layout::from_size_align(bytes, 1).unwrap();
    assert!(Allocator::allocate(&pool, layout).is_err(), "the copy may read it");
    second.resume(&stream).unwrap();
    assert_eq!(target.to_vec().unwrap(), vec![7; bytes]);
    let block = Allocator::allocate(&pool, layout).unwrap();
    // SAFETY: a live block of the pool.
    unsafe { Allocator::deallocate(&pool, block.cast(), layout) };
    first.resume(&stuck).unwrap();
    drop((work, target));
    first.check().unwrap();
    second.check().unwrap();
}

#[test]
fn memory_is_unregistered_after_the_work_of_each_device() {
    let _alone = alone();
    let [(one, first), (two, second)] = machine(&SimConfig::default());
    let mut target = DeviceVec::<u32>::zeroed(&two.new_stream().unwrap(), LENGTH).unwrap();
    let buffer: Vec<u32> = (0..LENGTH as u32).collect();
    let registered = Registered::new(&one, buffer).unwrap();
    // SAFETY: the buffer is neither written nor freed before `to_vec` has waited for the copy.
    unsafe { target.copy_from_slice_async(&registered).unwrap() };
    let back = registered.into_inner().unwrap();
    first.check().unwrap();
    second.check().unwrap();
    assert_eq!(target.to_vec().unwrap(), back);
}

#[test]
fn a_buffer_is_not_unregistered_while_another_device_is_in_capture() {
    let _alone = alone();
    let [(one, first), (two, second)] = machine(&SimConfig::default());
    let stream = two.new_stream().unwrap();
    let registered = Registered::new(&one, vec![1_u32; LENGTH]).unwrap();
    second.start_capture(&stream).unwrap();
    let refused = registered.into_inner().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Capture);
    assert_eq!(first.registered_ranges(), 1);
    assert!(second.stop_capture(&stream));
    Registered::<Vec<u32>>::trim(&one).unwrap();
    assert_eq!(first.registered_ranges(), 0);
}

#[test]
fn a_device_outlives_the_others_of_its_machine() {
    let _alone = alone();
    let devices = [0, 1].map(|ordinal| {
        let config = SimConfig::default().ordinal(ordinal);
        Device::simulated(config).simulated_beside(SimConfig::default().ordinal(2))
    });
    // A device whose machine has lost the others is as good.
    let pinned = PinnedResource::new(&devices[0]).unwrap();
    drop(AllocVec::<u32, _>::with_capacity_in(10, pinned.clone()));
    pinned.trim().unwrap();
    assert_eq!(devices[0].simulator().unwrap().host_blocks(), 0);
}
