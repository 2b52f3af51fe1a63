//! Memory that is mapped: no free of it waits for another stream, and an allocation that fails leaves nothing.

use crate::kernels::SPIN;
use crate::log::Log;
use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    DeviceLayout, DeviceResource, DeviceVec, ErrorKind, LaunchConfig, PoolResource, Stream,
    mr::VirtualResource,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Level;

const MIB: usize = 1 << 20;

#[test]
fn a_block_takes_whole_granules_and_gives_them_back() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let resource = VirtualResource::new(&device).unwrap();
    let granule = resource.granularity();
    assert!(granule.is_power_of_two());
    let layout = DeviceLayout::with_alignment(granule + 1, 4 * granule).unwrap();
    let before = device.memory_info().unwrap().free;
    // Several: one may lie right by luck.
    let blocks = [(); 3].map(|()| resource.allocate(&stream, layout).unwrap());
    for block in &blocks {
        assert!(block.address().is_multiple_of(4 * granule as u64));
        assert_eq!(block.bytes(), granule + 1);
    }
    if let Some(simulator) = device.simulator() {
        assert_eq!(before - device.memory_info().unwrap().free, 6 * granule);
        assert_eq!(simulator.live_bytes(), 6 * granule);
    }
    // SAFETY: allocated above and not used.
    blocks.into_iter().for_each(|block| unsafe { resource.deallocate(&stream, block) });
    if let Some(simulator) = device.simulator() {
        assert_eq!((device.memory_info().unwrap().free, simulator.live_blocks()), (before, 0));
        simulator.check().unwrap();
    }
}

/// `cuMemFree` waits for all kernels of the device, whatever stream they are on.
#[test]
fn a_pool_gives_memory_back_beside_work_of_another_stream() {
    let device = support::device();
    let (stream, busy) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 64 * MIB, pool.clone()).unwrap();
    vec.fill(7).unwrap();
    assert_eq!(vec.to_vec().unwrap()[64 * MIB - 1], 7);
    drop(vec);
    let reserved = pool.statistics().reserved;
    assert!(reserved >= 64 * MIB, "{reserved}");
    stream.synchronize().unwrap();
    match device.simulator() {
        Some(simulator) => simulator.stall(&busy).unwrap(),
        None => spin(&busy, Duration::from_millis(300)),
    }
    let done = busy.record().unwrap();
    let started = Instant::now();
    pool.wait_and_trim(0).unwrap();
    let took = started.elapsed();
    assert!(!done.is_complete().unwrap(), "the kernel ended first, after {took:?}");
    assert_eq!(pool.statistics().reserved, 0);
    match device.simulator() {
        // Its stream stalls until here, so nothing waited for it, however busy this machine is.
        Some(simulator) => simulator.resume(&busy).unwrap(),
        None => assert!(took < Duration::from_millis(100), "{took:?}"),
    }
    busy.synchronize().unwrap();
}

fn spin(stream: &Stream, time: Duration) {
    let launch = stream.launch(&SPIN).scalar(time.as_nanos() as u64).unwrap();
    // SAFETY: the kernel touches no memory.
    unsafe { launch.launch(LaunchConfig::for_elements(1)) }.unwrap();
}

#[test]
fn an_allocation_that_fails_leaves_nothing() {
    for call in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemSetAccess"]
    {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let resource = VirtualResource::new(&device).unwrap();
        let before = device.memory_info().unwrap();
        simulator.fail_call(call, 1, 2).unwrap();
        let layout = DeviceLayout::new(MIB).unwrap();
        let error = resource.allocate(&stream, layout).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{call}");
        // A handle that could not be released is the only thing that stays.
        let kept = usize::from(call == "cuMemRelease");
        assert_eq!(simulator.live_blocks(), kept, "{call}");
        assert_eq!(
            simulator.call_count("cuMemAddressReserve") - u64::from(call == "cuMemAddressReserve"),
            simulator.call_count("cuMemAddressFree"),
            "{call}"
        );
        let kept = (kept * resource.granularity()) as u64;
        assert_eq!(before.free - device.memory_info().unwrap().free, kept as usize, "{call}");
        let block = resource.allocate(&stream, layout).unwrap();
        // SAFETY: allocated above and not used.
        unsafe { resource.deallocate(&stream, block) };
        simulator.check().unwrap();
    }
}

#[test]
fn memory_that_cannot_be_undone_is_reported() {
    const LEAKED: &str = "leaked device memory: it could not be freed";
    for calls in [&["cuMemSetAccess", "cuMemUnmap"][..], &["cuMemRelease"]] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let resource = VirtualResource::new(&device).unwrap();
        for call in calls {
            simulator.fail_call(call, 1, 999).unwrap();
        }
        let layout = DeviceLayout::new(MIB).unwrap();
        let (error, log) = Log::of(|| resource.allocate(&stream, layout).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
        assert_eq!(log.count(Level::ERROR, LEAKED), 1, "{:?}", log.lines());
        assert_eq!(simulator.live_blocks(), 1, "{calls:?}");
        let block = resource.allocate(&stream, layout).unwrap();
        // SAFETY: allocated above and not used.
        unsafe { resource.deallocate(&stream, block) };
        assert!(simulator.reports().is_empty());
    }
}

/// The stream is in capture, which a wait would invalidate.
#[test]
fn a_free_in_a_capture_is_made_after_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [home, stream] = [(); 2].map(|()| device.new_stream().unwrap());
    let resource = Arc::new(VirtualResource::new(&device).unwrap());
    let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    let block = resource.allocate(&home, DeviceLayout::new(MIB).unwrap()).unwrap();
    let (graph, ()) = home
        .capture(&pool, |home| {
            // SAFETY: allocated above and not used.
            unsafe { resource.deallocate(home, block) };
            assert_eq!(simulator.call_count("cuMemUnmap"), 0);
            Ok(())
        })
        .unwrap();
    drop(graph);
    home.synchronize().unwrap();
    drop(DeviceVec::<u8>::zeroed_in(&stream, 1, resource).unwrap());
    assert_eq!(simulator.call_count("cuMemUnmap"), 2);
    simulator.check().unwrap();
}

#[test]
fn a_device_without_virtual_memory_says_so() {
    let (device, _) = support::simulated(SimConfig::default().without_virtual_memory());
    assert_eq!(VirtualResource::new(&device).unwrap_err().kind(), ErrorKind::Unsupported);
}
