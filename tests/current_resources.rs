//! The registry of current resources, and resources bound to a stream.

#[path = "support/kernels.rs"]
mod kernels;
mod support;

use aquifer::allocator_api2::alloc::Allocator;
use aquifer::allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    AsyncResource, CudaResource, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, OnStream,
    PinnedAlloc, PinnedResource, current_device_resource, current_pinned_resource, last_error,
    reset_current_device_resource, reset_current_pinned_resource, set_current_device_resource,
    set_current_pinned_resource,
};
use kernels::{add_one, kind};
use std::alloc::Layout;
use std::sync::{Arc, Mutex, MutexGuard};

/// What is current is the process's: on a GPU these tests share it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[test]
fn setting_gives_what_was_set_before_and_resetting_brings_the_default() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let keeper = DeviceVec::<u8>::zeroed(&stream, 1).unwrap();
    let default = current_device_resource(&device).unwrap();
    assert!(Arc::ptr_eq(&default, keeper.resource()), "one default while someone uses it");
    assert!(format!("{default:?}").contains("PoolResource"), "{default:?}");

    let one: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
    let two: Arc<dyn DeviceResource> = Arc::new(AsyncResource::new(&device).unwrap());
    assert!(set_current_device_resource(one.clone()).is_none(), "nothing was set");
    assert!(Arc::ptr_eq(&current_device_resource(&device).unwrap(), &one));
    let before = set_current_device_resource(two.clone()).unwrap();
    assert!(Arc::ptr_eq(&before, &one));
    let vec = DeviceVec::<u8>::zeroed(&stream, 10).unwrap();
    assert!(Arc::ptr_eq(vec.resource(), &two));
    let before = reset_current_device_resource(&device).unwrap();
    assert!(Arc::ptr_eq(&before, &two));
    assert!(reset_current_device_resource(&device).is_none());
    assert!(Arc::ptr_eq(&current_device_resource(&device).unwrap(), &default));
    assert!(Arc::ptr_eq(vec.resource(), &two), "what was made keeps what it was made of");
}

#[test]
fn a_vector_keeps_its_resource_when_nobody_else_does() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    set_current_device_resource(Arc::new(AsyncResource::new(&device).unwrap()));
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    drop(reset_current_device_resource(&device));
    add_one(&stream, &mut vec).unwrap();
    vec.push(7).unwrap();
    let weak = Arc::downgrade(vec.resource());
    assert_eq!(vec.get(10).unwrap(), 7);
    drop(vec);
    assert_eq!(weak.strong_count(), 0, "and is the last to do so");
}

#[test]
fn each_device_has_a_current_resource_of_its_own() {
    let _alone = alone();
    let (one, _) = support::simulated(SimConfig::default());
    let (two, _) = support::simulated(SimConfig::default());
    let plain: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&one));
    assert!(set_current_device_resource(plain).is_none());
    let there = current_device_resource(&two).unwrap();
    assert_eq!(there.device(), &two);
    assert!(format!("{there:?}").contains("PoolResource"));
    assert_eq!(current_device_resource(&one).unwrap().device(), &one);
    assert!(reset_current_device_resource(&one).is_some());
}

#[test]
fn the_default_is_a_pool_of_plain_memory_and_needs_no_driver_pools() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default().without_memory_pools());
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&stream, &[1_u8, 2]).unwrap();
    assert!(format!("{:?}", vec.resource()).contains("CudaResource"));
    assert_eq!(simulator.call_count("cuMemAlloc"), 1);
    drop(vec);
    assert_eq!(simulator.live_blocks(), 0);
}

#[test]
fn a_default_without_memory_is_an_error_and_is_tried_again() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    simulator.fail_call("cuMemAlloc", 1, 999).unwrap();
    assert_eq!(kind(DeviceVec::<u8>::zeroed(&stream, 1)), ErrorKind::Driver);
    assert_eq!(DeviceVec::from_slice(&stream, &[1_u8]).unwrap().to_vec().unwrap(), [1]);
}

#[test]
fn threads_that_ask_at_once_get_one_default() {
    let _alone = alone();
    let device = support::device();
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| current_device_resource(&device).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|resource| Arc::ptr_eq(resource, &all[0])));
}

#[test]
fn blocks_of_pinned_alloc_go_back_to_where_they_came_from() {
    let _alone = alone();
    let device = support::device();
    // With other options than the default: of one device they are equal otherwise.
    let mine = PinnedResource::builder(&device).portable(false).build().unwrap();
    let before = set_current_pinned_resource(mine.clone());
    assert!(before.is_none());
    assert_eq!(current_pinned_resource().unwrap(), mine);
    let mut vec: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    vec.extend(0..1000);
    if let Some(simulator) = device.simulator() {
        assert!(simulator.host_blocks() >= 1, "from the current resource");
    }
    assert_eq!(reset_current_pinned_resource().unwrap(), mine);
    assert_ne!(current_pinned_resource().unwrap(), mine);
    assert_eq!(vec.iter().sum::<u32>(), 499_500);
    drop(vec);
    mine.trim().unwrap();
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.host_blocks(), 0);
    }
}

#[test]
fn bound_to_a_stream_two_are_equal_only_if_resource_and_stream_are() {
    let _alone = alone();
    let device = support::device();
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let plain = || CudaResource::new(&device);
    let bound = OnStream::new(plain(), &a).unwrap();
    assert_eq!(bound, OnStream::new(plain(), &a).unwrap());
    assert_eq!(bound, bound.clone());
    assert_ne!(bound, OnStream::new(plain(), &b).unwrap(), "another stream");
    assert_eq!((bound.stream(), bound.resource()), (&a, &plain()));
    let one = Arc::new(AsyncResource::new(&device).unwrap());
    let two = Arc::new(AsyncResource::new(&device).unwrap());
    let on_one = OnStream::new(one.clone(), &a).unwrap();
    assert_eq!(on_one, OnStream::new(one, &a).unwrap());
    assert_ne!(on_one, OnStream::new(two, &a).unwrap(), "another resource");

    let (elsewhere, _) = support::simulated(SimConfig::default());
    let foreign = elsewhere.new_stream().unwrap();
    assert_eq!(kind(OnStream::new(plain(), &foreign)), ErrorKind::WrongDevice);
}

#[test]
fn bound_to_a_stream_no_call_needs_one() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let bound = OnStream::new(AsyncResource::new(&device).unwrap(), &stream).unwrap();
    let block = bound.allocate(DeviceLayout::new(1000).unwrap()).unwrap();
    assert!(block.bytes() >= 1000);
    // SAFETY: allocated above, used by nobody.
    unsafe { bound.deallocate(block) };
}

#[test]
fn collections_grow_and_shrink_in_memory_of_a_stream_and_outlive_its_handle() {
    let _alone = alone();
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    let stream = device.new_stream().unwrap();
    let mut vec = AllocVec::new_in(OnStream::new(pinned.clone(), &stream).unwrap());
    vec.extend(0..10_000_u32);
    let mut on_device = DeviceVec::from_slice(&stream, &vec).unwrap();
    drop(stream);
    vec.truncate(10);
    let pointer = vec.as_ptr();
    vec.shrink_to_fit();
    assert_eq!((vec.capacity(), vec.as_ptr()), (10, pointer), "in place");
    vec.extend(10..5000);
    assert!(vec.iter().copied().eq(0..5000));
    let boxed = AllocVec::clone(&vec).into_boxed_slice();
    let allocator = vec.allocator().clone();
    add_one(vec.allocator().stream(), &mut on_device).unwrap();
    assert_eq!(on_device.get(9_999).unwrap(), 10_000, "the stream lives while its memory does");
    drop((vec, on_device));
    assert_eq!(boxed.len(), 5000);
    drop((boxed, allocator));
    pinned.trim().unwrap();
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.host_blocks(), 0);
    }
}

#[test]
fn the_allocator_meets_every_layout_or_refuses_it() {
    let _alone = alone();
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    let bound = OnStream::new(pinned.clone(), &device.new_stream().unwrap()).unwrap();
    let layout = |size, alignment| Layout::from_size_align(size, alignment).unwrap();
    for (size, alignment) in [(0, 1), (0, 8192), (1, 1), (100, 4096), (100, 8192), (4097, 65_536)] {
        let layout = layout(size, alignment);
        let block = Allocator::allocate(&bound, layout).unwrap();
        assert!(block.cast::<u8>().addr().get().is_multiple_of(alignment), "{layout:?}");
        assert!(block.len() >= size);
        // SAFETY: the block holds `size` bytes, belongs to nobody else, and is freed once.
        unsafe {
            block.cast::<u8>().as_ptr().write_bytes(1, size);
            Allocator::deallocate(&bound, block.cast(), layout);
        }
    }
    let huge = layout(isize::MAX as usize - 4095, 1);
    assert!(Allocator::allocate(&bound, huge).is_err());
    let reason = last_error().unwrap();
    assert!(matches!(reason.kind(), ErrorKind::OutOfMemory | ErrorKind::InvalidArgument));

    let small = layout(64, 8);
    let block = Allocator::allocate(&bound, small).unwrap().cast::<u8>();
    // SAFETY: the block is live and was asked with `small`; sizes change as the contract says, and
    // the last one is freed once.
    unsafe {
        block.as_ptr().write_bytes(7, 64);
        assert!(Allocator::grow(&bound, block, small, huge).is_err());
        assert_eq!(block.as_ptr().add(63).read(), 7, "a failure leaves the old block alone");
        let grown = Allocator::grow_zeroed(&bound, block, small, layout(128, 16)).unwrap();
        let bytes = std::slice::from_raw_parts(grown.cast::<u8>().as_ptr(), 128);
        assert_eq!((&bytes[..64], &bytes[64..]), (&[7; 64][..], &[0; 64][..]));
        let aligned =
            Allocator::shrink(&bound, grown.cast(), layout(128, 16), layout(32, 1 << 16)).unwrap();
        assert!(aligned.cast::<u8>().addr().get().is_multiple_of(1 << 16));
        assert_eq!(aligned.cast::<[u8; 32]>().read(), [7; 32]);
        let empty =
            Allocator::shrink(&bound, aligned.cast(), layout(32, 1 << 16), layout(0, 1)).unwrap();
        Allocator::deallocate(&bound, empty.cast(), layout(0, 1));
    }
    pinned.trim().unwrap();
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.host_blocks(), 0);
    }
}
