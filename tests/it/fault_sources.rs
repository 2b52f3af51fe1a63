//! The fault of a kernel is the source of every later error, and no report masks an earlier one.

use crate::kernels::{add_one, idle_entry};
use aquifer::allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{Report, Schedule, SimConfig, Violation};
use aquifer::{
    CudaResource, Device, DeviceVec, Error, ErrorKind, HostArgs, Kernel, LaunchConfig,
    PoolResource, Result, Stream, Transfer, pinned::PinnedResource,
};
use std::error::Error as _;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

static FAIL: Kernel =
    Kernel::new("fail", idle_entry!("fail"), |_: &LaunchConfig, _: HostArgs<'_>| {
        Err(Error::new(ErrorKind::InvalidArgument, "it fails on purpose"))
    });
static PANIC: Kernel =
    Kernel::new("panic", idle_entry!("panic"), |_: &LaunchConfig, _: HostArgs<'_>| {
        panic!("it fails on purpose")
    });

type Pinned = AllocVec<u32, PinnedResource>;

/// What the fault is looked at with, all made before it.
struct Parts {
    device: Device,
    stream: Stream,
    vec: DeviceVec<u32>,
    pinned: Pinned,
}

/// A transfer that is polled until it is ready.
fn awaited(mut transfer: Transfer<Pinned>) -> Result<()> {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match Pin::new(&mut transfer).poll(&mut context) {
            Poll::Ready(ended) => {
                let failed = ended.unwrap_err();
                assert!(failed.buffers.is_some(), "the device is past the copy");
                return Err(failed.error);
            }
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

type Look = fn(Parts) -> Result<()>;

/// Calls that wait: the first report that was not taken is theirs.
const WAITS: [(&str, Look); 9] = [
    ("stream.synchronize", |parts| parts.stream.synchronize()),
    ("device.synchronize", |parts| parts.device.synchronize()),
    ("to_vec", |parts| parts.vec.to_vec().map(drop)),
    ("copy_to_slice, page-locked", |mut parts| parts.vec.copy_to_slice(&mut parts.pinned)),
    ("event", |parts| parts.stream.record()?.synchronize()),
    ("Transfer::wait", |parts| {
        parts.stream.download(parts.vec, parts.pinned)?.wait()?;
        Ok(())
    }),
    (".await", |parts| awaited(parts.stream.download(parts.vec, parts.pinned)?)),
    ("scope", |mut parts| {
        parts.stream.scope(|scope| scope.download(&parts.vec, &mut parts.pinned))
    }),
    ("synchronize_async", |parts| {
        let mut synchronized = parts.stream.synchronize_async();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match Pin::new(&mut synchronized).poll(&mut context) {
                Poll::Ready(ended) => return ended,
                Poll::Pending => std::thread::yield_now(),
            }
        }
    }),
];

/// Calls that do not: they find the context lost.
const OTHERS: [(&str, Look); 5] = [
    ("zeroed", |parts| DeviceVec::<u32>::zeroed(&parts.stream, 1 << 20).map(drop)),
    ("fill", |mut parts| parts.vec.fill(1)),
    ("new_stream", |parts| parts.device.new_stream().map(drop)),
    ("record", |parts| parts.stream.record().map(drop)),
    ("memory_info", |parts| parts.device.memory_info().map(drop)),
];

/// A device on which a kernel was given that fails, perhaps after a read of bytes that nobody wrote.
fn faulty(config: SimConfig, kernel: &'static Kernel, earlier: bool) -> Parts {
    let device = Device::simulated(config);
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&stream, &[7; 100]).unwrap();
    let mut pinned = AllocVec::new_in(PinnedResource::new(&device).unwrap());
    pinned.extend([0; 100]);
    if earlier {
        // SAFETY: the simulated device alone; what is read is thrown away.
        let mut unwritten = unsafe { DeviceVec::<u32>::uninit(&stream, 4) }.unwrap();
        add_one(&stream, &mut unwritten).unwrap();
    }
    // SAFETY: it touches nothing.
    unsafe { stream.launch(kernel).launch(LaunchConfig::for_elements(1)) }.unwrap();
    Parts { device, stream, vec, pinned }
}

#[track_caller]
fn is(error: &Error, kind: ErrorKind, source: Violation, what: &str) {
    assert_eq!(error.kind(), kind, "{what}: {error}");
    let report = Report::of(error).unwrap_or_else(|| panic!("{what}: {error}"));
    assert_eq!(report.kind(), source, "{what}: {error}");
    let by_sources: &Report =
        error.source().and_then(|driver| driver.source()?.downcast_ref()).unwrap();
    assert_eq!(by_sources.to_string(), report.to_string(), "{what}");
    let shown = error.to_string();
    assert!(shown.contains(&report.to_string()), "{what}: {shown}");
}

#[test]
fn every_error_after_a_fault_has_it_or_an_earlier_report_as_its_source() {
    for (kernel, earlier) in [(&FAIL, false), (&FAIL, true), (&PANIC, false), (&PANIC, true)] {
        let first = if earlier { Violation::UninitializedRead } else { Violation::KernelFault };
        let what = |call: &str, when: &str| format!("{call} {when}, {}, {earlier}", kernel.entry());
        let parts = || faulty(SimConfig::default(), kernel, earlier);
        for (call, look) in WAITS {
            // It is this call that waits for the kernel.
            let error = look(parts()).unwrap_err();
            is(&error, ErrorKind::Simulation, first, &what(call, "at the fault"));
        }
        for (call, look) in WAITS.into_iter().chain(OTHERS) {
            let parts = parts();
            let simulator = parts.device.simulator().unwrap();
            parts.stream.synchronize().unwrap_err();
            let kinds: Vec<_> = simulator.take_reports().iter().map(Report::kind).collect();
            assert_eq!(kinds.last(), Some(&Violation::KernelFault), "{kinds:?}");
            assert_eq!(kinds.len(), if earlier { 2 } else { 1 }, "{kinds:?}");
            let error = look(parts).unwrap_err();
            let what = what(call, "when reports were taken");
            is(&error, ErrorKind::ContextLost, Violation::KernelFault, &what);
            assert!(error.to_string().contains("it fails on purpose"), "{error}");
        }
        for (call, look) in OTHERS {
            let parts = parts();
            parts.stream.synchronize().unwrap_err();
            let error = look(parts).unwrap_err();
            let what = what(call, "after the fault");
            is(&error, ErrorKind::ContextLost, Violation::KernelFault, &what);
        }
    }
}

/// The context is lost before the call, by the device's own thread.
#[test]
fn a_wait_that_comes_after_the_loss_has_the_first_report() {
    for earlier in [false, true] {
        let first = if earlier { Violation::UninitializedRead } else { Violation::KernelFault };
        let background = SimConfig::default().schedule(Schedule::Background);
        for (call, look) in [WAITS[0], WAITS[1], WAITS[2], WAITS[8]] {
            let parts = faulty(background.clone(), &FAIL, earlier);
            while parts.device.memory_info().is_ok() {
                std::thread::yield_now();
            }
            let error = look(parts).unwrap_err();
            is(&error, ErrorKind::Simulation, first, call);
        }
    }
}

/// Nothing runs any more that the streams of a capture could be out of order with, so they are open to
/// all threads again, whether the report was taken or not.
#[test]
fn a_capture_that_meets_a_fault_leaves_its_streams_open() {
    for taken in [false, true] {
        let device = Device::simulated(SimConfig::default());
        let [one, joined, other] = [(); 3].map(|()| device.new_stream().unwrap());
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let captured = one.capture(&pool, |one| {
            joined.wait_for(one)?;
            one.wait_for(&joined)?;
            // SAFETY: it touches nothing.
            unsafe { other.launch(&FAIL).launch(LaunchConfig::for_elements(1))? };
            other.synchronize().unwrap_err();
            if taken {
                device.simulator().unwrap().take_reports();
            }
            Ok(())
        });
        assert_eq!(captured.unwrap_err().kind(), ErrorKind::ContextLost);
        for stream in [one, joined] {
            let elsewhere = std::thread::spawn(move || stream.record().map(drop));
            assert_eq!(elsewhere.join().unwrap().unwrap_err().kind(), ErrorKind::ContextLost);
        }
    }
}
