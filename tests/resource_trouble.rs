//! Resources close to the driver where it goes wrong: in captures, between threads, and with options
//! that nobody would give.

mod support;

use aquifer::sim::SimConfig;
use aquifer::{
    AsyncResource, CudaResource, Device, DeviceLayout, DeviceResource, DeviceVec, ErrorKind,
    ManagedResource, PoolResource, ResourceId, Stream,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

type Erased = Arc<dyn DeviceResource>;

fn layout(bytes: usize) -> DeviceLayout {
    DeviceLayout::new(bytes).unwrap()
}

/// Calls of the crate that look into the graveyard, until `holds`.
fn eventually(stream: &Stream, holds: impl Fn() -> bool) -> bool {
    (0..100).any(|_| {
        stream.synchronize().unwrap();
        // Another test's thread may have it in hand.
        std::thread::sleep(std::time::Duration::from_millis(1));
        holds()
    })
}

/// A block that the driver hands out in a capture is there while the graph runs, and not before or
/// after: a vector would outlive it.
#[test]
fn a_driver_pool_hands_nothing_out_in_a_capture_and_leaves_it_whole() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let driver: Erased = Arc::new(AsyncResource::new(&device).unwrap());
    let (graph, ()) = stream
        .capture(&pool, |stream| {
            let refused = DeviceVec::<u8>::with_capacity_in(stream, 1000, driver.clone());
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Capture);
            assert!(driver.allocate(stream, layout(0))?.is_empty());
            Ok(())
        })
        .unwrap();
    drop(graph);
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8, 2], driver).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2]);
}

/// A wait would lose the capture, and the block with it.
#[test]
fn what_is_freed_in_a_capture_goes_back_after_it() {
    for lost in [false, true] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let resources: [Erased; 3] = [
            Arc::new(CudaResource::new(&device)),
            Arc::new(ManagedResource::new(&device).unwrap()),
            Arc::new(AsyncResource::new(&device).unwrap()),
        ];
        for resource in resources {
            let name = format!("{resource:?}");
            let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 1000, resource).unwrap();
            vec.fill(7).unwrap(); // still on its way
            let captured = stream.capture(&pool, |_| {
                drop(vec);
                if lost { Err(aquifer::Error::new(ErrorKind::Unsupported, "no")) } else { Ok(()) }
            });
            assert_eq!(captured.is_err(), lost, "{name}: {captured:?}");
            let gone = || simulator.live_bytes() == 0;
            assert!(eventually(&stream, gone), "{name} leaks in a capture");
            simulator.check().unwrap();
        }
    }
}

#[test]
fn what_is_freed_in_a_capture_waits_for_its_end() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let plain = CudaResource::new(&device);
    let block = plain.allocate(&stream, layout(100)).unwrap();
    simulator.start_capture(&stream).unwrap();
    // SAFETY: the block is the resource's, and no work uses it.
    unsafe { plain.deallocate(&stream, block) };
    for _ in 0..10 {
        other.synchronize().unwrap();
    }
    assert_eq!(simulator.live_blocks(), 1);
    assert!(simulator.stop_capture(&stream), "whole");
    assert!(eventually(&other, || simulator.live_blocks() == 0));
    simulator.check().unwrap();
}

#[test]
fn a_size_that_cannot_be_is_refused_before_a_pool_is_made() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let built = AsyncResource::builder(&device).initial_size(usize::MAX).build();
    assert_eq!(built.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(simulator.call_count("cuMemPoolCreate"), 0);
}

/// What an alignment costs is asked of the driver as well.
#[test]
fn room_for_managed_memory_counts_its_alignment() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(1 << 20));
    let stream = device.new_stream().unwrap();
    let managed = ManagedResource::new(&device).unwrap();
    let far = DeviceLayout::with_alignment(100, 1 << 21).unwrap();
    let error = managed.allocate(&stream, far).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("oversubscribe"), "{error}");
    assert_eq!(simulator.call_count("cuMemAllocManaged"), 0, "the driver was not asked");
}

/// Each fits by itself, and one of them alone fits.
#[test]
fn threads_together_ask_for_no_more_managed_memory_than_is_free() {
    const BYTES: usize = 600 << 10;
    let (device, simulator) = support::simulated(SimConfig::default().capacity(1 << 20));
    let (start, ready) = (Barrier::new(2), AtomicUsize::new(0));
    let served: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    // Of its own: the resources of one device know of each other.
                    let managed = ManagedResource::new(&device).unwrap();
                    let stream = device.new_stream().unwrap();
                    let mut served = 0;
                    for round in 1..=200 {
                        start.wait();
                        // At the same moment, as nearly as can be.
                        ready.fetch_add(1, Ordering::SeqCst);
                        while ready.load(Ordering::SeqCst) < 2 * round {
                            std::hint::spin_loop();
                        }
                        if let Ok(block) = managed.allocate(&stream, layout(BYTES)) {
                            served += 1;
                            std::thread::yield_now();
                            // SAFETY: the block is the resource's, and no work uses it.
                            unsafe { managed.deallocate(&stream, block) };
                        }
                    }
                    served
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(served >= 200, "one of each round fits: {served}");
    let asked = simulator.call_count("cuMemAllocManaged");
    assert_eq!(asked, served as u64, "the driver was asked for more than was free");
    assert_eq!(simulator.live_bytes(), 0);
}

/// Names are no proof: all closures of one function have the same.
#[test]
fn types_of_one_name_stand_for_themselves_alone() {
    fn of<F: Fn() -> u32>(device: &Device, _: &F) -> ResourceId {
        ResourceId::of_device::<F>(device, 1)
    }
    let device = support::device();
    let (one, two) = (|| 1_u32, || 2_u32);
    assert_eq!(std::any::type_name_of_val(&one), std::any::type_name_of_val(&two));
    assert_ne!(of(&device, &one), of(&device, &two));
    assert_eq!(of(&device, &one), of(&device, &one));
    let state = 0_u8;
    fn by_state<F>(_: &F, state: &u8) -> ResourceId {
        ResourceId::of_state::<F, u8>(state)
    }
    assert_ne!(by_state(&one, &state), by_state(&two, &state));
    // Neither have bytes of their own, and so no address either.
    assert_eq!((one(), two()), (1, 2));
    assert_ne!(ResourceId::of_object(&one), ResourceId::of_object(&two));
    assert_ne!(ResourceId::of_device::<u8>(&device, 1), ResourceId::of_device::<u8>(&device, 2));
    // A lifetime is no other type.
    fn borrowed<'a>(device: &Device, _: &'a u8) -> ResourceId {
        ResourceId::of_device::<&'a u8>(device, 1)
    }
    assert_eq!(borrowed(&device, &state), ResourceId::of_device::<&'static u8>(&device, 1));
}

#[test]
fn a_simulated_pool_that_is_exported_says_that_it_cannot_be() {
    let (device, _) = support::simulated(SimConfig::default());
    let pool = AsyncResource::new(&device).unwrap();
    #[cfg(unix)]
    assert_eq!(pool.export().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(pool.statistics().unwrap().reserved_bytes, 0);
}
