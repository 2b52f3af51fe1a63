//! Accesses that are unordered or uninitialised, and ranges that are nowhere.

use super::*;

#[test]
fn two_writes_need_an_order() {
    let fixture = fixture();
    let (first, second, block) = (fixture.stream(), fixture.stream(), fixture.alloc(64));
    fixture.fill(block, 64, 1, first);
    fixture.fill(block + 32, 8, 2, second);
    let report = fixture.saw(Violation::UnorderedAccess);
    assert_eq!(report.operation(), format!("cuMemsetAsync on stream {}", second.0));
    assert_eq!(
        report.conflicts_with(),
        Some(format!("cuMemsetAsync on stream {}", first.0).as_str())
    );
    assert_eq!(report.range(), (block + 32, 8));
    assert!(report.to_string().contains("(seed 0)"), "{report}");
    fixture.clean();
}

#[test]
fn two_writes_in_order_are_clean() {
    let fixture = fixture();
    let (first, second, block) = (fixture.stream(), fixture.stream(), fixture.alloc(64));
    fixture.fill(block, 64, 1, first);
    fixture.order(first, second);
    fixture.fill(block + 32, 8, 2, second);
    fixture.clean();
    assert_eq!(fixture.download(block, 64, first)[30..34], [1, 1, 2, 2]);
}

#[test]
fn a_wait_before_the_record_orders_nothing() {
    let fixture = fixture();
    let (first, second, block) = (fixture.stream(), fixture.stream(), fixture.alloc(64));
    let event = fixture.event();
    fixture.driver.stream_wait_event(second, event).unwrap();
    fixture.fill(block, 64, 1, first);
    fixture.driver.event_record(event, first).unwrap();
    fixture.fill(block, 64, 2, second);
    fixture.saw(Violation::UnorderedAccess);
}

#[test]
fn an_event_covers_what_came_before_it_alone() {
    let fixture = fixture();
    let (first, second) = (fixture.stream(), fixture.stream());
    let (early, late) = (fixture.alloc(64), fixture.alloc(64));
    let event = fixture.event();
    fixture.fill(early, 64, 1, first);
    fixture.driver.event_record(event, first).unwrap();
    fixture.fill(late, 64, 1, first);
    fixture.driver.stream_wait_event(second, event).unwrap();
    fixture.fill(early, 64, 2, second);
    assert!(fixture.sim.reports().is_empty());
    fixture.fill(late, 64, 2, second);
    assert_eq!(fixture.saw(Violation::UnorderedAccess).range(), (late, 64));
}

#[test]
fn order_goes_through_third_streams_and_the_host() {
    let fixture = fixture();
    let [a, b, c] = [fixture.stream(), fixture.stream(), fixture.stream()];
    let block = fixture.alloc(64);
    fixture.fill(block, 64, 1, a);
    fixture.order(a, b);
    fixture.order(b, c);
    fixture.fill(block, 64, 2, c);
    fixture.sync(c).unwrap();
    fixture.fill(block, 64, 3, a);
    let event = fixture.event();
    fixture.driver.event_record(event, a).unwrap();
    fixture.driver.event_synchronize(event).unwrap();
    fixture.fill(block, 64, 4, b);
    fixture.driver.event_record(event, b).unwrap();
    while !fixture.driver.event_query(event).unwrap() {}
    fixture.fill(block, 64, 5, c);
    fixture.clean();
}

#[test]
fn an_operation_that_ran_is_not_ordered_before_the_host_has_seen_it() {
    let fixture = fixture();
    let (first, second, block) = (fixture.stream(), fixture.stream(), fixture.alloc(64));
    let event = fixture.event();
    fixture.fill(block, 64, 1, first);
    // Runs both queues dry by asking for another stream's event, which proves nothing for `first`.
    fixture.driver.event_record(event, second).unwrap();
    for _ in 0..100 {
        fixture.driver.event_query(event).unwrap();
    }
    fixture.fill(block, 64, 2, second);
    fixture.saw(Violation::UnorderedAccess);
}

#[test]
fn a_read_and_a_write_need_an_order() {
    for (first_writes, ordered) in [(false, false), (true, false), (false, true), (true, true)] {
        let fixture = fixture();
        let (first, second) = (fixture.stream(), fixture.stream());
        let (block, other) = (fixture.alloc(64), fixture.alloc(64));
        fixture.fill(block, 64, 1, first);
        fixture.sync(first).unwrap();
        let write = |stream| fixture.fill(block, 64, 2, stream);
        let read = |stream| fixture.copy(other, block, 64, stream);
        if first_writes {
            write(first)
        } else {
            read(first)
        }
        if ordered {
            fixture.order(first, second);
        }
        if first_writes {
            read(second)
        } else {
            write(second)
        }
        if ordered {
            fixture.clean();
        } else {
            assert_eq!(fixture.saw(Violation::UnorderedAccess).range(), (block, 64));
        }
    }
}

#[test]
fn two_reads_need_no_order_and_disjoint_bytes_neither() {
    let fixture = fixture();
    let (first, second) = (fixture.stream(), fixture.stream());
    let (block, other) = (fixture.alloc(64), fixture.alloc(128));
    fixture.fill(block, 64, 1, first);
    fixture.sync(first).unwrap();
    fixture.copy(other, block, 64, first);
    fixture.copy(other + 64, block, 64, second);
    fixture.clean();
}

#[test]
fn a_write_has_to_follow_every_reader() {
    for both in [false, true] {
        let fixture = fixture();
        let [a, b, c] = [fixture.stream(), fixture.stream(), fixture.stream()];
        let (block, other) = (fixture.alloc(64), fixture.alloc(128));
        fixture.fill(block, 64, 1, a);
        fixture.sync(a).unwrap();
        fixture.copy(other, block, 64, a);
        fixture.copy(other + 64, block, 64, b);
        fixture.order(a, c);
        if both {
            fixture.order(b, c);
        }
        fixture.fill(block, 64, 2, c);
        if both {
            fixture.clean();
        } else {
            let report = fixture.saw(Violation::UnorderedAccess);
            assert!(report.conflicts_with().unwrap().ends_with(&format!("stream {}", b.0)));
        }
    }
}

#[test]
fn a_context_event_covers_all_streams() {
    for ordered in [false, true] {
        let fixture = fixture();
        let [a, b, c] = [fixture.stream(), fixture.stream(), fixture.stream()];
        let blocks = [fixture.alloc(64), fixture.alloc(64)];
        fixture.fill(blocks[0], 64, 1, a);
        fixture.fill(blocks[1], 64, 1, b);
        let event = fixture.event();
        fixture.driver.context_record(event).unwrap();
        if ordered {
            fixture.driver.stream_wait_event(c, event).unwrap();
        }
        fixture.fill(blocks[0], 64, 2, c);
        if ordered {
            fixture.fill(blocks[1], 64, 2, c);
            fixture.driver.event_synchronize(event).unwrap();
            fixture.clean();
        } else {
            fixture.saw(Violation::UnorderedAccess);
        }
    }
}

#[test]
fn devices_are_ordered_by_events_too() {
    for ordered in [false, true] {
        let (left, right) = (fixture(), fixture());
        let (here, there) = (left.stream(), right.stream());
        let (target, source) = (left.alloc(64), right.alloc(64));
        right.fill(source, 64, 7, there);
        if ordered {
            let event = right.event();
            right.driver.event_record(event, there).unwrap();
            left.driver.stream_wait_event(here, event).unwrap();
        }
        let from: &dyn Driver = &*right.driver;
        // SAFETY: the simulated device checks the ranges.
        unsafe {
            left.driver.copy_from_peer(RawCopy { target, source, bytes: 64 }, from, here).unwrap()
        };
        if ordered {
            // Draining the left device runs the operations of the right one that it waits for.
            assert_eq!(left.download(target, 64, here), [7; 64]);
            left.clean();
            right.clean();
        } else {
            left.saw(Violation::UnorderedAccess);
        }
    }
}

#[test]
fn memory_of_another_device_is_not_mapped() {
    let (left, right) = (fixture(), fixture());
    let (stream, block) = (left.stream(), right.alloc(64));
    assert_eq!(left.try_fill(block, 64, 0, stream).unwrap_err().code(), 1);
    left.saw(Violation::UnmappedAddress);
    right.clean();
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let (left, right) = (fixture(), fixture());
    let (stream, block) = (right.stream(), left.alloc(64));
    assert_eq!(left.try_fill(block, 64, 0, stream).unwrap_err().code(), 400);
    left.saw(Violation::ForeignHandle);
    let (event, stream) = (right.event(), left.stream());
    assert_eq!(left.driver.event_record(event, stream).unwrap_err().code(), 400);
    left.saw(Violation::ForeignHandle);
    right.clean();
}

#[test]
fn reads_of_unwritten_bytes_are_seen() {
    let fixture = fixture();
    let (stream, block, other) = (fixture.stream(), fixture.alloc(64), fixture.alloc(64));
    fixture.fill(block, 63, 1, stream);
    fixture.download(block, 64, stream);
    let report = fixture.saw(Violation::UninitializedRead);
    assert_eq!(report.range(), (block + 63, 1));
    assert_eq!(report.conflicts_with(), Some("cuMemAlloc"));
    fixture.fill(block + 63, 1, 1, stream);
    fixture.download(block, 64, stream);
    fixture.copy(other, block, 64, stream);
    fixture.download(other, 64, stream);
    fixture.clean();
}

#[test]
fn a_copy_of_unwritten_bytes_is_reported_where_they_are_read() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(64));
    let (copy, next, sink) = (fixture.alloc(128), fixture.alloc(64), fixture.alloc(64));
    fixture.fill(copy, 128, 1, stream);
    fixture.fill(block, 40, 2, stream);
    fixture.copy(copy + 8, block, 64, stream);
    fixture.copy(next, copy + 8, 64, stream);
    fixture.clean();

    fixture.download(copy, 48, stream);
    fixture.download(copy + 72, 56, stream);
    fixture.clean();
    fixture.download(copy, 128, stream);
    let report = fixture.saw(Violation::UninitializedRead);
    assert_eq!(report.range(), (copy + 48, 24));
    assert_eq!(report.operation(), format!("cuMemcpyDtoHAsync on stream {}", stream.0));
    let by = format!("cuMemcpyDtoDAsync on stream {}", stream.0);
    assert_eq!(report.conflicts_with(), Some(by.as_str()));
    assert!(report.to_string().contains("that copy found them unwritten"), "{report}");

    let arguments = [buffer(next, 64, Access::Read), buffer(sink, 64, Access::Write)];
    fixture.launch(&MOVE, &arguments, stream);
    let report = fixture.saw(Violation::UninitializedRead);
    assert_eq!(report.range(), (next + 40, 24));
    assert!(report.operation().starts_with("cuLaunchKernel of move on stream"), "{report}");

    // A write takes the mark from what it writes, and so does a copy of what was written.
    fixture.fill(copy + 48, 8, 3, stream);
    fixture.copy(copy + 56, copy, 8, stream);
    fixture.download(copy, 128, stream);
    assert_eq!(fixture.saw(Violation::UninitializedRead).range(), (copy + 64, 8));
    fixture.copy(copy + 64, copy, 8, stream);
    fixture.download(copy, 128, stream);
    fixture.clean();
}

#[test]
fn a_graph_and_a_peer_copy_unwritten_bytes_too() {
    let (fixture, peer) = (fixture(), fixture());
    let (stream, block, copy) = (fixture.stream(), fixture.alloc(64), fixture.alloc(64));
    let graph = fixture.capture(stream, || fixture.copy(copy, block, 64, stream)).unwrap();
    fixture.replay(graph, stream);
    fixture.clean();
    fixture.download(copy, 64, stream);
    let report = fixture.saw(Violation::UninitializedRead);
    assert!(report.conflicts_with().unwrap().contains("in graph"), "{report}");
    fixture.fill(block, 64, 1, stream);
    fixture.replay(graph, stream);
    fixture.download(copy, 64, stream);
    fixture.clean();

    let (source, here) = (peer.alloc(64), fixture.stream());
    let from_peer = |source| {
        let copy = RawCopy { target: copy, source, bytes: 64 };
        // SAFETY: the simulated device checks the ranges.
        unsafe { fixture.driver.copy_from_peer(copy, &*peer.driver, here).unwrap() };
        fixture.clean();
    };
    from_peer(source);
    fixture.download(copy, 64, here);
    assert_eq!(fixture.saw(Violation::UninitializedRead).range(), (copy, 64));
    peer.fill(source, 64, 1, peer.stream());
    peer.clean();
    from_peer(source);
    fixture.download(copy, 64, here);
    fixture.clean();
}

#[test]
fn a_copy_of_unwritten_bytes_to_where_the_host_reads_is_reported() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(64));
    let managed = fixture.driver.mem_alloc_managed(64).unwrap();
    fixture.copy(managed, block, 64, stream);
    assert_eq!(fixture.saw(Violation::UninitializedRead).range(), (block, 64));
    fixture.fill(block, 64, 1, stream);
    fixture.copy(managed, block, 64, stream);
    fixture.clean();
}

#[test]
fn kernels_read_what_they_declare() {
    let fixture = fixture();
    let (stream, block, other) = (fixture.stream(), fixture.alloc(64), fixture.alloc(64));
    let arguments = [buffer(block, 64, Access::ReadWrite)];
    fixture.launch(&INCREMENT, &arguments, stream);
    fixture.saw(Violation::UninitializedRead);
    // Reported once: it counts as written now.
    fixture.launch(&INCREMENT, &arguments, stream);
    let arguments = [buffer(block, 64, Access::Read), buffer(other, 64, Access::Write)];
    fixture.launch(&MOVE, &arguments, stream);
    fixture.clean();
    let fresh = fixture.alloc(64);
    let arguments = [buffer(fresh, 64, Access::Read), buffer(other, 64, Access::Write)];
    fixture.launch(&MOVE, &arguments, stream);
    let report = fixture.saw(Violation::UninitializedRead);
    assert!(report.operation().starts_with("cuLaunchKernel of move on stream"), "{report}");
}

#[test]
fn kernels_compute() {
    let fixture = fixture();
    let (stream, block, other) = (fixture.stream(), fixture.alloc(64), fixture.alloc(64));
    fixture.upload(block, bytemuck::cast_slice(&[5_u32; 16]), stream);
    fixture.launch(&INCREMENT, &[buffer(block, 64, Access::ReadWrite)], stream);
    let arguments = [buffer(block, 64, Access::Read), buffer(other, 64, Access::Write)];
    fixture.launch(&MOVE, &arguments, stream);
    assert_eq!(fixture.download(other, 64, stream), bytemuck::cast_slice::<u32, u8>(&[6; 16]));
    let empty = [buffer(0, 0, Access::ReadWrite)];
    fixture.launch(&INCREMENT, &empty, stream);
    fixture.clean();
}

#[test]
fn a_written_argument_overlaps_no_other() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(128));
    fixture.fill(block, 128, 0, stream);
    let arguments = [buffer(block, 64, Access::Read), buffer(block + 60, 64, Access::Write)];
    assert_eq!(fixture.try_launch(&MOVE, &arguments, stream).unwrap_err().code(), 1);
    let arguments = [buffer(block, 64, Access::Read), buffer(block + 64, 64, Access::Write)];
    fixture.launch(&MOVE, &arguments, stream);
    fixture.clean();
}

#[test]
fn wild_addresses_are_seen() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(100));
    let next = fixture.alloc(100);
    for (at, bytes) in [(0x1000, 4), (block, 101), (block + 100, 1), (next - 1, 1), (u64::MAX, 9)] {
        let error = fixture.try_fill(at, bytes, 0, stream).unwrap_err();
        assert_eq!((error.code(), error.kind()), (1, ErrorKind::Simulation), "{at:#x}");
        fixture.saw(Violation::UnmappedAddress);
    }
    fixture.fill(block, 100, 0, stream);
    fixture.fill(block + 99, 1, 0, stream);
    fixture.fill(block + 100, 0, 0, stream);
    fixture.clean();
}

#[test]
fn strided_fills_leave_the_gaps() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(64));
    // SAFETY: the simulated device checks the range.
    let fill = |at, stride, word, count| unsafe {
        fixture.driver.fill(RawFill { target: at, stride, word, count }, stream)
    };
    fill(block, 16, FillWord::U32(0x0101_0101), 4).unwrap();
    fixture.download(block, 4, stream);
    fixture.download(block + 48, 4, stream);
    assert!(fixture.sim.reports().is_empty());
    fixture.download(block, 8, stream);
    assert_eq!(fixture.saw(Violation::UninitializedRead).range(), (block + 4, 4));
    fill(block, 2, FillWord::U16(0x0203), 32).unwrap();
    assert_eq!(fixture.download(block, 4, stream), [3, 2, 3, 2]);
    assert_eq!(fill(block + 1, 2, FillWord::U16(0), 2).unwrap_err().code(), 1);
    assert_eq!(fill(block, 1, FillWord::U16(0), 2).unwrap_err().code(), 1);
    assert_eq!(fill(block, usize::MAX - 1, FillWord::U16(0), 3).unwrap_err().code(), 1);
    assert!(fill(block, 32, FillWord::U32(0), 3).is_err(), "past the end");
    fixture.saw(Violation::UnmappedAddress);
    fixture.clean();
}

#[test]
fn overlapping_copies_are_seen() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(128));
    fixture.fill(block, 128, 0, stream);
    fixture.copy(block + 63, block, 64, stream);
    assert_eq!(fixture.saw(Violation::OverlappingCopy).range(), (block + 63, 1));
    fixture.copy(block + 64, block, 64, stream);
    fixture.clean();
}
