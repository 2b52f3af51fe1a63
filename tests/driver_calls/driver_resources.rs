//! Resources near the driver: what they ask of it, by number.

use super::child::{Installed, alone, value};
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PoolResource, Stream,
    mr::{AsyncResource, ManagedResource, PrefetchAdaptor, SystemResource, VirtualResource},
};

#[test]
fn a_driver_pool_is_asked_by_cudas_numbers() {
    let name = "driver_resources::a_driver_pool_is_asked_by_cudas_numbers";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        driver.take();
        let pool = AsyncResource::builder(&device)
            .release_threshold(77)
            .reuse_follow_event_dependencies(false)
            .reuse_opportunistic(true)
            .reuse_internal_dependencies(false)
            .shareable(true)
            .build()
            .unwrap();
        let calls = driver.take();
        let notes: Vec<_> = calls.iter().filter(|line| line.starts_with("# value=")).collect();
        assert_eq!(notes, ["# value=77", "# value=0", "# value=1", "# value=0"]);
        let set = calls.iter().filter(|line| line.starts_with("cuMemPoolSetAttribute"));
        let numbers: Vec<_> = set.map(|line| value(line, "attribute").to_owned()).collect();
        assert_eq!(numbers, ["4", "1", "2", "3"]);
        // The stand-in answers 1000 and the number.
        let held = pool.statistics().unwrap();
        assert_eq!((held.reserved_bytes, held.reserved_peak), (1005, 1006));
        assert_eq!((held.used_bytes, held.used_peak), (1007, 1008));
        drop(pool.export().unwrap());
        driver.take();
        drop(AsyncResource::default_pool(&device).unwrap());
        assert_eq!(driver.names(), ["cuDeviceGetDefaultMemPool"], "and it is not destroyed");
        driver.take();
        drop(AsyncResource::builder(&device).fabric(true).build().unwrap());
        let made = driver.take();
        assert!(made.contains(&"# handles=8".to_owned()), "CU_MEM_HANDLE_TYPE_FABRIC: {made:?}");
        drop(AsyncResource::builder(&device).managed(true).build().unwrap());
        assert_eq!(driver.names().last().unwrap(), "cuMemPoolDestroy");
    });
}

#[test]
fn a_blocking_stream_is_made_and_destroyed_once() {
    let name = "driver_resources::a_blocking_stream_is_made_and_destroyed_once";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        driver.take();
        let stream = device.new_blocking_stream().unwrap();
        let made = driver.take();
        let made = made.iter().find(|line| line.starts_with("cuStreamCreate")).unwrap();
        assert_eq!(value(made, "flags"), "0", "CU_STREAM_DEFAULT");
        let kept = stream.clone();
        // A pool would keep the stream.
        let plain = CudaResource::new(&device);
        let vec = DeviceVec::from_slice_in(&stream, &[1_u8; 100], plain).unwrap();
        assert!(stream.cuda_stream().is_ok(), "cudarc knows it");
        drop(stream);
        assert_eq!(vec.stream(), &kept);
        drop((vec, kept));
        device.synchronize().unwrap();
        let names = driver.names();
        let destroyed = names.iter().filter(|name| name.starts_with("cuStreamDestroy")).count();
        assert_eq!(destroyed, 1, "{names:?}");
    });
}

#[test]
fn a_driver_that_refuses_a_kind_of_pool_lacks_it() {
    let name = "driver_resources::a_driver_that_refuses_a_kind_of_pool_lacks_it";
    let fail = ("STAND_IN_FAIL", "cuMemPoolCreate:1:801,cuMemPoolSetAttribute:3:1");
    alone(name, Installed::StandIn, &[fail], |driver| {
        let device = Device::open(0).unwrap();
        let managed = AsyncResource::builder(&device).managed(true).build().unwrap_err();
        assert_eq!(managed.kind(), ErrorKind::Unsupported, "{managed}");
        let before = driver.alive();
        // The threshold, and again the threshold: the third is a switch.
        drop(AsyncResource::new(&device).unwrap());
        let refused = AsyncResource::builder(&device).reuse_opportunistic(true).build();
        assert_eq!(refused.unwrap_err().driver().unwrap().code(), 1);
        assert_eq!(driver.alive(), before, "the pool went with the error");
    });
}

const GET: &str = "cuCtxGetCurrent";
const PUSH: &str = "cuCtxPushCurrent_v2";
const POP: &str = "cuCtxPopCurrent_v2";
const MODE: &str = "cuThreadExchangeStreamCaptureMode";
const ASK: &str = "cuStreamIsCapturing";

#[test]
fn a_driver_pools_operation_asks_for_no_context_and_asks_once() {
    let name = "driver_resources::a_driver_pools_operation_asks_for_no_context_and_asks_once";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let (own, shared) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        assert!(shared.cuda_stream().is_ok());
        let pool = AsyncResource::new(&device).unwrap();
        let calls = |stream: &Stream| {
            driver.take();
            let block = pool.allocate(stream, DeviceLayout::new(512).unwrap()).unwrap();
            let allocation = driver.all_names();
            // SAFETY: the block is the pool's, and no work uses it.
            unsafe { pool.deallocate(stream, block) };
            [allocation, driver.all_names()]
        };
        let memory = ["cuMemAllocFromPoolAsync", "cuMemFreeAsync"];
        let default = device.default_stream();
        // The mode: a global capture on another thread would refuse both, and be lost. Streams that were
        // made are of a context, whichever is current.
        for (made, call) in calls(&own).iter().zip(memory) {
            assert_eq!(*made, [MODE, call, MODE]);
        }
        for (made, call) in calls(&shared).iter().zip(memory) {
            assert_eq!(*made, [ASK, MODE, call, MODE]);
        }
        for (made, call) in calls(&default).iter().zip(memory) {
            assert_eq!(*made, [GET, PUSH, ASK, POP, GET, PUSH, MODE, call, MODE, POP]);
        }
        driver.stand_on(crate::FIRST);
        for (made, call) in calls(&own).iter().zip(memory) {
            assert_eq!(*made, [MODE, call, MODE]);
        }
        for (made, call) in calls(&shared).iter().zip(memory) {
            assert_eq!(*made, [ASK, MODE, call, MODE]);
        }
        for (made, call) in calls(&default).iter().zip(memory) {
            assert_eq!(*made, [GET, ASK, GET, MODE, call, MODE]);
        }
    });
}

#[test]
fn a_block_that_goes_from_stream_to_stream_costs_a_record_and_a_wait() {
    let name =
        "driver_resources::a_block_that_goes_from_stream_to_stream_costs_a_record_and_a_wait";
    alone(name, Installed::StandIn, &[], |driver| {
        const BLOCK: usize = 1 << 20;
        let device = Device::open(0).unwrap();
        let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
        let options = PoolResource::builder(CudaResource::new(&device)).initial_size(BLOCK);
        let pool = options.maximum_size(BLOCK).build().unwrap();
        let hand_over = |turn: usize| {
            let stream = &streams[turn % 2];
            let block = pool.allocate(stream, DeviceLayout::new(BLOCK).unwrap()).unwrap();
            // SAFETY: the block is the pool's, and no work uses it.
            unsafe { pool.deallocate(stream, block) };
        };
        // Until the events are there that are used again.
        (0..20).for_each(hand_over);
        driver.take();
        // The magazine of a stream takes the block now and then: a size that is missed gets a class.
        for turn in 20..400 {
            hand_over(turn);
            assert_eq!(driver.all_names(), ["cuEventRecord", "cuStreamWaitEvent"], "turn {turn}");
        }
    });
}

#[test]
fn a_driver_that_wants_a_context_is_asked_again_with_it() {
    let name = "driver_resources::a_driver_that_wants_a_context_is_asked_again_with_it";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        other.wait_for(&home).unwrap(); // an event to use again
        driver.take();
        for call in ["cuEventRecord", "cuStreamWaitEvent"] {
            driver.fail(call, 1, 201);
            other.wait_for(&home).unwrap();
            let again = driver.all_names();
            let made: Vec<_> = again.iter().filter(|name| *name == call).collect();
            assert_eq!(made.len(), 2);
            assert!(again.contains(&PUSH.to_owned()) && again.contains(&POP.to_owned()));
        }
    });
}

#[test]
fn free_memory_is_asked_for_again_when_a_sixteenth_was_used() {
    let name = "driver_resources::free_memory_is_asked_for_again_when_a_sixteenth_was_used";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let managed = ManagedResource::new(&device).unwrap();
        let asked = |bytes: usize, blocks: usize| {
            driver.take();
            let layout = DeviceLayout::new(bytes).unwrap();
            for _ in 0..blocks {
                let block = managed.allocate(&stream, layout).unwrap();
                // SAFETY: the block is the resource's, and no work uses it.
                unsafe { managed.deallocate(&stream, block) };
            }
            driver.names().iter().filter(|name| *name == "cuMemGetInfo_v2").count()
        };
        // The stand-in has a gigabyte free, and never less.
        assert_eq!(asked(1 << 20, 1), 1);
        assert_eq!(asked(1 << 20, 63), 0);
        assert_eq!(asked(1 << 20, 64), 1);
        assert_eq!(asked((1 << 26) + 256, 3), 3, "more than a sixteenth at once");
        let much = managed.allocate(&stream, DeviceLayout::new((1 << 30) + 1).unwrap());
        assert_eq!(much.unwrap_err().kind(), ErrorKind::OutOfMemory);
    });
}

#[test]
fn managed_memory_is_freed_while_another_thread_waits_for_the_driver() {
    let name =
        "driver_resources::managed_memory_is_freed_while_another_thread_waits_for_the_driver";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let managed = ManagedResource::new(&device).unwrap();
        let layout = DeviceLayout::new(4096).unwrap();
        let block = managed.allocate(&stream, layout).unwrap();
        driver.delay("cuMemAllocManaged", 2000);
        driver.take();
        std::thread::scope(|threads| {
            let slow = threads.spawn(|| managed.allocate(&stream, layout).unwrap());
            while !driver.names().contains(&"cuMemAllocManaged".to_owned()) {
                std::thread::yield_now();
            }
            // SAFETY: the block is the resource's, and no work uses it.
            unsafe { managed.deallocate(&stream, block) };
            let other = managed.allocate(&stream, layout).unwrap();
            assert!(!slow.is_finished(), "it was waited for");
            // SAFETY: as above.
            unsafe { managed.deallocate(&stream, other) };
            // SAFETY: as above.
            unsafe { managed.deallocate(&stream, slow.join().unwrap()) };
        });
    });
}

#[test]
fn managed_memory_is_moved_and_counted() {
    let name = "driver_resources::managed_memory_is_moved_and_counted";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(1).unwrap();
        let stream = device.new_stream().unwrap();
        let managed = PrefetchAdaptor::new(ManagedResource::new(&device).unwrap());
        driver.take();
        let block = managed.allocate(&stream, DeviceLayout::new(5000).unwrap()).unwrap();
        let calls = driver.take();
        let moved = calls.iter().find(|line| line.starts_with("cuMemPrefetchAsync")).unwrap();
        assert_eq!((value(moved, "bytes"), value(moved, "device")), ("5000", "1"));
        assert!(calls.iter().any(|line| line.starts_with("cuMemGetInfo_v2")), "{calls:?}");
        // SAFETY: the block is the resource's, and no work uses it.
        unsafe { managed.deallocate(&stream, block) };
        // The stand-in has a gigabyte free.
        let much = managed.allocate(&stream, DeviceLayout::new((1 << 30) + 1).unwrap());
        assert_eq!(much.unwrap_err().kind(), ErrorKind::OutOfMemory);
        let asked = driver.names();
        assert!(!asked.contains(&"cuMemAllocManaged".to_owned()), "{asked:?}");
        let refused = SystemResource::new(&device).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "attribute 88 is not set");
    });
}

/// With the other device's context current.
#[test]
fn mapped_memory_is_asked_by_cudas_numbers() {
    let name = "driver_resources::mapped_memory_is_asked_by_cudas_numbers";
    alone(name, Installed::StandIn, &[], |driver| {
        let (other, device) = (Device::open(0).unwrap(), Device::open(1).unwrap());
        let stream = device.new_stream().unwrap();
        driver.stand_on(crate::FIRST);
        let resource = VirtualResource::new(&device).unwrap();
        driver.take();
        let granule = resource.granularity().to_string();
        let block = resource.allocate(&stream, DeviceLayout::new(1 << 20).unwrap()).unwrap();
        resource.enable_peer_access(&other).unwrap();
        // SAFETY: the block is the resource's, and no work uses it.
        unsafe { resource.deallocate(&stream, block) };
        let all = driver.take();
        let of = |name: &str| all.iter().position(|line| line.starts_with(name)).unwrap();
        let names = [
            "cuMemAddressReserve",
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemRelease",
            "cuMemUnmap",
            "cuMemAddressFree",
        ];
        let is_its = |at: &usize| names.iter().any(|name| all[*at].starts_with(name));
        let calls: Vec<usize> = (0..all.len()).filter(is_its).collect();
        assert_eq!(calls.len(), 8, "one each, and the peer's: {all:?}");
        for at in calls {
            let call = &all[at];
            assert_eq!(value(call, "ctx"), "0x2000", "{call}");
            if !call.starts_with("cuMemRelease") {
                assert_eq!(value(call, "bytes"), granule, "{call}");
            }
            // In the relaxed mode: a capture on another thread goes on.
            assert_eq!(all[at - 1], "# mode=2", "{call}");
        }
        let reserved = &all[of("cuMemAddressReserve")];
        assert_eq!(
            ["alignment", "wanted", "flags"].map(|key| value(reserved, key)),
            [&*granule, "0x0", "0"]
        );
        // Memory of device 1, for other processes by a descriptor, and for network cards.
        assert_eq!(value(&all[of("cuMemCreate")], "flags"), "0");
        assert_eq!(all[of("cuMemCreate") + 1], "# prop=1,1,1,1,0,0,256,0");
        let mapped = &all[of("cuMemMap")];
        assert_eq!(["offset", "flags"].map(|key| value(mapped, key)), ["0", "0"]);
        let released = &all[of("cuMemRelease")];
        assert_eq!(value(mapped, "handle"), value(released, "handle"));
        // By its own device first, and by the peer.
        let accesses: Vec<_> = all.iter().filter(|line| line.starts_with("# access=")).collect();
        assert_eq!(accesses, ["# access=1,1,3", "# access=1,0,3"]);
        for call in ["cuMemSetAccess", "cuMemUnmap"] {
            assert_eq!(value(&all[of(call)], "address"), value(mapped, "address"));
        }
        assert_eq!(driver.now(), crate::FIRST);
    });
}

#[test]
fn a_pool_maps_and_gives_all_back() {
    let name = "driver_resources::a_pool_maps_and_gives_all_back";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
        let before = driver.alive();
        let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
        let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 9 << 20, pool.clone()).unwrap();
        vec.resize(33 << 20, 4).unwrap();
        assert_eq!((vec.get(0).unwrap(), vec.get((33 << 20) - 1).unwrap()), (0, 4));
        drop(vec);
        drop(DeviceVec::<u8>::zeroed_in(&other, 50 << 20, pool.clone()).unwrap());
        pool.wait_and_trim(0).unwrap();
        drop(DeviceVec::<u8>::zeroed_in(&other, 3 << 20, pool.clone()).unwrap());
        drop(pool);
        other.synchronize().unwrap();
        let events = driver.all_names();
        let count = |wanted: &str| events.iter().filter(|name| *name == wanted).count();
        assert_eq!(count("cuMemMap"), count("cuMemUnmap"));
        assert_eq!(count("cuMemCreate"), count("cuMemRelease"));
        assert_eq!(count("cuMemAddressReserve"), count("cuMemAddressFree"));
        // The events of streams are kept to be used again.
        let kept = count("cuEventCreate") - count("cuEventDestroy_v2");
        assert!(driver.alive() <= before + kept + 1, "{} {before} {kept}", driver.alive());
    });
}

/// A platform may claim what it refuses.
#[test]
fn virtual_memory_is_tried_once() {
    let name = "driver_resources::virtual_memory_is_tried_once";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let before = driver.alive();
        let refusals = [
            ("cuMemAddressReserve", 1),
            ("cuMemCreate", 101),
            ("cuMemMap", 801),
            ("cuMemSetAccess", 999),
        ];
        for (call, code) in refusals {
            // Each time: of handles for network cards, of those for processes, and of plain ones.
            driver.fail(call, 0, code);
            let error = VirtualResource::new(&device).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert_eq!(error.driver().unwrap().code(), code);
            assert!(error.to_string().contains("(use CudaResource)"), "{error}");
            assert_eq!(driver.alive(), before, "{call}");
            driver.fail(call, u32::MAX, 0);
        }
        driver.fail("cuMemSetAccess", 1, 4);
        let lost = VirtualResource::new(&device).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::ContextLost, "{lost}");
        // A device that is full may have memory later; one that is not ready is so soon.
        driver.fail("cuMemCreate", 0, 2);
        drop(VirtualResource::new(&device).unwrap());
        driver.fail("cuMemCreate", u32::MAX, 0);
        driver.fail("cuMemSetAccess", 1, 600);
        drop(VirtualResource::new(&device).unwrap());
        driver.take();
        let first = VirtualResource::new(&device).unwrap();
        assert_eq!(
            driver.names()[1..],
            [
                "cuMemAddressReserve",
                "cuMemCreate",
                "cuMemMap",
                "cuMemSetAccess",
                "cuMemRelease",
                "cuMemUnmap",
                "cuMemAddressFree"
            ]
        );
        let second = VirtualResource::new(&device).unwrap();
        assert_eq!(driver.names(), ["cuMemGetAllocationGranularity"]);
        assert_eq!((&first, driver.alive()), (&second, before));
    });
}

/// A platform that refuses handles for network cards has those for other processes. The answer holds for all memory of the
/// device.
#[test]
fn handles_that_are_refused_are_made_for_less() {
    let name = "driver_resources::handles_that_are_refused_are_made_for_less";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let before = driver.alive();
        for (refused, prop) in [
            (None, "# prop=1,1,1,0,0,0,256,0"),
            (Some("cuMemCreate"), "# prop=1,1,1,0,0,0,0,0"),
            (Some("cuMemSetAccess"), "# prop=1,1,1,0,0,0,0,0"),
        ] {
            if let Some(call) = refused {
                driver.fail(call, 1, 801);
            }
            let resource = VirtualResource::new(&device).unwrap();
            let same = VirtualResource::new(&device).unwrap();
            for resource in [resource, same] {
                driver.take();
                let layout = DeviceLayout::new(1 << 20).unwrap();
                let block = resource.allocate(&stream, layout).unwrap();
                let calls = driver.take();
                let created = calls.iter().position(|line| line.starts_with("cuMemCreate"));
                assert_eq!(calls[created.unwrap() + 1], prop, "{refused:?}");
                // SAFETY: the block is the resource's, and no work uses it.
                unsafe { resource.deallocate(&stream, block) };
            }
        }
        // One that found the device full has those that another one found to work.
        for full in [0, 1] {
            driver.fail("cuMemCreate", full, 2);
            let early = VirtualResource::new(&device).unwrap();
            driver.fail("cuMemCreate", u32::MAX, 0);
            let later = VirtualResource::new(&device).unwrap();
            driver.take();
            for resource in [early, later] {
                let layout = DeviceLayout::new(1 << 20).unwrap();
                let block = resource.allocate(&stream, layout).unwrap();
                let calls = driver.take();
                let created = calls.iter().position(|line| line.starts_with("cuMemCreate"));
                assert_eq!(calls[created.unwrap() + 1], "# prop=1,1,1,0,0,0,256,0", "{full}");
                // SAFETY: the block is the resource's, and no work uses it.
                unsafe { resource.deallocate(&stream, block) };
            }
        }
        assert_eq!(driver.alive(), before);
    });
}
