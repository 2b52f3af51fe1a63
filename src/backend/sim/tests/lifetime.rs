//! Blocks, streams and events: used too early, too late, freed too early, freed twice.

use super::*;

#[test]
fn a_use_follows_the_allocation() {
    for ordered in [false, true] {
        let rig = rig();
        let (first, second, pool) = (rig.stream(), rig.stream(), rig.pool());
        let block = rig.driver.mem_alloc_async(pool, 64, first).unwrap();
        if ordered {
            rig.order(first, second);
        }
        rig.fill(block, 64, 1, second);
        if ordered {
            rig.clean();
        } else {
            let report = rig.saw(Violation::UseBeforeAllocation);
            let other = format!("cuMemAllocFromPoolAsync on stream {}", first.0);
            assert_eq!(report.conflicts_with(), Some(other.as_str()));
        }
    }
}

#[test]
fn a_use_comes_before_the_free() {
    let rig = rig();
    let (first, second, pool) = (rig.stream(), rig.stream(), rig.pool());
    let block = rig.driver.mem_alloc_async(pool, 64, first).unwrap();
    rig.fill(block, 64, 1, first);
    // SAFETY: the simulated device checks it.
    unsafe { rig.driver.mem_free_async(block, first).unwrap() };
    rig.clean();
    for stream in [first, second] {
        rig.fill(block, 64, 1, stream);
        let report = rig.saw(Violation::UseAfterFree);
        assert!(report.conflicts_with().unwrap().starts_with("cuMemFreeAsync on stream"));
    }
    let plain = rig.alloc(64);
    // SAFETY: as above.
    unsafe { rig.driver.mem_free(plain).unwrap() };
    rig.fill(plain + 63, 1, 1, first);
    rig.saw(Violation::UseAfterFree);
    rig.clean();
}

#[test]
fn a_refused_copy_to_the_host_still_writes_and_says_so() {
    let rig = rig();
    let (stream, block) = (rig.stream(), rig.alloc(64));
    // SAFETY: the simulated device checks it.
    unsafe { rig.driver.mem_free(block).unwrap() };
    let mut target = [0_u8; 64];
    // SAFETY: pageable memory: complete when the call returns.
    let error = unsafe { rig.driver.copy_to_host(target.as_mut_ptr(), block, 64, stream) };
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Simulation);
    assert_eq!(target, [0xa5; 64]);
    rig.saw(Violation::UseAfterFree);
}

#[test]
fn a_free_in_stream_order_follows_every_use() {
    for ordered in [false, true] {
        let rig = rig();
        let (first, second, pool) = (rig.stream(), rig.stream(), rig.pool());
        let block = rig.driver.mem_alloc_async(pool, 64, first).unwrap();
        rig.order(first, second);
        rig.fill(block, 64, 1, second);
        if ordered {
            rig.order(second, first);
        }
        // SAFETY: the simulated device checks it.
        unsafe { rig.driver.mem_free_async(block, first).unwrap() };
        if ordered {
            rig.clean();
        } else {
            let report = rig.saw(Violation::FreeWhileInUse);
            assert_eq!(report.operation(), format!("cuMemFreeAsync on stream {}", first.0));
        }
    }
}

#[test]
fn a_free_in_stream_order_follows_the_allocation() {
    let rig = rig();
    let (first, second, pool) = (rig.stream(), rig.stream(), rig.pool());
    let block = rig.driver.mem_alloc_async(pool, 64, first).unwrap();
    // SAFETY: the simulated device checks it.
    unsafe { rig.driver.mem_free_async(block, second).unwrap() };
    rig.saw(Violation::UseBeforeAllocation);
}

#[test]
fn a_plain_free_waits_for_the_host_to_know() {
    for known in [false, true] {
        let rig = rig();
        let (stream, block) = (rig.stream(), rig.alloc(64));
        rig.fill(block, 64, 1, stream);
        if known {
            rig.sync(stream).unwrap();
        }
        // SAFETY: the simulated device checks it.
        unsafe { rig.driver.mem_free(block).unwrap() };
        if known {
            rig.clean();
        } else {
            assert_eq!(rig.saw(Violation::FreeWhileInUse).operation(), "cuMemFree");
        }
        assert_eq!((rig.sim.live_blocks(), rig.sim.live_bytes()), (0, 0));
    }
}

#[test]
fn page_locked_memory_is_freed_when_the_host_knows() {
    for known in [false, true] {
        let rig = rig();
        let (stream, block, pinned) = (rig.stream(), rig.alloc(64), rig.pinned(64));
        // SAFETY: live for 64 bytes; the device's checks are what is tested.
        unsafe {
            rig.driver.copy_to_device(block, pinned.as_ptr(), 64, stream).unwrap();
            if known {
                rig.sync(stream).unwrap();
            }
            rig.driver.host_free(pinned).unwrap();
        }
        if known {
            rig.clean();
        } else {
            assert_eq!(rig.saw(Violation::FreeWhileInUse).operation(), "cuMemFreeHost");
        }
        // The copy ran before the memory went.
        assert_eq!(rig.download(block, 64, stream), [0xa5; 64]);
        assert_eq!(rig.sim.host_blocks(), 0);
    }
}

#[test]
fn a_registration_ends_when_the_host_knows() {
    for known in [false, true] {
        let rig = rig();
        let (stream, block) = (rig.stream(), rig.alloc(64));
        let mut memory = vec![3_u8; 64];
        let pointer = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: live until it is unregistered, which runs what still uses it.
        unsafe {
            rig.driver.host_register(pointer, 64, HostFlags::default()).unwrap();
            assert_eq!(rig.sim.registered_ranges(), 1);
            let again = rig.driver.host_register(pointer, 8, HostFlags::default());
            assert_eq!(again.unwrap_err().code(), 712);
            rig.driver.copy_to_device(block, pointer.as_ptr(), 64, stream).unwrap();
            if known {
                rig.sync(stream).unwrap();
            }
            rig.driver.host_unregister(pointer).unwrap();
        }
        drop(memory);
        if known {
            rig.clean();
        } else {
            assert_eq!(rig.saw(Violation::FreeWhileInUse).operation(), "cuMemHostUnregister");
        }
        assert_eq!(rig.download(block, 64, stream), [3; 64]);
        assert_eq!(rig.sim.registered_ranges(), 0);
    }
}

#[test]
fn double_frees_are_seen() {
    let rig = rig();
    let (stream, pool) = (rig.stream(), rig.pool());
    let plain = rig.alloc(64);
    let pooled = rig.driver.mem_alloc_async(pool, 64, stream).unwrap();
    let pinned = rig.pinned(64);
    // SAFETY: the simulated device checks them; page-locked memory is named by number only.
    unsafe {
        rig.driver.mem_free(plain).unwrap();
        rig.driver.mem_free_async(pooled, stream).unwrap();
        rig.driver.host_free(pinned).unwrap();
        rig.clean();
        assert_eq!(rig.driver.mem_free(plain).unwrap_err().code(), 1);
        rig.saw(Violation::DoubleFree);
        assert_eq!(rig.driver.mem_free_async(pooled, stream).unwrap_err().code(), 1);
        rig.saw(Violation::DoubleFree);
        assert_eq!(rig.driver.mem_free(pooled).unwrap_err().code(), 1);
        rig.saw(Violation::DoubleFree);
        assert_eq!(rig.driver.host_free(pinned).unwrap_err().code(), 1);
        rig.saw(Violation::DoubleFree);
        assert_eq!(rig.driver.mem_free(0x1234).unwrap_err().code(), 1);
        rig.saw(Violation::UnmappedAddress);
    }
}

#[test]
fn blocks_go_back_the_way_they_came() {
    let rig = rig();
    let (stream, pool) = (rig.stream(), rig.pool());
    let (plain, managed) = (rig.alloc(64), rig.driver.mem_alloc_managed(64).unwrap());
    let pooled = rig.driver.mem_alloc_async(pool, 64, stream).unwrap();
    rig.sync(stream).unwrap();
    assert_eq!((rig.sim.live_blocks(), rig.sim.live_bytes()), (3, 192));
    // SAFETY: the simulated device checks them.
    unsafe {
        assert_eq!(rig.driver.mem_free_async(plain, stream).unwrap_err().code(), 1);
        let other = self::rig();
        assert_eq!(other.driver.mem_free(plain).unwrap_err().code(), 1, "another device's");
        rig.driver.mem_free(plain).unwrap();
        rig.driver.mem_free(managed).unwrap();
        rig.driver.mem_free(pooled).unwrap();
    }
    rig.clean();
    let info = rig.driver.memory_info().unwrap();
    assert_eq!(info.free, info.total);
}

#[test]
fn a_destroyed_stream_finishes_and_is_not_used_again() {
    let rig = rig();
    let (stream, other, block) = (rig.stream(), rig.stream(), rig.alloc(64));
    let event = rig.event();
    rig.fill(block, 64, 9, stream);
    rig.driver.event_record(event, stream).unwrap();
    rig.driver.stream_destroy(stream, None);
    // What it had still orders, and still runs.
    rig.driver.stream_wait_event(other, event).unwrap();
    assert_eq!(rig.download(block, 64, other), [9; 64]);
    rig.clean();
    assert_eq!(rig.try_fill(block, 64, 0, stream).unwrap_err().code(), 400);
    rig.saw(Violation::DestroyedStream);
    assert_eq!(rig.sync(stream).unwrap_err().code(), 400);
    rig.saw(Violation::DestroyedStream);
    assert_eq!(rig.driver.event_record(event, stream).unwrap_err().code(), 400);
    rig.saw(Violation::DestroyedStream);
    rig.driver.stream_destroy(stream, None);
    rig.saw(Violation::DestroyedStream);
    assert_ne!(rig.stream(), stream);
    rig.clean();
}

#[test]
fn work_of_a_destroyed_stream_still_conflicts() {
    let rig = rig();
    let (stream, other, block) = (rig.stream(), rig.stream(), rig.alloc(64));
    rig.fill(block, 64, 9, stream);
    rig.driver.stream_destroy(stream, None);
    rig.fill(block, 64, 1, other);
    rig.saw(Violation::UnorderedAccess);
}

#[test]
fn a_destroyed_event_is_not_used_again() {
    let rig = rig();
    let (stream, event) = (rig.stream(), rig.event());
    assert!(rig.driver.event_query(event).unwrap(), "never recorded");
    rig.driver.event_synchronize(event).unwrap();
    rig.driver.event_record(event, stream).unwrap();
    // SAFETY: the simulated device checks it.
    let destroy = || unsafe { rig.driver.event_destroy(event) };
    destroy().unwrap();
    rig.clean();
    let errors = [
        rig.driver.event_record(event, stream).unwrap_err(),
        rig.driver.event_query(event).unwrap_err(),
        rig.driver.event_synchronize(event).unwrap_err(),
        rig.driver.stream_wait_event(stream, event).unwrap_err(),
        rig.driver.context_record(event).unwrap_err(),
        destroy().unwrap_err(),
    ];
    assert!(errors.iter().all(|error| error.code() == 400));
    let reports = rig.sim.take_reports();
    assert_eq!(reports.len(), 6);
    assert!(reports.iter().all(|report| report.kind() == Violation::DestroyedEvent));
    rig.clean();
}

#[test]
fn streams_do_not_pile_up() {
    let rig = rig();
    let block = rig.alloc(64);
    for _ in 0..1000 {
        let stream = rig.stream();
        rig.fill(block, 64, 9, stream);
        rig.sync(stream).unwrap();
        rig.driver.stream_destroy(stream, None);
    }
    rig.clean();
    let held = crate::backend::sim::world::world();
    assert_eq!(held.devices[&rig.driver.key()].streams.len(), 1, "the legacy one");
}
