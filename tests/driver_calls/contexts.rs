//! The caller's context across the calls in which cudarc makes its own current.

use crate::child::{Installed, StandIn, alone};
use crate::{FIRST, SECOND};
use aquifer::cudarc::driver::sys::CUresult;
use aquifer::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, result};
use aquifer::{CudaResource, Device, DeviceVec, ErrorKind, Stream, mr::AsyncResource};
use std::sync::Arc;

/// Runs calls of cudarc's own, which leave its context current, on another thread.
fn aside<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| threads.spawn(call).join().unwrap())
}

/// Runs `body` where no context is current, where the device's is, and where another's is. It is
/// given what asserts that this one still is.
fn everywhere(driver: &StandIn, body: impl Fn(&dyn Fn(&str))) {
    for before in [0, FIRST, SECOND] {
        // SAFETY: the stand-in takes any number.
        unsafe { result::ctx::set_current(before as usize as _) }.unwrap();
        body(&|what| assert_eq!(driver.now(), before, "{what}"));
    }
}

#[test]
fn opening_and_closing_leave_the_callers_context() {
    let name = "contexts::opening_and_closing_leave_the_callers_context";
    alone(name, Installed::StandIn, &[], |driver| {
        for failing in ["cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuDeviceGetName"] {
            driver.fail(failing, 1, 999);
            let opened = Device::open(1);
            assert_eq!(driver.now(), 0, "{failing}: {opened:?}");
        }
        everywhere(driver, |same| {
            let device = Device::open(0).unwrap();
            same("open");
            let stream = device.new_stream().unwrap();
            driver.fail("cuStreamCreate", 1, 2);
            assert!(device.new_stream().is_err());
            same("new_stream");
            driver.fail("cuStreamCreate", 1, 2);
            assert!(device.new_blocking_stream().is_err());
            same("new_blocking_stream");
            drop((device.default_stream(), device.per_thread_stream().unwrap()));
            same("default streams");
            let (context, theirs) = aside(|| {
                let context = CudaContext::new(0).unwrap();
                let stream = context.new_stream().unwrap();
                (context, stream)
            });
            let other = Device::from_cudarc(&context).unwrap();
            same("from_cudarc");
            let known = Stream::from_cudarc(&theirs).unwrap();
            same("Stream::from_cudarc");
            drop(theirs);
            drop(known);
            same("dropping the last handle on a stream of cudarc's");
            drop((stream, device, other, context));
            same("dropping");
        });
    });
}

/// A vector that cudarc can free.
fn vector(stream: &Stream) -> DeviceVec<u32> {
    let ordered = Arc::new(AsyncResource::new(stream.device()).unwrap());
    DeviceVec::zeroed_in(stream, 10, ordered).unwrap()
}

#[test]
fn giving_a_vector_to_cudarc_leaves_the_callers_context() {
    let name = "contexts::giving_a_vector_to_cudarc_leaves_the_callers_context";
    alone(name, Installed::StandIn, &[], |driver| {
        everywhere(driver, |same| {
            let device = Device::open(0).unwrap();
            let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let slice = vector(&home).into_cuda_slice().unwrap();
            same("into_cuda_slice");
            aside(|| drop(slice));
            for (call, nth) in
                [("cuEventCreate", 1), ("cuEventCreate", 2), ("cuStreamWaitEvent", 1)]
            {
                other.wait_for(&home).unwrap(); // an event to use again
                let mut vec = vector(&home);
                std::mem::forget(vec.on_mut(&other).unwrap());
                driver.fail(call, nth, 2);
                let refused = vec.into_cuda_slice().unwrap_err();
                same(call);
                assert_eq!(refused.error.driver().unwrap().call(), call);
                assert_eq!(refused.value.len(), 10);
            }
            let plain = Arc::new(CudaResource::new(&device));
            let refused = DeviceVec::<u32>::zeroed_in(&home, 10, plain).unwrap();
            assert!(refused.into_cuda_slice().is_err());
            same("memory of another resource");
        });
    });
}

#[test]
fn an_old_error_in_cudarcs_context_is_left_to_its_owner() {
    let name = "contexts::an_old_error_in_cudarcs_context_is_left_to_its_owner";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let context = device.cuda_context().unwrap();
        let stale = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);
        context.record_err::<()>(Err(stale));
        let slice = vector(&stream).into_cuda_slice().unwrap();
        assert_eq!(context.check_err(), Err(stale));
        drop(slice);
        // An event that was tried and cannot be destroyed is an error, and no panic of cudarc's.
        driver.fail("cuEventDestroy_v2", 1, 999);
        let refused = vector(&stream).into_cuda_slice().unwrap_err();
        assert_eq!(refused.error.driver().unwrap().code(), 999);
        drop(refused.value.into_cuda_slice().unwrap());
        assert_eq!(context.check_err(), Ok(()));
    });
}

#[test]
fn a_slice_is_waited_for_whatever_cudarcs_context_says() {
    let name = "contexts::a_slice_is_waited_for_whatever_cudarcs_context_says";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let context = device.cuda_context().unwrap();
        let slice = || stream.cuda_stream().unwrap().alloc_zeros::<u32>(10).unwrap();
        let waits = |wait: &str| driver.names().iter().filter(|name| *name == wait).count();
        // cudarc gives an old error in the place of the wait for the slice's other uses.
        let (one, stale) = (slice(), DriverError(CUresult::CUDA_ERROR_INVALID_VALUE));
        context.record_err::<()>(Err(stale));
        driver.take();
        drop(DeviceVec::from_cuda_slice(one).unwrap());
        assert_eq!(waits("cuStreamWaitEvent"), 2);
        assert_eq!(context.check_err(), Err(stale));
        // Where a wait fails, the host waits; where that fails, nobody gets the memory.
        for failing in [false, true] {
            let one = slice();
            driver.take();
            driver.fail("cuStreamWaitEvent", 2, 999);
            if failing {
                driver.fail("cuEventSynchronize", 1, 999);
            }
            assert_eq!(DeviceVec::from_cuda_slice(one).is_err(), failing);
            assert_eq!(waits("cuEventSynchronize"), 1);
        }
    });
}

#[test]
fn a_slice_of_cudarcs_is_leaked_in_a_forked_child() {
    let name = "contexts::a_slice_of_cudarcs_is_leaked_in_a_forked_child";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let slice = stream.cuda_stream().unwrap().alloc_zeros::<u32>(10).unwrap();
        driver.take();
        // SAFETY: the child makes no call of the driver, and ends without destructors.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let taken = DeviceVec::from_cuda_slice(slice).map(|_| ()).map_err(|e| e.kind());
            let code = if taken == Err(ErrorKind::Forked) { 0 } else { 1 };
            // SAFETY: ends this process without any destructor.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(driver.take(), [""; 0], "a call of the driver's in the child");
    });
}

/// Slices of cudarc's that cannot be taken over, and why.
fn refused(stream: &Arc<CudaStream>) -> (CudaSlice<u32>, CudaSlice<()>) {
    let per_thread = stream.context().per_thread_stream();
    let nothing = stream.alloc_zeros::<u32>(1).unwrap().leak();
    // SAFETY: a block of this size at least, given up above.
    let nothing = unsafe { stream.upgrade_device_ptr::<()>(nothing, 3) };
    (per_thread.alloc_zeros(5).unwrap(), nothing)
}

#[test]
fn taking_a_slice_of_cudarcs_leaves_the_callers_context() {
    let name = "contexts::taking_a_slice_of_cudarcs_leaves_the_callers_context";
    alone(name, Installed::StandIn, &[], |driver| {
        everywhere(driver, |same| {
            let device = Device::open(0).unwrap();
            let home = device.new_stream().unwrap().cuda_stream().unwrap().clone();
            let before = driver.alive();
            let slice = aside(|| home.alloc_zeros::<u32>(10).unwrap());
            let vec = DeviceVec::from_cuda_slice(slice).unwrap();
            same("from_cuda_slice");
            drop(vec);
            same("dropping what was a slice");
            // On a stream that nobody else holds.
            let slice = aside(|| home.fork().unwrap().alloc_zeros::<u32>(10).unwrap());
            drop(DeviceVec::from_cuda_slice(slice).unwrap());
            same("the last handle of a stream");
            let slice = aside(|| {
                let block = home.alloc_zeros::<u32>(1).unwrap().leak();
                // SAFETY: a block of this size at least, given up above.
                unsafe { home.upgrade_device_ptr::<u32>(block, 0) }
            });
            assert_eq!(DeviceVec::from_cuda_slice(slice).unwrap().len(), 0);
            same("an empty slice");
            let (per_thread, nothing) = aside(|| refused(&home));
            let error = DeviceVec::from_cuda_slice(per_thread).unwrap_err();
            same("a slice on the per-thread stream");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(DeviceVec::from_cuda_slice(nothing).is_err());
            same("a slice of nothing");
            // One event that Aquifer keeps for the next use may be there, or not.
            assert!(driver.alive() <= before + 2, "the slices were dropped");
        });
    });
}
