//! Tests of a forked child, where every call is an error and not one reaches the driver.

use super::*;
use crate::error::DriverError;
use crate::{Kernel, LaunchConfig, RawFill, RawGraph, RawLaunch};
use std::ptr::NonNull;

static NOTHING: Kernel = Kernel::new("nothing", ".version 6.4", |_, _| Ok(()));

fn every_call(driver: &CudaDriver) -> Vec<(&'static str, Result<(), DriverError>)> {
    let (stream, event, pool) = (RawStream(0), RawEvent(1), crate::RawPool(1));
    let none = HostFlags::default();
    let block = NonNull::<u64>::dangling().cast::<u8>();
    let config = LaunchConfig::for_elements(1);
    // SAFETY: a forked child's calls end before they look at their arguments.
    unsafe {
        vec![
            ("memory_info", driver.memory_info().map(drop)),
            ("mem_alloc", driver.mem_alloc(1).map(drop)),
            ("mem_free", driver.mem_free(1)),
            ("mem_alloc_managed", driver.mem_alloc_managed(1).map(drop)),
            ("pool_create", driver.pool_create(crate::PoolSpec::keeping(0)).map(drop)),
            ("pool_destroy", driver.pool_destroy(pool)),
            ("pool_trim", driver.pool_trim(pool, 0)),
            ("mem_alloc_async", driver.mem_alloc_async(pool, 1, stream).map(drop)),
            ("mem_free_async", driver.mem_free_async(1, stream)),
            ("host_alloc", driver.host_alloc(1, none).map(drop)),
            ("host_free", driver.host_free(block)),
            ("host_register", driver.host_register(NonNull::slice_from_raw_parts(block, 1), none)),
            ("host_unregister", driver.host_unregister(block)),
            ("host_device_address", driver.host_device_address(block).map(drop)),
            ("stream_create", driver.stream_create().map(drop)),
            ("stream_synchronize", driver.stream_synchronize(stream)),
            ("stream_wait_event", driver.stream_wait_event(stream, event)),
            ("capture_status", driver.capture_status(stream).map(drop)),
            ("stream_begin_capture", driver.stream_begin_capture(stream)),
            ("stream_end_capture", driver.stream_end_capture(stream).map(drop)),
            ("stream_abandon_capture", driver.stream_abandon_capture(stream)),
            ("graph_launch", driver.graph_launch(RawGraph(1), stream)),
            ("graph_destroy", driver.graph_destroy(RawGraph(1))),
            ("event_create", driver.event_create().map(drop)),
            ("event_destroy", driver.event_destroy(event)),
            ("event_record", driver.event_record(event, stream)),
            ("event_query", driver.event_query(event).map(drop)),
            ("event_synchronize", driver.event_synchronize(event)),
            ("context_record", driver.context_record(event)),
            ("context_synchronize", driver.context_synchronize()),
            (
                "copy_to_device",
                driver.copy_to_device(
                    RawCopy { target: 1, source: block.as_ptr(), bytes: 1 },
                    stream,
                ),
            ),
            (
                "copy_to_host",
                driver
                    .copy_to_host(RawCopy { target: block.as_ptr(), source: 1, bytes: 1 }, stream),
            ),
            (
                "copy_on_device",
                driver.copy_on_device(RawCopy { target: 1, source: 1, bytes: 1 }, stream),
            ),
            (
                "copy_from_peer",
                driver.copy_from_peer(RawCopy { target: 1, source: 1, bytes: 1 }, driver, stream),
            ),
            (
                "fill",
                driver.fill(
                    RawFill { target: 1, stride: 1, word: crate::FillWord::U8(0), count: 1 },
                    stream,
                ),
            ),
            (
                "launch",
                driver.launch(
                    RawLaunch { kernel: &NOTHING, config: &config, arguments: &[] },
                    stream,
                ),
            ),
        ]
    }
}

#[test]
fn a_child_cannot_reach_the_driver() {
    alone("forked::a_child_cannot_reach_the_driver", Installed::StandIn, &[], |log| {
        let driver = open();
        let stream = driver.stream_create().unwrap();
        let (raw, keep) = (stream.raw, stream.keep);
        log.take();
        // SAFETY: the child runs the code below, starts no thread, and leaves through `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let wrong = every_call(&driver)
                .into_iter()
                .filter(|(_, result)| {
                    !matches!(result, Err(error) if error.code() == DriverError::FORKED)
                })
                .count();
            let opened = CudaDriver::open(0).is_err_and(|e| e.kind() == ErrorKind::Forked)
                && device_count().is_err_and(|e| e.kind() == ErrorKind::Forked)
                && CudaDriver::from_context(driver.context().clone())
                    .is_err_and(|e| e.kind() == ErrorKind::Forked);
            driver.stream_destroy(raw, keep);
            drop(driver);
            // SAFETY: ends the child, and nothing of the parent's.
            unsafe { libc::_exit(if opened { wrong as i32 } else { 100 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "calls that were not refused");
        assert_eq!(log.take(), Vec::<String>::new(), "calls that reached the driver");
        driver.stream_destroy(raw, keep);
        assert!(driver.memory_info().is_ok(), "the parent goes on");
    });
}
