//! Fresh page-locked memory: huge pages that threads touch and one registration, or the driver's.

use crate::support;
use allocator_api2::{alloc::Allocator, vec::Vec as AllocVec};
use aquifer::pinned::{PinnedOptions, PinnedPool, PinnedResource, last_error};
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{Device, DeviceVec, ErrorKind};
use std::alloc::Layout;

const MIB: usize = 1 << 20;

fn counts(simulator: &Simulator) -> [u64; 4] {
    ["cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister", "cuMemHostUnregister"]
        .map(|call| simulator.call_count(call))
}

fn resource(device: &Device, with: impl Fn(PinnedOptions) -> PinnedOptions) -> PinnedResource {
    with(PinnedResource::builder(device)).build().unwrap()
}

/// Allocates, writes the ends, copies them to the device and frees, and returns the counts of calls meanwhile.
fn round(
    device: &Device,
    simulator: &Simulator,
    pinned: &PinnedResource,
    bytes: usize,
) -> [u64; 4] {
    let before = counts(simulator);
    let layout = Layout::from_size_align(bytes, 64).unwrap();
    let block = pinned.allocate(layout).unwrap();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u8>::zeroed(&stream, bytes).unwrap();
    // SAFETY: the block is ours, and page-locked memory is zero or anything: it is written first.
    let slice = unsafe {
        block.cast::<u8>().write_bytes(3, bytes);
        std::slice::from_raw_parts(block.cast::<u8>().as_ptr(), bytes)
    };
    vec.copy_from_slice(slice).unwrap();
    assert_eq!((vec.get(0).unwrap(), vec.get(bytes - 1).unwrap()), (3, 3));
    // SAFETY: allocated above, with this layout.
    unsafe { pinned.deallocate(block.cast(), layout) };
    pinned.trim().unwrap();
    let after = counts(simulator);
    std::array::from_fn(|at| after[at] - before[at])
}

#[cfg(target_os = "linux")]
#[test]
fn large_blocks_are_registered_and_small_ones_the_drivers() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = resource(&device, |options| options.touch_threads(8));
    for (bytes, calls) in [
        (MIB, [1, 1, 0, 0]),
        (16 * MIB - 4096, [1, 1, 0, 0]),
        (16 * MIB, [0, 0, 1, 1]),
        (33 * MIB + 1, [0, 0, 1, 1]),
    ] {
        assert_eq!(round(&device, &simulator, &pinned, bytes), calls, "{bytes}");
    }
    simulator.check().unwrap();
    assert_eq!(simulator.host_blocks(), 0);
}

#[test]
fn the_driver_makes_all_memory_where_no_thread_may_touch_it_or_caches_are_bypassed() {
    let (device, simulator) = support::simulated(SimConfig::default());
    for with in [
        (|options: PinnedOptions| options.touch_threads(0)) as fn(PinnedOptions) -> PinnedOptions,
        |options| options.touch_threads(4).write_combined(true),
    ] {
        let pinned = resource(&device, with);
        assert_eq!(round(&device, &simulator, &pinned, 32 * MIB), [1, 1, 0, 0]);
    }
    simulator.check().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_registration_that_fails_is_made_good_by_the_driver() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = resource(&device, |options| options.touch_threads(3));
    simulator.fail_call("cuMemHostRegister", 1, 2).unwrap();
    assert_eq!(round(&device, &simulator, &pinned, 20 * MIB), [1, 1, 1, 0]);
    assert_eq!(round(&device, &simulator, &pinned, 20 * MIB), [0, 0, 1, 1]);
    simulator.check().unwrap();
    assert_eq!(simulator.host_blocks(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_pools_large_slabs_go_as_they_came() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool =
        PinnedPool::builder(resource(&device, |options| options.touch_threads(2))).build().unwrap();
    let before = counts(&simulator);
    let layout = Layout::from_size_align(40 * MIB, 4096).unwrap();
    let blocks = [(); 3].map(|()| pool.allocate(layout).unwrap());
    for block in blocks {
        // SAFETY: allocated above, with this layout.
        unsafe { pool.deallocate(block.cast(), layout) };
    }
    assert_eq!(pool.trim().unwrap() % (40 * MIB), 0);
    assert_eq!(pool.statistics().reserved, 0);
    let after = counts(&simulator);
    assert!(after[2] > before[2], "slabs were registered");
    assert_eq!(after[2] - before[2], after[3] - before[3]);
    assert_eq!(after[0], before[0]);
    drop(pool);
    simulator.check().unwrap();
    assert_eq!(simulator.host_blocks(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn what_crosses_the_limit_of_memory_is_refused_before_a_page_is_touched() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = resource(&device, |options| options.touch_threads(2));
    let before = counts(&simulator);
    assert!(pinned.allocate(Layout::from_size_align(1 << 50, 4096).unwrap()).is_err());
    let error = last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("the limit of memory of this process leaves"), "{error}");
    assert_eq!(counts(&simulator), before);
}

#[cfg(target_os = "linux")]
#[test]
fn the_number_of_threads_can_change() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = resource(&device, |options| options);
    assert_eq!(round(&device, &simulator, &pinned, 16 * MIB), [1, 1, 0, 0]);
    pinned.set_touch_threads(2);
    assert_eq!(round(&device, &simulator, &pinned, 16 * MIB), [0, 0, 1, 1]);
}

#[test]
fn a_named_node_has_blocks_of_any_size_touched() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let Ok(pinned) = PinnedResource::builder(&device).numa_node(0).build() else {
        return support::skipped(
            "a_named_node_has_blocks_of_any_size_touched",
            "the system places no memory",
        );
    };
    for bytes in [1, 5000, 16 * MIB] {
        assert_eq!(round(&device, &simulator, &pinned, bytes), [0, 0, 1, 1], "{bytes}");
    }
    // It is on the node, or there is none.
    simulator.fail_call("cuMemHostRegister", 1, 2).unwrap();
    let mut vec = AllocVec::<u8, _>::new_in(pinned.clone());
    assert!(vec.try_reserve(5000).is_err());
    vec.try_reserve(5000).unwrap();
}
