//! Vectors on a stream in capture, which is begun through cudarc here.

use super::*;
use aquifer::PoolResource;
use aquifer::cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

#[test]
fn work_at_home_in_a_capture_is_the_work_alone() {
    let name = "capture::work_at_home_in_a_capture_is_the_work_alone";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let mut vec = DeviceVec::<u32>::zeroed(&stream, 100).unwrap();
        let mut copy = DeviceVec::<u32>::zeroed(&stream, 100).unwrap();
        let of_cudarc = stream.cuda_stream().unwrap();
        of_cudarc.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        driver.take();
        vec.fill(3).unwrap();
        copy.copy_from(&vec).unwrap();
        copy.slice_mut(10..20).unwrap().fill(4).unwrap();
        assert_eq!(
            driver.names(),
            ["cuMemsetD32Async", "cuMemcpyDtoDAsync_v2", "cuMemsetD32Async"]
        );
        let launch = stream.launch(&NOTHING).in_out(&mut vec).unwrap().input(&copy).unwrap();
        // SAFETY: the kernel touches nothing.
        unsafe { launch.launch(LaunchConfig::for_elements(1)).unwrap() };
        let names = driver.names();
        assert_eq!(names, ["cuModuleLoadDataEx", "cuModuleGetFunction", "cuLaunchKernel"]);
        let all = std::fs::read_to_string(std::env::var("STAND_IN_LOG").unwrap()).unwrap();
        let lines: Vec<_> = all.lines().collect();
        let load = lines.iter().position(|line| line.starts_with("cuModuleLoad")).unwrap();
        assert_eq!(lines[load - 1], "# mode=2", "a module is loaded in relaxed mode");
        for refused in [vec.copy_from_slice(&[1; 100]), vec.to_vec().map(drop)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Capture);
        }
        let asked = ["cuStreamIsCapturing", "cuPointerGetAttributes"];
        let names = driver.names();
        assert!(names.iter().all(|name| asked.contains(&&**name)), "not lost: {names:?}");
        assert!(stream.is_capturing().unwrap());
    });
}

#[test]
fn a_vector_is_not_lent_in_a_capture_that_nobody_declared() {
    let name = "capture::a_vector_is_not_lent_in_a_capture_that_nobody_declared";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut vec = DeviceVec::<u32>::zeroed(&home, 100).unwrap();
        home.cuda_stream().unwrap().begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        driver.take();
        // What the guard allows may be given when the capture is over, in no order with home.
        assert_eq!(vec.on_mut(&other).map(drop).unwrap_err().kind(), ErrorKind::Capture);
        assert_eq!(driver.names(), ["cuStreamIsCapturing"], "one question, of home");
        vec.fill(1).unwrap();
        assert_eq!(driver.names(), ["cuMemsetD32Async"], "at home there is nothing to order");
    });
}

#[test]
fn a_vector_lent_in_a_declared_capture_takes_the_other_stream_in_and_orders_it_after() {
    let name = "capture::a_vector_lent_in_a_declared_capture_takes_the_other_stream_in_and_orders_it_after";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let mut vec = DeviceVec::<u32>::zeroed(&home, 100).unwrap();
        driver.take();
        other.wait_for(&home).unwrap();
        let named = driver.changes();
        let stream_of = |lines: &[String], call: &str| {
            value(lines.iter().find(|line| line.starts_with(call)).unwrap(), "stream").to_owned()
        };
        let at_home = stream_of(&named, "cuEventRecord");
        let away = stream_of(&named, "cuStreamWaitEvent");
        let on = |lines: Vec<String>| -> Vec<(String, bool)> {
            let events = lines.into_iter().filter(|line| {
                line.starts_with("cuEventRecord") || line.starts_with("cuStreamWaitEvent")
            });
            let name = |line: &String| line.split(' ').next().unwrap().to_owned();
            events.map(|line| (name(&line), value(&line, "stream") == at_home)).collect()
        };
        let record = |at_home| ("cuEventRecord".to_owned(), at_home);
        let wait = |at_home| ("cuStreamWaitEvent".to_owned(), at_home);
        home.capture(&pool, |_| {
            driver.take();
            vec.on_mut(&other)?;
            // The fork, with what it was given before.
            assert_eq!(on(driver.changes()), [record(true), record(false), wait(false)]);
            vec.fill(1)?;
            assert_eq!(on(driver.changes()), [record(false), wait(true)], "the join");
            Ok(())
        })
        .unwrap();
        let end = on(driver.changes());
        assert_eq!(end, [record(false), wait(true), record(true), wait(false)], "for real");
        assert_ne!(at_home, away);
    });
}
