//! Resources that stand close to the driver: what they ask of it, and what they refuse.

use crate::support;
use allocator_api2::alloc::{AllocError, Allocator, Global};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceLayout, DeviceResource, DeviceVec, ErrorKind,
    container::MemoryLocation,
    mr::{
        AsyncResource, HostAccessible, ManagedResource, OnStream, PrefetchAdaptor, SystemResource,
    },
    pinned::{PinnedPool, PinnedResource, PolymorphicHostAllocator},
};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    // Now the driver is asked, which has it lie at the host.
    let more = ManagedResource::builder(&device).oversubscribe(true).build().unwrap();
    let beyond = more.allocate(&stream, DeviceLayout::new(6_400).unwrap()).unwrap();
    assert_eq!(device.memory_info().unwrap().free, free);
    simulator.fail_call("cuMemAllocManaged", 1, 2).unwrap();
    let error = more.allocate(&stream, DeviceLayout::new(6_400).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.driver().is_some(), "{error}");
    assert_eq!(simulator.call_count("cuMemAllocManaged"), 3);
    assert_eq!(more, managed);
    assert_eq!(more.identity(), managed.identity());
    for block in [held, beyond] {
        // SAFETY: the two stand for each other, and nothing uses the block.
        unsafe { more.deallocate(&stream, block) };
    }
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

#[test]
fn what_an_alignment_adds_is_asked_of_managed_memory_too() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(100_000));
    let stream = device.new_stream().unwrap();
    let managed = ManagedResource::new(&device).unwrap();
    let wide = DeviceLayout::with_alignment(1, 1 << 20).unwrap();
    let error = managed.allocate(&stream, wide).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("oversubscribe"), "{error}");
    assert_eq!(simulator.call_count("cuMemAllocManaged"), 0, "the driver was not asked");
    let narrow = DeviceLayout::with_alignment(1, 1 << 13).unwrap();
    let block = managed.allocate(&stream, narrow).unwrap();
    // SAFETY: allocated above, used by nobody.
    unsafe { managed.deallocate(&stream, block) };
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
        let (home, length, resource) = (stream.clone(), block.bytes(), managed.clone());
        // SAFETY: the block is live and the resource's, and all its work is on this stream.
        let vec = unsafe { DeviceVec::<u8>::from_raw_parts(home, block, length, resource) };
        let mut vec = vec.unwrap();
        vec.fill(7).unwrap();
        stream.synchronize().unwrap();
        let (_, block, ..) = vec.into_raw_parts().unwrap();
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

#[test]
fn a_driver_pool_tells_what_it_holds() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = AsyncResource::new(&device).unwrap();
    assert_eq!(pool.statistics().unwrap().used_peak, 0);
    let layout = DeviceLayout::new(1 << 20).unwrap();
    let block = pool.allocate(&stream, layout).unwrap();
    let held = pool.statistics().unwrap();
    assert!(held.used_bytes >= 1 << 20 && held.reserved_bytes >= held.used_bytes, "{held:?}");
    // SAFETY: the block is the pool's, and no work uses it.
    unsafe { pool.deallocate(&stream, block) };
    stream.synchronize().unwrap();
    let after = pool.statistics().unwrap();
    assert_eq!(after.used_bytes, 0, "{after:?}");
    assert!(after.used_peak >= 1 << 20 && after.reserved_peak >= after.used_peak, "{after:?}");
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().unwrap().reserved_bytes, 0);
}

#[test]
fn a_primed_pool_has_its_memory_at_once() {
    let device = support::device();
    let bytes = 4 << 20;
    let pool = AsyncResource::builder(&device)
        .initial_size(bytes)
        // The driver takes and releases whole chunks, of 32 MiB on an H200.
        .release_threshold(64 << 20)
        .reuse_follow_event_dependencies(false)
        .reuse_opportunistic(true)
        .reuse_internal_dependencies(false)
        .build()
        .unwrap();
    let primed = pool.statistics().unwrap();
    assert_eq!(primed.used_bytes, 0);
    assert!(primed.reserved_peak >= bytes, "{primed:?}");
    if support::on_gpu() {
        assert!(primed.reserved_bytes >= bytes, "kept over the synchronisation: {primed:?}");
    }
    let refused = AsyncResource::builder(&device).initial_size(2).release_threshold(1).build();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_pool_that_cannot_be_made_as_asked_leaves_nothing() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(1 << 20));
    let too_much = AsyncResource::builder(&device).initial_size(2 << 20).build().unwrap_err();
    assert_eq!(too_much.kind(), ErrorKind::OutOfMemory);
    simulator.fail_call("cuMemPoolSetAttribute", 1, 999).unwrap();
    let refused = AsyncResource::builder(&device).reuse_opportunistic(false).build();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(simulator.call_count("cuMemPoolCreate"), 2);
    assert_eq!(simulator.call_count("cuMemPoolDestroy"), 2);
    let managed = AsyncResource::builder(&device).managed(true).build().unwrap_err();
    assert_eq!(managed.kind(), ErrorKind::Unsupported, "{managed}");
    simulator.check().unwrap();
}

#[test]
fn the_release_threshold_of_a_gpus_pool_is_what_was_asked() {
    #[cfg(feature = "cuda")]
    if support::on_gpu() {
        use aquifer::cudarc::driver::sys;
        let device = support::device();
        device.cuda_context().unwrap().bind_to_thread().unwrap();
        let threshold = |pool: &AsyncResource| {
            let attribute = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let raw = std::ptr::with_exposed_provenance_mut(pool.as_raw_pool() as usize);
            let mut value = 0_u64;
            let target = (&raw mut value).cast();
            // SAFETY: the pool is live, and the driver writes 64 bits.
            unsafe { sys::cuMemPoolGetAttribute(raw, attribute, target).result().unwrap() };
            value
        };
        let asked = AsyncResource::with_release_threshold(&device, 1000).unwrap();
        assert_eq!(threshold(&asked), 1000);
        assert_eq!(threshold(&AsyncResource::new(&device).unwrap()), u64::MAX);
        return;
    }
    support::skipped("the_release_threshold_of_a_gpus_pool_is_what_was_asked", "no GPU");
}

#[test]
fn a_view_of_a_pool_does_not_end_it() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (one, two) =
        (AsyncResource::default_pool(&device).unwrap(), AsyncResource::default_pool(&device));
    assert_eq!(one, two.unwrap());
    let owner = AsyncResource::new(&device).unwrap();
    assert_ne!(owner, one);
    // SAFETY: the owner outlives both uses of the view.
    let view = unsafe { AsyncResource::from_raw_pool(&device, owner.as_raw_pool()).unwrap() };
    assert_eq!(view, owner);
    assert_eq!(view.identity(), owner.identity());
    let block = view.allocate(&stream, DeviceLayout::new(100).unwrap()).unwrap();
    drop(view);
    drop(one);
    // SAFETY: the owner's pool handed the block out, and no work uses it.
    unsafe { owner.deallocate(&stream, block) };
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8, 2], Arc::new(owner)).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2]);
    drop(vec);
    let again = Arc::new(AsyncResource::default_pool(&device).unwrap());
    let vec = DeviceVec::from_slice_in(&stream, &[3_u8], again).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3]);
    // SAFETY: null is refused.
    let null = unsafe { AsyncResource::from_raw_pool(&device, 0) };
    assert_eq!(null.unwrap_err().kind(), ErrorKind::InvalidArgument);
    if let Some(simulator) = device.simulator() {
        drop(vec);
        stream.synchronize().unwrap();
        assert_eq!(simulator.call_count("cuMemPoolDestroy"), 1, "the owner's alone");
    }
    let (poor, _) = support::simulated(SimConfig::default().without_memory_pools());
    assert_eq!(AsyncResource::default_pool(&poor).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn managed_pools_are_there_or_refused() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    match AsyncResource::builder(&device).managed(true).build() {
        Ok(pool) => {
            let vec = DeviceVec::from_slice_in(&stream, &[5_u8; 100], Arc::new(pool)).unwrap();
            assert_eq!(vec.to_vec().unwrap(), [5; 100]);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    }
}

#[cfg(unix)]
#[test]
fn a_shareable_pool_is_exported_as_a_descriptor() {
    use std::os::fd::AsRawFd;
    let device = support::device();
    match AsyncResource::builder(&device).shareable(true).build() {
        Ok(pool) => {
            let (one, two) = (pool.export().unwrap(), pool.export().unwrap());
            assert!(one.as_raw_fd() >= 0 && one.as_raw_fd() != two.as_raw_fd());
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    }
    assert!(AsyncResource::new(&device).unwrap().export().is_err(), "not asked to be shareable");
}

#[test]
fn memory_that_can_move_is_moved_when_it_is_allocated() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let managed = PrefetchAdaptor::new(ManagedResource::new(&device).unwrap());
    assert_eq!(managed, managed.clone());
    assert_eq!(managed.identity(), managed.clone().identity());
    let vec = DeviceVec::from_slice_in(&stream, &[3_u32; 1000], Arc::new(managed)).unwrap();
    // Pieces of a pool's block are moved one by one.
    let pool = aquifer::PoolResource::new(ManagedResource::new(&device).unwrap()).unwrap();
    let pooled = Arc::new(PrefetchAdaptor::new(pool));
    let piece = DeviceVec::from_slice_in(&stream, &[4_u32; 1000], pooled).unwrap();
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.call_count("cuMemPrefetchAsync"), 2);
    }
    assert_eq!((vec.get(999).unwrap(), piece.get(999).unwrap()), (3, 4));

    // What cannot move passes.
    let erased: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
    let plain = Arc::new(PrefetchAdaptor::new(erased));
    let vec = DeviceVec::from_slice_in(&stream, &[5_u32; 1000], plain).unwrap();
    assert_eq!(vec.get(999).unwrap(), 5);
    let ordered = Arc::new(PrefetchAdaptor::new(AsyncResource::new(&device).unwrap()));
    let vec = DeviceVec::from_slice_in(&stream, &[6_u32; 1000], ordered).unwrap();
    assert_eq!(vec.get(999).unwrap(), 6);
}

#[test]
fn a_vector_of_managed_memory_is_moved_where_it_is_wanted() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let managed = ManagedResource::new(&device).unwrap();
    let moves = |vec: &DeviceVec<u32>| {
        let before = device.simulator().map(|it| it.call_count("cuMemPrefetchAsync"));
        vec.prefetch(MemoryLocation::Host).unwrap();
        vec.prefetch(MemoryLocation::Device).unwrap();
        assert_eq!(vec.to_vec().unwrap(), vec![7; vec.len()]);
        device.simulator().map(|it| it.call_count("cuMemPrefetchAsync") - before.unwrap())
    };
    let vec = DeviceVec::from_slice_in(&stream, &[7; 1000], managed).unwrap();
    assert!(moves(&vec).is_none_or(|calls| calls == 2));
    // What cannot move, and what is not there, is left alone.
    let plain = DeviceVec::from_slice_in(&stream, &[7; 1000], CudaResource::new(&device)).unwrap();
    moves(&plain);
    let empty = DeviceVec::<u32>::new(&stream).unwrap();
    assert!(moves(&empty).is_none_or(|calls| calls == 0));
    if let Some(simulator) = device.simulator() {
        simulator.start_capture(&stream).unwrap();
        let before = simulator.call_count("cuMemPrefetchAsync");
        vec.prefetch(MemoryLocation::Device).unwrap();
        assert_eq!(simulator.call_count("cuMemPrefetchAsync"), before);
        assert!(simulator.stop_capture(&stream), "whole");
        simulator.fail_call("cuMemPrefetchAsync", 1, 999).unwrap();
        let error = vec.prefetch(MemoryLocation::Host).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Driver);
        assert!(error.to_string().contains("moving 4000 bytes to the host"), "{error}");
    }
}

#[test]
fn a_pool_for_a_fabric_is_made_or_lacking() {
    let device = support::device();
    match AsyncResource::builder(&device).fabric(true).build() {
        Ok(pool) => {
            let vec = DeviceVec::from_slice_in(&device.new_stream().unwrap(), &[1_u8; 100], pool);
            assert_eq!(vec.unwrap().to_vec().unwrap(), [1; 100]);
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("no pools of memory for a fabric"), "{error}");
        }
    }
}

#[test]
fn the_driver_knows_its_memory_by_the_address() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::<u8>::zeroed(&stream, 1000).unwrap();
    let managed = ManagedResource::new(&device).unwrap();
    let managed = DeviceVec::<u8>::zeroed_in(&stream, 1000, managed).unwrap();
    for inside in [vec.as_device_ptr(), vec.as_device_ptr() + 999, managed.as_device_ptr()] {
        assert!(device.knows_address(inside).unwrap());
    }
    let locked = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    let locked = AllocVec::<u8, _>::with_capacity_in(100, locked);
    assert!(device.knows_address(locked.as_ptr().addr() as u64).unwrap());
    let pageable = std::vec::Vec::<u8>::with_capacity(100);
    for unknown in [pageable.as_ptr().addr() as u64, 0, u64::MAX] {
        assert!(!device.knows_address(unknown).unwrap());
    }
}

#[test]
fn a_block_that_could_not_be_moved_goes_back() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let managed = PrefetchAdaptor::new(ManagedResource::new(&device).unwrap());
    let layout = DeviceLayout::new(1000).unwrap();
    simulator.fail_call("cuMemPrefetchAsync", 1, 999).unwrap();
    assert_eq!(managed.allocate(&stream, layout).unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(simulator.live_blocks(), 0);
    simulator.fail_call("cuMemPrefetchAsync", 1, 801).unwrap();
    let block = managed.allocate(&stream, layout).unwrap();
    // SAFETY: the block is the resource's, and no work uses it.
    unsafe { managed.deallocate(&stream, block) };
    let empty = managed.allocate(&stream, DeviceLayout::new(0).unwrap()).unwrap();
    assert!(empty.is_empty());
    assert_eq!(simulator.call_count("cuMemPrefetchAsync"), 2, "no bytes, no call");

    // A capture is not lost over it.
    simulator.start_capture(&stream).unwrap();
    let block = managed.allocate(&stream, layout).unwrap();
    assert!(simulator.stop_capture(&stream), "whole");
    // SAFETY: as above.
    unsafe { managed.deallocate(&stream, block) };
    assert_eq!(simulator.call_count("cuMemPrefetchAsync"), 2);
    assert_eq!(simulator.live_blocks(), 0);
    simulator.check().unwrap();
}

/// The heap, with each call counted.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<[AtomicUsize; 3]>);

// SAFETY: the heap's blocks.
unsafe impl Allocator for Counted {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.0[0].fetch_add(1, Ordering::Relaxed);
        Global.allocate(layout)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
        self.0[1].fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { Global.deallocate(pointer, layout) }
    }

    unsafe fn grow(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        self.0[2].fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { Global.grow(pointer, old, new) }
    }
}

#[test]
fn any_host_allocator_stands_behind_one_type() {
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    let counted = Counted::default();
    let all = [
        PolymorphicHostAllocator::new(Global),
        PolymorphicHostAllocator::new(counted.clone()),
        PolymorphicHostAllocator::new(pinned.clone()),
        PolymorphicHostAllocator::new(PinnedPool::new(pinned.clone()).unwrap()),
    ];
    let vecs = all.clone().map(|allocator| {
        let mut vec = AllocVec::new_in(allocator);
        for number in 0..5000_u32 {
            vec.push(number);
        }
        vec.truncate(100);
        vec.shrink_to_fit();
        vec
    });
    assert!(vecs.iter().all(|vec| vec.iter().copied().eq(0..100)));
    let calls = |of: usize| counted.0[of].load(Ordering::Relaxed);
    assert!(calls(2) > 1, "grown by the allocator's own grow");
    drop(vecs);
    assert_eq!(calls(0), calls(1), "what it handed out came back");

    // A block goes back through any handle on the same allocator.
    let (one, two) = (all[1].clone(), all[1].clone());
    assert_eq!(one, two);
    let layout = Layout::from_size_align(1000, 64).unwrap();
    let block = one.allocate_zeroed(layout).unwrap();
    // SAFETY: the block is live, and given back once to an equal allocator.
    unsafe {
        assert!(block.as_ref().iter().all(|&byte| byte == 0));
        two.deallocate(block.cast(), layout);
    }
    assert_eq!(calls(0), calls(1));
    let grown = AllocVec::<u8, _>::with_capacity_in(10, all[0].clone());
    assert_eq!(grown.allocator(), &PolymorphicHostAllocator::new(Global), "units are one");
    for (index, one) in all.iter().enumerate() {
        for (other, two) in all.iter().enumerate() {
            assert_eq!(one == two, index == other);
        }
    }
    assert_ne!(all[1], PolymorphicHostAllocator::new(counted.clone()), "another object");
    assert!(format!("{:?}", all[0]).contains("Global"));
    assert!(all[2].allocate(Layout::from_size_align(1 << 60, 1).unwrap()).is_err());
    pinned.trim().unwrap();
}

#[test]
fn ordinary_memory_is_read_where_it_lies() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    if !device.properties().pageable_memory_access {
        assert_eq!(SystemResource::new(&device).unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let system = SystemResource::new(&device).unwrap();
    for alignment in [1, 256, 4096, 1 << 21] {
        let layout = DeviceLayout::with_alignment(1000, alignment).unwrap();
        let block = system.allocate(&stream, layout).unwrap();
        assert!(block.address().is_multiple_of(alignment as u64));
        let pointer = system.host_pointer(&block);
        // SAFETY: the block's thousand bytes, which nothing else uses.
        unsafe { pointer.write_bytes(3, 1000) };
        let (home, resource) = (stream.clone(), system.clone());
        // SAFETY: the block is live and the resource's, and all its work is on this stream.
        let vec = unsafe { DeviceVec::<u8>::from_raw_parts(home, block, 1000, resource) };
        let mut vec = vec.unwrap();
        assert_eq!(vec.get(999).unwrap(), 3);
        vec.fill(4).unwrap();
        stream.synchronize().unwrap();
        // SAFETY: the block is live, and the fill is complete.
        assert_eq!(unsafe { pointer.add(999).read() }, 4);
    }
    let much = DeviceLayout::new(1 << 62).unwrap();
    assert_eq!(system.allocate(&stream, much).unwrap_err().kind(), ErrorKind::OutOfMemory);
    let empty = system.allocate(&stream, DeviceLayout::new(0).unwrap()).unwrap();
    assert!(empty.is_empty());
}

/// Calls of the crate that collect what was deferred, until the device reaches so many blocks.
fn reaches(simulator: &aquifer::sim::Simulator, stream: &aquifer::Stream, blocks: usize) -> bool {
    (0..100).any(|_| {
        stream.synchronize().unwrap();
        // Another test's thread may have it in hand.
        std::thread::sleep(std::time::Duration::from_millis(1));
        simulator.pageable_blocks() == blocks
    })
}

#[test]
fn ordinary_memory_is_kept_for_as_long_as_the_device_uses_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let system = Arc::new(SystemResource::new(&device).unwrap());
    let vec = DeviceVec::<u32>::zeroed_in(&stream, 1000, system.clone()).unwrap();
    let waits = simulator.call_count("cuStreamSynchronize");
    drop(vec);
    assert_eq!(simulator.call_count("cuStreamSynchronize"), waits, "nobody waited");
    assert!(reaches(&simulator, &stream, 0));
    simulator.check().unwrap(); // it would have seen a free before the fill has run

    // In a capture no event of the stream would say anything.
    let block = system.allocate(&stream, DeviceLayout::new(100).unwrap()).unwrap();
    simulator.start_capture(&stream).unwrap();
    // SAFETY: the block is the resource's, and no work uses it.
    unsafe { system.deallocate(&stream, block) };
    device.new_stream().unwrap().synchronize().unwrap();
    assert_eq!(simulator.pageable_blocks(), 1);
    assert!(simulator.stop_capture(&stream), "whole");
    assert!(reaches(&simulator, &stream, 0));
    simulator.check().unwrap();
}

#[test]
fn headroom_says_where_ordinary_memory_is_best() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(1 << 20));
    let stream = device.new_stream().unwrap();
    let system = SystemResource::builder(&device).headroom(1 << 19).build().unwrap();
    let advices = |bytes: usize| {
        let before = simulator.call_count("cuMemAdvise");
        let block = system.allocate(&stream, DeviceLayout::new(bytes).unwrap()).unwrap();
        assert!(block.address().is_multiple_of(1 << 16) && block.bytes() >= bytes);
        let said = simulator.call_count("cuMemAdvise") - before;
        // SAFETY: the block is the resource's, and no work uses it.
        unsafe { system.deallocate(&stream, block) };
        assert!(reaches(&simulator, &stream, 0));
        (said, simulator.call_count("cuMemAdvise") - before - said)
    };
    assert_eq!(advices(100), (1, 1), "all of it is best on the device, and then it is not ours");
    assert_eq!(advices(1 << 20), (2, 1), "half of it does not fit beside the headroom");
    simulator.fail_call("cuMemAdvise", 1, 999).unwrap();
    let refused = system.allocate(&stream, DeviceLayout::new(100).unwrap());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(simulator.pageable_blocks(), 0);
    assert_eq!(SystemResource::new(&device).unwrap(), system);
    let (poor, _) = support::simulated(SimConfig::default().without_pageable_memory_access());
    assert_eq!(SystemResource::new(&poor).unwrap_err().kind(), ErrorKind::Unsupported);
    simulator.check().unwrap();
}

#[test]
fn a_headroom_beyond_what_is_free_still_allocates() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(1 << 20));
    let stream = device.new_stream().unwrap();
    for headroom in [(1 << 20) + 1, u64::MAX] {
        let system = SystemResource::builder(&device).headroom(headroom as usize).build().unwrap();
        let before = simulator.call_count("cuMemAdvise");
        let vec = DeviceVec::from_slice_in(&stream, &[7_u8; 100], Arc::new(system)).unwrap();
        assert_eq!(simulator.call_count("cuMemAdvise") - before, 1, "all of it is the host's");
        assert_eq!(vec.to_vec().unwrap(), [7; 100]);
        drop(vec);
        assert!(reaches(&simulator, &stream, 0));
    }
}
