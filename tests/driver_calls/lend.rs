//! Slices of cudarc that are lent, and kernels behind functions, with what the driver is asked.

use super::*;
use aquifer::container::BorrowedVec;
use aquifer::cudarc::driver::CudaContext;
use aquifer::cudarc::driver::sys::{
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED, cuMemsetD32Async,
};
use aquifer::interop;
use std::time::Duration;

static FILL: Kernel = Kernel::from_function("fill", |_, _: HostArgs<'_>| Ok(()));

#[test]
fn a_loan_that_stays_on_its_stream_asks_the_driver_for_nothing() {
    let name = "lend::a_loan_that_stays_on_its_stream_asks_the_driver_for_nothing";
    alone(name, Installed::StandIn, &[], |driver| {
        let context = CudaContext::new(0).unwrap();
        let device = Device::from_cudarc(&context).unwrap();
        let theirs = context.new_stream().unwrap();
        let ours = device.new_stream().unwrap();
        let mut slice = theirs.clone_htod(&[1_u32, 2, 3, 4]).unwrap();
        let of_events = |driver: &child::StandIn| -> Vec<String> {
            let names = driver.names().into_iter();
            names.filter(|name| name.contains("Event") && !name.contains("Query")).collect()
        };
        interop::lend_mut(&mut slice, |mut view| {
            driver.take();
            view.slice_mut(1..3)?.fill(7)?;
            assert_eq!(driver.names(), ["cuMemsetD32Async"]);
            Ok(())
        })
        .unwrap();
        // cudarc's own record of the use, at the end.
        assert_eq!(of_events(driver).iter().filter(|name| *name == "cuStreamWaitEvent").count(), 0);

        interop::lend_mut(&mut slice, |mut view| {
            let home = view.home().clone();
            std::mem::forget(view.on_mut(&ours)?);
            assert_eq!(home.handle(), theirs.cu_stream() as u64);
            driver.take();
            Ok(())
        })
        .unwrap();
        let ended = of_events(driver);
        let wait = ended.iter().position(|name| name == "cuStreamWaitEvent").expect("home waits");
        assert!(ended[..wait].iter().any(|name| name == "cuEventRecord"), "{ended:?}");
        assert!(ended[wait..].iter().any(|name| name == "cuEventRecord"), "cudarc's: {ended:?}");
        assert_eq!(interop::lend(&slice, |view| view.to_vec()).unwrap(), [1, 7, 7, 4]);
        assert_eq!(theirs.clone_dtoh(&slice).unwrap(), [1, 7, 7, 4]);
    });
}

#[test]
fn a_function_is_called_with_its_device_current() {
    let name = "lend::a_function_is_called_with_its_device_current";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let other = Device::open(1).unwrap();
        let _vec = DeviceVec::<u8>::zeroed(&other.new_stream().unwrap(), 1).unwrap();
        let stream = device.new_stream().unwrap();
        let mut vec = DeviceVec::<u32>::zeroed(&stream, 4).unwrap();
        let launch = stream.launch(&FILL).output(&mut vec).unwrap().scalar(9_u32).unwrap();
        driver.take();
        let mut calls = 0;
        // SAFETY: the function writes the buffer whole, on the stream that it is given.
        unsafe {
            launch
                .launch_with(|mut args| {
                    calls += 1;
                    let ((data, length), value) = (args.output::<u32>()?, args.scalar::<u32>()?);
                    let code = cuMemsetD32Async(data as u64, value, length, args.stream().cast());
                    args.check(code as i32)
                })
                .unwrap();
        }
        assert_eq!((calls, driver.names()), (1, vec!["cuMemsetD32Async".to_owned()]));
        assert_eq!(vec.to_vec().unwrap(), [9; 4]);

        let launch = stream.launch(&FILL).output(&mut vec).unwrap();
        // SAFETY: it does nothing.
        let failed = unsafe { launch.launch_with(|args| args.check(2)) }.unwrap_err();
        assert_eq!(failed.driver().map(|driver| driver.code()), Some(2));
        // What it unwinds through is as before: another call of the stream, and a capture of it, go on.
        let launch = stream.launch(&FILL).output(&mut vec).unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: it does nothing.
            unsafe { launch.launch_with(|_| -> aquifer::Result<()> { panic!("on purpose") }) }
        }));
        assert!(panicked.is_err());
        let pool = aquifer::PoolResource::new(CudaResource::new(&device)).unwrap();
        stream.capture(&pool, |_| vec.fill(1)).unwrap();
        let launch = stream.launch(&FILL).output(&mut vec).unwrap();
        // SAFETY: as above.
        let own: Result<(), Box<dyn std::error::Error>> =
            unsafe { launch.launch_with(|_| Err("an error of the caller's own".into())) };
        assert_eq!(own.unwrap_err().to_string(), "an error of the caller's own");
    });
}

#[test]
fn a_capture_is_refused_while_a_function_waits() {
    let name = "lend::a_capture_is_refused_while_a_function_waits";
    alone(name, Installed::StandIn, &[], |_| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let pool = aquifer::PoolResource::new(CudaResource::new(&device)).unwrap();
        let mut vec = DeviceVec::<u32>::zeroed(&stream, 4).unwrap();
        let launch = stream.launch(&FILL).output(&mut vec).unwrap();
        let (called, is_called) = std::sync::mpsc::channel();
        let (captured, is_captured) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (stream, pool) = (&stream, &pool);
            scope.spawn(move || {
                is_called.recv().unwrap();
                let refused = stream.capture(pool, |_| Ok(())).map(drop).unwrap_err();
                captured.send(refused.kind()).unwrap();
            });
            // SAFETY: it does nothing.
            unsafe {
                launch.launch_with(|_| -> aquifer::Result<()> {
                    called.send(()).unwrap();
                    let captured = is_captured.recv_timeout(Duration::from_secs(20));
                    assert_eq!(captured, Ok(ErrorKind::Capture));
                    Ok(())
                })
            }
            .unwrap();
        });
    });
}

#[test]
fn a_slice_is_not_lent_while_its_stream_is_in_capture() {
    let name = "lend::a_slice_is_not_lent_while_its_stream_is_in_capture";
    alone(name, Installed::StandIn, &[], |driver| {
        let context = CudaContext::new(0).unwrap();
        let device = Device::from_cudarc(&context).unwrap();
        let theirs = context.new_stream().unwrap();
        let slice = theirs.clone_htod(&[1_u32, 2]).unwrap();
        let home = aquifer::Stream::from_cudarc(&theirs).unwrap();
        let pool = aquifer::PoolResource::new(CudaResource::new(&device)).unwrap();
        home.capture(&pool, |_| {
            driver.take();
            let refused = interop::lend(&slice, |_| Ok(())).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Capture);
            assert!(!driver.names().iter().any(|name| name.contains("Event")), "not disturbed");
            Ok(())
        })
        .unwrap();
        // A capture that begins inside of the loan: its end is waited for, and nothing is recorded.
        let graph = interop::lend(&slice, |_| home.capture(&pool, |_| Ok(())));
        graph.unwrap();
    });
}

#[test]
fn memory_that_may_still_be_used_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;

    let name = "lend::memory_that_may_still_be_used_ends_the_process";
    let ended = child::run(name, Installed::StandIn, &[], |_| {
        let device = Device::open(0).unwrap();
        let (theirs, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let tensor = DeviceVec::<u32>::zeroed(&theirs, 4).unwrap();
        let address = tensor.as_device_ptr();
        // SAFETY: it is left alone while the loan lasts.
        let mut lent = unsafe { BorrowedVec::<u32>::new(&theirs, address, 4).unwrap() };
        lent.on_mut(&other).unwrap();
        // Nobody can wait for a stream in a capture that was not declared.
        other.cuda_stream().unwrap().begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        drop(lent);
    });
    let Some((output, calls)) = ended else { return };
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(6), "{err}\n{calls}");
    assert!(err.contains("may still use borrowed memory"), "{err}");
}
