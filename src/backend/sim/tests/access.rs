//! Accesses: unordered ones, uninitialised ones, ranges that are nowhere.

use super::*;

#[test]
fn two_writes_need_an_order() {
    let rig = rig();
    let (first, second, block) = (rig.stream(), rig.stream(), rig.alloc(64));
    rig.fill(block, 64, 1, first);
    rig.fill(block + 32, 8, 2, second);
    let report = rig.saw(Violation::UnorderedAccess);
    assert_eq!(report.operation(), format!("cuMemsetAsync on stream {}", second.0));
    assert_eq!(
        report.conflicts_with(),
        Some(format!("cuMemsetAsync on stream {}", first.0).as_str())
    );
    assert_eq!(report.range(), (block + 32, 8));
    assert!(report.to_string().contains("(seed 0)"), "{report}");
    rig.clean();
}

#[test]
fn two_writes_in_order_are_clean() {
    let rig = rig();
    let (first, second, block) = (rig.stream(), rig.stream(), rig.alloc(64));
    rig.fill(block, 64, 1, first);
    rig.order(first, second);
    rig.fill(block + 32, 8, 2, second);
    rig.clean();
    assert_eq!(rig.download(block, 64, first)[30..34], [1, 1, 2, 2]);
}

#[test]
fn a_wait_before_the_record_orders_nothing() {
    let rig = rig();
    let (first, second, block) = (rig.stream(), rig.stream(), rig.alloc(64));
    let event = rig.event();
    rig.driver.stream_wait_event(second, event).unwrap();
    rig.fill(block, 64, 1, first);
    rig.driver.event_record(event, first).unwrap();
    rig.fill(block, 64, 2, second);
    rig.saw(Violation::UnorderedAccess);
}

#[test]
fn an_event_covers_what_came_before_it_alone() {
    let rig = rig();
    let (first, second) = (rig.stream(), rig.stream());
    let (early, late) = (rig.alloc(64), rig.alloc(64));
    let event = rig.event();
    rig.fill(early, 64, 1, first);
    rig.driver.event_record(event, first).unwrap();
    rig.fill(late, 64, 1, first);
    rig.driver.stream_wait_event(second, event).unwrap();
    rig.fill(early, 64, 2, second);
    assert!(rig.sim.reports().is_empty());
    rig.fill(late, 64, 2, second);
    assert_eq!(rig.saw(Violation::UnorderedAccess).range(), (late, 64));
}

#[test]
fn order_goes_through_third_streams_and_the_host() {
    let rig = rig();
    let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
    let block = rig.alloc(64);
    rig.fill(block, 64, 1, a);
    rig.order(a, b);
    rig.order(b, c);
    rig.fill(block, 64, 2, c);
    rig.sync(c).unwrap();
    rig.fill(block, 64, 3, a);
    let event = rig.event();
    rig.driver.event_record(event, a).unwrap();
    rig.driver.event_synchronize(event).unwrap();
    rig.fill(block, 64, 4, b);
    rig.driver.event_record(event, b).unwrap();
    while !rig.driver.event_query(event).unwrap() {}
    rig.fill(block, 64, 5, c);
    rig.clean();
}

#[test]
fn what_has_run_is_not_ordered_before_the_host_knows() {
    let rig = rig();
    let (first, second, block) = (rig.stream(), rig.stream(), rig.alloc(64));
    let event = rig.event();
    rig.fill(block, 64, 1, first);
    // Runs both queues dry by asking for another stream's event, which proves nothing for `first`.
    rig.driver.event_record(event, second).unwrap();
    for _ in 0..100 {
        rig.driver.event_query(event).unwrap();
    }
    rig.fill(block, 64, 2, second);
    rig.saw(Violation::UnorderedAccess);
}

#[test]
fn a_read_and_a_write_need_an_order() {
    for (first_writes, ordered) in [(false, false), (true, false), (false, true), (true, true)] {
        let rig = rig();
        let (first, second) = (rig.stream(), rig.stream());
        let (block, other) = (rig.alloc(64), rig.alloc(64));
        rig.fill(block, 64, 1, first);
        rig.sync(first).unwrap();
        let write = |stream| rig.fill(block, 64, 2, stream);
        let read = |stream| rig.copy(other, block, 64, stream);
        if first_writes {
            write(first)
        } else {
            read(first)
        }
        if ordered {
            rig.order(first, second);
        }
        if first_writes {
            read(second)
        } else {
            write(second)
        }
        if ordered {
            rig.clean();
        } else {
            assert_eq!(rig.saw(Violation::UnorderedAccess).range(), (block, 64));
        }
    }
}

#[test]
fn two_reads_need_no_order_and_disjoint_bytes_neither() {
    let rig = rig();
    let (first, second) = (rig.stream(), rig.stream());
    let (block, other) = (rig.alloc(64), rig.alloc(128));
    rig.fill(block, 64, 1, first);
    rig.sync(first).unwrap();
    rig.copy(other, block, 64, first);
    rig.copy(other + 64, block, 64, second);
    rig.clean();
}

#[test]
fn a_write_has_to_follow_every_reader() {
    for both in [false, true] {
        let rig = rig();
        let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
        let (block, other) = (rig.alloc(64), rig.alloc(128));
        rig.fill(block, 64, 1, a);
        rig.sync(a).unwrap();
        rig.copy(other, block, 64, a);
        rig.copy(other + 64, block, 64, b);
        rig.order(a, c);
        if both {
            rig.order(b, c);
        }
        rig.fill(block, 64, 2, c);
        if both {
            rig.clean();
        } else {
            let report = rig.saw(Violation::UnorderedAccess);
            assert!(report.conflicts_with().unwrap().ends_with(&format!("stream {}", b.0)));
        }
    }
}

#[test]
fn a_context_event_covers_all_streams() {
    for ordered in [false, true] {
        let rig = rig();
        let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
        let blocks = [rig.alloc(64), rig.alloc(64)];
        rig.fill(blocks[0], 64, 1, a);
        rig.fill(blocks[1], 64, 1, b);
        let event = rig.event();
        rig.driver.context_record(event).unwrap();
        if ordered {
            rig.driver.stream_wait_event(c, event).unwrap();
        }
        rig.fill(blocks[0], 64, 2, c);
        if ordered {
            rig.fill(blocks[1], 64, 2, c);
            rig.driver.event_synchronize(event).unwrap();
            rig.clean();
        } else {
            rig.saw(Violation::UnorderedAccess);
        }
    }
}

#[test]
fn devices_are_ordered_by_events_too() {
    for ordered in [false, true] {
        let (left, right) = (rig(), rig());
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
        unsafe { left.driver.copy_from_peer(target, from, source, 64, here).unwrap() };
        if ordered {
            // Draining the left device runs what it waits for on the right one.
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
    let (left, right) = (rig(), rig());
    let (stream, block) = (left.stream(), right.alloc(64));
    assert_eq!(left.try_fill(block, 64, 0, stream).unwrap_err().code(), 1);
    left.saw(Violation::UnmappedAddress);
    right.clean();
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let (left, right) = (rig(), rig());
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
    let rig = rig();
    let (stream, block, other) = (rig.stream(), rig.alloc(64), rig.alloc(64));
    rig.fill(block, 63, 1, stream);
    rig.copy(other, block, 64, stream);
    assert_eq!(rig.saw(Violation::UninitializedRead).range(), (block + 63, 1));
    rig.fill(block + 63, 1, 1, stream);
    rig.copy(other, block, 64, stream);
    rig.clean();
}

#[test]
fn kernels_read_what_they_declare() {
    let rig = rig();
    let (stream, block, other) = (rig.stream(), rig.alloc(64), rig.alloc(64));
    let arguments = [buffer(block, 64, Access::ReadWrite)];
    rig.launch(&INCREMENT, &arguments, stream);
    rig.saw(Violation::UninitializedRead);
    // Told once: it counts as written now.
    rig.launch(&INCREMENT, &arguments, stream);
    let arguments = [buffer(block, 64, Access::Read), buffer(other, 64, Access::Write)];
    rig.launch(&MOVE, &arguments, stream);
    rig.clean();
    let fresh = rig.alloc(64);
    let arguments = [buffer(fresh, 64, Access::Read), buffer(other, 64, Access::Write)];
    rig.launch(&MOVE, &arguments, stream);
    let report = rig.saw(Violation::UninitializedRead);
    assert!(report.operation().starts_with("cuLaunchKernel of move on stream"), "{report}");
}

#[test]
fn kernels_compute() {
    let rig = rig();
    let (stream, block, other) = (rig.stream(), rig.alloc(64), rig.alloc(64));
    rig.upload(block, bytemuck::cast_slice(&[5_u32; 16]), stream);
    rig.launch(&INCREMENT, &[buffer(block, 64, Access::ReadWrite)], stream);
    let arguments = [buffer(block, 64, Access::Read), buffer(other, 64, Access::Write)];
    rig.launch(&MOVE, &arguments, stream);
    assert_eq!(rig.download(other, 64, stream), bytemuck::cast_slice::<u32, u8>(&[6; 16]));
    let empty = [buffer(0, 0, Access::ReadWrite)];
    rig.launch(&INCREMENT, &empty, stream);
    rig.clean();
}

#[test]
fn a_written_argument_overlaps_no_other() {
    let rig = rig();
    let (stream, block) = (rig.stream(), rig.alloc(128));
    rig.fill(block, 128, 0, stream);
    let arguments = [buffer(block, 64, Access::Read), buffer(block + 60, 64, Access::Write)];
    assert_eq!(rig.try_launch(&MOVE, &arguments, stream).unwrap_err().code(), 1);
    let arguments = [buffer(block, 64, Access::Read), buffer(block + 64, 64, Access::Write)];
    rig.launch(&MOVE, &arguments, stream);
    rig.clean();
}

#[test]
fn wild_addresses_are_seen() {
    let rig = rig();
    let (stream, block) = (rig.stream(), rig.alloc(100));
    let next = rig.alloc(100);
    for (at, bytes) in [(0x1000, 4), (block, 101), (block + 100, 1), (next - 1, 1), (u64::MAX, 9)] {
        let error = rig.try_fill(at, bytes, 0, stream).unwrap_err();
        assert_eq!((error.code(), error.kind()), (1, ErrorKind::Simulation), "{at:#x}");
        rig.saw(Violation::UnmappedAddress);
    }
    rig.fill(block, 100, 0, stream);
    rig.fill(block + 99, 1, 0, stream);
    rig.fill(block + 100, 0, 0, stream);
    rig.clean();
}

#[test]
fn strided_fills_leave_the_gaps() {
    let rig = rig();
    let (stream, block, other) = (rig.stream(), rig.alloc(64), rig.alloc(64));
    // SAFETY: the simulated device checks the range.
    let fill =
        |at, stride, word, count| unsafe { rig.driver.fill(at, stride, word, count, stream) };
    fill(block, 16, FillWord::U32(0x0101_0101), 4).unwrap();
    rig.copy(other, block, 4, stream);
    rig.copy(other, block + 48, 4, stream);
    assert!(rig.sim.reports().is_empty());
    rig.copy(other, block, 8, stream);
    assert_eq!(rig.saw(Violation::UninitializedRead).range(), (block + 4, 4));
    fill(block, 2, FillWord::U16(0x0203), 32).unwrap();
    assert_eq!(rig.download(block, 4, stream), [3, 2, 3, 2]);
    assert_eq!(fill(block + 1, 2, FillWord::U16(0), 2).unwrap_err().code(), 1);
    assert_eq!(fill(block, 1, FillWord::U16(0), 2).unwrap_err().code(), 1);
    assert_eq!(fill(block, usize::MAX - 1, FillWord::U16(0), 3).unwrap_err().code(), 1);
    assert!(fill(block, 32, FillWord::U32(0), 3).is_err(), "past the end");
    rig.saw(Violation::UnmappedAddress);
    rig.clean();
}

#[test]
fn overlapping_copies_are_seen() {
    let rig = rig();
    let (stream, block) = (rig.stream(), rig.alloc(128));
    rig.fill(block, 128, 0, stream);
    rig.copy(block + 63, block, 64, stream);
    assert_eq!(rig.saw(Violation::OverlappingCopy).range(), (block + 63, 1));
    rig.copy(block + 64, block, 64, stream);
    rig.clean();
}
