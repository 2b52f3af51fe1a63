//! The public API against libraries that stand in for the driver: which calls it makes, in which
//! order, with which context current, and what becomes of failures.

#![cfg(all(target_os = "linux", feature = "cuda"))]
#![allow(clippy::forget_non_drop, reason = "a guard without a drop may get one")]

mod capture;
mod child;
mod containers;
mod contexts;
mod driver_resources;
mod failures;
mod graphs;
mod interop;
mod ipc;
mod kernels;
mod lend;
#[path = "../support/log.rs"]
mod log;
mod page_locked;
mod sleep;

use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, HostArgs, Kernel, LaunchConfig,
    mr::{AsyncResource, current_device_resource, set_current_device_resource},
    pinned::PinnedResource,
};
use child::{Installed, alone, is_in, value};
use std::sync::Arc;

const FIRST: u64 = 0x1000;
const SECOND: u64 = 0x2000;

static NOTHING: Kernel = Kernel::new(
    "nothing",
    ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry nothing(.param .u64 data) { ret; }",
    |_: &LaunchConfig, _: HostArgs<'_>| Ok(()),
);

fn pinned(device: &Device, bytes: usize) -> AllocVec<u8, PinnedResource> {
    let mut vec = AllocVec::new_in(PinnedResource::new(device).unwrap());
    vec.resize(bytes, 7);
    vec
}

#[test]
fn a_vector_on_one_stream_makes_no_event_call() {
    let name = "a_vector_on_one_stream_makes_no_event_call";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let pool = current_device_resource(&device).unwrap();
        let ordered: Arc<dyn DeviceResource> = Arc::new(AsyncResource::new(&device).unwrap());
        // Calls that give and take memory: one of the pool's for all blocks, one each for theirs.
        for (resource, memory) in [
            (pool, [("cuMemAlloc_v2", 1), ("cuMemFree_v2", 0), ("cuMemFreeAsync", 0)]),
            (ordered, [("cuMemAllocFromPoolAsync", 4), ("cuMemFree_v2", 0), ("cuMemFreeAsync", 4)]),
        ] {
            driver.take();
            let mut vec = DeviceVec::<u32>::zeroed_in(&stream, 100, resource).unwrap();
            vec.fill(3).unwrap();
            vec.copy_from_slice(&[4; 100]).unwrap();
            let launch = stream.launch(&NOTHING).in_out(&mut vec).unwrap();
            // SAFETY: the kernel touches nothing.
            unsafe { launch.launch(LaunchConfig::for_elements(1)).unwrap() };
            assert_eq!(vec.get(99).unwrap(), 4);
            vec.resize(5000, 9).unwrap();
            vec.reserve_exact(2000).unwrap();
            vec.push(1).unwrap();
            let clone = vec.try_clone().unwrap();
            assert_eq!(clone.to_vec().unwrap()[4999..], [9, 1]);
            stream.scope(|s| s.upload(&[1; 5001], &mut vec)).unwrap();
            let at_home = vec.on_mut(&stream).unwrap();
            assert_eq!(at_home.len(), 5001);
            vec.set_stream(&stream).unwrap();
            drop((vec, clone));
            let names = driver.names();
            let count = |wanted: &str| names.iter().filter(|name| *name == wanted).count();
            assert!(!names.iter().any(|name| name.contains("Event")), "{names:?}");
            for call in ["cuLaunchKernel", "cuMemsetD32Async", "cuMemcpyDtoDAsync_v2"] {
                assert!(count(call) > 0, "{call}: {names:?}");
            }
            assert_eq!(memory.map(|(call, _)| (call, count(call))), memory, "{names:?}");
        }
    });
}

#[test]
fn a_warm_transfer_is_a_copy_and_a_record() {
    let name = "a_warm_transfer_is_a_copy_and_a_record";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        driver.stand_on(FIRST);
        let ordered = Arc::new(AsyncResource::new(&device).unwrap());
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 4096, ordered).unwrap();
        let (host, vec) = stream.upload(pinned(&device, 4096), vec).unwrap().wait().unwrap();
        driver.take();
        let upload = stream.upload(host, vec).unwrap();
        let calls = driver.take();
        let bare: Vec<_> = calls.iter().filter(|line| !line.starts_with("cuCtxGet")).collect();
        assert_eq!(bare.len(), 2, "{calls:?}");
        assert!(bare[0].starts_with("cuMemcpyHtoDAsync_v2 ctx=0x1000"));
        assert!(bare[1].starts_with("cuEventRecord ctx=0x1000"));
        assert_eq!(value(bare[0], "bytes"), "4096");
        assert_eq!(value(bare[0], "stream"), value(bare[1], "stream"));
        assert!(calls.len() <= 4, "one look a call at most: {calls:?}");
        let (host, vec) = upload.wait().unwrap();
        assert_eq!(driver.names(), ["cuEventSynchronize"]);
        // cudarc may begin a capture on a stream whose handle it has.
        assert!(stream.cuda_stream().is_ok());
        drop(stream.download(vec, host).unwrap());
        let names = driver.names();
        assert_eq!(names, ["cuStreamIsCapturing", "cuMemcpyDtoHAsync_v2", "cuEventRecord"]);
        stream.synchronize().unwrap();
        let names = driver.names();
        assert!(names.contains(&"cuMemFreeAsync".to_owned()), "the buffers are freed: {names:?}");
    });
}

#[test]
fn use_on_another_stream_is_one_wait_each_way() {
    let name = "use_on_another_stream_is_one_wait_each_way";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let ordered = Arc::new(AsyncResource::new(&device).unwrap());
        let mut vec = DeviceVec::<u32>::zeroed_in(&home, 100, ordered.clone()).unwrap();
        driver.take();
        other.wait_for(&home).unwrap(); // an event to use again
        let calls = driver.changes();
        let stream_of = |call: &str| {
            value(calls.iter().find(|line| line.starts_with(call)).unwrap(), "stream").to_owned()
        };
        let (at_home, away) = (stream_of("cuEventRecord"), stream_of("cuStreamWaitEvent"));
        let shape = |lines: Vec<String>| -> Vec<String> {
            let on = |line: &String| if line.contains(&at_home) { "home" } else { "away" };
            let name = |line: &String| line.split(' ').next().unwrap().to_owned();
            lines.iter().map(|line| format!("{} {}", name(line), on(line))).collect()
        };

        std::mem::forget(vec.on_mut(&other).unwrap());
        assert_eq!(shape(driver.changes()), ["cuEventRecord home", "cuStreamWaitEvent away"]);
        vec.fill(1).unwrap();
        let waited = ["cuEventRecord away", "cuStreamWaitEvent home"];
        assert_eq!(shape(driver.changes())[..2], waited);
        vec.fill(2).unwrap();
        assert_eq!(shape(driver.changes()), ["cuMemsetD32Async home"], "waited for once");

        // Two reads owe nothing to each other; the next write waits for both.
        let third = device.new_stream().unwrap();
        let _two = (vec.on(&other).unwrap(), vec.on(&third).unwrap());
        driver.take();
        assert_eq!(vec.get(0).unwrap(), 2);
        assert!(driver.names().iter().all(|name| !name.contains("Event")));
        vec.copy_from_slice(&[5; 100]).unwrap();
        let names = driver.names();
        assert_eq!(names.iter().filter(|name| *name == "cuStreamWaitEvent").count(), 2);

        // A new home is ordered after the old one.
        vec.set_stream(&other).unwrap();
        assert_eq!(shape(driver.changes()), ["cuEventRecord home", "cuStreamWaitEvent away"]);
        vec.fill(3).unwrap();
        let lines = driver.changes();
        assert_eq!(value(lines.last().unwrap(), "stream"), away);
        drop(vec);
        assert_eq!(shape(driver.changes()), ["cuMemFreeAsync away"]);
    });
}

#[test]
fn the_callers_context_is_current_again_after_every_call() {
    let name = "the_callers_context_is_current_again_after_every_call";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        for before in [0, SECOND] {
            if before != 0 {
                driver.stand_on(before);
            }
            let same = |what: &str| assert_eq!(driver.now(), before, "{what}");
            let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            same("new_stream");
            let mut vec = DeviceVec::<u8>::zeroed(&stream, 500).unwrap();
            same("zeroed");
            vec.copy_from_slice(&[1; 500]).unwrap();
            same("copy_from_slice");
            let launch = other.launch(&NOTHING).in_out(&mut vec).unwrap();
            // SAFETY: the kernel touches nothing.
            unsafe { launch.launch(LaunchConfig::for_elements(1)).unwrap() };
            same("launch");
            assert_eq!(vec.to_vec().unwrap(), [1; 500]);
            same("to_vec");
            let upload = other.upload(pinned(&device, 500), vec).unwrap();
            same("upload");
            let (host, mut vec) = upload.wait().unwrap();
            same("wait");
            other.scope(|s| s.upload(&host[..], &mut vec)).unwrap();
            same("scope");
            device.memory_info().unwrap();
            device.synchronize().unwrap();
            assert!(
                !stream.is_capturing().unwrap() && stream.record().unwrap().is_complete().unwrap()
            );
            same("questions");
            let clone = vec.cuda_mut().map(drop).and_then(|()| vec.try_clone()).unwrap();
            drop(vec);
            same("dropping a vector");
            drop((stream, other));
            same("dropping streams");
            std::thread::scope(|threads| {
                threads.spawn(move || {
                    drop((clone, host));
                    assert_eq!(driver_now(), 0, "dropped on a thread without a context");
                });
            });
            PinnedResource::new(&device).unwrap().trim().unwrap();
            same("trim");
        }
        let calls = driver.take().into_iter();
        let failed = calls.filter(|line| line.contains(" ctx=0x0 ") && !is_in(line, FIRST));
        let needing = |line: &String| {
            ["cuMem", "cuStream", "cuLaunch", "cuModule"].iter().any(|name| line.starts_with(name))
        };
        assert_eq!(failed.filter(needing).collect::<Vec<_>>(), [""; 0]);
    });
}

/// The calling thread's context, from a thread that cannot borrow the handle.
fn driver_now() -> u64 {
    use aquifer::cudarc::driver::result::ctx;
    ctx::get_current().unwrap().map_or(0, |context| context as usize as u64)
}

#[test]
fn each_of_two_devices_is_called_in_its_own_context() {
    let name = "each_of_two_devices_is_called_in_its_own_context";
    alone(name, Installed::StandIn, &[], |driver| {
        let (one, two) = (Device::open(0).unwrap(), Device::open(1).unwrap());
        assert_ne!(one, two);
        let (a, b) = (one.new_stream().unwrap(), two.new_stream().unwrap());
        for device in [&one, &two] {
            set_current_device_resource(Arc::new(AsyncResource::new(device).unwrap()));
        }
        driver.take();
        let source = DeviceVec::from_slice(&a, &[3_u32; 50]).unwrap();
        let calls = driver.changes();
        assert!(calls.iter().all(|line| is_in(line, FIRST)), "{calls:?}");
        let at_first = value(calls.last().unwrap(), "stream").to_owned();
        let mut target = DeviceVec::<u32>::zeroed(&b, 50).unwrap();
        let calls = driver.changes();
        assert!(calls.iter().all(|line| is_in(line, SECOND)), "{calls:?}");
        target.copy_from(&source).unwrap();
        let calls = driver.changes();
        let copy = calls.last().unwrap();
        assert!(copy.starts_with("cuMemcpyPeerAsync ctx=0x2000"), "{calls:?}");
        assert_eq!((value(copy, "to"), value(copy, "from")), ("0x2000", "0x1000"));
        let records = calls.iter().filter(|line| line.starts_with("cuEventRecord "));
        assert!(records.map(|line| value(line, "stream")).any(|stream| stream == at_first));
        drop(source);
        let calls = driver.changes();
        let at = |name: &str, here: bool| {
            let on = |line: &String| (value(line, "stream") == at_first) == here;
            calls.iter().position(|line| line.starts_with(name) && on(line)).unwrap()
        };
        let wait = at("cuStreamWaitEvent ", true);
        assert!(at("cuEventRecord ", false) < wait, "{calls:?}");
        assert!(wait < at("cuMemFreeAsync ", true));
        assert_eq!(target.to_vec().unwrap(), [3; 50]);
        let refused = target.on(&a).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WrongDevice);
    });
}

#[test]
fn a_copy_between_a_gpu_and_a_simulated_device_leaves_no_pending_use() {
    let name = "a_copy_between_a_gpu_and_a_simulated_device_leaves_no_pending_use";
    alone(name, Installed::StandIn, &[], |driver| {
        let (gpu, simulated) = (Device::open(0).unwrap(), Device::simulated(SimConfig::default()));
        let (a, b) = (gpu.new_stream().unwrap(), simulated.new_stream().unwrap());
        set_current_device_resource(Arc::new(AsyncResource::new(&gpu).unwrap()));
        let mut one = DeviceVec::from_slice(&a, &[1_u32; 10]).unwrap();
        let mut two = DeviceVec::from_slice(&b, &[2_u32; 10]).unwrap();
        assert_eq!(one.copy_from(&two).unwrap_err().kind(), ErrorKind::WrongDevice);
        assert_eq!(two.copy_from(&one).unwrap_err().kind(), ErrorKind::WrongDevice);
        driver.take();
        one.fill(3).unwrap();
        assert_eq!(driver.names(), ["cuMemsetD32Async"]);
        two.fill(4).unwrap();
        assert_eq!((one.get(9).unwrap(), two.get(9).unwrap()), (3, 4));
        drop((one, two));
        assert_eq!(driver.names().last().unwrap(), "cuMemFreeAsync");
        assert_eq!(simulated.simulator().unwrap().live_bytes(), 0);
    });
}

#[test]
fn a_vector_may_be_the_last_to_go() {
    let name = "a_vector_may_be_the_last_to_go";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let resource = Arc::new(AsyncResource::new(&device).unwrap());
        let stream = device.new_stream().unwrap();
        let plain = Arc::new(CudaResource::new(&device));
        let before = driver.alive();
        let one = DeviceVec::<u8>::zeroed_in(&stream, 100, resource).unwrap();
        let two = DeviceVec::<u8>::zeroed_in(&stream, 100, plain).unwrap();
        assert_eq!(driver.alive(), before + 2);
        drop(stream);
        drop(device);
        driver.take();
        drop(one);
        let names = driver.names();
        assert_eq!(names, ["cuMemFreeAsync", "cuMemPoolDestroy"]);
        drop(two);
        let names = driver.names();
        assert_eq!(names.last().unwrap(), "cuStreamDestroy_v2", "{names:?}");
        assert!(names.contains(&"cuMemFree_v2".to_owned()), "{names:?}");
        assert_eq!(driver.alive(), before - 2, "the pool and the stream went with them");
    });
}

#[test]
fn an_async_resource_has_a_pool_of_its_own() {
    let name = "an_async_resource_has_a_pool_of_its_own";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        driver.take();
        let resource = AsyncResource::with_release_threshold(&device, 12345).unwrap();
        let calls = driver.take();
        assert!(calls.iter().any(|line| line == "# value=12345"), "{calls:?}");
        let set = calls.iter().find(|line| line.starts_with("cuMemPoolSetAttribute")).unwrap();
        assert_eq!(value(set, "attribute"), "4");
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, Arc::new(resource)).unwrap();
        let calls = driver.changes();
        assert!(calls[0].starts_with("cuMemAllocFromPoolAsync"), "{calls:?}");
        assert_eq!(value(&calls[0], "pool"), value(set, "pool"));
        drop(vec);
        let log = std::fs::read_to_string(std::env::var("STAND_IN_LOG").unwrap()).unwrap();
        assert!(!log.contains("DefaultMemPool") && !log.contains("cuDeviceSetMemPool"));
    });
}
