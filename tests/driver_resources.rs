//! Resources that stand close to the driver: what they ask of it, and what they refuse.

mod support;

use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    DeviceLayout, DeviceResource, DeviceVec, ErrorKind, HostAccessible, HostComplete,
    ManagedResource, OnStream,
};
use std::sync::Arc;

#[test]
fn managed_memory_is_not_oversubscribed_unless_asked() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(10_000));
    let stream = device.new_stream().unwrap();
    let managed = ManagedResource::new(&device).unwrap();
    let held = managed.allocate(&stream, DeviceLayout::new(4_000).unwrap()).unwrap();
    let error = managed.allocate(&stream, DeviceLayout::new(6_400).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let text = error.to_string();
    let free = device.memory_info().unwrap().free;
    assert!(text.contains("6400 bytes") && text.contains(&free.to_string()), "{text}");
    assert!(text.contains("oversubscribe"), "{text}");
    assert_eq!(simulator.call_count("cuMemAllocManaged"), 1, "the driver was not asked");
    // Now the driver is asked, and this one has no more than it has.
    let more = ManagedResource::builder(&device).oversubscribe(true).build().unwrap();
    let error = more.allocate(&stream, DeviceLayout::new(6_400).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.driver().is_some(), "{error}");
    assert_eq!(simulator.call_count("cuMemAllocManaged"), 2);
    assert_eq!(more, managed);
    assert_eq!(more.identity(), managed.identity());
    // SAFETY: the two stand for each other, and nothing uses the block.
    unsafe { more.deallocate(&stream, held) };
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

#[test]
fn the_hosts_collections_live_in_managed_memory() {
    let device = support::device();
    let managed = ManagedResource::new(&device).unwrap();
    if !device.properties().concurrent_managed_access {
        assert_eq!(managed.allocator().unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let stream = device.new_stream().unwrap();
    let managed = managed.allocator().unwrap();
    let mut host = AllocVec::new_in(OnStream::new(managed.clone(), &stream).unwrap());
    host.extend(0..10_000_u32);
    assert_eq!(host.iter().map(|&n| u64::from(n)).sum::<u64>(), 49_995_000);
    host.truncate(10);
    host.shrink_to_fit();
    drop(host);

    // The same bytes, from both sides; a block that is aligned far finds its way back.
    for alignment in [1, 256, 4096, 1 << 21] {
        let layout = DeviceLayout::with_alignment(1000, alignment).unwrap();
        let block = managed.allocate(&stream, layout).unwrap();
        let pointer = managed.host_pointer(&block);
        assert!(block.address().is_multiple_of(alignment as u64));
        let parts = aquifer::DeviceVecParts {
            stream: stream.clone(),
            length: block.bytes(),
            block,
            resource: Arc::new(managed.clone()) as Arc<dyn DeviceResource>,
        };
        // SAFETY: the block is live and the resource's, and all its work is on this stream.
        let mut vec = unsafe { DeviceVec::<u8>::from_raw_parts(parts).unwrap() };
        vec.fill(7).unwrap();
        stream.synchronize().unwrap();
        let block = vec.into_raw_parts().unwrap().block;
        // SAFETY: the block is live for its 1000 bytes, and the fill is complete.
        unsafe {
            assert_eq!(pointer.add(999).read(), 7);
            pointer.write(8);
            let again = managed.block_at(pointer, layout);
            assert_eq!((again.address(), again.token()), (block.address(), block.token()));
            managed.deallocate(&stream, again);
        }
    }
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.live_bytes(), 0);
    }
}

#[test]
fn handles_on_one_managed_allocator_are_one() {
    let device = support::device();
    let managed = ManagedResource::new(&device).unwrap();
    if let Ok(one) = managed.allocator() {
        assert_eq!(one, one.clone());
        assert_eq!(one.identity(), one.clone().identity());
        assert_ne!(one, managed.allocator().unwrap());
    }
    let (poor, _) = support::simulated(SimConfig::default().without_managed_memory());
    assert_eq!(ManagedResource::new(&poor).unwrap_err().kind(), ErrorKind::Unsupported);
}
