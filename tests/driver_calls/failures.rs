//! Failing calls, and drivers that are not there, have no device, or lack a function.

use crate::child::{Installed, StandIn, alone, run};
use crate::{NOTHING, pinned};
use allocator_api2::alloc::Allocator as _;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    CudaResource, Device, DeviceVec, Error, ErrorKind, LaunchConfig, PoolResource, Result,
    device::BackendKind,
    mr::{AsyncResource, VirtualResource},
    pinned::PinnedResource,
};
use std::alloc::Layout;
use std::error::Error as _;
use std::sync::Arc;
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;

/// Every way to look at an error works without a driver.
fn print(error: &Error) -> String {
    let source = error.source().map(|source| format!("{source} {source:?}"));
    format!("{error} | {error:?} | {:?} | {source:?}", error.driver())
}

#[test]
fn failing_calls_are_typed_errors_with_name_and_number() {
    let name = "failures::failing_calls_are_typed_errors_with_name_and_number";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        assert!(stream.cuda_stream().is_ok(), "cudarc may begin a capture on it: it is asked");
        let mut vec = DeviceVec::<u8>::zeroed(&stream, 64).unwrap();
        let ordered = Arc::new(AsyncResource::new(&device).unwrap());
        let pool = Arc::new(PoolResource::new(CudaResource::new(&device)).unwrap());
        drop(DeviceVec::<u8>::zeroed_in(&stream, 9, pool.clone()).unwrap());
        let launch = |vec: &mut DeviceVec<u8>| {
            // SAFETY: the kernel touches nothing.
            unsafe { stream.launch(&NOTHING).in_out(vec)?.launch(LaunchConfig::for_elements(1)) }
        };
        type Call<'a> = &'a dyn Fn(&mut DeviceVec<u8>) -> Result<()>;
        let failing: &[(&str, Call<'_>)] = &[
            ("cuMemAllocFromPoolAsync", &|_| {
                DeviceVec::<u8>::zeroed_in(&stream, 9, ordered.clone()).map(drop)
            }),
            ("cuMemAlloc_v2", &|_| {
                let plain = Arc::new(CudaResource::new(&device));
                DeviceVec::<u8>::zeroed_in(&stream, 9, plain).map(drop)
            }),
            ("cuStreamIsCapturing", &|_| {
                DeviceVec::<u8>::zeroed_in(&stream, 4 << 20, pool.clone()).map(drop)
            }),
            ("cuMemsetD8Async", &|vec| vec.fill(1)),
            ("cuMemcpyHtoDAsync_v2", &|vec| vec.set(0, 1)),
            ("cuMemcpyDtoHAsync_v2", &|vec| vec.get(0).map(drop)),
            ("cuMemcpyDtoDAsync_v2", &|vec| vec.try_clone().map(drop)),
            ("cuStreamSynchronize", &|vec| vec.set(0, 1)),
            ("cuStreamIsCapturing", &|vec| vec.get(0).map(drop)),
            ("cuEventRecord", &|vec| vec.on(&other).map(drop)),
            ("cuStreamWaitEvent", &|vec| vec.on(&other).map(drop)),
            ("cuStreamCreate", &|_| device.new_stream().map(drop)),
            ("cuMemGetInfo_v2", &|_| device.memory_info().map(drop)),
            ("cuEventSynchronize", &|_| device.synchronize()),
            ("cuMemHostAlloc", &|vec| {
                vec.to_vec_in(PinnedResource::new(&device)?).map(drop).map_err(|error| {
                    assert!(error.to_string().contains("cuMemHostAlloc"), "{error}");
                    aquifer::pinned::last_error().unwrap()
                })
            }),
            ("cuModuleLoadDataEx", &launch),
            ("cuLaunchKernel", &launch),
        ];
        for (call, body) in failing {
            for (code, kind) in [(2, ErrorKind::OutOfMemory), (999, ErrorKind::Driver)] {
                driver.fail(call, 1, code);
                let error = body(&mut vec).unwrap_err();
                let failed = error.driver().unwrap();
                assert_eq!((failed.call(), failed.code()), (*call, code), "{}", print(&error));
                assert_eq!(error.kind(), kind, "{}", print(&error));
                assert_eq!(driver.now(), 0);
            }
            body(&mut vec).unwrap_or_else(|error| panic!("{call} works again: {error}"));
        }
    });
}

#[test]
fn a_transfer_whose_end_nobody_can_know_gives_up_what_the_device_may_write() {
    let name = "failures::a_transfer_whose_end_nobody_can_know_gives_up_what_the_device_may_write";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        // What is only read comes back where the context is dead: nobody will see what was read.
        for (down, code, comes_back) in
            [(true, 719, false), (false, 719, true), (false, 999, false)]
        {
            let vec = DeviceVec::<u8>::zeroed(&stream, 64).unwrap();
            let host = pinned(&device, 64);
            driver.fail("cuEventRecord", 1, code);
            driver.fail("cuStreamSynchronize", 1, code);
            let begun = if down { stream.download(vec, host) } else { stream.upload(host, vec) };
            let failed = begun.unwrap_err();
            assert_eq!(failed.error.driver().unwrap().call(), "cuEventRecord");
            assert_eq!(failed.buffers.is_some(), comes_back, "{down} {code}");
        }
        let vec = DeviceVec::<u8>::zeroed(&stream, 64).unwrap();
        let download = stream.download(vec, pinned(&device, 64)).unwrap();
        driver.fail("cuEventSynchronize", 1, 719);
        let failed = download.wait().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::ContextLost);
        assert!(failed.buffers.is_none() && format!("{failed:#?}").contains("gives_back: false"));
    });
}

#[test]
fn a_scope_aborts_where_the_device_may_still_write() {
    let name = "failures::a_scope_aborts_where_the_device_may_still_write";
    for down in ["yes", "no"] {
        let ended = run(name, Installed::StandIn, &[("DOWN", down)], abort_or_not);
        let Some((output, calls)) = ended else { return };
        let err = String::from_utf8_lossy(&output.stderr);
        if down == "yes" {
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(output.status.signal(), Some(6), "{err}\n{calls}");
            assert!(err.contains("aquifer: aborting"), "{err}");
        } else {
            assert!(output.status.success(), "{err}\n{calls}");
        }
    }
}

fn abort_or_not(driver: &StandIn) {
    let device = Device::open(0).unwrap();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u8>::zeroed(&stream, 64).unwrap();
    let (mut pageable, mut locked) = ([0; 64], pinned(&device, 64));
    // A download that was refused is none that is pending.
    driver.fail("cuMemcpyDtoHAsync_v2", 1, 999);
    driver.fail("cuStreamSynchronize", 1, 999);
    stream.scope(|s| s.download(&vec, &mut locked)).unwrap_err();
    // The driver has written pageable memory when the call returns, and reads harm nobody.
    driver.fail("cuStreamSynchronize", 1, 719);
    stream.scope(|s| s.download(&vec, &mut pageable)).unwrap_err();
    driver.fail("cuStreamSynchronize", 1, 719);
    stream.scope(|s| s.upload(&locked, &mut vec)).unwrap_err();
    if std::env::var("DOWN").unwrap() == "yes" {
        driver.fail("cuStreamSynchronize", 1, 719);
        let _ = stream.scope(|s| s.download(&vec, &mut locked));
    }
}

#[test]
fn without_a_driver_there_is_an_error_or_a_simulated_device() {
    let name = "failures::without_a_driver_there_is_an_error_or_a_simulated_device";
    alone(name, Installed::Nothing, &[], |_| {
        let error = match Device::open(0) {
            Ok(_) => return println!("a driver is installed on this machine"),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::NoDriver, "{}", print(&error));
        assert_eq!(Device::count().unwrap_err().kind(), ErrorKind::NoDriver);
        let error = Device::detect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoDriver, "{}", print(&error));
        assert_eq!(Device::detect_all().unwrap_err().kind(), ErrorKind::NoDriver);
        let device = Device::detect_or_simulate().unwrap();
        assert_eq!(device.kind(), BackendKind::Simulated);
        assert!(format!("{device} {device:?}").contains("simulated"));
        // Nothing is simulated for a program that did not ask for it.
        assert_eq!(Device::detect().unwrap_err().kind(), ErrorKind::NoDriver);
        assert_eq!(Device::detect_all_or_simulate().unwrap().len(), 2);
        // Asked for later, it is the one that the process has.
        // SAFETY: no other thread of this process uses the environment.
        unsafe { std::env::set_var("AQUIFER_BACKEND", "sim") };
        assert_eq!(Device::detect().unwrap(), device);
        assert_eq!(Device::detect_or_simulate().unwrap(), device);
        drop(DeviceVec::<u8>::zeroed(&device.new_stream().unwrap(), 5).unwrap());
    });
}

#[test]
fn without_a_device_there_is_an_error_or_a_simulated_device() {
    let name = "failures::without_a_device_there_is_an_error_or_a_simulated_device";
    alone(name, Installed::StandIn, &[("STAND_IN_DEVICES", "0")], |_| {
        let error = Device::open(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoDevice, "{}", print(&error));
        assert_eq!(Device::count().unwrap(), 0);
        assert_eq!(Device::detect().unwrap_err().kind(), ErrorKind::NoDevice);
        assert_eq!(Device::detect_or_simulate().unwrap().kind(), BackendKind::Simulated);
    });
}

/// A GPU that is full, or not there yet, is looked for again.
#[test]
fn page_locked_memory_asks_again_for_a_gpu_that_was_not_ready() {
    let name = "failures::page_locked_memory_asks_again_for_a_gpu_that_was_not_ready";
    alone(name, Installed::StandIn, &[], |driver| {
        let reserve = || {
            let mut vec = AllocVec::<u8, _>::new_in(aquifer::PinnedAlloc);
            vec.try_reserve(100).map_err(|_| aquifer::pinned::last_error().unwrap().kind())
        };
        driver.fail("cuDevicePrimaryCtxRetain", 1, 2);
        assert_eq!(reserve(), Err(ErrorKind::OutOfMemory));
        driver.fail("cuDeviceGetCount", 1, 100);
        assert_eq!(reserve(), Ok(()), "ordinary memory, while there is no GPU");
        assert_eq!(
            aquifer::pinned::current_pinned_resource().unwrap_err().kind(),
            ErrorKind::NoDevice
        );
        let device = Device::open(0).unwrap();
        let current = aquifer::pinned::current_pinned_resource().unwrap();
        assert_eq!(aquifer::DeviceResource::device(&current), &device);
    });
}

#[test]
fn page_locked_memory_without_a_gpu_is_ordinary_memory() {
    let name = "failures::page_locked_memory_without_a_gpu_is_ordinary_memory";
    alone(name, Installed::StandIn, &[("STAND_IN_DEVICES", "0")], |_| {
        let log = crate::log::Log::default();
        let subscriber = tracing_subscriber::registry().with(log.clone());
        tracing::subscriber::set_global_default(subscriber).unwrap();
        let mut vec: AllocVec<u64, aquifer::PinnedAlloc> = AllocVec::new_in(aquifer::PinnedAlloc);
        for n in 0..10_000 {
            vec.push(n);
        }
        vec.truncate(10);
        vec.shrink_to_fit();
        assert_eq!(vec[..], (0..10).collect::<Vec<u64>>());
        let aligned = Layout::from_size_align(100, 4096).unwrap();
        let block = aquifer::PinnedAlloc.allocate_zeroed(aligned).unwrap();
        assert!(block.cast::<u8>().addr().get().is_multiple_of(4096));
        // SAFETY: a block of this allocator, zeroed, given back once.
        unsafe {
            assert!(block.as_ref().iter().all(|byte| *byte == 0));
            aquifer::PinnedAlloc.deallocate(block.cast(), aligned);
        }
        assert_eq!(
            aquifer::pinned::current_pinned_resource().unwrap_err().kind(),
            ErrorKind::NoDevice
        );
        // From here on it is the simulated device's; what was there before stays, and goes back to where it came from.
        let device = Device::detect_or_simulate().unwrap();
        let stream = device.new_stream().unwrap();
        let (vec, on_device) = stream.upload_new(vec).unwrap().wait().unwrap();
        assert_eq!(on_device.to_vec().unwrap(), vec[..]);
        let locked = AllocVec::<u8, _>::with_capacity_in(5, aquifer::PinnedAlloc);
        assert!(
            device
                .simulator()
                .unwrap()
                .calls()
                .iter()
                .any(|call| call.0.starts_with("cuMemHostAlloc") && call.1 > 0)
        );
        drop((vec, locked));
        assert_eq!(
            log.count(Level::WARN, "PinnedAlloc uses ordinary memory"),
            1,
            "{:?}",
            log.lines()
        );
        assert_eq!(log.count(Level::ERROR, ""), 0, "all went back: {:?}", log.lines());
    });
}

#[test]
fn a_backend_that_was_asked_for_and_is_not_there_is_an_error() {
    let name = "failures::a_backend_that_was_asked_for_and_is_not_there_is_an_error";
    let asked = [("AQUIFER_BACKEND", "cuda"), ("STAND_IN_DEVICES", "0")];
    alone(name, Installed::StandIn, &asked, |_| {
        let error = Device::detect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoDevice, "{}", print(&error));
        assert_eq!(Device::detect_or_simulate().unwrap_err().kind(), ErrorKind::NoDevice);
        let mut vec: AllocVec<u8, aquifer::PinnedAlloc> = AllocVec::new_in(aquifer::PinnedAlloc);
        assert!(vec.try_reserve(10).is_err());
        assert_eq!(aquifer::pinned::last_error().unwrap().kind(), ErrorKind::NoDevice);
    });
}

#[test]
fn a_driver_that_lacks_a_function_is_an_error_everywhere() {
    let name = "failures::a_driver_that_lacks_a_function_is_an_error_everywhere";
    alone(name, Installed::Old, &[], |_| {
        for error in [
            Device::open(0).unwrap_err(),
            Device::count().unwrap_err(),
            Device::detect().unwrap_err(),
            Device::detect_or_simulate().unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::MissingSymbol, "{}", print(&error));
            assert!(error.to_string().contains("cuGetErrorName"), "{error}");
        }
    });
}

#[test]
fn a_driver_that_is_gone_lets_everything_drop() {
    let name = "failures::a_driver_that_is_gone_lets_everything_drop";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let vec = DeviceVec::<u8>::zeroed(&stream, 64).unwrap();
        let transfer = stream.upload(pinned(&device, 64), vec).unwrap();
        let other = DeviceVec::<u8>::zeroed(&stream, 64).unwrap();
        for call in ["cuMemFreeAsync", "cuEventQuery", "cuEventSynchronize", "cuStreamSynchronize"]
        {
            driver.fail(call, 1, 4);
        }
        assert!(format!("{transfer:?} {other:?} {stream:?} {device:?}").contains("DeviceVec"));
        drop(other);
        drop(transfer);
        assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::ContextLost);
        drop((stream, device));
    });
}

/// As after a reset: no call reaches the device, so nothing is unmapped that its work might use.
#[test]
fn mapped_memory_of_a_context_that_was_reset_is_left_alone() {
    let name = "failures::mapped_memory_of_a_context_that_was_reset_is_left_alone";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let mapped = VirtualResource::new(&device).unwrap();
        let pool = PoolResource::new(mapped.clone()).unwrap();
        let vecs = [
            DeviceVec::<u8>::zeroed_in(&stream, 9 << 20, pool.clone()).unwrap(),
            DeviceVec::<u8>::zeroed_in(&stream, 9 << 20, mapped).unwrap(),
        ];
        drop(DeviceVec::<u8>::zeroed_in(&stream, 40 << 20, pool.clone()).unwrap());
        driver.take();
        driver.fail("cuCtxPushCurrent_v2", 0, 201);
        assert!(DeviceVec::<u8>::zeroed_in(&stream, 1 << 30, pool.clone()).is_err());
        drop((vecs, pool, stream, device));
        let names = driver.names();
        assert!(!names.iter().any(|name| name.starts_with("cuMem")), "{names:?}");
    });
}
