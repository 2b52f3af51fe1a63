//! Resources where it goes wrong: in captures, between threads, over an upstream that keeps no
//! promise, and with options that nobody would give.

use crate::{log, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind,
    PoolResource, Result, Stream,
    mr::{
        ArenaResource, AsyncResource, BinningResource, FixedSizeResource, ManagedResource,
        ResourceId, SystemResource, TrackingAdaptor,
    },
    pinned::{HostBuffer, HostRead},
};
use log::Log;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;
use support::layout;

type Erased = Arc<dyn DeviceResource>;

/// Calls of the crate that look into the graveyard, until `holds`.
fn eventually(stream: &Stream, holds: impl Fn() -> bool) -> bool {
    (0..100).any(|_| {
        stream.synchronize().unwrap();
        // Another test's thread may have it in hand.
        std::thread::sleep(Duration::from_millis(1));
        holds()
    })
}

/// An upstream that hands out one address again and again, with no memory there.
#[derive(Debug)]
struct Lying {
    device: Device,
    address: u64,
    bytes: usize,
}

// SAFETY: of no use: no test touches its memory.
unsafe impl DeviceResource for Lying {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_object(self)
    }

    fn allocate(&self, _: &Stream, wanted: DeviceLayout) -> Result<DeviceBlock> {
        Ok(DeviceBlock::new(self.address, self.bytes.max(wanted.bytes()), self.address))
    }

    unsafe fn deallocate(&self, _: &Stream, _: DeviceBlock) {}
}

#[test]
fn a_pool_over_an_upstream_that_lies_refuses() {
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let over = |address, bytes| {
        let lying = Lying { device: device.clone(), address, bytes };
        PoolResource::new(lying).unwrap()
    };
    let (twice, past) = (over(1 << 30, 1 << 20), over(u64::MAX - 255, 1 << 20));
    let first = twice.allocate(&stream, layout(1 << 20)).unwrap();
    let refused = twice.allocate(&stream, layout(1 << 20)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
    // SAFETY: the pool's block, which nobody has used.
    unsafe { twice.deallocate(&stream, first) };
    let refused = past.allocate(&stream, layout(1 << 20)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
}

#[test]
fn a_count_of_bytes_goes_round_over_an_upstream_that_lies() {
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let [one, two] = [1 << 30, 1 << 31].map(|address| Lying {
        device: device.clone(),
        address,
        bytes: usize::MAX,
    });
    for lying in [one, two] {
        let tracking = TrackingAdaptor::new(lying);
        let [first, second] = [(); 2].map(|()| tracking.allocate(&stream, layout(64)).unwrap());
        assert_eq!(tracking.allocated_bytes(), usize::MAX);
        // SAFETY: the upstream's block, which it forgets.
        unsafe {
            tracking.deallocate(&stream, first);
            tracking.deallocate(&stream, second);
        }
        assert_eq!(tracking.allocated_bytes(), 0);
    }
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

/// A program that never waits gets it back all the same.
#[test]
fn what_was_freed_in_a_capture_goes_back_in_later_allocations() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let resources: [Erased; 3] = [
        Arc::new(CudaResource::new(&device)),
        Arc::new(ManagedResource::new(&device).unwrap()),
        Arc::new(AsyncResource::new(&device).unwrap()),
    ];
    for resource in resources {
        let block = resource.allocate(&stream, layout(100)).unwrap();
        simulator.start_capture(&stream).unwrap();
        // SAFETY: the block is the resource's, and no work uses it.
        unsafe { resource.deallocate(&stream, block) };
        assert!(simulator.stop_capture(&stream), "{resource:?}: whole");
        let back = (0..100).any(|_| {
            let next = resource.allocate(&stream, layout(100)).unwrap();
            // SAFETY: as above.
            unsafe { resource.deallocate(&stream, next) };
            // The device runs by itself, and another test's thread may have the grave in hand.
            std::thread::sleep(Duration::from_millis(1));
            simulator.live_blocks() == 0
        });
        assert!(back, "{resource:?}");
    }
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

/// Plain memory, of less than was asked or at the wrong place.
#[derive(Clone, Debug)]
struct Poor {
    plain: CudaResource,
    less: usize,
    off: u64,
}

// SAFETY: every block is the plain resource's, or inside one. Too small or misplaced: no test uses it.
unsafe impl DeviceResource for Poor {
    fn device(&self) -> &Device {
        self.plain.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.plain.allocate(stream, layout)?;
        let bytes = block.bytes() - self.less;
        Ok(DeviceBlock::new(block.address() + self.off, bytes, block.token()))
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let whole = DeviceBlock::new(block.token(), block.bytes() + self.less, block.token());
        // SAFETY: the block is the plain resource's; our caller vouches for the rest.
        unsafe { self.plain.deallocate(stream, whole) }
    }
}

#[test]
fn an_upstream_that_gives_too_little_or_elsewhere_is_refused_and_gets_it_back() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    for (less, off) in [(256, 0), (1, 0), (0, 128)] {
        let poor = Poor { plain: CudaResource::new(&device), less, off };
        let arena = ArenaResource::builder(poor.clone()).arena_size(1 << 20).build();
        assert_eq!(arena.unwrap_err().kind(), ErrorKind::Unsupported, "{less} {off}");
        let early = FixedSizeResource::builder(poor.clone()).initial_blocks(2).build();
        assert_eq!(early.unwrap_err().kind(), ErrorKind::Unsupported, "{less} {off}");
        let bins = BinningResource::builder(poor.clone()).fixed_size_bins(10, 12).build().unwrap();
        let fixed = FixedSizeResource::new(poor).unwrap();
        for refused in [bins.allocate(&stream, layout(1)), fixed.allocate(&stream, layout(1))] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported, "{less} {off}");
        }
        assert_eq!(simulator.live_bytes(), 0, "{less} {off}");
    }
    simulator.check().unwrap();
}

#[test]
fn an_arena_that_no_address_space_holds_is_refused() {
    let (device, simulator) = support::simulated(SimConfig::default());
    for size in [usize::MAX - 255, 1 << 63, (1 << 63) - 256] {
        let built = ArenaResource::builder(CudaResource::new(&device)).arena_size(size).build();
        let kind = built.unwrap_err().kind();
        let right = [ErrorKind::InvalidArgument, ErrorKind::OutOfMemory];
        assert!(right.contains(&kind), "{size}: {kind:?}");
    }
    assert_eq!(simulator.live_bytes(), 0);
}

/// Memory is short, in pieces, and another stream still works on it.
#[test]
fn an_arena_waits_for_nothing_on_the_host() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let streams = [(); 3].map(|()| device.new_stream().unwrap());
    let arena = ArenaResource::builder(CudaResource::new(&device)).arena_size(1 << 20).build();
    let arena: Erased = Arc::new(arena.unwrap());
    let waits = || {
        ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"]
            .map(|call| simulator.call_count(call))
    };
    let before = waits();
    for round in 0..20 {
        let bytes = if round % 2 == 0 { 1 << 16 } else { 1 << 18 };
        for stream in &streams {
            let vecs: Vec<_> = (0..(1 << 20) / bytes)
                .map(|_| DeviceVec::<u8>::zeroed_in(stream, bytes, arena.clone()).unwrap())
                .collect();
            drop(vecs);
        }
    }
    let refused = arena.allocate(&streams[0], layout((1 << 20) + 1));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(waits(), before);
    device.synchronize().unwrap();
    simulator.check().unwrap();
}

/// The last handles go while blocks live and work is on its way.
#[test]
fn whatever_goes_first_what_lives_stays_valid() {
    for order in 0..3 {
        let (device, simulator) = support::simulated(SimConfig::default());
        let upstream: Erased = Arc::new(AsyncResource::new(&device).unwrap());
        let resources: [Erased; 4] = [
            Arc::new(FixedSizeResource::new(upstream.clone()).unwrap()),
            Arc::new(BinningResource::new(upstream.clone()).unwrap()),
            Arc::new(ArenaResource::builder(upstream.clone()).arena_size(1 << 22).build().unwrap()),
            upstream.clone(),
        ];
        for resource in &resources {
            let stream = device.new_stream().unwrap();
            let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 1000, resource.clone()).unwrap();
            vec.fill(order).unwrap();
            match order {
                0 => drop(stream),
                1 => drop((vec.to_vec().unwrap(), stream)),
                _ => std::thread::scope(|scope| {
                    scope.spawn(|| drop(stream));
                }),
            }
            vec.fill(order + 1).unwrap();
            assert_eq!(vec.to_vec().unwrap(), [order + 1; 1000]);
        }
        let stream = device.new_stream().unwrap();
        let vecs =
            resources.map(|resource| DeviceVec::<u8>::zeroed_in(&stream, 100, resource).unwrap());
        drop(upstream);
        assert!(vecs.iter().all(|vec| vec.to_vec().unwrap() == [0; 100]));
        drop((vecs, stream));
        device.synchronize().unwrap();
        simulator.check().unwrap();
        assert_eq!(simulator.live_bytes(), 0, "order {order}");
        assert_eq!(simulator.call_count("cuMemPoolDestroy"), 1);
    }
}

#[test]
fn a_block_that_cannot_be_ordered_is_leaked_and_said_so() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let system = SystemResource::new(&device).unwrap();
    let block = system.allocate(&stream, layout(100)).unwrap();
    simulator.fail_call("cuEventRecord", 1, 999).unwrap();
    let ((), log) = Log::of(|| {
        // SAFETY: the block is the resource's, and no work uses it.
        unsafe { system.deallocate(&stream, block) }
    });
    assert_eq!(log.count(tracing::Level::ERROR, "leaked"), 1, "{:?}", log.lines());
    assert_eq!(simulator.pageable_blocks(), 1);
}

/// Words of the host whose owner uses a pool when it goes.
struct Owner {
    words: Vec<u32>,
    pool: Erased,
    stream: Stream,
}

// SAFETY: the vector's own words, which stay where they are.
unsafe impl HostRead for Owner {
    type Item = u32;

    fn parts(&mut self) -> (NonNull<u32>, usize) {
        self.words.parts()
    }
}

// SAFETY: and writable.
unsafe impl HostBuffer for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = DeviceVec::<u8>::zeroed_in(&self.stream, 4 << 20, self.pool.clone());
    }
}

/// A pool has locks in hand when it asks upstream; a drop that uses the pool waits for them for good.
#[test]
fn an_upstream_runs_nobody_elses_drops_under_a_pools_locks() {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let upstreams: [Erased; 2] = [
            Arc::new(SystemResource::new(&device).unwrap()),
            Arc::new(ManagedResource::new(&device).unwrap()),
        ];
        for upstream in upstreams {
            let pool = PoolResource::builder(upstream).maximum_size(4 << 20).growth_step(1 << 20);
            let pool: Erased = Arc::new(pool.build().unwrap());
            let parts = [(); 4]
                .map(|()| DeviceVec::<u8>::zeroed_in(&stream, 1 << 20, pool.clone()).unwrap());
            drop(parts);
            let owner = Owner { words: vec![1; 100], pool: pool.clone(), stream: stream.clone() };
            let target = CudaResource::new(&device);
            let target = DeviceVec::<u32>::zeroed_in(&stream, 100, Arc::new(target)).unwrap();
            drop(stream.upload(owner, target).unwrap());
            // Until the device is past it; nobody is asked, so that nobody looks.
            std::thread::sleep(Duration::from_millis(50));
            // In no block of upstream's: some go back, and a larger one is asked for.
            let large = DeviceVec::<u8>::zeroed_in(&stream, 3 << 20, pool).unwrap();
            assert_eq!(large.len(), 3 << 20);
        }
        stream.synchronize().unwrap();
        simulator.check().unwrap();
        done.send(()).unwrap();
    });
    finished.recv_timeout(Duration::from_secs(60)).expect("a drop waits for the pool it is under");
}
