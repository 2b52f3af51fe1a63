//! Tests of the driver against libraries that stand in for CUDA's. They check the calls that it makes,
//! with which context current, and the errors of failed calls.

mod child;
mod forked;
mod gpu;
mod graph;
mod work;

use super::context::current;
use super::library::Library;
use super::{CudaDriver, device_count};
use crate::error::{DriverError, Error, ErrorKind};
use crate::{
    Driver, GraphCalls, HostFlags, MemoryCalls, PoolCalls, RawCopy, RawEvent, RawStream,
    StreamCalls, WorkCalls,
};
use child::{Installed, alive, alone, capture, fail};
use cudarc::driver::CudaContext;
use std::error::Error as _;

const FIRST: u64 = 0x1000;
const SECOND: u64 = 0x2000;

fn now() -> u64 {
    current(Library::get().unwrap()).unwrap()
}

/// Makes the second device's context current, as another part of a program may have.
fn stand_on_second() {
    let library = Library::get().unwrap();
    // SAFETY: the stand-in takes any number.
    unsafe { library.ctx_push_current(SECOND) }.unwrap();
}

fn open() -> crate::sync::Arc<CudaDriver> {
    CudaDriver::open(0).unwrap()
}

/// Every way to look at an error works without a driver.
fn print(error: &Error) -> String {
    let source = error.source().map(|source| format!("{source} {source:?}"));
    format!("{error} | {error:?} | {:?} | {source:?}", error.driver())
}

#[test]
fn no_driver_is_an_error_that_says_so() {
    alone("no_driver_is_an_error_that_says_so", Installed::Nothing, &[], |_| {
        if Library::get().is_some() {
            return println!("a driver is installed on this machine; this test needs none");
        }
        for error in [device_count().unwrap_err(), CudaDriver::open(0).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::NoDriver);
            assert!(print(&error).contains("install the NVIDIA driver"), "{}", print(&error));
        }
    });
}

#[test]
fn a_driver_without_a_gpu_is_another_error_than_no_driver() {
    let none = [("STAND_IN_DEVICES", "0")];
    alone(
        "a_driver_without_a_gpu_is_another_error_than_no_driver",
        Installed::StandIn,
        &none,
        |_| {
            for error in [device_count().unwrap_err(), CudaDriver::open(0).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::NoDevice, "{}", print(&error));
                assert_eq!(error.driver().unwrap().code(), DriverError::NO_DEVICE);
            }
        },
    );
}

#[test]
fn the_toolkits_stub_is_no_driver() {
    let stub = [("STAND_IN_FAIL", "cuInit:1:34")];
    alone("the_toolkits_stub_is_no_driver", Installed::StandIn, &stub, |_| {
        let error = device_count().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoDriver);
        assert!(print(&error).contains("stub"));
    });
}

#[test]
fn an_old_driver_is_an_error_before_cudarc_panics_on_it() {
    alone("an_old_driver_is_an_error_before_cudarc_panics_on_it", Installed::Old, &[], |_| {
        for error in [device_count().unwrap_err(), CudaDriver::open(0).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::MissingSymbol);
            assert!(error.to_string().contains("cuGetErrorName"), "{}", print(&error));
            assert!(error.to_string().contains("install a newer CUDA driver"));
        }
        let mut address = 0;
        // SAFETY: the library has no such function, so nothing is called.
        let missing = unsafe { Library::get().unwrap().mem_alloc(&raw mut address, 1) };
        let missing = missing.unwrap_err();
        assert_eq!(
            (missing.call(), missing.code()),
            ("cuMemAlloc_v2", DriverError::MISSING_SYMBOL)
        );
    });
}

#[test]
fn both_sides_open_one_library() {
    alone("both_sides_open_one_library", Installed::StandIn, &[], |log| {
        open();
        let names = super::library::names();
        assert!(names.contains(&"libcuda64_10.so".to_owned()), "cudarc's own list: {names:?}");
        // SAFETY: asks whether the library is there.
        assert!(unsafe { cudarc::driver::sys::is_culib_present() });
        // A second copy would have a state, and an initialisation, of its own.
        let calls = log.take();
        assert_eq!(
            calls.iter().filter(|line| line.starts_with("cuDevicePrimaryCtxRetain")).count(),
            1
        );
        assert_eq!(alive(), 0);
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        assert_eq!(alive(), 1, "cudarc's stream is in the library that we look at");
        drop(stream);
    });
}

#[test]
fn opening_and_dropping_leave_the_current_context() {
    alone("opening_and_dropping_leave_the_current_context", Installed::StandIn, &[], |log| {
        assert_eq!(device_count().unwrap(), 2);
        let driver = open();
        assert_eq!(now(), 0, "none was current");
        assert_eq!(driver.properties().name, "stand-in 0");
        assert_eq!(driver.properties().compute_capability, (9, 0));
        let has = driver.properties();
        assert_eq!(has.driver_version, 13000);
        assert!(has.managed_memory && has.concurrent_managed_access && has.memory_pools);
        assert!(has.map_host_memory && has.host_register && has.virtual_memory);
        assert!(has.context_events);
        assert_eq!((driver.ordinal(), driver.context().ordinal()), (0, 0));
        let again = open();
        assert_eq!(driver.context_id(), again.context_id(), "one context");
        let shared = CudaDriver::from_context(driver.context().clone()).unwrap();
        assert_eq!(driver.context_id(), shared.context_id());
        let second = CudaDriver::open(1).unwrap();
        assert_ne!(driver.context_id(), second.context_id());
        assert!(format!("{driver:?}").contains("stand-in 0"));
        let context_id = driver.context_id();

        stand_on_second();
        drop((again, shared));
        assert_eq!(now(), SECOND);
        log.take();
        drop(driver);
        assert_eq!(now(), SECOND, "{:?}", log.take());
        assert!(log.take().iter().all(|line| !line.starts_with("cuDevicePrimaryCtxRetain")));
        let reopened = open();
        assert_eq!(now(), SECOND);
        assert_ne!(reopened.context_id(), context_id, "the handle is the same, the context is not");

        let error = CudaDriver::open(2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoDevice);
        assert!(error.to_string().contains("the driver shows 2"), "{error}");
    });
}

#[test]
fn failures_while_opening_are_typed() {
    alone("failures_while_opening_are_typed", Installed::StandIn, &[], |_| {
        let _ = device_count().unwrap();
        stand_on_second();
        for (call, code) in [
            ("cuDeviceGetCount", 999),
            ("cuDevicePrimaryCtxRetain", 2),
            ("cuCtxSetCurrent", 201),
            ("cuCtxGetCurrent", 4),
            ("cuDriverGetVersion", 999),
            ("cuDeviceGetName", 999),
        ] {
            fail(call, 1, code);
            let error = CudaDriver::open(0).unwrap_err();
            assert_eq!(error.driver().unwrap().code(), code, "{call}: {}", print(&error));
            assert_eq!(now(), SECOND, "{call}");
        }
        open();
    });
}

#[test]
fn a_body_is_called_with_the_context_current() {
    alone("a_body_is_called_with_the_context_current", Installed::StandIn, &[], |_| {
        let driver = open();
        stand_on_second();
        let mut seen = Vec::new();
        driver.with_current(&mut || seen.push(now())).unwrap();
        assert_eq!((seen, now()), (vec![FIRST], SECOND));
        fail("cuCtxPushCurrent_v2", 1, 201);
        assert!(driver.with_current(&mut || panic!("called without a context")).is_err());
        assert_eq!(now(), SECOND);
    });
}

#[test]
fn calls_are_made_with_their_own_context_current() {
    alone("calls_are_made_with_their_own_context_current", Installed::StandIn, &[], |log| {
        let driver = open();
        stand_on_second();
        log.take();
        let address = driver.mem_alloc(4096).unwrap();
        assert_eq!(
            log.take(),
            [
                "cuCtxGetCurrent ctx=0x2000",
                "cuCtxPushCurrent_v2 ctx=0x2000 context=0x1000",
                "cuThreadExchangeStreamCaptureMode ctx=0x1000",
                "# mode=2",
                "cuMemAlloc_v2 ctx=0x1000 bytes=4096",
                "cuThreadExchangeStreamCaptureMode ctx=0x1000",
                "# mode=0",
                "cuCtxPopCurrent_v2 ctx=0x1000",
            ]
        );
        assert_eq!(now(), SECOND);

        let library = Library::get().unwrap();
        // SAFETY: the stand-in takes any number.
        unsafe { library.ctx_push_current(FIRST) }.unwrap();
        let event = driver.event_create().unwrap();
        log.take();
        // SAFETY: 4 bytes of the block that was allocated above; the source lives.
        unsafe {
            driver.copy_to_device(
                RawCopy { target: address, source: [1_u8, 2, 3, 4].as_ptr(), bytes: 4 },
                RawStream(0),
            )
        }
        .unwrap();
        driver.event_record(event, RawStream(0)).unwrap();
        let calls = log.take();
        assert_eq!(calls.len(), 4, "one look and one call each: {calls:?}");
        assert!(calls[1].starts_with("cuMemcpyHtoDAsync_v2 ctx=0x1000"));
        assert!(calls[3].starts_with("cuEventRecord ctx=0x1000"));
        // SAFETY: came from this driver, and nothing uses them.
        unsafe {
            driver.mem_free(address).unwrap();
            driver.event_destroy(event).unwrap();
        }
        assert!(log.changes().iter().all(|line| !line.contains("Push")));
        assert_eq!(now(), FIRST);
        assert_eq!(alive(), 0);
    });
}

#[test]
fn streams_leave_the_current_context_alone() {
    alone("streams_leave_the_current_context_alone", Installed::StandIn, &[], |log| {
        let driver = open();
        for before in [0, SECOND] {
            if before != 0 {
                stand_on_second();
            }
            let stream = driver.stream_create().unwrap();
            assert_eq!(now(), before);
            assert!(driver.context().is_in_multi_stream_mode(), "cudarc counts it");
            assert_eq!(alive(), 1);
            driver.stream_synchronize(stream.raw).unwrap();
            log.take();
            driver.stream_destroy(stream.raw, stream.keep);
            assert_eq!(now(), before);
            assert_eq!(alive(), 0);
            assert!(
                log.take().iter().any(|line| line.starts_with("cuStreamDestroy_v2 ctx=0x1000"))
            );
            assert!(!driver.context().is_in_multi_stream_mode());
        }
        // A foreign stream is let go of, no more.
        log.take();
        driver.stream_destroy(RawStream(0x77), None);
        assert!(log.changes().iter().all(|line| !line.starts_with("cuStreamDestroy")));
        assert_eq!(driver.legacy_stream(), RawStream(0));
        assert_eq!(driver.per_thread_stream().unwrap(), RawStream(2));
    });
}

#[test]
fn an_old_error_in_cudarc_is_not_ours() {
    alone("an_old_error_in_cudarc_is_not_ours", Installed::StandIn, &[], |_| {
        let driver = open();
        let stale = cudarc::driver::sys::CUresult::CUDA_ERROR_INVALID_VALUE;
        driver.context().record_err::<()>(Err(cudarc::driver::DriverError(stale)));
        let stream = driver.stream_create().unwrap();
        assert!(driver.context().check_err().is_err(), "still there for its owner");
        driver.context().record_err::<()>(Err(cudarc::driver::DriverError(stale)));
        driver.stream_destroy(stream.raw, stream.keep);
        assert_eq!(alive(), 0);
    });
}

type Call<'a> = &'a dyn Fn() -> Result<(), DriverError>;

#[test]
fn failures_are_typed_and_leave_the_stack_alone() {
    alone("failures_are_typed_and_leave_the_stack_alone", Installed::StandIn, &[], |_| {
        let driver = open();
        stand_on_second();
        let none = HostFlags::default();
        let event = driver.event_create().unwrap();
        let failing: &[(&str, Call<'_>)] = &[
            ("cuMemAlloc_v2", &|| driver.mem_alloc(64).map(drop)),
            ("cuMemAllocManaged", &|| driver.mem_alloc_managed(64).map(drop)),
            ("cuMemPoolCreate", &|| driver.pool_create(crate::PoolSpec::keeping(0)).map(drop)),
            ("cuMemPoolSetAttribute", &|| {
                driver.pool_create(crate::PoolSpec::keeping(0)).map(drop)
            }),
            ("cuMemHostAlloc", &|| driver.host_alloc(64, none).map(drop)),
            ("cuMemGetInfo_v2", &|| driver.memory_info().map(drop)),
            ("cuStreamCreate", &|| {
                driver.stream_create().map(|made| driver.stream_destroy(made.raw, made.keep))
            }),
            ("cuEventCreate", &|| driver.event_create().map(drop)),
            ("cuEventRecord", &|| driver.event_record(event, RawStream(0))),
            ("cuEventQuery", &|| driver.event_query(event).map(drop)),
            ("cuStreamQuery", &|| driver.stream_query(RawStream(0)).map(drop)),
            ("cuEventSynchronize", &|| driver.event_synchronize(event)),
            ("cuStreamWaitEvent", &|| driver.stream_wait_event(RawStream(0), event)),
            ("cuStreamSynchronize", &|| driver.stream_synchronize(RawStream(0))),
            ("cuStreamIsCapturing", &|| driver.capture_status(RawStream(0)).map(drop)),
            ("cuCtxSynchronize", &|| driver.context_synchronize()),
            ("cuCtxRecordEvent", &|| driver.context_record(event)),
            ("cuCtxGetCurrent", &|| driver.context_synchronize()),
            ("cuCtxPushCurrent_v2", &|| driver.context_synchronize()),
        ];
        for (call, run) in failing {
            // The last number is in no header yet. cudarc's own calls could not carry it.
            for code in [2, 719, if *call == "cuStreamCreate" { 999 } else { 4242 }] {
                let before = alive();
                fail(call, 1, code);
                let error = run().unwrap_err();
                assert_eq!((error.call(), error.code()), (*call, code));
                assert_eq!(now(), SECOND, "{call}");
                assert_eq!(alive(), before, "{call} left something behind");
            }
            if !call.starts_with("cuCtx") && !call.starts_with("cuMemPool") {
                assert!(run().is_ok(), "{call} works again");
            }
        }
        let error = Error::driver_call("testing", DriverError::new("cuMemAlloc_v2", 4242));
        assert!(print(&error).contains("a number without a name here"));
        assert_eq!(driver.event_query(RawEvent(0xdead)).unwrap_err().code(), 400);
        fail("cuEventQuery", 1, DriverError::NOT_READY);
        assert!(!driver.event_query(event).unwrap());
        assert!(driver.event_query(event).unwrap());
        // A context that cannot be let go of is leaked, not crashed on.
        fail("cuCtxGetCurrent", 1, DriverError::DEINITIALIZED);
        drop(driver);
        assert_eq!(now(), SECOND);
    });
}
