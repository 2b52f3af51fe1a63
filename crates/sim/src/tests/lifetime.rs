//! Blocks, streams and events that are used too early or too late, freed too early, or freed twice.

use super::*;

#[test]
fn a_use_follows_the_allocation() {
    for ordered in [false, true] {
        let fixture = fixture();
        let (first, second, pool) = (fixture.stream(), fixture.stream(), fixture.pool());
        let block = fixture.driver.mem_alloc_async(pool, 64, first).unwrap();
        if ordered {
            fixture.order(first, second);
        }
        fixture.fill(block, 64, 1, second);
        if ordered {
            fixture.clean();
        } else {
            let report = fixture.saw(Violation::UseBeforeAllocation);
            let other = format!("cuMemAllocFromPoolAsync on stream {}", first.0);
            assert_eq!(report.conflicts_with(), Some(other.as_str()));
        }
    }
}

#[test]
fn a_use_comes_before_the_free() {
    let fixture = fixture();
    let (first, second, pool) = (fixture.stream(), fixture.stream(), fixture.pool());
    let block = fixture.driver.mem_alloc_async(pool, 64, first).unwrap();
    fixture.fill(block, 64, 1, first);
    // SAFETY: the simulated device checks it.
    unsafe { fixture.driver.mem_free_async(block, first).unwrap() };
    fixture.clean();
    for stream in [first, second] {
        fixture.fill(block, 64, 1, stream);
        let report = fixture.saw(Violation::UseAfterFree);
        assert!(report.conflicts_with().unwrap().starts_with("cuMemFreeAsync on stream"));
    }
    let plain = fixture.alloc(64);
    // SAFETY: as above.
    unsafe { fixture.driver.mem_free(plain).unwrap() };
    fixture.fill(plain + 63, 1, 1, first);
    fixture.saw(Violation::UseAfterFree);
    fixture.clean();
}

#[test]
fn a_refused_copy_to_the_host_still_writes_and_says_so() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(64));
    // SAFETY: the simulated device checks it.
    unsafe { fixture.driver.mem_free(block).unwrap() };
    let mut target = [0_u8; 64];
    // SAFETY: pageable memory: complete when the call returns.
    let error = unsafe {
        fixture
            .driver
            .copy_to_host(RawCopy { target: target.as_mut_ptr(), source: block, bytes: 64 }, stream)
    };
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Simulation);
    assert_eq!(target, [0xa5; 64]);
    fixture.saw(Violation::UseAfterFree);
}

#[test]
fn a_free_in_stream_order_follows_every_use() {
    for ordered in [false, true] {
        let fixture = fixture();
        let (first, second, pool) = (fixture.stream(), fixture.stream(), fixture.pool());
        let block = fixture.driver.mem_alloc_async(pool, 64, first).unwrap();
        fixture.order(first, second);
        fixture.fill(block, 64, 1, second);
        if ordered {
            fixture.order(second, first);
        }
        // SAFETY: the simulated device checks it.
        unsafe { fixture.driver.mem_free_async(block, first).unwrap() };
        if ordered {
            fixture.clean();
        } else {
            let report = fixture.saw(Violation::FreeWhileInUse);
            assert_eq!(report.operation(), format!("cuMemFreeAsync on stream {}", first.0));
        }
    }
}

#[test]
fn a_free_in_stream_order_follows_the_allocation() {
    let fixture = fixture();
    let (first, second, pool) = (fixture.stream(), fixture.stream(), fixture.pool());
    let block = fixture.driver.mem_alloc_async(pool, 64, first).unwrap();
    // SAFETY: the simulated device checks it.
    unsafe { fixture.driver.mem_free_async(block, second).unwrap() };
    fixture.saw(Violation::UseBeforeAllocation);
}

#[test]
fn a_plain_free_needs_the_host_to_have_seen_all_uses() {
    for known in [false, true] {
        let fixture = fixture();
        let (stream, block) = (fixture.stream(), fixture.alloc(64));
        fixture.fill(block, 64, 1, stream);
        if known {
            fixture.sync(stream).unwrap();
        }
        // SAFETY: the simulated device checks it.
        unsafe { fixture.driver.mem_free(block).unwrap() };
        if known {
            fixture.clean();
        } else {
            assert_eq!(fixture.saw(Violation::FreeWhileInUse).operation(), "cuMemFree");
        }
        assert_eq!((fixture.sim.live_blocks(), fixture.sim.live_bytes()), (0, 0));
    }
}

#[test]
fn page_locked_memory_is_freed_after_the_host_has_seen_all_uses() {
    for known in [false, true] {
        let fixture = fixture();
        let (stream, block, pinned) = (fixture.stream(), fixture.alloc(64), fixture.pinned(64));
        // SAFETY: live for 64 bytes; the test is of the device's checks.
        unsafe {
            fixture
                .driver
                .copy_to_device(
                    RawCopy { target: block, source: pinned.as_ptr(), bytes: 64 },
                    stream,
                )
                .unwrap();
            if known {
                fixture.sync(stream).unwrap();
            }
            fixture.driver.host_free(pinned).unwrap();
        }
        if known {
            fixture.clean();
        } else {
            assert_eq!(fixture.saw(Violation::FreeWhileInUse).operation(), "cuMemFreeHost");
        }
        // The copy ran before the memory was freed.
        assert_eq!(fixture.download(block, 64, stream), [0xa5; 64]);
        assert_eq!(fixture.sim.host_blocks(), 0);
    }
}

#[test]
fn a_registration_ends_after_the_host_has_seen_all_uses() {
    for known in [false, true] {
        let fixture = fixture();
        let (stream, block) = (fixture.stream(), fixture.alloc(64));
        let mut memory = vec![3_u8; 64];
        let pointer = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: live until it is unregistered, which runs all operations that use it.
        unsafe {
            fixture
                .driver
                .host_register(NonNull::slice_from_raw_parts(pointer, 64), HostFlags::default())
                .unwrap();
            assert_eq!(fixture.sim.registered_ranges(), 1);
            let again = fixture
                .driver
                .host_register(NonNull::slice_from_raw_parts(pointer, 8), HostFlags::default());
            assert_eq!(again.unwrap_err().code(), 712);
            fixture
                .driver
                .copy_to_device(
                    RawCopy { target: block, source: pointer.as_ptr(), bytes: 64 },
                    stream,
                )
                .unwrap();
            if known {
                fixture.sync(stream).unwrap();
            }
            fixture.driver.host_unregister(pointer).unwrap();
        }
        drop(memory);
        if known {
            fixture.clean();
        } else {
            assert_eq!(fixture.saw(Violation::FreeWhileInUse).operation(), "cuMemHostUnregister");
        }
        assert_eq!(fixture.download(block, 64, stream), [3; 64]);
        assert_eq!(fixture.sim.registered_ranges(), 0);
    }
}

#[test]
fn double_frees_are_seen() {
    let fixture = fixture();
    let (stream, pool) = (fixture.stream(), fixture.pool());
    let plain = fixture.alloc(64);
    let pooled = fixture.driver.mem_alloc_async(pool, 64, stream).unwrap();
    let pinned = fixture.pinned(64);
    // SAFETY: the simulated device checks them; page-locked memory is named by number only.
    unsafe {
        fixture.driver.mem_free(plain).unwrap();
        fixture.driver.mem_free_async(pooled, stream).unwrap();
        fixture.driver.host_free(pinned).unwrap();
        fixture.clean();
        assert_eq!(fixture.driver.mem_free(plain).unwrap_err().code(), 1);
        fixture.saw(Violation::DoubleFree);
        assert_eq!(fixture.driver.mem_free_async(pooled, stream).unwrap_err().code(), 1);
        fixture.saw(Violation::DoubleFree);
        assert_eq!(fixture.driver.mem_free(pooled).unwrap_err().code(), 1);
        fixture.saw(Violation::DoubleFree);
        assert_eq!(fixture.driver.host_free(pinned).unwrap_err().code(), 1);
        fixture.saw(Violation::DoubleFree);
        assert_eq!(fixture.driver.mem_free(0x1234).unwrap_err().code(), 1);
        fixture.saw(Violation::UnmappedAddress);
    }
}

#[test]
fn blocks_are_freed_by_the_function_for_their_kind() {
    let fixture = fixture();
    let (stream, pool) = (fixture.stream(), fixture.pool());
    let (plain, managed) = (fixture.alloc(64), fixture.driver.mem_alloc_managed(64).unwrap());
    let pooled = fixture.driver.mem_alloc_async(pool, 64, stream).unwrap();
    fixture.sync(stream).unwrap();
    assert_eq!((fixture.sim.live_blocks(), fixture.sim.live_bytes()), (3, 192));
    // SAFETY: the simulated device checks them.
    unsafe {
        assert_eq!(fixture.driver.mem_free_async(plain, stream).unwrap_err().code(), 1);
        let other = self::fixture();
        assert_eq!(other.driver.mem_free(plain).unwrap_err().code(), 1, "another device's");
        fixture.driver.mem_free(plain).unwrap();
        fixture.driver.mem_free(managed).unwrap();
        fixture.driver.mem_free(pooled).unwrap();
    }
    fixture.clean();
    let info = fixture.driver.memory_info().unwrap();
    assert_eq!(info.free, info.total);
}

#[test]
fn a_destroyed_stream_finishes_and_is_not_used_again() {
    let fixture = fixture();
    let (stream, other, block) = (fixture.stream(), fixture.stream(), fixture.alloc(64));
    let event = fixture.event();
    fixture.fill(block, 64, 9, stream);
    fixture.driver.event_record(event, stream).unwrap();
    fixture.driver.stream_destroy(stream, None);
    // Its work still runs, and its events still order.
    fixture.driver.stream_wait_event(other, event).unwrap();
    assert_eq!(fixture.download(block, 64, other), [9; 64]);
    fixture.clean();
    assert_eq!(fixture.try_fill(block, 64, 0, stream).unwrap_err().code(), 400);
    fixture.saw(Violation::DestroyedStream);
    assert_eq!(fixture.sync(stream).unwrap_err().code(), 400);
    fixture.saw(Violation::DestroyedStream);
    assert_eq!(fixture.driver.event_record(event, stream).unwrap_err().code(), 400);
    fixture.saw(Violation::DestroyedStream);
    fixture.driver.stream_destroy(stream, None);
    fixture.saw(Violation::DestroyedStream);
    assert_ne!(fixture.stream(), stream);
    fixture.clean();
}

#[test]
fn work_of_a_destroyed_stream_still_conflicts() {
    let fixture = fixture();
    let (stream, other, block) = (fixture.stream(), fixture.stream(), fixture.alloc(64));
    fixture.fill(block, 64, 9, stream);
    fixture.driver.stream_destroy(stream, None);
    fixture.fill(block, 64, 1, other);
    fixture.saw(Violation::UnorderedAccess);
}

#[test]
fn a_destroyed_event_is_not_used_again() {
    let fixture = fixture();
    let (stream, event) = (fixture.stream(), fixture.event());
    assert!(fixture.driver.event_query(event).unwrap(), "never recorded");
    fixture.driver.event_synchronize(event).unwrap();
    fixture.driver.event_record(event, stream).unwrap();
    // SAFETY: the simulated device checks it.
    let destroy = || unsafe { fixture.driver.event_destroy(event) };
    destroy().unwrap();
    fixture.clean();
    let errors = [
        fixture.driver.event_record(event, stream).unwrap_err(),
        fixture.driver.event_query(event).unwrap_err(),
        fixture.driver.event_synchronize(event).unwrap_err(),
        fixture.driver.stream_wait_event(stream, event).unwrap_err(),
        fixture.driver.context_record(event).unwrap_err(),
        destroy().unwrap_err(),
    ];
    assert!(errors.iter().all(|error| error.code() == 400));
    let reports = fixture.sim.take_reports();
    assert_eq!(reports.len(), 6);
    assert!(reports.iter().all(|report| report.kind() == Violation::DestroyedEvent));
    fixture.clean();
}

#[test]
fn streams_do_not_pile_up() {
    let fixture = fixture();
    let block = fixture.alloc(64);
    for _ in 0..1000 {
        let stream = fixture.stream();
        fixture.fill(block, 64, 9, stream);
        fixture.sync(stream).unwrap();
        fixture.driver.stream_destroy(stream, None);
    }
    fixture.clean();
    let held = crate::state::lock_state();
    assert_eq!(held.devices[&fixture.driver.context_id()].streams.len(), 1, "the legacy one");
}

#[test]
fn a_copy_to_the_host_does_not_mask_an_earlier_report_by_its_own() {
    let fixture = fixture();
    let stream = fixture.stream();
    let (unwritten, target, gone) = (fixture.alloc(64), fixture.alloc(64), fixture.alloc(64));
    let arguments = [buffer(unwritten, 64, Access::Read), buffer(target, 64, Access::Write)];
    fixture.launch(&MOVE, &arguments, stream);
    // SAFETY: wrong on purpose: it is read below.
    unsafe { fixture.driver.mem_free(gone).unwrap() };
    let mut host = [0_u8; 64];
    let mut download = || {
        let copy = RawCopy { target: host.as_mut_ptr(), source: gone, bytes: 64 };
        // SAFETY: pageable memory: complete when the call returns.
        let error = unsafe { fixture.driver.copy_to_host(copy, stream) }.unwrap_err();
        assert_eq!((error.call(), error.code()), ("cuMemcpyDtoHAsync", 719));
        let error = Error::driver_call("testing", error);
        (error.kind(), Report::of(&error).unwrap().kind())
    };
    assert_eq!(download(), (ErrorKind::Simulation, Violation::UninitializedRead));
    let kinds: Vec<_> = fixture.sim.take_reports().iter().map(Report::kind).collect();
    assert_eq!(kinds, [Violation::UninitializedRead, Violation::UseAfterFree]);
    assert_eq!(download(), (ErrorKind::Simulation, Violation::UseAfterFree));
    assert_eq!(fixture.sim.take_reports().len(), 1);
    fixture.clean();
}
