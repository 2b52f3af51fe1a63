//! Parts that pools cut from a block, which are used after the free, past the end, or before they were
//! written.

use super::*;
use aquifer_driver::DeviceRange;

/// Two pools, of which the second may be over the first.
const LOWER: u64 = 1;
const UPPER: u64 = 2;

impl Fixture {
    fn regions(&self) -> &dyn aquifer_driver::RegionCalls {
        self.driver.regions().expect("it follows pools by default")
    }

    /// A block that is a pool's.
    fn heap(&self, bytes: usize) -> DeviceAddress {
        let address = self.alloc(bytes);
        self.regions().heap_register(LOWER, DeviceRange { address, bytes });
        address
    }

    fn take(&self, address: DeviceAddress, bytes: usize, stream: RawStream) {
        self.regions().region_register(LOWER, DeviceRange { address, bytes }, stream);
    }

    fn give(&self, address: DeviceAddress, bytes: usize, stream: RawStream) {
        self.regions().region_unregister(LOWER, DeviceRange { address, bytes }, stream, false);
    }

    fn give_to_graph(&self, address: DeviceAddress, bytes: usize, stream: RawStream) {
        self.regions().region_unregister(LOWER, DeviceRange { address, bytes }, stream, true);
    }

    /// A fill that is refused, since it is not of one region.
    #[track_caller]
    fn refused(&self, at: DeviceAddress, bytes: usize, stream: RawStream) -> Report {
        let error = self.try_fill(at, bytes, 1, stream).unwrap_err();
        assert_eq!(error.code(), DriverError::INVALID_VALUE);
        self.saw(Violation::UnmappedAddress)
    }
}

#[test]
fn a_region_is_used_by_what_comes_after_its_allocation() {
    for ordered in [false, true] {
        let fixture = fixture();
        let (first, second, heap) = (fixture.stream(), fixture.stream(), fixture.heap(1024));
        fixture.take(heap, 100, first);
        fixture.fill(heap, 100, 1, first);
        fixture.sync(first).unwrap();
        fixture.take(heap + 256, 100, first);
        fixture.note(1, first);
        fixture.take(heap + 512, 100, first);
        if ordered {
            fixture.order(first, second);
        }
        fixture.fill(heap + 256, 100, 1, second);
        // The host has seen all that comes before that one.
        fixture.clean();
        fixture.fill(heap + 512, 100, 1, second);
        fixture.clean();
    }
    let fixture = fixture();
    let (first, second, heap) = (fixture.stream(), fixture.stream(), fixture.heap(1024));
    fixture.note(1, first);
    fixture.take(heap, 100, first);
    fixture.fill(heap, 100, 1, second);
    let report = fixture.saw(Violation::UseBeforeAllocation);
    let other = format!("an allocation from a pool on stream {}", first.0);
    assert_eq!(report.conflicts_with(), Some(other.as_str()));
}

#[test]
fn nothing_uses_what_a_pool_has() {
    let fixture = fixture();
    let (stream, other, heap) = (fixture.stream(), fixture.stream(), fixture.heap(1024));
    let report = fixture.refused(heap + 256, 4, stream);
    assert_eq!(report.conflicts_with(), None, "it was never handed out");
    fixture.take(heap, 100, stream);
    fixture.fill(heap, 100, 1, stream);
    fixture.give(heap, 100, stream);
    fixture.clean();
    for stream in [stream, other] {
        fixture.fill(heap + 96, 4, 1, stream);
        let report = fixture.saw(Violation::UseAfterFree);
        let by = report.conflicts_with().unwrap();
        assert!(by.starts_with("a free to a pool on stream"), "{by}");
        assert_eq!(report.range(), (heap + 96, 4));
    }
    fixture.take(heap, 100, stream);
    fixture.fill(heap + 96, 4, 1, stream);
    fixture.clean();
}

#[test]
fn a_use_ends_in_the_region_that_it_begins_in() {
    let fixture = fixture();
    let (stream, heap) = (fixture.stream(), fixture.heap(1024));
    fixture.take(heap, 100, stream);
    fixture.take(heap + 256, 256, stream);
    fixture.take(heap + 512, 256, stream);
    fixture.take(heap + 768, 256, stream);
    fixture.fill(heap, 100, 1, stream);
    fixture.fill(heap + 256, 256, 1, stream);
    for (at, bytes, past, of) in [
        (0, 101, 1, 100),
        (96, 8, 4, 100),
        (256, 260, 4, 256),
        (508, 8, 4, 256),
        (768, 512, 256, 256),
    ] {
        let report = fixture.refused(heap + at, bytes, stream);
        let by = report.conflicts_with().unwrap();
        assert!(by.starts_with("an allocation from a pool"), "{by}");
        let past = aquifer_driver::impls::Count(past, "byte");
        let note = format!(": {past} past the end of a block of {of} bytes (seed");
        assert!(report.to_string().contains(&note), "{report}");
    }
    // A row in the one and a row in the other.
    let fill = RawFill { target: heap + 256, stride: 256, word: FillWord::U8(1), count: 2 };
    // SAFETY: the simulated device checks the range.
    unsafe { fixture.driver.fill(fill, stream).unwrap_err() };
    fixture.saw(Violation::UnmappedAddress);
    fixture.clean();
    let plain = fixture.alloc(64);
    let report = fixture.refused(plain + 32, 40, stream);
    assert_eq!(report.conflicts_with(), Some("cuMemAlloc"));
    assert!(report.to_string().contains("8 bytes past the end of a block of 64 bytes"), "{report}");
}

#[test]
fn a_region_that_is_handed_out_again_counts_as_unwritten() {
    let fixture = fixture();
    let (stream, heap) = (fixture.stream(), fixture.heap(1024));
    fixture.take(heap, 512, stream);
    fixture.fill(heap, 512, 1, stream);
    fixture.give(heap, 512, stream);
    fixture.take(heap, 100, stream);
    fixture.fill(heap, 50, 1, stream);
    fixture.download(heap, 50, stream);
    fixture.clean();
    fixture.download(heap, 100, stream);
    let report = fixture.saw(Violation::UninitializedRead);
    assert_eq!(report.range(), (heap + 50, 50));
    let other = format!("an allocation from a pool on stream {}", stream.0);
    assert_eq!(report.conflicts_with(), Some(other.as_str()));
    fixture.fill(heap + 50, 50, 1, stream);
    fixture.download(heap, 100, stream);
    fixture.clean();
}

#[test]
fn memory_that_the_host_reaches_counts_as_written() {
    let fixture = fixture();
    let (stream, pinned) = (fixture.stream(), fixture.pinned(1024));
    let managed = fixture.driver.mem_alloc_managed(1024).unwrap();
    for address in [pinned.as_ptr() as u64, managed] {
        fixture.regions().heap_register(LOWER, DeviceRange { address, bytes: 1024 });
        fixture.take(address, 100, stream);
        fixture.download(address, 100, stream);
        fixture.clean();
        fixture.refused(address, 101, stream);
        fixture.give(address, 100, stream);
        fixture.fill(address, 100, 1, stream);
        fixture.saw(Violation::UseAfterFree);
    }
}

#[test]
fn a_free_to_a_pool_follows_every_use() {
    for ordered in [false, true] {
        let fixture = fixture();
        let (first, second, heap) = (fixture.stream(), fixture.stream(), fixture.heap(1024));
        fixture.take(heap, 100, first);
        fixture.take(heap + 256, 100, first);
        fixture.order(first, second);
        fixture.fill(heap + 10, 4, 1, second);
        fixture.give(heap + 256, 100, first);
        fixture.clean_but_running();
        if ordered {
            fixture.order(second, first);
        }
        fixture.give(heap, 100, first);
        if ordered {
            fixture.clean();
        } else {
            let report = fixture.saw(Violation::FreeWhileInUse);
            assert_eq!(report.operation(), format!("a free to a pool on stream {}", first.0));
            assert_eq!(report.range(), (heap + 10, 4));
            let other = format!("cuMemsetAsync on stream {}", second.0);
            assert_eq!(report.conflicts_with(), Some(other.as_str()));
        }
    }
}

impl Fixture {
    /// The device found nothing, with no wait that would order what comes.
    #[track_caller]
    fn clean_but_running(&self) {
        self.sim.check().unwrap();
    }
}

#[test]
fn a_block_without_uses_is_freed_anywhere() {
    let fixture = fixture();
    let (first, second, heap) = (fixture.stream(), fixture.stream(), fixture.heap(1024));
    fixture.note(1, first);
    fixture.take(heap, 100, first);
    fixture.give(heap, 100, second);
    fixture.clean();
}

#[test]
fn a_second_free_is_reported_and_changes_nothing() {
    let fixture = fixture();
    let (stream, heap) = (fixture.stream(), fixture.heap(1024));
    fixture.take(heap, 100, stream);
    fixture.give(heap, 100, stream);
    fixture.clean();
    fixture.give(heap, 100, stream);
    let report = fixture.saw(Violation::DoubleFree);
    assert_eq!(report.range(), (heap, 100));
    assert_eq!(report.conflicts_with(), Some(report.operation()));
    // What is no region of the pool: its pool says so.
    fixture.take(heap, 100, stream);
    fixture.give(heap + 10, 10, stream);
    fixture.regions().region_unregister(
        UPPER,
        DeviceRange { address: heap, bytes: 100 },
        stream,
        false,
    );
    fixture.fill(heap, 100, 1, stream);
    fixture.clean();
}

#[test]
fn a_pool_over_a_pool_has_the_regions() {
    let fixture = fixture();
    let (stream, heap) = (fixture.stream(), fixture.heap(4096));
    let inner = DeviceRange { address: heap + 1024, bytes: 1024 };
    fixture.take(inner.address, inner.bytes, stream);
    fixture.regions().heap_register(UPPER, inner);
    fixture.refused(inner.address, 4, stream);
    let region = DeviceRange { address: inner.address + 256, bytes: 100 };
    fixture.regions().region_register(UPPER, region, stream);
    fixture.fill(region.address, 100, 1, stream);
    fixture.clean();
    fixture.refused(region.address, 101, stream);
    fixture.regions().region_unregister(UPPER, region, stream, false);
    fixture.fill(region.address, 100, 1, stream);
    fixture.saw(Violation::UseAfterFree);
    // It goes back, and is what it was to the lower pool.
    fixture.regions().heap_unregister(UPPER, inner);
    fixture.fill(inner.address, 1024, 1, stream);
    fixture.clean();
    fixture.give(inner.address, inner.bytes, stream);
    fixture.fill(inner.address, 1024, 1, stream);
    fixture.saw(Violation::UseAfterFree);
    // The lower one's blocks go back to the driver, or to a resource that keeps them.
    fixture.regions().heap_unregister(LOWER, DeviceRange { address: heap, bytes: 4096 });
    fixture.fill(heap, 4096, 1, stream);
    fixture.clean();
    // SAFETY: it was allocated, and the host has seen its last use complete.
    unsafe { fixture.driver.mem_free(heap).unwrap() };
    fixture.fill(heap, 4, 1, stream);
    fixture.saw(Violation::UseAfterFree);
}

#[test]
fn launches_use_what_is_kept_for_graphs() {
    let fixture = fixture();
    let (captured, other, heap) = (fixture.stream(), fixture.stream(), fixture.heap(4096));
    fixture.take(heap, 100, captured);
    fixture.fill(heap, 100, 1, captured);
    let graph = fixture
        .capture(captured, || {
            fixture.note(1, captured);
            fixture.take(heap + 256, 100, captured);
            fixture.fill(heap + 256, 100, 2, captured);
            fixture.copy(heap, heap + 256, 100, captured);
            fixture.give_to_graph(heap + 256, 100, captured);
        })
        .unwrap();
    fixture.order(captured, other);
    for stream in [captured, other] {
        fixture.replay(graph, stream);
        fixture.order(stream, if stream == captured { other } else { captured });
    }
    fixture.clean();
    assert_eq!(fixture.download(heap, 100, captured), [2; 100]);
    fixture.fill(heap + 256, 100, 1, captured);
    fixture.saw(Violation::UseAfterFree);
    // A vector from before the capture is not the graph's.
    fixture.give(heap, 100, captured);
    fixture.replay(graph, captured);
    let report = fixture.saw(Violation::UseAfterFree);
    assert!(report.operation().contains("in graph"), "{report}");
    assert!(report.conflicts_with().unwrap().starts_with("a free to a pool"), "{report}");
    // Nothing of a graph runs whose work leaves a region.
    fixture.take(heap, 100, captured);
    let (stream, calls) = (fixture.stream(), fixture.sim.call_count("cuMemsetAsync"));
    let graph = fixture.capture(stream, || fixture.fill(heap, 104, 1, stream)).unwrap();
    assert_eq!(fixture.sim.call_count("cuMemsetAsync"), calls + 1);
    fixture.try_replay(graph, captured).unwrap_err();
    let report = fixture.saw(Violation::UnmappedAddress);
    assert!(report.to_string().contains("4 bytes past the end of a block of 100"), "{report}");
}

#[test]
fn what_graphs_keep_is_freed_beside_their_launches() {
    for kept in [false, true] {
        let fixture = fixture();
        let (captured, other, heap) = (fixture.stream(), fixture.stream(), fixture.heap(4096));
        fixture.take(heap, 100, captured);
        fixture.sync(captured).unwrap();
        let graph = fixture.capture(captured, || fixture.fill(heap, 100, 2, captured)).unwrap();
        fixture.replay(graph, other);
        if kept {
            fixture.give_to_graph(heap, 100, captured);
            fixture.clean();
        } else {
            fixture.give(heap, 100, captured);
            let report = fixture.saw(Violation::FreeWhileInUse);
            assert!(report.conflicts_with().unwrap().contains("in graph"), "{report}");
        }
    }
}

#[test]
fn a_free_in_a_lost_context_follows_nothing() {
    let fixture = fixture();
    let (first, second, heap) = (fixture.stream(), fixture.stream(), fixture.heap(1024));
    fixture.take(heap, 100, first);
    fixture.order(first, second);
    fixture.fill(heap, 100, 1, second);
    fixture.sim.lose_context();
    // The wait that its owner asks for before it frees is refused.
    assert!(fixture.driver.stream_synchronize(second).is_err());
    fixture.give(heap, 100, first);
    fixture.clean_but_running();
}

#[test]
fn memory_that_is_in_no_block_is_not_followed() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(1024));
    for (address, bytes) in
        [(4096, 64), (block + 1000, 64), (block, 1025), (block, 0), (1 << 63, 8)]
    {
        fixture.regions().heap_register(LOWER, DeviceRange { address, bytes });
        fixture.take(address, bytes, stream);
        fixture.give(address, bytes, stream);
        fixture.regions().heap_unregister(LOWER, DeviceRange { address, bytes });
    }
    fixture.fill(block, 1024, 1, stream);
    fixture.clean();
}

#[test]
fn a_device_without_checks_of_pools_follows_none() {
    let fixture = Fixture::new(SimConfig::default().without_pool_checks());
    assert!(fixture.driver.regions().is_none());
}

/// Each finding comes at the call, and the calls of the driver are those of a device that does not look.
#[test]
fn regions_are_no_calls_of_the_driver() {
    let fixture = fixture();
    let (stream, heap) = (fixture.stream(), fixture.heap(1024));
    let calls = fixture.sim.calls();
    fixture.take(heap, 100, stream);
    fixture.give(heap, 100, stream);
    fixture.give(heap, 100, stream);
    assert_eq!(fixture.sim.calls(), calls);
    fixture.saw(Violation::DoubleFree);
    fixture.sim.lose_context();
    fixture.take(heap, 100, stream);
    fixture.give(heap, 100, stream);
    assert!(fixture.sim.reports().is_empty());
}
