//! The registry of current resources, and resources bound to a stream.

use crate::{alone, kernels, support};
use aquifer::allocator_api2::alloc::Allocator;
use aquifer::allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PinnedAlloc,
    mr::{
        AsyncResource, OnStream, current_device_resource, reset_current_device_resource,
        set_current_device_resource,
    },
    pinned::{
        PinnedResource, current_pinned_resource, last_error, reset_current_pinned_resource,
        set_current_pinned_resource,
    },
};
use kernels::{add_one, kind};
use std::alloc::Layout;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

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

/// The resource that a new vector on this thread comes from.
fn taken_from(device: &Device) -> Arc<dyn DeviceResource> {
    let stream = device.new_stream().unwrap();
    DeviceVec::<u8>::zeroed(&stream, 1).unwrap().resource().clone()
}

fn plain(device: &Device) -> Arc<dyn DeviceResource> {
    Arc::new(CudaResource::new(device))
}

/// A thread that goes on, and does something for the test when it is asked to.
struct Worker {
    ask: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    thread: std::thread::JoinHandle<()>,
}

impl Worker {
    fn new() -> Self {
        let (ask, asked) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let thread = std::thread::spawn(move || asked.into_iter().for_each(|work| work()));
        Self { ask, thread }
    }

    fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> R {
        let (give, take) = mpsc::channel();
        self.ask.send(Box::new(move || give.send(work()).unwrap())).unwrap();
        take.recv().unwrap()
    }

    fn end(self) {
        drop(self.ask);
        self.thread.join().unwrap();
    }
}

#[test]
fn a_change_is_seen_by_the_next_vector_of_every_thread() {
    let _alone = alone();
    let device = support::device();
    let default = current_device_resource(&device).unwrap();
    let workers = [(); 3].map(|()| Worker::new());
    let seen = |wanted: &Arc<dyn DeviceResource>| {
        for worker in &workers {
            let device = (*device).clone();
            let there = worker.run(move || taken_from(&device));
            assert!(Arc::ptr_eq(&there, wanted), "{there:?} instead of {wanted:?}");
        }
        assert!(Arc::ptr_eq(&taken_from(&device), wanted), "and here");
    };
    seen(&default);
    for _ in 0..20 {
        let (one, two) = (plain(&device), plain(&device));
        set_current_device_resource(one.clone());
        seen(&one);
        seen(&one);
        set_current_device_resource(two.clone());
        seen(&two);
        reset_current_device_resource(&device);
        seen(&default);
    }
    // A thread may make the change as well.
    let (one, there) = (plain(&device), plain(&device));
    let set = there.clone();
    set_current_device_resource(one.clone());
    seen(&one);
    workers[0].run(move || set_current_device_resource(set));
    seen(&there);
    reset_current_device_resource(&device);
    workers.into_iter().for_each(Worker::end);
}

#[test]
fn no_vector_comes_from_what_was_current_before_it_was_begun() {
    let _alone = alone();
    let device = support::device();
    let resources: Vec<_> = (0..100).map(|_| plain(&device)).collect();
    let (latest, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    set_current_device_resource(resources[0].clone());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while latest.load(Ordering::Acquire) + 1 < resources.len() {
                    let earliest = latest.load(Ordering::Acquire);
                    let taken = taken_from(&device);
                    let number = resources.iter().position(|other| Arc::ptr_eq(other, &taken));
                    assert!(number.unwrap() >= earliest, "{number:?} after {earliest} was set");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for (number, resource) in resources.iter().enumerate().skip(1) {
            let before = done.load(Ordering::Relaxed);
            while done.load(Ordering::Relaxed) < before + 3 {
                std::thread::yield_now();
            }
            set_current_device_resource(resource.clone());
            latest.store(number, Ordering::Release);
        }
    });
    reset_current_device_resource(&device);
    let kept = resources.iter().filter(|resource| Arc::strong_count(resource) > 1).count();
    assert_eq!(kept, 0, "what was remembered in the middle of a change goes, too");
}

#[test]
fn a_thread_that_remembers_a_resource_does_not_keep_it() {
    let _alone = alone();
    let device = support::device();
    let worker = Worker::new();
    let resource = plain(&device);
    let weak = Arc::downgrade(&resource);
    set_current_device_resource(resource);
    let there = (*device).clone();
    let kept = worker.run(move || {
        taken_from(&there);
        DeviceVec::<u8>::zeroed(&there.new_stream().unwrap(), 1).unwrap()
    });
    taken_from(&device);
    drop(reset_current_device_resource(&device));
    assert!(weak.upgrade().is_some_and(|resource| Arc::ptr_eq(&resource, kept.resource())));
    drop(kept);
    assert_eq!(weak.strong_count(), 0, "the thread goes on, and has nothing of it");
    worker.end();
}

#[test]
fn threads_that_end_leave_nothing_behind() {
    let _alone = alone();
    let device = support::device();
    let resource = plain(&device);
    set_current_device_resource(resource.clone());
    taken_from(&device);
    let handles = Arc::strong_count(&resource);
    for _ in 0..50 {
        let device = (*device).clone();
        std::thread::spawn(move || drop(taken_from(&device))).join().unwrap();
    }
    let more = Arc::strong_count(&resource) - handles;
    assert!(more <= 1, "{more}: the last goes with the next that comes");
    drop(reset_current_device_resource(&device));
    assert_eq!(Arc::strong_count(&resource), 1);
}

#[test]
fn changes_elsewhere_pile_nothing_up() {
    let _alone = alone();
    let device = support::device();
    let (elsewhere, _) = support::simulated(SimConfig::default());
    let (here, there) = (plain(&device), plain(&elsewhere));
    set_current_device_resource(here.clone());
    taken_from(&device);
    let handles = Arc::strong_count(&here);
    for _ in 0..50 {
        set_current_device_resource(there.clone());
        assert!(Arc::ptr_eq(&taken_from(&elsewhere), &there));
        assert!(Arc::ptr_eq(&taken_from(&device), &here));
    }
    assert!(Arc::strong_count(&here) <= handles + 1);
    drop(reset_current_device_resource(&elsewhere));
    assert_eq!(Arc::strong_count(&there), 1);
    drop(reset_current_device_resource(&device));
    assert_eq!(Arc::strong_count(&here), 1);
}

#[test]
fn the_default_of_a_simulated_device_goes_with_its_last_vector() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let worker = Worker::new();
    let there = device.clone();
    let vec = worker.run(move || DeviceVec::<u8>::zeroed(&there.new_stream().unwrap(), 9).unwrap());
    let pool = Arc::downgrade(vec.resource());
    let other = DeviceVec::<u8>::zeroed(&device.new_stream().unwrap(), 9).unwrap();
    assert!(Arc::ptr_eq(vec.resource(), other.resource()));
    drop(device);
    drop(vec);
    assert_eq!((pool.strong_count(), simulator.live_blocks()), (1, 1), "shared by the streams");
    drop(other);
    assert_eq!((pool.strong_count(), simulator.live_blocks()), (0, 0), "no thread keeps it");
    assert_eq!(simulator.call_count("cuStreamDestroy"), 2);
    worker.end();
}
