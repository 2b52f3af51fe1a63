//! Slices of cudarc that are lent, and kernels behind functions, with what the driver is asked.

use super::*;
use aquifer::cudarc::driver::{CudaContext, sys::cuMemsetD32Async};
use aquifer::interop;

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
        let launch = stream.launch(&FILL).output(&mut vec).unwrap();
        // SAFETY: as above.
        let own: Result<(), Box<dyn std::error::Error>> =
            unsafe { launch.launch_with(|_| Err("an error of the caller's own".into())) };
        assert_eq!(own.unwrap_err().to_string(), "an error of the caller's own");
    });
}
