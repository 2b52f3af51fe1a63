//! Scoped and blocking copies of borrowed host memory: they wait, whatever happens inside, and they
//! leave captures alone.

use crate::kernels::idle_entry;
use crate::{kernels, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    Device, DeviceVec, Error, ErrorKind, HostArgs, Kernel, LaunchConfig, MappedAlloc, Result,
    Stream, pinned::PinnedResource,
};
use kernels::DOUBLE;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

type Pinned = AllocVec<u32, PinnedResource>;

fn pinned(device: &Device, values: &[u32]) -> Pinned {
    let mut vec = AllocVec::new_in(PinnedResource::new(device).unwrap());
    vec.extend_from_slice(values);
    vec
}

#[test]
fn a_download_is_visible_when_the_scope_has_ended() {
    for seed in 0..20 {
        let device = support::seeded(seed);
        let stream = device.new_stream().unwrap();
        let input = pinned(&device, &(0..2000).collect::<Vec<_>>());
        let mut output = pinned(&device, &[0; 2000]);
        let mut pageable = vec![0; 1000];
        let mut vec = DeviceVec::<u32>::zeroed(&stream, 2000).unwrap();
        let told = stream.scope(|s| {
            s.upload(&input, &mut vec)?;
            s.download(&vec, &mut output)?;
            s.download(&vec.slice(1000..)?, &mut pageable)?;
            assert_eq!(s.stream(), &stream);
            assert!(format!("{s:?}").contains("Scope"));
            Ok::<_, Error>("the body's value")
        });
        assert_eq!(told.unwrap(), "the body's value");
        assert_eq!(&output[..], &input[..]);
        assert_eq!(pageable, input[1000..]);
    }
}

#[test]
fn a_panic_in_the_body_waits_and_unwinds() {
    for seed in 0..20 {
        let device = support::seeded(seed);
        let stream = device.new_stream().unwrap();
        let vec = DeviceVec::from_slice(&stream, &[7_u32; 500]).unwrap();
        let mut output = pinned(&device, &[0; 500]);
        let body = AssertUnwindSafe(|| {
            stream.scope(|s| -> Result<()> {
                s.download(&vec, &mut output)?;
                panic!("on purpose");
            })
        });
        let panic = catch_unwind(body).unwrap_err();
        assert_eq!(*panic.downcast_ref::<&str>().unwrap(), "on purpose");
        assert_eq!(&output[..], [7; 500], "complete, and the host's again: seed {seed}");
        output.fill(1);
    }
}

#[test]
fn an_error_in_the_body_waits_and_is_returned() {
    #[derive(Debug)]
    enum Mine {
        Own(&'static str),
        Aquifer(Error),
    }
    impl From<Error> for Mine {
        fn from(error: Error) -> Self {
            Self::Aquifer(error)
        }
    }
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&stream, &[7_u32; 500]).unwrap();
    let mut output = pinned(&device, &[0; 500]);
    let failed = stream.try_scope(|s| -> Result<(), Mine> {
        s.download(&vec, &mut output)?;
        Err(Mine::Own("enough"))
    });
    assert!(matches!(failed, Err(Mine::Own("enough"))), "{failed:?}");
    assert_eq!(&output[..], [7; 500]);
    let mut short = [0; 3];
    let failed = stream.try_scope(|s| -> Result<(), Mine> { Ok(s.download(&vec, &mut short)?) });
    let Err(Mine::Aquifer(error)) = failed else { panic!("{failed:?}") };
    assert_eq!(error.kind(), ErrorKind::LengthMismatch);
}

#[test]
fn scopes_on_two_streams_nest() {
    for seed in 0..20 {
        let device = support::seeded(seed);
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let input = pinned(&device, &[3; 800]);
        let mut output = pinned(&device, &[0; 800]);
        let mut vec = DeviceVec::<u32>::zeroed(&a, 800).unwrap();
        a.scope(|outer| {
            outer.upload(&input, &mut vec)?;
            b.scope(|inner| {
                // On the other stream, which waits for home.
                inner.download(&vec, &mut output)?;
                Ok::<_, Error>(())
            })?;
            assert_eq!(&output[..], [3; 800], "the inner scope has waited");
            vec.fill(0)
        })
        .unwrap();
        assert_eq!(vec.to_vec().unwrap(), [0; 800]);
    }
}

#[test]
fn vectors_live_and_die_inside_a_scope() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (stream, home) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let input = pinned(&device, &[5; 100]);
    let mut output = pinned(&device, &[0; 100]);
    stream
        .scope(|s| {
            // At home elsewhere: the free is ordered after the copies here.
            // SAFETY: written whole by the upload.
            let mut vec = unsafe { DeviceVec::<u32>::uninit(&home, 100)? };
            s.upload(&input, &mut vec)?;
            s.download(&vec, &mut output)
        })
        .unwrap();
    assert_eq!(&output[..], [5; 100]);
    home.synchronize().unwrap();
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

#[test]
fn empty_slices_are_copied_in_no_time() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 4).unwrap();
    let empty: [u32; 0] = [];
    let mut nothing: [u32; 0] = [];
    stream
        .scope(|s| {
            s.upload(&empty, &mut vec.slice_mut(4..)?)?;
            assert!(s.map(&empty)?.is_empty());
            s.download(&vec.slice(2..2)?, &mut nothing)
        })
        .unwrap();
    vec.slice_mut(..0).unwrap().copy_from_slice(&[]).unwrap();
    assert!(vec.slice(4..).unwrap().to_vec().unwrap().is_empty());
}

#[test]
fn a_kernel_works_on_mapped_memory_where_it_lies() {
    let device =
        if support::on_gpu() { Device::open(0) } else { Device::detect_or_simulate() }.unwrap();
    let stream = device.new_stream().unwrap();
    let mut host: AllocVec<u32, MappedAlloc> = AllocVec::new_in(MappedAlloc);
    host.extend(0..600);
    let mut part: AllocVec<u32, MappedAlloc> = AllocVec::new_in(MappedAlloc);
    part.extend([1; 10]);
    stream
        .scope(|s| {
            let (mut all, some) = (s.map_mut(&mut host)?, s.map(&part[5..])?);
            assert_eq!((all.len(), some.len()), (600, 5));
            assert!(all.as_device_ptr() != 0 && format!("{all:?}{some:?}").contains("Mapped"));
            let launch = stream.launch(&DOUBLE).mapped_in_out(&mut all)?.scalar(600_u32)?;
            // SAFETY: it touches the 600 elements that it is given.
            unsafe { launch.launch(LaunchConfig::for_elements(600)) }
        })
        .unwrap();
    assert!(host.iter().enumerate().all(|(index, value)| *value == 2 * index as u32));
    let mut ordinary = vec![0_u32; 4];
    let other = device.new_stream().unwrap();
    stream
        .scope(|s| {
            assert_eq!(s.map_mut(&mut ordinary).unwrap_err().kind(), ErrorKind::InvalidArgument);
            let mapped = s.map(&host)?;
            let launch = other.launch(&DOUBLE).mapped_input(&mapped);
            assert_eq!(launch.unwrap_err().kind(), ErrorKind::InvalidArgument);
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn a_scope_on_a_stream_in_capture_is_refused_and_keeps_the_graph() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&stream, &[7_u32; 5]).unwrap();
    let mut output = [0; 5];
    simulator.start_capture(&stream).unwrap();
    let refused = stream.scope(|s| s.download(&vec, &mut output)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Capture);
    let refused = stream.scope(|_| -> Result<()> { panic!("not run") }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Capture);
    let elsewhere = other.scope(|s| s.download(&DeviceVec::zeroed(&other, 5)?, &mut output));
    elsewhere.unwrap();
    assert!(simulator.stop_capture(&stream), "nothing invalidated it");
    simulator.check().unwrap();
}

#[test]
fn a_launch_on_memory_of_a_scope_does_not_enter_a_graph() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut host = pinned(&device, &[1; 10]);
    stream
        .scope(|s| {
            let mut argument = s.map_mut(&mut host)?;
            simulator.start_capture(&stream)?;
            let launch = stream.launch(&DOUBLE).mapped_in_out(&mut argument)?.scalar(10_u32)?;
            // SAFETY: it touches the 10 elements that it is given.
            let refused = unsafe { launch.launch(LaunchConfig::for_elements(10)) }.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Capture);
            assert!(simulator.stop_capture(&stream), "nothing invalidated it");
            Ok(())
        })
        .unwrap();
    assert_eq!(&host[..], [1; 10]);
}

#[test]
fn blocking_copies_on_a_stream_in_capture_are_refused_and_keep_the_graph() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&stream, &[7_u32; 5]).unwrap();
    simulator.start_capture(&stream).unwrap();
    let refusals = [
        vec.get(0).map(drop),
        vec.set(0, 1),
        vec.to_vec().map(drop),
        vec.to_vec_in(PinnedResource::new(&device).unwrap()).map(drop),
        vec.copy_from_slice(&[1; 5]),
        vec.copy_to_slice(&mut [1; 5]),
        // SAFETY: refused, so nothing outlives the call.
        unsafe { vec.copy_from_slice_async(&[1; 5]) },
        // SAFETY: as above.
        unsafe { vec.copy_to_slice_async(&mut [1; 5]) },
    ];
    for refused in refusals {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Capture);
    }
    assert!(simulator.stop_capture(&stream), "nothing invalidated it");
    assert_eq!(vec.to_vec().unwrap(), [7; 5]);
    simulator.check().unwrap();
}

#[test]
fn a_scope_that_cannot_wait_returns_its_error_where_the_device_has_surely_stopped() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&stream, &[7_u32; 50]).unwrap();
    let mut output = pinned(&device, &[0; 50]);
    simulator.fail_call("cuStreamSynchronize", 1, 999).unwrap();
    let failed = stream.scope(|s| s.download(&vec, &mut output)).unwrap_err();
    assert_eq!((failed.kind(), failed.driver().unwrap().code()), (ErrorKind::Driver, 999));
    output.fill(1);
    stream.synchronize().unwrap();
    assert_eq!(&output[..], [1; 50], "nothing was left to write it");

    let body = AssertUnwindSafe(|| {
        stream.scope(|s| -> Result<()> {
            s.download(&vec, &mut output)?;
            simulator.lose_context();
            panic!("and lost");
        })
    });
    assert!(catch_unwind(body).is_err(), "the panic goes on");
    let lost = stream.scope(|s| s.download(&vec, &mut output)).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::ContextLost);
}

static INSIDE: Mutex<Option<(Stream, DeviceVec<u32>)>> = Mutex::new(None);

static SCOPE_INSIDE: Kernel = Kernel::new(
    "scope_inside",
    idle_entry!("scope_inside"),
    |_: &LaunchConfig, _: HostArgs<'_>| {
        let (stream, vec) = INSIDE.lock().unwrap().take().unwrap();
        let mut output = [0; 4];
        let refused = stream.scope(|s| s.download(&vec, &mut output)).unwrap_err();
        assert_eq!(refused.driver().unwrap().code(), 800, "{refused}");
        *INSIDE.lock().unwrap() = Some((stream, vec));
        Ok(())
    },
);

#[test]
fn a_scope_inside_a_host_form_is_an_error_and_no_abort() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::zeroed(&stream, 4).unwrap();
    *INSIDE.lock().unwrap() = Some((stream.clone(), vec));
    // SAFETY: it has no memory to touch.
    unsafe { stream.launch(&SCOPE_INSIDE).launch(LaunchConfig::for_elements(1)) }.unwrap();
    stream.synchronize().unwrap();
    drop(INSIDE.lock().unwrap().take());
    simulator.check().unwrap();
}

#[test]
fn driver_failures_inside_a_scope_are_errors_of_the_copy() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (stream, home) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[7_u32; 50]).unwrap();
    let mut host = pinned(&device, &[0; 50]);
    for call in ["cuEventRecord", "cuStreamWaitEvent", "cuMemcpyDtoHAsync"] {
        simulator.fail_call(call, 1, 999).unwrap();
        let failed = stream.scope(|s| s.download(&vec, &mut host)).unwrap_err();
        assert_eq!(failed.driver().unwrap().call(), call);
    }
    simulator.fail_call("cuMemcpyHtoDAsync", 1, 2).unwrap();
    let failed = stream.scope(|s| s.upload(&host, &mut vec)).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::OutOfMemory);
    stream.scope(|s| s.download(&vec, &mut host)).unwrap();
    assert_eq!(&host[..], [7; 50]);
    simulator.check().unwrap();
}

/// What the safe forms prevent is what the simulated device reports.
#[test]
fn a_host_write_while_a_copy_is_in_flight_is_reported() {
    // Queues that run on demand: the write is surely before the copy.
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 64).unwrap();
    let mut host = pinned(&device, &[1; 64]);
    // SAFETY: broken on purpose: the simulated device has to see the write below.
    unsafe { vec.copy_from_slice_async(&host).unwrap() };
    host[5] = 2;
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Simulation);
    let reports = simulator.take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].kind(), Violation::HostWroteDuringCopy);
    assert!(reports[0].operation().contains("cuMemcpyHtoDAsync"), "{}", reports[0]);

    // SAFETY: the host leaves it alone until the stream is synchronised.
    unsafe { vec.copy_from_slice_async(&host).unwrap() };
    stream.synchronize().unwrap();
    assert!(simulator.take_reports().is_empty());
}
