//! Pools of one device: what one keeps free is there for another one that would refuse.

use crate::support;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind,
    PoolResource, Result, Stream,
    mr::{
        LimitingAdaptor, LocalDeviceResource, MissPolicy, MissStep, ThreadSafeAdaptor,
        VirtualResource,
    },
};
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn small_device() -> (Device, Simulator) {
    support::simulated(SimConfig::default().capacity(100 << 20))
}

type AnyPool = PoolResource<Arc<dyn DeviceResource>>;

fn pools(device: &Device) -> [[AnyPool; 2]; 2] {
    let virtual_memory = VirtualResource::new(device).unwrap().into_shared();
    let blocks = CudaResource::new(device).into_shared();
    [virtual_memory, blocks]
        .map(|upstream| [(); 2].map(|()| PoolResource::new(upstream.clone()).unwrap()))
}

fn vec(pool: &AnyPool, stream: &Stream, mib: usize) -> Result<DeviceVec<u8>> {
    DeviceVec::zeroed_in(stream, mib * MIB, pool.clone())
}

#[test]
fn two_pools_take_more_than_half_in_turn() {
    let (device, simulator) = small_device();
    let streams = [(); 2].map(|()| device.new_stream().unwrap());
    let all = pools(&device);
    for turn in 0..6 {
        for kind in &all {
            let held = vec(&kind[turn % 2], &streams[turn % 2], 60).unwrap();
            assert_eq!(held.to_vec().unwrap()[60 * MIB - 1], 0);
        }
    }
    simulator.check().unwrap();
}

/// Memory that a stream still uses is waited for, and not before there is no other.
#[test]
fn pending_memory_of_another_pool_is_waited_for() {
    let (device, simulator) = small_device();
    let [busy, other] = [(); 2].map(|()| device.new_stream().unwrap());
    for [first, second] in pools(&device) {
        let ready = vec(&second, &other, 30).unwrap();
        other.synchronize().unwrap();
        drop((vec(&first, &busy, 60).unwrap(), ready));
        vec(&second, &other, 30).unwrap();
        assert!(first.statistics().reserved >= 60 * MIB, "nothing was missing");
        let large = vec(&second, &other, 90).unwrap();
        assert_eq!(first.statistics().reserved, 0);
        drop(large);
        second.wait_and_trim(0).unwrap();
    }
    simulator.check().unwrap();
}

#[test]
fn what_is_in_use_stays_and_a_refusal_says_so() {
    let (device, simulator) = small_device();
    let stream = device.new_stream().unwrap();
    for [first, second] in pools(&device) {
        let mut held = vec(&first, &stream, 60).unwrap();
        held.fill(7).unwrap();
        let error = vec(&second, &stream, 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(held.to_vec().unwrap(), vec![7; 60 * MIB]);
        drop(held);
        drop(vec(&first, &stream, 20).unwrap());
        let kept = first.statistics().reserved;
        // More than the device has costs the other pool nothing.
        assert_eq!(vec(&second, &stream, 200).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(first.statistics().reserved, kept);
        first.wait_and_trim(0).unwrap();
    }
    simulator.check().unwrap();
}

/// A limit below the device's memory is no reason to take memory from others, nor is a maximum.
#[test]
fn a_limit_takes_nothing_from_others() {
    let (device, simulator) = small_device();
    let stream = device.new_stream().unwrap();
    for [first, second] in pools(&device) {
        drop(vec(&first, &stream, 20).unwrap());
        stream.synchronize().unwrap();
        let kept = first.statistics().reserved;
        let limited = LimitingAdaptor::new(CudaResource::new(&device), 8 * MIB).into_shared();
        let pool = PoolResource::new(limited).unwrap();
        assert_eq!(vec(&pool, &stream, 9).unwrap_err().kind(), ErrorKind::OutOfMemory);
        second.set_maximum_size(Some(8 * MIB)).unwrap();
        assert_eq!(vec(&second, &stream, 9).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(first.statistics().reserved, kept);
        first.wait_and_trim(0).unwrap();
    }
    simulator.check().unwrap();
}

/// A policy whose host never waits takes what is complete, and no more.
#[test]
fn a_policy_without_a_trim_waits_for_no_other_pool() {
    let (device, simulator) = small_device();
    let [busy, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let [first, _] = &pools(&device)[0];
    let policy = MissPolicy::new([MissStep::Complete, MissStep::Grow, MissStep::GrowToMaximum]);
    let upstream = VirtualResource::new(&device).unwrap();
    let patient = PoolResource::builder(upstream).miss_policy(policy).build().unwrap();
    let held = vec(first, &busy, 60).unwrap();
    busy.synchronize().unwrap();
    simulator.stall(&busy).unwrap();
    drop(held);
    let refused = DeviceVec::<u8>::zeroed_in(&other, 60 * MIB, patient.clone());
    simulator.resume(&busy).unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
    busy.synchronize().unwrap();
    DeviceVec::<u8>::zeroed_in(&other, 60 * MIB, patient).unwrap();
    simulator.check().unwrap();
}

/// Pools that come and go beside others that run out of memory.
#[test]
fn threads_take_from_each_others_pools() {
    let (device, simulator) = small_device();
    std::thread::scope(|scope| {
        for number in 0..4_usize {
            let device = &device;
            scope.spawn(move || {
                let stream = device.new_stream().unwrap();
                for round in 0..12 {
                    let upstream = VirtualResource::new(device).unwrap().into_shared();
                    let pool = PoolResource::new(upstream).unwrap();
                    for size in [5, 10, 20] {
                        match vec(&pool, &stream, size + number) {
                            Ok(held) => drop(held),
                            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory),
                        }
                    }
                    if round % 3 == 0 {
                        stream.synchronize().unwrap();
                    }
                }
            });
        }
    });
    device.synchronize().unwrap();
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

/// A pool that cannot grow keeps what it has, and one that can its initial size.
#[test]
fn what_a_pool_was_built_with_stays() {
    let (device, simulator) = small_device();
    let stream = device.new_stream().unwrap();
    let fixed = MissPolicy::new([MissStep::Complete, MissStep::Ordered, MissStep::Wait]);
    for (policy, kept) in [(fixed, 60 * MIB), (MissPolicy::default(), 20 * MIB)] {
        let upstream = VirtualResource::new(&device).unwrap().into_shared();
        let first = PoolResource::builder(upstream.clone()).initial_size(kept).miss_policy(policy);
        let first = first.build().unwrap();
        drop(vec(&first, &stream, 60).unwrap());
        let second = PoolResource::new(upstream).unwrap();
        let asked = vec(&second, &stream, 80);
        assert_eq!(asked.is_ok(), kept == 20 * MIB);
        assert_eq!(first.statistics().reserved, kept);
        drop(vec(&first, &stream, kept / MIB).unwrap());
    }
    simulator.check().unwrap();
}

/// A pool behind an adaptor's lock.
#[derive(Debug)]
struct Below(AnyPool);

// SAFETY: all is the pool's.
unsafe impl LocalDeviceResource for Below {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn allocate(&mut self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.0.allocate(stream, layout)
    }

    unsafe fn deallocate(&mut self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise.
        unsafe { self.0.deallocate(stream, block) }
    }
}

/// Two stacks with a lock between two pools each: neither waits for the other's lock with its own.
#[test]
fn pools_behind_locks_do_not_wait_for_each_other() {
    let (device, simulator) = small_device();
    let stream = device.new_stream().unwrap();
    let keeper = PoolResource::new(CudaResource::new(&device).into_shared()).unwrap();
    let held = vec(&keeper, &stream, 60).unwrap();
    let (done, both) = std::sync::mpsc::channel();
    for _ in 0..2 {
        let (device, done) = (device.clone(), done.clone());
        std::thread::spawn(move || {
            let below = PoolResource::new(CudaResource::new(&device).into_shared()).unwrap();
            let locked = ThreadSafeAdaptor::new(Below(below)).into_shared();
            let above = PoolResource::builder(locked).growth_step(2 * MIB).build().unwrap();
            let stream = device.new_stream().unwrap();
            for _ in 0..200 {
                let _ = vec(&above, &stream, 4).map(drop);
                assert!(vec(&above, &stream, 70).is_err());
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        both.recv_timeout(std::time::Duration::from_secs(60))
            .expect("the threads wait for each other");
    }
    drop(held);
    simulator.check().unwrap();
}
