//! Vectors on a stream in capture, which is begun through cudarc here.

use super::*;
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
fn a_vector_lent_in_a_capture_takes_the_other_stream_in() {
    let name = "capture::a_vector_lent_in_a_capture_takes_the_other_stream_in";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut vec = DeviceVec::<u32>::zeroed(&home, 100).unwrap();
        home.cuda_stream().unwrap().begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        driver.take();
        assert_eq!(vec.on_mut(&other).unwrap().len(), 100);
        let fork = driver.changes();
        vec.fill(1).unwrap();
        let join = driver.changes();
        let raw = |stream: &aquifer::Stream| {
            format!("{:#x}", stream.cuda_stream().unwrap().cu_stream() as usize)
        };
        // The two calls that fork a capture on a GPU, and the two that join it again.
        // A debt is not paid to a stream in capture from outside, so the lender is asked. (The
        // stand-in knows no forks: on a GPU home is asked then, too.)
        for (calls, from, to, asks) in [(fork, &home, &other, 0), (join, &other, &home, 1)] {
            let at = |call: &str| calls.iter().find(|line| line.starts_with(call)).unwrap();
            assert_eq!(value(at("cuEventRecord"), "stream"), raw(from));
            assert_eq!(value(at("cuStreamWaitEvent"), "stream"), raw(to));
            let asked = |line: &&String| line.contains("Capturing") || line.contains("Query");
            assert_eq!(calls.iter().filter(asked).count(), asks, "{calls:?}");
        }
    });
}
