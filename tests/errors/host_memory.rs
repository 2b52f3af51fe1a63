//! Page-locked memory.

use crate::support::{layout, simulated};
use crate::table::Table;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    DeviceResource, DeviceVec, MappedAlloc,
    pinned::{
        PinnedPool, PinnedResource, Registered, last_error, reset_current_pinned_resource,
        set_current_pinned_resource,
    },
};
use std::alloc::Layout;

pub(crate) fn rows(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    table.failed("the address of an empty slice", MappedAlloc::device_address::<u8>(&[]));
    table.failed("the address of ordinary memory", MappedAlloc::device_address(&[1_u8]));
    let plain = PinnedResource::builder(&device).mapped(false).build().unwrap();
    table.failed("device memory that is not mapped", plain.allocate(&stream, layout(64)));
    let mut vec = AllocVec::<u8, _>::new_in(plain.clone());
    vec.resize(8, 1);
    table.failed("the address of what is not mapped", MappedAlloc::device_address(&vec));

    let with = || PinnedPool::builder(PinnedResource::new(&device).unwrap());
    let on_node = || PinnedResource::builder(&device).numa_node(1000);
    table.failed("page-locked memory on a node that is none", on_node().build());
    let combined = on_node().write_combined(true).build();
    table.failed("write-combined memory on a node", combined);
    table.failed("a pinned maximum of 100", with().maximum_size(100).build());
    table.failed("a pinned maximum of 0", with().maximum_size(0).build());
    let above = with().initial_size(8192).maximum_size(4096).build();
    table.failed("a pinned initial size above the maximum", above);
    table.failed("a pinned growth of 0", with().growth_step(0).build());
    table.failed("a pinned magazine of 1000", with().magazine_entries(1000).build());
    let small = with().maximum_size(8192).build().unwrap();
    let mut held = AllocVec::<u8, _>::new_in(small.clone());
    held.try_reserve(1).unwrap();
    let mut more = AllocVec::<u8, _>::new_in(small);
    assert!(more.try_reserve(8192).is_err());
    table.row("a pinned pool at its maximum", last_error().unwrap());
    assert!(more.try_reserve(8193).is_err());
    table.row("a block above a pinned pool's maximum", last_error().unwrap());
    assert!(more.try_reserve(1 << 45).is_err());
    table.row("a block above every pinned pool's", last_error().unwrap());

    // No address is aligned so by chance.
    let far = std::alloc::Layout::from_size_align(1, 1 << 40).unwrap();
    assert!(allocator_api2::alloc::Allocator::allocate(more.allocator(), far).is_err());
    table.row("an alignment above a pinned pool's maximum", last_error().unwrap());
    busy(table);
    table.failed(
        "a pinned initial size above an address space",
        with().initial_size(usize::MAX).build(),
    );
    let other = simulated(SimConfig::default()).0.new_stream().unwrap();
    let mut theirs = AllocVec::<u8, _>::new_in(PinnedResource::new(&device).unwrap());
    theirs.resize(8, 1);
    let mapped = other.scope(|scope| scope.map(&theirs).map(drop));
    table.failed("mapped memory of another device", mapped);

    let mut much = AllocVec::<u8, _>::new_in(PinnedResource::new(&device).unwrap());
    assert!(much.try_reserve_exact(1 << 46).is_err());
    table.row("more than the machine has, page-locked", last_error().unwrap());
    let mut vast = AllocVec::<u8, _>::new_in(PinnedResource::new(&device).unwrap());
    assert!(vast.try_reserve(isize::MAX as usize - 4096).is_err());
    table.row("more than an address space, page-locked", last_error().unwrap());
    let far = Layout::from_size_align(100, 1 << 60).unwrap();
    assert!(
        allocator_api2::alloc::Allocator::allocate(&PinnedResource::new(&device).unwrap(), far)
            .is_err()
    );
    table.row("an alignment that takes the room, page-locked", last_error().unwrap());
    let farther = Layout::from_size_align(1 << 62, 1 << 62).unwrap();
    assert!(
        allocator_api2::alloc::Allocator::allocate(&PinnedResource::new(&device).unwrap(), farther)
            .is_err()
    );
    table.row("an alignment that no address space holds, page-locked", last_error().unwrap());
    let unmapped = PinnedResource::builder(&device).mapped(false).build().unwrap();
    set_current_pinned_resource(PinnedPool::new(unmapped).unwrap());
    let mut mapped = AllocVec::<u8, _>::new_in(MappedAlloc);
    assert!(mapped.try_reserve(1).is_err());
    table.row("mapped memory of a resource that is not", last_error().unwrap());
    reset_current_pinned_resource();
    let mut mapped = AllocVec::<u8, _>::new_in(PinnedResource::new(&device).unwrap());
    mapped.resize(8, 1);
    simulator.fail_call("cuMemHostGetDevicePointer", 1, 999).unwrap();
    table.failed("no address on the device", MappedAlloc::device_address(&mapped));

    let capturing = device.new_stream().unwrap();
    let held = Registered::new(&device, vec![0_u8; 9]).unwrap();
    simulator.start_capture(&capturing).unwrap();
    table.failed("unlocking beside a capture", held.into_inner());
    assert!(simulator.stop_capture(&capturing), "not disturbed");

    let empty = Registered::new(&device, Vec::<u8>::new());
    table.failed("an empty buffer to be locked", empty);
    simulator.fail_call("cuMemHostRegister", 1, 712).unwrap();
    table.failed("memory that is locked already", Registered::new(&device, vec![0_u8; 9]));
    let held = Registered::new(&device, vec![0_u8; 9]).unwrap();
    simulator.fail_call("cuMemHostUnregister", 1, 713).unwrap();
    table.failed("memory that is not locked any more", held.into_inner());
    simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
    let mut vec = AllocVec::<u8, _>::new_in(PinnedResource::new(&device).unwrap());
    assert!(vec.try_reserve(9).is_err());
    table.row("no page-locked memory", last_error().unwrap());

    let bare = simulated(SimConfig::default().without_host_mapping()).0;
    table.failed("a device that cannot map", PinnedResource::builder(&bare).mapped(true).build());
    let bare = simulated(SimConfig::default().without_host_register()).0;
    table.failed("a device that cannot lock", Registered::new(&bare, vec![0_u8; 9]));
    let bare = simulated(SimConfig::default().without_read_only_host_register()).0;
    table.failed(
        "a device that cannot lock constants",
        Registered::read_only(&bare, &[0_u8; 9][..]),
    );
}

/// What was freed may be in use by another library, on a device that is busy.
fn busy(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut work = DeviceVec::<u8>::zeroed(&stream, 8).unwrap();
    simulator.create_foreign_stream().unwrap();
    simulator.stall(&stream).unwrap();
    work.fill(1).unwrap();
    let with = || PinnedPool::builder(PinnedResource::new(&device).unwrap()).growth_step(4096);
    let take = |pool: &PinnedPool| {
        let mut vec = AllocVec::<u8, _>::new_in(pool.clone());
        vec.try_reserve_exact(4096).is_ok()
    };
    let small = with().maximum_size(4096).build().unwrap();
    while take(&small) {}
    table.row("a pinned pool at its maximum beside work", last_error().unwrap());
    let limited = with().magazine_bytes(0).quarantine_bytes(4096).build().unwrap();
    while take(&limited) {}
    table.row("a pinned pool with much that waits", last_error().unwrap());
    let plain = PinnedResource::new(&device).unwrap();
    drop(AllocVec::<u8, _>::with_capacity_in(8, plain.clone()));
    let mut vast = AllocVec::<u8, _>::new_in(plain);
    assert!(vast.try_reserve_exact(1 << 46).is_err());
    table.row("more than the machine has, where some waits", last_error().unwrap());
    simulator.resume(&stream).unwrap();
}
