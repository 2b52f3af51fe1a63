//! Failures: injected ones, a lost context, no memory, captures, a device that lacks things.

use super::*;
use crate::backend::CaptureStatus;

#[test]
fn the_nth_call_fails_once() {
    let rig = rig();
    rig.sim.fail_call("cuMemAlloc", 2, 2).unwrap();
    let first = rig.alloc(64);
    let error = rig.driver.mem_alloc(64).unwrap_err();
    assert_eq!((error.call(), error.code()), ("cuMemAlloc", 2));
    rig.alloc(64);
    rig.sim.fail_call("cuMemFree", 1, 4).unwrap();
    // SAFETY: unused.
    let free = || unsafe { rig.driver.mem_free(first) };
    assert_eq!(free().unwrap_err().code(), 4);
    free().unwrap();
    rig.sim.fail_call("cuMemAlloc", 1, 2).unwrap();
    rig.sim.fail_call("cuMemAlloc", 1, 3).unwrap();
    assert_eq!(rig.driver.mem_alloc(64).unwrap_err().code(), 2);
    assert_eq!(rig.driver.mem_alloc(64).unwrap_err().code(), 3);
    rig.alloc(64);
    assert_eq!(rig.sim.call_count("cuMemAlloc"), 6);
    assert_eq!(rig.sim.call_count("cuEventRecord"), 0);
    assert!(rig.sim.calls().contains(&("cuMemFree", 2)));
    rig.clean();
}

#[test]
fn a_lost_context_stays_lost() {
    let rig = rig();
    let (stream, event, block) = (rig.stream(), rig.event(), rig.alloc(64));
    rig.note(1, stream);
    rig.driver.event_record(event, stream).unwrap();
    let other = self::rig();
    let waiter = other.stream();
    other.driver.stream_wait_event(waiter, event).unwrap();
    rig.sim.lose_context();
    assert_eq!(rig.sync(stream).unwrap_err().code(), 709);
    assert_eq!(rig.driver.mem_alloc(64).unwrap_err().code(), 709);
    assert_eq!(rig.driver.event_query(event).unwrap_err().code(), 709);
    assert_eq!(rig.driver.per_thread_stream().unwrap_err().code(), 709);
    assert!(rig.driver.stream_create().is_err_and(|error| error.is_gone()));
    // SAFETY: unused.
    assert_eq!(unsafe { rig.driver.mem_free(block) }.unwrap_err().code(), 709);
    rig.driver.stream_destroy(stream, None);
    assert!(notes(rig.run).is_empty(), "what was queued is given up");
    // Others go on.
    other.sync(waiter).unwrap();
    assert_eq!(other.driver.event_synchronize(event).unwrap_err().code(), 709);
    assert!(rig.sim.reports().is_empty());
}

#[test]
fn a_kernel_that_fails_or_panics_takes_the_context() {
    for (kernel, text) in [(&FAIL, "always fails"), (&PANIC, "on purpose")] {
        let rig = rig();
        let (stream, other) = (rig.stream(), rig.stream());
        rig.launch(kernel, &[], stream);
        rig.order(stream, other);
        rig.note(1, other);
        let error = rig.sync(stream).unwrap_err();
        assert_eq!((error.code(), error.kind()), (719, ErrorKind::Simulation));
        let report = rig.sim.take_reports().remove(0);
        assert_eq!(report.kind(), Violation::KernelFault);
        assert!(report.to_string().contains(text), "{report}");
        let error = rig.driver.mem_alloc(64).unwrap_err();
        assert_eq!((error.code(), error.kind()), (719, ErrorKind::ContextLost));
        assert!(notes(rig.run).is_empty());
    }
}

#[test]
fn a_kernel_that_works_keeps_it() {
    let rig = rig();
    let stream = rig.stream();
    rig.note(1, stream);
    rig.clean();
    rig.alloc(64);
}

#[test]
fn memory_runs_out_and_comes_back() {
    let rig = Rig::new(SimConfig::default().capacity(1000));
    let (stream, pool) = (rig.stream(), rig.pool());
    let block = rig.alloc(600);
    assert_eq!(rig.driver.memory_info().unwrap().free, 400);
    assert_eq!(rig.driver.mem_alloc(401).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(rig.driver.mem_alloc(usize::MAX).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(rig.driver.mem_alloc_managed(401).unwrap_err().code(), 2);
    assert_eq!(rig.driver.mem_alloc_async(pool, 401, stream).unwrap_err().code(), 2);
    assert_eq!(rig.driver.mem_alloc(0).unwrap_err().code(), 1);
    // SAFETY: unused.
    unsafe { rig.driver.mem_free(block).unwrap() };
    let block = rig.driver.mem_alloc_async(pool, 1000, stream).unwrap();
    // SAFETY: as above.
    unsafe { rig.driver.mem_free_async(block, stream).unwrap() };
    assert_eq!(rig.driver.memory_info().unwrap().free, 0, "the free has not run");
    // An allocation that is short of memory runs it.
    rig.alloc(1000);
    rig.clean();
}

#[test]
fn pools_are_checked() {
    let rig = rig();
    let (stream, pool) = (rig.stream(), rig.pool());
    rig.driver.pool_trim(pool, 0).unwrap();
    // SAFETY: nothing is allocated from it after this.
    unsafe { rig.driver.pool_destroy(pool).unwrap() };
    assert_eq!(rig.driver.pool_trim(pool, 0).unwrap_err().code(), 400);
    assert_eq!(rig.driver.mem_alloc_async(pool, 64, stream).unwrap_err().code(), 400);
}

#[test]
fn a_capture_keeps_its_operations() {
    let rig = rig();
    let (stream, other) = (rig.stream(), rig.stream());
    rig.sim.begin_capture(stream).unwrap();
    assert_eq!(rig.driver.capture_status(stream).unwrap(), CaptureStatus::Active);
    assert_eq!(rig.driver.capture_status(other).unwrap(), CaptureStatus::None);
    rig.note(1, stream);
    rig.note(2, other);
    rig.sync(other).unwrap();
    assert_eq!(rig.sim.end_capture(stream), CaptureStatus::Active);
    rig.clean();
    assert_eq!(notes(rig.run), [2]);
    assert_eq!(rig.sim.end_capture(stream), CaptureStatus::None);
    rig.note(3, stream);
    rig.clean();
    assert_eq!(notes(rig.run), [2, 3]);
}

#[test]
fn a_capture_spreads_through_its_events() {
    let rig = rig();
    let (stream, joined) = (rig.stream(), rig.stream());
    rig.sim.begin_capture(stream).unwrap();
    rig.order(stream, joined);
    assert_eq!(rig.driver.capture_status(joined).unwrap(), CaptureStatus::Active);
    rig.note(1, joined);
    rig.order(joined, stream);
    assert_eq!(rig.sim.end_capture(stream), CaptureStatus::Active);
    assert_eq!(rig.driver.capture_status(joined).unwrap(), CaptureStatus::None);
    rig.clean();
    assert!(notes(rig.run).is_empty());
}

#[test]
fn some_calls_invalidate_a_capture() {
    type Call = fn(&Rig, RawStream, RawEvent) -> Result<(), DriverError>;
    let calls: [(&str, u32, Call); 10] = [
        ("synchronize the stream", 900, |rig, stream, _| rig.driver.stream_synchronize(stream)),
        ("synchronize the context", 900, |rig, _, _| rig.driver.context_synchronize()),
        ("record the context", 900, |rig, _, _| rig.driver.context_record(rig.event())),
        ("query a captured event", 907, |rig, stream, event| {
            rig.driver.event_record(event, stream)?;
            rig.driver.event_query(event).map(|_| ())
        }),
        ("synchronize a captured event", 907, |rig, stream, event| {
            rig.driver.event_record(event, stream)?;
            rig.driver.event_synchronize(event)
        }),
        ("wait for an event from outside", 905, |rig, stream, event| {
            rig.driver.event_record(event, rig.stream())?;
            rig.driver.stream_wait_event(stream, event)
        }),
        ("allocate in stream order", 900, |rig, stream, _| {
            rig.driver.mem_alloc_async(rig.pool(), 64, stream).map(|_| ())
        }),
        ("free in stream order", 900, |rig, stream, _| {
            let block = rig.driver.mem_alloc_async(rig.pool(), 64, rig.stream())?;
            // SAFETY: the simulated device checks it.
            unsafe { rig.driver.mem_free_async(block, stream) }
        }),
        ("copy from pageable memory", 900, |rig, stream, _| {
            let block = rig.alloc(4);
            // SAFETY: refused, or staged when it returns.
            unsafe { rig.driver.copy_to_device(block, [0_u8; 4].as_ptr(), 4, stream) }
        }),
        ("copy to pageable memory", 900, |rig, stream, _| {
            let (block, mut target) = (rig.alloc(4), [0_u8; 4]);
            // SAFETY: refused, or complete when it returns.
            unsafe { rig.driver.copy_to_host(target.as_mut_ptr(), block, 4, stream) }
        }),
    ];
    for (what, code, call) in calls {
        let rig = rig();
        let (stream, event) = (rig.stream(), rig.event());
        rig.sim.begin_capture(stream).unwrap();
        assert_eq!(call(&rig, stream, event).unwrap_err().code(), code, "{what}");
        assert_eq!(
            rig.driver.capture_status(stream).unwrap(),
            CaptureStatus::Invalidated,
            "{what}"
        );
        let block = rig.alloc(64);
        assert_eq!(rig.try_fill(block, 64, 0, stream).unwrap_err().code(), 901, "{what}");
        assert_eq!(rig.sim.end_capture(stream), CaptureStatus::Invalidated, "{what}");
        rig.fill(block, 64, 0, stream);
        rig.clean();
    }
}

#[test]
fn an_event_of_an_ended_capture_says_so() {
    let rig = rig();
    let (stream, event) = (rig.stream(), rig.event());
    rig.sim.begin_capture(stream).unwrap();
    rig.driver.event_record(event, stream).unwrap();
    assert_eq!(rig.sim.end_capture(stream), CaptureStatus::Active);
    assert_eq!(rig.driver.event_query(event).unwrap_err().code(), 1);
    assert_eq!(rig.driver.stream_wait_event(stream, event).unwrap_err().code(), 1);
    rig.driver.event_record(event, stream).unwrap();
    rig.driver.event_synchronize(event).unwrap();
    rig.clean();
}

#[test]
fn a_bare_device_says_what_it_lacks() {
    let bare = Rig::new(
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
            driver.pool_create(crate::backend::PoolSpec::keeping(0)).unwrap_err().code(),
            driver.pool_trim(RawPool(1), 0).unwrap_err().code(),
            driver.mem_alloc_async(RawPool(1), 64, stream).unwrap_err().code(),
            driver.mem_free_async(64, stream).unwrap_err().code(),
            driver.host_alloc(64, mapped).unwrap_err().code(),
            driver.host_device_address(pointer).unwrap_err().code(),
            driver.host_register(pointer, 8, HostFlags::default()).unwrap_err().code(),
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
