//! Failures that are injected, a lost context, no memory, captures, and a device that lacks things.

use super::*;
use aquifer_driver::CaptureStatus;

#[test]
fn the_nth_call_fails_once() {
    let fixture = fixture();
    fixture.sim.fail_call("cuMemAlloc", 2, 2).unwrap();
    let first = fixture.alloc(64);
    let error = fixture.driver.mem_alloc(64).unwrap_err();
    assert_eq!((error.call(), error.code()), ("cuMemAlloc", 2));
    fixture.alloc(64);
    fixture.sim.fail_call("cuMemFree", 1, 1).unwrap();
    // SAFETY: unused.
    let free = || unsafe { fixture.driver.mem_free(first) };
    assert_eq!(free().unwrap_err().code(), 1);
    free().unwrap();
    fixture.sim.fail_call("cuMemAlloc", 1, 2).unwrap();
    fixture.sim.fail_call("cuMemAlloc", 1, 1).unwrap();
    assert_eq!(fixture.driver.mem_alloc(64).unwrap_err().code(), 2);
    assert_eq!(fixture.driver.mem_alloc(64).unwrap_err().code(), 1);
    fixture.alloc(64);
    assert_eq!(fixture.sim.call_count("cuMemAlloc"), 6);
    assert_eq!(fixture.sim.call_count("cuEventRecord"), 0);
    assert!(fixture.sim.calls().contains(&("cuMemFree", 2)));
    fixture.clean();
}

#[test]
fn a_lost_context_stays_lost() {
    let fixture = fixture();
    let (stream, event, block) = (fixture.stream(), fixture.event(), fixture.alloc(64));
    fixture.note(1, stream);
    fixture.driver.event_record(event, stream).unwrap();
    let other = self::fixture();
    let waiter = other.stream();
    other.driver.stream_wait_event(waiter, event).unwrap();
    fixture.sim.lose_context();
    assert_eq!(fixture.sync(stream).unwrap_err().code(), 709);
    assert_eq!(fixture.driver.mem_alloc(64).unwrap_err().code(), 709);
    assert_eq!(fixture.driver.event_query(event).unwrap_err().code(), 709);
    assert_eq!(fixture.driver.per_thread_stream().unwrap_err().code(), 709);
    assert!(fixture.driver.stream_create().is_err_and(|error| error.is_gone()));
    // SAFETY: unused.
    assert_eq!(unsafe { fixture.driver.mem_free(block) }.unwrap_err().code(), 709);
    fixture.driver.stream_destroy(stream, None);
    assert!(notes(fixture.run).is_empty(), "what was queued is given up");
    // Other devices go on.
    other.sync(waiter).unwrap();
    assert_eq!(other.driver.event_synchronize(event).unwrap_err().code(), 709);
    assert!(fixture.sim.reports().is_empty());
}

#[test]
fn a_failure_by_a_code_of_a_lost_context_loses_it() {
    for code in [4, 214, 700, 709, 710, 719] {
        let fixture = fixture();
        let (stream, other, block) = (fixture.stream(), fixture.stream(), fixture.alloc(64));
        fixture.note(1, stream);
        fixture.sim.begin_capture(other).unwrap();
        fixture.sim.fail_call("cuMemsetAsync", 1, code).unwrap();
        assert_eq!(fixture.try_fill(block, 64, 0, stream).unwrap_err().code(), code);
        assert_eq!(fixture.driver.mem_alloc(64).unwrap_err().code(), code);
        assert_eq!(fixture.driver.capture_status(other).unwrap_err().code(), code);
        let error = fixture.sync(stream).unwrap_err();
        assert_eq!((error.code(), error.kind()), (code, ErrorKind::ContextLost));
        assert!(notes(fixture.run).is_empty(), "what was queued is given up");
        assert_eq!(fixture.sim.end_capture(other), CaptureStatus::Invalidated);
        assert_eq!(fixture.sim.end_capture(other), CaptureStatus::None);
        assert!(fixture.sim.reports().is_empty());
    }
    for code in [2, 400, 600, 801, 999] {
        let fixture = fixture();
        let (stream, block) = (fixture.stream(), fixture.alloc(64));
        fixture.sim.begin_capture(stream).unwrap();
        fixture.sim.fail_call("cuMemsetAsync", 1, code).unwrap();
        assert_eq!(fixture.try_fill(block, 64, 0, stream).unwrap_err().code(), code);
        fixture.fill(block, 64, 0, stream);
        assert_eq!(fixture.sim.end_capture(stream), CaptureStatus::Active);
        fixture.clean();
    }
}

#[test]
fn a_kernel_that_fails_or_panics_takes_the_context() {
    for (kernel, text) in [(&FAIL, "always fails"), (&PANIC, "on purpose")] {
        let fixture = fixture();
        let (stream, other) = (fixture.stream(), fixture.stream());
        fixture.launch(kernel, &[], stream);
        fixture.order(stream, other);
        fixture.note(1, other);
        let error = fixture.sync(stream).unwrap_err();
        assert_eq!((error.code(), error.kind()), (719, ErrorKind::Simulation));
        let report = fixture.sim.take_reports().remove(0);
        assert_eq!(report.kind(), Violation::KernelFault);
        assert!(report.to_string().contains(text), "{report}");
        let error = fixture.driver.mem_alloc(64).unwrap_err();
        assert_eq!((error.code(), error.kind()), (719, ErrorKind::ContextLost));
        assert!(notes(fixture.run).is_empty());
    }
}

#[test]
fn a_kernel_that_works_keeps_it() {
    let fixture = fixture();
    let stream = fixture.stream();
    fixture.note(1, stream);
    fixture.clean();
    fixture.alloc(64);
}

#[test]
fn memory_runs_out_and_comes_back() {
    let fixture = Fixture::new(SimConfig::default().capacity(1000));
    let (stream, pool) = (fixture.stream(), fixture.pool());
    let block = fixture.alloc(600);
    assert_eq!(fixture.driver.memory_info().unwrap().free, 400);
    assert_eq!(fixture.driver.mem_alloc(401).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(fixture.driver.mem_alloc(usize::MAX).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(fixture.driver.mem_alloc_async(pool, 401, stream).unwrap_err().code(), 2);
    assert_eq!(fixture.driver.mem_alloc(0).unwrap_err().code(), 1);
    // SAFETY: unused.
    unsafe { fixture.driver.mem_free(block).unwrap() };
    let block = fixture.driver.mem_alloc_async(pool, 1000, stream).unwrap();
    // SAFETY: as above.
    unsafe { fixture.driver.mem_free_async(block, stream).unwrap() };
    assert_eq!(fixture.driver.memory_info().unwrap().free, 0, "the free has not run");
    // An allocation that is short of memory runs it.
    fixture.alloc(1000);
    fixture.clean();
}

#[test]
fn managed_memory_may_be_more_than_the_device_has() {
    let fixture = Fixture::new(SimConfig::default().capacity(1000));
    let (stream, free) = (fixture.stream(), || fixture.driver.memory_info().unwrap().free);
    let managed = fixture.driver.mem_alloc_managed(4000).unwrap();
    let more = fixture.driver.mem_alloc_managed(1000).unwrap();
    assert_eq!((free(), fixture.sim.live_bytes()), (1000, 5000));
    let plain = fixture.alloc(1000);
    assert_eq!(fixture.driver.mem_alloc(1).unwrap_err().code(), 2);
    // More than any machine has, but not than the address space.
    let vast = if cfg!(all(target_os = "linux", not(miri))) { 1 << 46 } else { usize::MAX };
    for bytes in [vast, usize::MAX] {
        assert_eq!(fixture.driver.mem_alloc_managed(bytes).unwrap_err().code(), 2, "{bytes}");
    }
    fixture.fill(managed, 4000, 7, stream);
    assert_eq!(fixture.download(managed + 3990, 10, stream), [7; 10]);
    for block in [managed, more, plain] {
        // SAFETY: its uses are complete.
        unsafe { fixture.driver.mem_free(block).unwrap() };
    }
    assert_eq!((free(), fixture.sim.live_bytes()), (1000, 0));
    fixture.clean();
}

#[test]
fn managed_memory_that_cannot_lie_at_the_host_fits_the_device() {
    let mut config = SimConfig::default().capacity(1000);
    config.properties.concurrent_managed_access = false;
    let fixture = Fixture::new(config);
    let managed = fixture.driver.mem_alloc_managed(600).unwrap();
    assert_eq!(fixture.driver.memory_info().unwrap().free, 400);
    assert_eq!(fixture.driver.mem_alloc_managed(401).unwrap_err().code(), 2);
    // SAFETY: unused.
    unsafe { fixture.driver.mem_free(managed).unwrap() };
    assert_eq!(fixture.driver.memory_info().unwrap().free, 1000);
    fixture.clean();
}

#[test]
fn pools_are_checked() {
    let fixture = fixture();
    let (stream, pool) = (fixture.stream(), fixture.pool());
    fixture.driver.pool_trim(pool, 0).unwrap();
    // SAFETY: nothing is allocated from it after this.
    unsafe { fixture.driver.pool_destroy(pool).unwrap() };
    assert_eq!(fixture.driver.pool_trim(pool, 0).unwrap_err().code(), 400);
    assert_eq!(fixture.driver.mem_alloc_async(pool, 64, stream).unwrap_err().code(), 400);
}

#[test]
fn a_capture_keeps_its_operations() {
    let fixture = fixture();
    let (stream, other) = (fixture.stream(), fixture.stream());
    fixture.sim.begin_capture(stream).unwrap();
    assert_eq!(fixture.driver.capture_status(stream).unwrap(), CaptureStatus::Active);
    assert_eq!(fixture.driver.capture_status(other).unwrap(), CaptureStatus::None);
    fixture.note(1, stream);
    fixture.note(2, other);
    fixture.sync(other).unwrap();
    assert_eq!(fixture.sim.end_capture(stream), CaptureStatus::Active);
    fixture.clean();
    assert_eq!(notes(fixture.run), [2]);
    assert_eq!(fixture.sim.end_capture(stream), CaptureStatus::None);
    fixture.note(3, stream);
    fixture.clean();
    assert_eq!(notes(fixture.run), [2, 3]);
}

#[test]
fn a_capture_spreads_through_its_events() {
    let fixture = fixture();
    let (stream, joined) = (fixture.stream(), fixture.stream());
    fixture.sim.begin_capture(stream).unwrap();
    fixture.order(stream, joined);
    assert_eq!(fixture.driver.capture_status(joined).unwrap(), CaptureStatus::Active);
    fixture.note(1, joined);
    fixture.order(joined, stream);
    assert_eq!(fixture.sim.end_capture(stream), CaptureStatus::Active);
    assert_eq!(fixture.driver.capture_status(joined).unwrap(), CaptureStatus::None);
    fixture.clean();
    assert!(notes(fixture.run).is_empty());
}

#[test]
fn some_calls_invalidate_a_capture() {
    type Call = fn(&Fixture, RawStream, RawEvent) -> Result<(), DriverError>;
    let calls: [(&str, u32, Call); 10] = [
        ("synchronize the stream", 900, |fixture, stream, _| {
            fixture.driver.stream_synchronize(stream)
        }),
        ("synchronize the context", 900, |fixture, _, _| fixture.driver.context_synchronize()),
        ("record the context", 900, |fixture, _, _| fixture.driver.context_record(fixture.event())),
        ("query a captured event", 907, |fixture, stream, event| {
            fixture.driver.event_record(event, stream)?;
            fixture.driver.event_query(event).map(|_| ())
        }),
        ("synchronize a captured event", 907, |fixture, stream, event| {
            fixture.driver.event_record(event, stream)?;
            fixture.driver.event_synchronize(event)
        }),
        ("wait for an event from outside", 905, |fixture, stream, event| {
            fixture.driver.event_record(event, fixture.stream())?;
            fixture.driver.stream_wait_event(stream, event)
        }),
        ("allocate in stream order", 900, |fixture, stream, _| {
            fixture.driver.mem_alloc_async(fixture.pool(), 64, stream).map(|_| ())
        }),
        ("free in stream order", 900, |fixture, stream, _| {
            let block = fixture.driver.mem_alloc_async(fixture.pool(), 64, fixture.stream())?;
            // SAFETY: the simulated device checks it.
            unsafe { fixture.driver.mem_free_async(block, stream) }
        }),
        ("copy from pageable memory", 900, |fixture, stream, _| {
            let block = fixture.alloc(4);
            // SAFETY: refused, or staged when it returns.
            unsafe {
                fixture.driver.copy_to_device(
                    RawCopy { target: block, source: [0_u8; 4].as_ptr(), bytes: 4 },
                    stream,
                )
            }
        }),
        ("copy to pageable memory", 900, |fixture, stream, _| {
            let (block, mut target) = (fixture.alloc(4), [0_u8; 4]);
            // SAFETY: refused, or complete when it returns.
            unsafe {
                fixture.driver.copy_to_host(
                    RawCopy { target: target.as_mut_ptr(), source: block, bytes: 4 },
                    stream,
                )
            }
        }),
    ];
    for (what, code, call) in calls {
        let fixture = fixture();
        let (stream, event) = (fixture.stream(), fixture.event());
        fixture.sim.begin_capture(stream).unwrap();
        assert_eq!(call(&fixture, stream, event).unwrap_err().code(), code, "{what}");
        assert_eq!(
            fixture.driver.capture_status(stream).unwrap(),
            CaptureStatus::Invalidated,
            "{what}"
        );
        let block = fixture.alloc(64);
        assert_eq!(fixture.try_fill(block, 64, 0, stream).unwrap_err().code(), 901, "{what}");
        assert_eq!(fixture.sim.end_capture(stream), CaptureStatus::Invalidated, "{what}");
        fixture.fill(block, 64, 0, stream);
        fixture.clean();
    }
}

#[test]
fn an_event_of_an_ended_capture_says_so() {
    let fixture = fixture();
    let (stream, event) = (fixture.stream(), fixture.event());
    fixture.sim.begin_capture(stream).unwrap();
    fixture.driver.event_record(event, stream).unwrap();
    assert_eq!(fixture.sim.end_capture(stream), CaptureStatus::Active);
    assert_eq!(fixture.driver.event_query(event).unwrap_err().code(), 1);
    assert_eq!(fixture.driver.stream_wait_event(stream, event).unwrap_err().code(), 1);
    fixture.driver.event_record(event, stream).unwrap();
    fixture.driver.event_synchronize(event).unwrap();
    fixture.clean();
}

#[test]
fn a_device_without_features_refuses_their_calls() {
    let bare = Fixture::new(
        SimConfig::default()
            .name("bare")
            .ordinal(3)
            .without_managed_memory()
            .without_memory_pools()
            .without_host_mapping()
            .without_host_register()
            .without_virtual_memory()
            .without_context_events(),
    );
    let stream = bare.stream();
    let mapped = HostFlags { mapped: true, ..HostFlags::default() };
    let mut memory = [0_u8; 8];
    let pointer = NonNull::from(&mut memory).cast();
    let driver = &bare.driver;
    // SAFETY: nothing of it gets past the first check.
    let codes = unsafe {
        [
            driver.mem_alloc_managed(64).unwrap_err().code(),
            driver.pool_create(aquifer_driver::PoolSpec::keeping(0)).unwrap_err().code(),
            driver.pool_trim(RawPool(1), 0).unwrap_err().code(),
            driver.mem_alloc_async(RawPool(1), 64, stream).unwrap_err().code(),
            driver.mem_free_async(64, stream).unwrap_err().code(),
            driver.host_alloc(64, mapped).unwrap_err().code(),
            driver.host_device_address(pointer).unwrap_err().code(),
            driver
                .host_register(NonNull::slice_from_raw_parts(pointer, 8), HostFlags::default())
                .unwrap_err()
                .code(),
            driver.context_record(bare.event()).unwrap_err().code(),
        ]
    };
    assert_eq!(codes, [801; 9]);
    let properties = driver.properties();
    assert_eq!((properties.name.as_str(), driver.ordinal()), ("bare", 3));
    assert!(!properties.managed_memory && !properties.virtual_memory);
    driver.host_alloc(64, HostFlags::default()).unwrap();
    bare.clean();
}
