//! Vectors where cudarc takes device memory, and cudarc's contexts, streams and slices here.

use crate::child::{Installed, StandIn, alone, value};
use aquifer::cudarc::driver::{
    CudaContext, CudaStream, DevicePtr, DevicePtrMut, LaunchArgs, PushKernelArg,
};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, PoolResource, Stream,
    container::{On, OnMut},
    mr::{
        AsyncResource, current_device_resource, reset_current_device_resource,
        set_current_device_resource,
    },
};
use std::sync::Arc;

/// A device, two of its streams and a vector at home on the first.
fn open() -> (Device, Stream, Stream, DeviceVec<u32>) {
    let device = Device::open(0).unwrap();
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&home, &[7_u32; 100]).unwrap();
    other.wait_for(&home).unwrap(); // an event to use again
    (device, home, other, vec)
}

fn cudarc(stream: &Stream) -> Arc<CudaStream> {
    stream.cuda_stream().unwrap().clone()
}

fn handle(stream: &CudaStream) -> String {
    format!("{:#x}", stream.cu_stream() as usize)
}

/// The events and what is done with them: `record` or `wait`, and on which stream.
fn events(driver: &StandIn) -> Vec<(&'static str, String)> {
    let of = |line: &String| match line.split(' ').next()? {
        "cuEventRecord" => Some(("record", value(line, "stream").to_owned())),
        "cuStreamWaitEvent" => Some(("wait", value(line, "stream").to_owned())),
        "cuCtxRecordEvent" => Some(("record context", String::new())),
        _ => None,
    };
    driver.take().iter().filter_map(of).collect()
}

#[test]
fn cudarcs_functions_on_the_home_stream_need_no_event() {
    alone(
        "interop::cudarcs_functions_on_the_home_stream_need_no_event",
        Installed::StandIn,
        &[],
        |driver| {
            let (_device, home, _other, mut vec) = open();
            let mut target = DeviceVec::<u32>::zeroed(&home, 100).unwrap();
            let stream = cudarc(&home);
            driver.take();
            stream.memcpy_dtod(&vec.cuda().unwrap(), &mut target.cuda_mut().unwrap()).unwrap();
            stream.memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
            assert_eq!(stream.clone_dtoh(&target.cuda().unwrap()).unwrap(), [7; 100]);
            let mut exact = [1_u32; 60];
            let part = target.slice(40..).unwrap().cuda().unwrap();
            stream.memcpy_dtoh(&part, &mut exact).unwrap();
            assert_eq!(exact, [7; 60]);
            stream.memcpy_htod(&[3; 100], &mut vec.cuda_mut().unwrap()).unwrap();
            let calls = driver.take();
            assert!(calls.iter().all(|line| !line.contains("Event")), "{calls:?}");
            assert_eq!(vec.to_vec().unwrap(), [3; 100]);
            assert!(format!("{:?}{:?}", part, vec.cuda_mut()).contains("CudaMut"));
        },
    );
}

#[test]
fn a_stream_that_is_known_waits_for_home_and_home_for_it() {
    alone(
        "interop::a_stream_that_is_known_waits_for_home_and_home_for_it",
        Installed::StandIn,
        &[],
        |driver| {
            let (_device, home, other, mut vec) = open();
            let (at_home, away) = (handle(&cudarc(&home)), handle(&cudarc(&other)));
            driver.take();
            cudarc(&other).memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
            assert_eq!(events(driver), [("record", at_home.clone()), ("wait", away.clone())]);
            assert_eq!(vec.to_vec().unwrap(), [0; 100]);
            assert_eq!(events(driver), [("record", away), ("wait", at_home)]);
            vec.fill(1).unwrap();
            assert_eq!(events(driver), [], "waited for once");
        },
    );
}

#[test]
fn a_stream_that_nobody_knows_is_covered_by_its_context() {
    alone(
        "interop::a_stream_that_nobody_knows_is_covered_by_its_context",
        Installed::StandIn,
        &[],
        |driver| {
            let (_device, home, _other, mut vec) = open();
            let at_home = handle(&cudarc(&home));
            let unknown = cudarc(&home).fork().unwrap();
            let foreign = handle(&unknown);
            driver.take();
            assert_eq!(unknown.clone_dtoh(&vec.cuda().unwrap()).unwrap(), [7; 100]);
            assert_eq!(events(driver), [("record", at_home.clone()), ("wait", foreign)]);
            drop(unknown);
            assert_eq!(vec.get(3).unwrap(), 7);
            assert_eq!(events(driver), [], "two reads");
            vec.fill(1).unwrap();
            let waited = [("record context", String::new()), ("wait", at_home)];
            assert_eq!(events(driver), waited, "its stream is gone, its work need not be");
        },
    );
}

#[test]
fn default_streams_are_ordered_too() {
    alone("interop::default_streams_are_ordered_too", Installed::StandIn, &[], |driver| {
        let (device, home, _other, mut vec) = open();
        let at_home = handle(&cudarc(&home));
        let context = device.cuda_context().unwrap().clone();
        for (stream, number) in
            [(context.default_stream(), "0x0"), (context.per_thread_stream(), "0x2")]
        {
            driver.take();
            stream.memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
            assert_eq!(events(driver), [("record", at_home.clone()), ("wait", number.to_owned())]);
            vec.fill(1).unwrap();
            assert_eq!(events(driver), [("record", number.to_owned()), ("wait", at_home.clone())]);
        }
        // The thread's own stream cannot be recorded from elsewhere: its context is.
        context.per_thread_stream().memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
        driver.take();
        std::thread::spawn(move || drop(vec)).join().unwrap();
        assert_eq!(events(driver), [("record context", String::new()), ("wait", at_home)]);
    });
}

#[test]
fn a_guard_may_be_forgotten_or_outlive_other_handles_on_its_stream() {
    alone(
        "interop::a_guard_may_be_forgotten_or_outlive_other_handles_on_its_stream",
        Installed::StandIn,
        &[],
        |driver| {
            let (_device, home, other, mut vec) = open();
            let (at_home, away) = (handle(&cudarc(&home)), handle(&cudarc(&other)));
            let stream = cudarc(&other);
            // The one handle of Aquifer's goes; its pending use keeps the stream.
            {
                let mut reference = vec.cuda_mut().unwrap();
                let (address, guard) = reference.device_ptr_mut(&stream);
                assert_ne!(address, 0);
                std::mem::forget(guard);
            }
            drop((other, stream));
            driver.take();
            vec.fill(1).unwrap();
            assert_eq!(events(driver), [("record", away), ("wait", at_home.clone())]);

            let last = cudarc(&home).fork().unwrap();
            let borrowed = last.clone();
            let reference = vec.cuda().unwrap();
            let (_, guard) = reference.device_ptr(&borrowed);
            drop(last);
            drop(guard);
            drop(borrowed);
            driver.take();
            vec.fill(2).unwrap();
            assert_eq!(events(driver), [("record context", String::new()), ("wait", at_home)]);
        },
    );
}

#[test]
fn a_context_that_does_not_track_events_is_ordered_all_the_same() {
    alone(
        "interop::a_context_that_does_not_track_events_is_ordered_all_the_same",
        Installed::StandIn,
        &[],
        |driver| {
            let (device, home, other, mut vec) = open();
            // SAFETY: no slice of cudarc's is used on two streams here.
            unsafe { device.cuda_context().unwrap().disable_event_tracking() };
            let (at_home, away) = (handle(&cudarc(&home)), handle(&cudarc(&other)));
            driver.take();
            cudarc(&other).memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
            assert_eq!(events(driver), [("record", at_home.clone()), ("wait", away.clone())]);
            drop(vec);
            assert_eq!(events(driver), [("record", away), ("wait", at_home)]);
        },
    );
}

#[test]
fn home_comes_after_a_user_that_is_in_a_capture() {
    let name = "interop::home_comes_after_a_user_that_is_in_a_capture";
    alone(name, Installed::StandIn, &[], |driver| {
        let (device, home, other, mut vec) = open();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let (at_home, away) = (handle(&cudarc(&home)), handle(&cudarc(&other)));
        cudarc(&other).memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
        driver.take();
        other
            .capture(&pool, |_| {
                let begun = driver.take();
                let records = begun.iter().filter(|line| line.starts_with("cuEventRecord"));
                let before: Vec<_> = records.map(|line| value(line, "event")).collect();
                cudarc(&home).memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
                let calls = driver.changes();
                let wait = calls.iter().find(|line| line.starts_with("cuStreamWaitEvent")).unwrap();
                assert_eq!(value(wait, "stream"), at_home);
                assert!(
                    before.contains(&value(wait, "event")),
                    "what that stream was given before"
                );
                assert!(!calls.iter().any(|line| line.contains(&away)), "{calls:?}");
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn what_cannot_be_ordered_in_a_capture_costs_no_graph() {
    let name = "interop::what_cannot_be_ordered_in_a_capture_costs_no_graph";
    alone(name, Installed::StandIn, &[], |driver| {
        let (device, home, _other, mut vec) = open();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let unknown = cudarc(&home).fork().unwrap();
        unknown.memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
        home.capture(&pool, |_| {
            driver.take();
            cudarc(&home).memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
            let names = driver.names();
            assert!(names.iter().all(|name| !name.contains("Synchronize")), "{names:?}");
            assert!(!names.contains(&"cuCtxRecordEvent".to_owned()), "{names:?}");
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn a_guard_for_home_comes_after_use_elsewhere() {
    let name = "interop::a_guard_for_home_comes_after_use_elsewhere";
    alone(name, Installed::StandIn, &[], |driver| {
        let (_device, home, other, mut vec) = open();
        let (at_home, away) = (handle(&cudarc(&home)), handle(&cudarc(&other)));
        cudarc(&other).memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
        driver.take();
        vec.on_mut(&home).unwrap();
        assert_eq!(events(driver), [("record", away), ("wait", at_home)]);
    });
}

#[test]
fn where_events_fail_the_host_waits() {
    alone("interop::where_events_fail_the_host_waits", Installed::StandIn, &[], |driver| {
        let (_device, home, other, mut vec) = open();
        for call in ["cuEventRecord", "cuStreamWaitEvent"] {
            driver.take();
            driver.fail(call, 1, 999);
            cudarc(&other).memset_zeros(&mut vec.cuda_mut().unwrap()).unwrap();
            let names = driver.names();
            let at = |name: &str| names.iter().position(|call| call == name);
            assert!(at("cuStreamSynchronize") < at("cuMemsetD8Async"), "{names:?}");
            assert!(at("cuStreamSynchronize").is_some(), "{names:?}");
            vec.fill(1).unwrap();
            let waits = [handle(&cudarc(&other)), handle(&cudarc(&home))];
            assert_eq!(events(driver).into_iter().map(|(_, on)| on).collect::<Vec<_>>(), waits);
        }
    });
}

#[test]
fn a_slice_of_cudarcs_is_freed_once_whoever_has_it_last() {
    alone(
        "interop::a_slice_of_cudarcs_is_freed_once_whoever_has_it_last",
        Installed::StandIn,
        &[],
        |driver| {
            let (device, home, _other, _) = open();
            set_current_device_resource(Arc::new(AsyncResource::new(&device).unwrap()));
            let vec = DeviceVec::from_slice(&home, &[7_u32; 100]).unwrap();
            let frees = |address: u64| {
                let line = format!("address={address:#x}");
                let free = |call: &&String| call.starts_with("cuMemFree") && call.contains(&line);
                driver.take().iter().filter(free).count()
            };
            let address = vec.as_device_ptr();
            let slice = vec.into_cuda_slice().unwrap();
            assert_eq!((slice.len(), frees(address)), (100, 0));
            // There and back: cudarc frees nothing, the vector does.
            let mut vec = DeviceVec::from_cuda_slice(slice).unwrap();
            assert_eq!((vec.as_device_ptr(), vec.stream() == &home), (address, true));
            assert_eq!(frees(address), 0);
            vec.reserve(1000).unwrap();
            let grown = vec.as_device_ptr();
            assert_ne!(grown, address);
            assert_eq!(frees(address), 1);
            assert_eq!(vec.to_vec().unwrap(), [7; 100]);
            drop(vec);
            assert_eq!(frees(grown), 1);

            let vec = DeviceVec::from_slice(&home, &[1_u32; 10]).unwrap();
            let address = vec.as_device_ptr();
            let slice = vec.into_cuda_slice().unwrap();
            driver.take();
            drop(slice);
            assert_eq!(frees(address), 1);

            let theirs = cudarc(&home).alloc_zeros::<u32>(50).unwrap();
            let vec = DeviceVec::from_cuda_slice(theirs).unwrap();
            let address = vec.as_device_ptr();
            driver.take();
            drop(vec);
            assert_eq!(frees(address), 1);
        },
    );
}

#[test]
fn cudarc_gets_no_memory_that_it_would_free_wrongly() {
    alone(
        "interop::cudarc_gets_no_memory_that_it_would_free_wrongly",
        Installed::StandIn,
        &[],
        |driver| {
            let (device, home, other, pooled) = open();
            let plain = Arc::new(CudaResource::new(&device));
            let ordered = Arc::new(AsyncResource::new(&device).unwrap());
            let mut vec = DeviceVec::from_slice_in(&home, &[7_u32; 100], ordered).unwrap();
            let refused = pooled.into_cuda_slice().unwrap_err();
            assert!(refused.error.to_string().contains("AsyncResource"), "{}", refused.error);
            assert_eq!(refused.value.to_vec().unwrap(), [7; 100], "a part of the pool's block");
            let simulated = Device::simulated(SimConfig::default()).new_stream().unwrap();
            for wrong in [
                DeviceVec::<u8>::zeroed_in(&home, 10, plain).unwrap(),
                DeviceVec::<u8>::new(&home).unwrap(),
                DeviceVec::<u8>::zeroed(&simulated, 10).unwrap(),
            ] {
                let length = wrong.len();
                let refused = wrong.into_cuda_slice().unwrap_err();
                let (error, back) = (refused.error, refused.value);
                assert_eq!((error.kind(), back.len()), (ErrorKind::Unsupported, length));
            }
            let mut simulated = DeviceVec::<u8>::zeroed(&simulated, 10).unwrap();
            assert_eq!(simulated.cuda().map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
            assert_eq!(simulated.cuda_mut().map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
            // A pending use is waited for before cudarc, which knows none, gets the memory.
            std::mem::forget(vec.on_mut(&other).unwrap());
            driver.take();
            driver.fail("cuEventCreate", 1, 2);
            let refused = vec.into_cuda_slice().unwrap_err();
            let (error, vec) = (refused.error, refused.value);
            assert_eq!(error.driver().unwrap().call(), "cuEventCreate");
            driver.take();
            drop(vec.into_cuda_slice().unwrap());
            let waited = [handle(&cudarc(&other)), handle(&cudarc(&home))];
            assert_eq!(
                events(driver).into_iter().map(|(_, on)| on).take(2).collect::<Vec<_>>(),
                waited
            );
        },
    );
}

#[test]
fn one_stream_of_cudarcs_is_one_stream_here() {
    alone("interop::one_stream_of_cudarcs_is_one_stream_here", Installed::StandIn, &[], |driver| {
        let context = CudaContext::new(0).unwrap();
        let device = Device::from_cudarc(&context).unwrap();
        assert_eq!(device, Device::from_cudarc(&context).unwrap());
        assert_eq!(device, Device::open(0).unwrap(), "one context, one device");
        assert!(Arc::ptr_eq(device.cuda_context().unwrap(), &context));

        let theirs = context.new_stream().unwrap();
        let stream = Stream::from_cudarc(&theirs).unwrap();
        assert_eq!(stream, Stream::from_cudarc(&theirs.clone()).unwrap());
        assert_eq!(handle(stream.cuda_stream().unwrap()), handle(&theirs));
        let ours = device.new_stream().unwrap();
        assert_ne!(stream, ours);
        assert_eq!(ours, Stream::from_cudarc(&cudarc(&ours)).unwrap());

        let legacy = Stream::from_cudarc(&context.default_stream()).unwrap();
        assert_eq!(legacy, device.default_stream());
        // SAFETY: the legacy stream's other name, which lives as long as the context.
        let alias = unsafe { context.wrap_borrowed_stream(1 as _) };
        assert_eq!(legacy, Stream::from_cudarc(&alias).unwrap());
        let refused = Stream::from_cudarc(&context.per_thread_stream()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);

        // Ours lives while either handle does.
        let before = driver.alive();
        drop(theirs);
        assert_eq!(driver.alive(), before);
        let id = stream.id();
        let vec = DeviceVec::<u8>::zeroed(&stream, 10).unwrap();
        drop(stream);
        assert_eq!(vec.stream().id(), id);
        drop(vec);
        let destroyed = || driver.names().contains(&"cuStreamDestroy_v2".to_owned());
        assert!(!destroyed(), "the pool may still have to order what the stream freed");
        let successor = DeviceVec::<u8>::zeroed(&ours, 10).unwrap();
        assert!(destroyed(), "until another stream comes");
        drop(successor);
        let ordered: Arc<dyn DeviceResource> = Arc::new(AsyncResource::new(&device).unwrap());
        set_current_device_resource(ordered.clone());
        let stream = device.new_stream().unwrap();
        let vec = DeviceVec::<u8>::zeroed(&stream, 10).unwrap();
        drop((vec, stream));
        assert!(destroyed(), "no pool of ours holds it");
        let refused =
            DeviceVec::from_cuda_slice(context.per_thread_stream().alloc_zeros::<u32>(5).unwrap());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        reset_current_device_resource(&device);
        let pool = current_device_resource(&device).unwrap();
        assert!(!pool.frees_with_driver(&aquifer::DeviceBlock::new(0x100, 4, 0x100)));
        let resource = ordered;
        assert!(resource.frees_with_driver(&aquifer::DeviceBlock::new(0x100, 4, 0x100)));
        assert!(!resource.frees_with_driver(&aquifer::DeviceBlock::new(0x200, 4, 0x100)), "inside");
        drop(AsyncResource::new(&device).unwrap());
    });
}

/// That guards are arguments of cudarc's launch builder, for longer than one launch, is a matter of
/// types; `tests/it/cudarc_on_gpu.rs` launches.
#[allow(dead_code, reason = "compiled, not run")]
fn guards_are_kernel_arguments<'a, 'b: 'a, 'c: 'b>(
    launch: &mut LaunchArgs<'a>,
    input: &'b On<'c, f32, Stream>,
    output: &'b mut OnMut<'c, f32, Stream>,
) {
    launch.arg(input).arg(output);
}
