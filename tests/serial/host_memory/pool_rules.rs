//! The rule of host memory in a pool: complete, never merely ordered.

use super::quarantine::logged;
use super::{Current, alone, contract, not_ready, support};
use crate::threads::run_threads;
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{Report, Schedule, SimConfig, Simulator, Violation};
use aquifer::{
    Device, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PinnedAlloc, Stream,
    mr::HostAccessible,
    pinned::{PinnedPool, PinnedPoolOptions, PinnedResource, last_error},
};
use contract::{allocate, layout};

const LENGTH: usize = 1000;
const MIB: usize = 1 << 20;

fn on(device: &Device) -> PinnedPoolOptions {
    PinnedPool::builder(PinnedResource::new(device).unwrap())
}

fn vec(pool: &PinnedPool, from: u32) -> AllocVec<u32, PinnedPool> {
    let mut vec = AllocVec::with_capacity_in(LENGTH, pool.clone());
    vec.extend(from..from + LENGTH as u32);
    vec
}

/// Copies a vector to the device and drops it while the copy may run; then fills vectors until the
/// pool has had every reason to hand that memory out again.
fn drops_under_copies(pool: &PinnedPool, stream: &Stream) -> Vec<DeviceVec<u32>> {
    (0..20)
        .map(|round| {
            let mut target = DeviceVec::<u32>::zeroed(stream, LENGTH).unwrap();
            let host = vec(pool, round);
            // SAFETY: dropped below; the pool keeps the block until the copy has run. Where it is
            // unfenced it does not, which is what this is about: the simulated device sees it, and
            // the memory itself stays.
            unsafe { target.copy_from_slice_async(&host).unwrap() };
            drop(host);
            drop(vec(pool, 1_000_000 + round));
            target
        })
        .collect()
}

fn raced(reports: &[Report]) -> bool {
    reports.iter().any(|report| report.kind() == Violation::HostWroteDuringCopy)
}

#[test]
fn memory_under_a_copy_is_never_handed_out() {
    let _alone = alone();
    for seed in 0..30 {
        let config = SimConfig::default().seed(seed);
        let background = config.clone().schedule(Schedule::Background);
        for config in [config.clone(), background, config.without_context_events()] {
            let (device, simulator) = support::simulated(config);
            let stream = device.new_stream().unwrap();
            // Small, so that there is nothing else to hand out.
            let pool =
                on(&device).maximum_size(12 * 4096).magazine_bytes(8192).wait_for_device(true);
            let pool = pool.build().unwrap();
            for (round, target) in (0..).zip(drops_under_copies(&pool, &stream)) {
                let copied = target.to_vec().unwrap();
                assert!(copied.into_iter().eq(round..round + LENGTH as u32), "seed {seed}");
            }
            pool.trim().unwrap();
            simulator.check().unwrap();
            assert_eq!(simulator.host_blocks(), 0);
        }
    }
}

/// The control of the test above: without the fence the same program races, and is seen to.
#[test]
fn without_the_fence_the_same_program_races() {
    let _alone = alone();
    let seeds = (0..30).filter(|seed| {
        let (device, simulator) = support::simulated(SimConfig::default().seed(*seed));
        let stream = device.new_stream().unwrap();
        // SAFETY: not kept. The simulated device reports it and runs on memory that stays.
        let pool = unsafe { on(&device).unfenced() }.build().unwrap();
        let targets = drops_under_copies(&pool, &stream);
        let _ = stream.synchronize();
        let raced = raced(&simulator.take_reports());
        drop(targets);
        let _ = stream.synchronize();
        raced
    });
    assert!(seeds.count() > 0, "no seed saw the race");
}

#[test]
fn device_work_of_a_resource_is_fenced_in_an_unfenced_pool_too() {
    let _alone = alone();
    for seed in 0..10 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let stream = device.new_stream().unwrap();
        // SAFETY: all device work uses the pool as a resource.
        let pool = unsafe { on(&device).unfenced() }.build().unwrap();
        for _ in 0..20 {
            // Work on the device, freed in the stream's order, and then the host writes.
            let mut on_device = DeviceVec::<u32>::zeroed_in(
                &stream,
                LENGTH,
                std::sync::Arc::new(pool.clone()) as std::sync::Arc<dyn DeviceResource>,
            )
            .unwrap();
            on_device.fill(3).unwrap();
            drop(on_device);
            drop(vec(&pool, 7));
        }
        stream.synchronize().unwrap();
        simulator.check().unwrap();
        pool.trim().unwrap();
        assert_eq!(simulator.host_blocks(), 0);
    }
}

#[test]
fn a_free_makes_no_driver_call_whatever_it_fills() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = on(&device).build().unwrap();
    let current = Current::set(&pool);
    let blocks = (0..200).map(|n| allocate(&pool, layout(100 + n % 7 * 1000, 1), n as u8));
    let blocks = blocks.collect::<Vec<_>>();
    let calls = simulator.calls();
    for (n, block) in blocks.into_iter().enumerate() {
        if n % 2 == 0 { block.free(&pool) } else { block.free(&PinnedAlloc) }
    }
    assert_eq!(simulator.calls(), calls);
    drop(current);
    drop(pool);
    assert_eq!(simulator.calls(), calls, "nor does the end of the pool");
}

fn fences(simulator: &Simulator) -> u64 {
    simulator.call_count("cuCtxRecordEvent")
}

#[test]
fn a_capture_gets_no_fence_and_blocks_wait_for_its_end() {
    let _alone = alone();
    for config in [SimConfig::default(), SimConfig::default().without_context_events()] {
        let (device, simulator) = support::simulated(config);
        let captured = device.new_stream().unwrap();
        let pool = on(&device).initial_size(MIB).maximum_size(2 * MIB).quarantine_bytes(0);
        let pool = pool.build().unwrap();
        allocate(&pool, layout(MIB, 1), 1).free(&pool);
        simulator.start_capture(&captured).unwrap();
        let calls = || {
            ["cuCtxRecordEvent", "cuEventQuery", "cuEventSynchronize", "cuCtxSynchronize"]
                .map(|call| simulator.call_count(call))
        };
        let before = calls();
        // Over its cap, and it grows all the same.
        allocate(&pool, layout(MIB, 1), 2).free(&pool);
        assert_eq!(pool.statistics().reserved, 2 * MIB);
        // And then it cannot, and says why.
        assert!(Allocator::allocate(&pool, layout(MIB, 1)).is_err());
        let error = last_error().unwrap();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("when the capture has ended"), "{error}");
        assert_eq!(pool.trim().unwrap_err().kind(), ErrorKind::Capture);
        assert_eq!(calls(), before, "a fence in a capture");
        assert!(simulator.stop_capture(&captured), "the capture was invalidated");
        allocate(&pool, layout(2 * MIB, 1), 3).free(&pool);
        pool.trim().unwrap();
        assert_eq!(simulator.host_blocks(), 0);
    }
}

#[test]
fn out_of_memory_waits_for_what_the_device_still_uses() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = on(&device).maximum_size(4096).wait_for_device(true).build().unwrap();
    for round in 0..10 {
        let mut target = DeviceVec::<u32>::zeroed(&stream, LENGTH).unwrap();
        let host = vec(&pool, round);
        // SAFETY: dropped below, and the pool keeps the block until the copy has run.
        unsafe { target.copy_from_slice_async(&host).unwrap() };
        drop(host);
        // The only block that there is: its copy has to run first.
        let other = vec(&pool, 500);
        assert!(target.to_vec().unwrap().into_iter().eq(round..round + LENGTH as u32));
        drop(other);
    }
    simulator.check().unwrap();
    assert_eq!(pool.statistics().reserved, 4096);
    pool.trim().unwrap();
    assert_eq!(simulator.host_blocks(), 0);
}

#[test]
fn past_the_cap_an_allocation_waits_and_the_pool_stays_small() {
    let _alone = alone();
    let busy = |cap: usize| {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let options = on(&device).quarantine_bytes(cap).magazine_bytes(MIB).growth_step(4096);
        let pool = options.wait_for_device(true).build().unwrap();
        let mut target = DeviceVec::<u8>::zeroed(&stream, MIB).unwrap();
        // A kernel that runs for long: whoever asks hears "not yet", and only a wait helps.
        for nth in 1..=50_000 {
            simulator.fail_call("cuEventQuery", nth, 600).unwrap();
        }
        for _ in 0..40 {
            let mut host = AllocVec::<u8, _>::with_capacity_in(MIB, pool.clone());
            host.resize(MIB, 1);
            // SAFETY: dropped below, and the pool keeps the block until the copy has run.
            unsafe { target.copy_from_slice_async(&host).unwrap() };
        }
        let held = pool.statistics();
        stream.synchronize().unwrap();
        simulator.check().unwrap();
        (held, simulator.call_count("cuEventSynchronize"))
    };
    let (small, waits) = busy(8 * MIB);
    assert!(small.waiting <= 10 * MIB && small.reserved <= 16 * MIB, "{small:?}");
    assert!(waits > 0);
    let (large, waits) = busy(1 << 30);
    assert_eq!((large.reserved >= 40 * MIB, waits), (true, 0), "{large:?}");
}

#[test]
fn one_fence_that_is_late_holds_up_nobody_who_need_not_wait() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = on(&device).initial_size(MIB).build().unwrap();
    drop(vec(&pool, 1));
    for round in 0..500 {
        not_ready(&simulator);
        drop(vec(&pool, round));
    }
    assert!(pool.statistics().reserved <= 128 * MIB);
    assert!(fences(&simulator) <= 30, "{}", fences(&simulator));
    pool.trim().unwrap();
}

#[test]
fn a_lost_context_leaks_what_waits_and_says_so() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = on(&device).initial_size(MIB).maximum_size(MIB).build().unwrap();
    let mut live = vec(&pool, 5);
    drop(vec(&pool, 6));
    simulator.lose_context();
    let text = logged(|| assert_eq!(pool.trim().unwrap_err().kind(), ErrorKind::ContextLost));
    assert!(text.contains("ERROR") && text.contains("leaked page-locked memory"), "{text}");
    assert!(text.contains("bytes=4032"), "{text}");
    // What lives goes on to live, and what is ready can be had.
    assert!(live.iter().copied().eq(5..5 + LENGTH as u32));
    assert!(live.try_reserve(2 * LENGTH).is_ok());
    assert!(live.try_reserve(MIB).is_err());
    drop(live);
    assert!(logged(|| drop(pool.trim())).contains("leaked"));
    drop(pool);
    assert_eq!(simulator.call_count("cuMemFreeHost"), 0);
}

#[test]
fn threads_that_free_for_each_other_under_running_streams_never_race() {
    let _alone = alone();
    for seed in 0..5 {
        let config = SimConfig::default().seed(seed).schedule(Schedule::Background);
        let (device, simulator) = support::simulated(config);
        // On a busy machine the simulated device is so late that more is freed than the quarantine takes.
        let options = on(&device).growth_step(4096).quarantine_bytes(MIB).wait_for_device(true);
        let pool = options.build().unwrap();
        let current = Current::set(&pool);
        let (give, take) = std::sync::mpsc::sync_channel::<AllocVec<u32, PinnedPool>>(8);
        run_threads(|threads| {
            for _ in 0..3 {
                let give = give.clone();
                let (device, pool) = (&device, &pool);
                threads.spawn(move || {
                    let stream = device.new_stream().unwrap();
                    let mut target = DeviceVec::<u32>::zeroed(&stream, LENGTH).unwrap();
                    for round in 0..200 {
                        let host = vec(pool, round);
                        // SAFETY: freed elsewhere, and the pool keeps the block until the copy has
                        // run.
                        unsafe { target.copy_from_slice_async(&host).unwrap() };
                        if round % 3 == 0 { drop(host) } else { give.send(host).unwrap() }
                    }
                    let last = target.to_vec().unwrap();
                    assert!(last.into_iter().eq(199..199 + LENGTH as u32));
                });
            }
            drop(give);
            threads.spawn(move || take.into_iter().for_each(drop));
            threads.spawn(|| {
                for round in 0..100_usize {
                    let mut vec: AllocVec<u8, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
                    vec.resize(round * 100 + 1, 3);
                    if round % 10 == 0 {
                        pool.trim().unwrap();
                    }
                }
            });
        });
        drop(current);
        pool.trim().unwrap();
        simulator.check().unwrap();
        assert_eq!((simulator.host_blocks(), pool.statistics().live), (0, 0));
    }
}

/// As many threads as blocks, each with one block at most: whenever one asks, another one's block is free, or
/// waits for the device, or another thread is just moving it.
#[test]
fn threads_that_share_just_enough_blocks_are_all_served() {
    let _alone = alone();
    for (schedule, magazine_bytes) in [Schedule::OnDemand, Schedule::Background]
        .into_iter()
        .flat_map(|it| [(it, 0), (it, 4 * MIB)])
    {
        let (device, simulator) = support::simulated(SimConfig::default().schedule(schedule));
        let options = on(&device).maximum_size(4 * MIB).magazine_bytes(magazine_bytes);
        let pool = options.wait_for_device(true).build().unwrap();
        run_threads(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    let stream = device.new_stream().unwrap();
                    for round in 0..200 {
                        let mut host: AllocVec<u8, PinnedPool> = AllocVec::new_in(pool.clone());
                        let served = host.try_reserve_exact(MIB);
                        assert!(served.is_ok(), "round {round}: {}", last_error().unwrap());
                        drop(host);
                        drop(stream.record().unwrap());
                    }
                });
            }
        });
        simulator.check().unwrap();
    }
}

#[test]
fn a_block_of_a_resource_that_cannot_be_had_is_an_error() {
    let _alone = alone();
    let (device, _) = support::simulated(SimConfig::default());
    let (other, _) = support::simulated(SimConfig::default());
    let [stream, foreign] = [&device, &other].map(|device| device.new_stream().unwrap());
    let asked = DeviceLayout::new(100).unwrap();
    let pool = on(&device).build().unwrap();
    let kind = |result: aquifer::Result<_>| result.map(drop).unwrap_err().kind();
    assert_eq!(kind(DeviceResource::allocate(&pool, &foreign, asked)), ErrorKind::WrongDevice);
    let unmapped = PinnedResource::builder(&device).mapped(false).build().unwrap();
    let unmapped = PinnedPool::new(unmapped).unwrap();
    assert_eq!(kind(DeviceResource::allocate(&unmapped, &stream, asked)), ErrorKind::Unsupported);
    let block = DeviceResource::allocate(&pool, &stream, asked).unwrap();
    assert!(pool.host_pointer(&block).addr().get().is_multiple_of(256));
    // SAFETY: allocated above, used by nobody.
    unsafe { DeviceResource::deallocate(&pool, &stream, block) };
}
