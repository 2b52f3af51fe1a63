//! Mapped memory is checked as strictly as any. The tests have access that was not set, mappings that work still uses,
//! and what a handle keeps.

use super::*;
use aquifer_driver::{DeviceRange, HandleSpec, RawHandle};
#[cfg(target_os = "linux")]
use std::os::fd::AsFd;

const GRANULE: usize = 2 << 20;
const PLAIN: HandleSpec = HandleSpec { shareable: false, rdma: false };
const SHAREABLE: HandleSpec = HandleSpec { shareable: true, rdma: false };

impl Fixture {
    fn reserve(&self, granules: usize) -> DeviceAddress {
        self.driver.address_reserve(granules * GRANULE, GRANULE).unwrap()
    }

    fn handle(&self, granules: usize) -> RawHandle {
        self.driver.handle_create(granules * GRANULE, PLAIN).unwrap()
    }

    fn map(
        &self,
        address: DeviceAddress,
        granules: usize,
        handle: RawHandle,
    ) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks the range and the handle.
        unsafe { self.driver.map(range(address, granules), handle) }
    }

    fn unmap(&self, address: DeviceAddress, granules: usize) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks the range, and its uses.
        unsafe { self.driver.unmap(range(address, granules)) }
    }

    fn set_access(&self, address: DeviceAddress, granules: usize) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks the range.
        unsafe { self.driver.set_access(range(address, granules)) }
    }

    fn release(&self, handle: RawHandle) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks the handle.
        unsafe { self.driver.handle_release(handle) }
    }

    fn free_addresses(&self, address: DeviceAddress, granules: usize) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks the range.
        unsafe { self.driver.address_free(range(address, granules)) }
    }

    fn used(&self) -> u64 {
        let info = self.driver.memory_info().unwrap();
        (info.total - info.free) as u64
    }
}

fn range(address: DeviceAddress, granules: usize) -> DeviceRange {
    DeviceRange { address, bytes: granules * GRANULE }
}

#[test]
fn a_handle_keeps_its_bytes_from_one_address_to_the_next() {
    let fixture = fixture();
    let (stream, handle) = (fixture.stream(), fixture.handle(1));
    let addresses = fixture.reserve(2);
    for (at, value) in [(addresses, 3), (addresses + GRANULE as u64, 4)] {
        fixture.map(at, 1, handle).unwrap();
        fixture.set_access(at, 1).unwrap();
        if value == 4 {
            assert_eq!(fixture.download(at, 8, stream), [3; 8]);
        }
        fixture.fill(at, GRANULE, value, stream);
        fixture.sync(stream).unwrap();
        fixture.unmap(at, 1).unwrap();
    }
    assert_eq!(fixture.used(), GRANULE as u64);
    fixture.release(handle).unwrap();
    assert_eq!(fixture.used(), 0);
    fixture.free_addresses(addresses, 2).unwrap();
    fixture.clean();
}

#[test]
fn memory_without_access_is_not_reached() {
    let fixture = fixture();
    let (stream, handle, address) = (fixture.stream(), fixture.handle(1), fixture.reserve(1));
    fixture.map(address, 1, handle).unwrap();
    assert!(fixture.try_fill(address, 8, 1, stream).is_err());
    fixture.saw(Violation::UnmappedAddress);
    fixture.set_access(address, 1).unwrap();
    fixture.fill(address, 8, 1, stream);
    fixture.sync(stream).unwrap();
    // Another mapping of the handle has to be asked for again.
    fixture.unmap(address, 1).unwrap();
    fixture.map(address, 1, handle).unwrap();
    assert!(fixture.try_fill(address, 8, 1, stream).is_err());
    fixture.saw(Violation::UnmappedAddress);
}

#[test]
fn memory_is_not_unmapped_under_work() {
    let fixture = fixture();
    let (stream, handle, address) = (fixture.stream(), fixture.handle(1), fixture.reserve(1));
    fixture.map(address, 1, handle).unwrap();
    fixture.set_access(address, 1).unwrap();
    fixture.fill(address, 8, 1, stream);
    fixture.unmap(address, 1).unwrap();
    fixture.saw(Violation::FreeWhileInUse);
    let _ = fixture.try_fill(address, 8, 1, stream);
    fixture.saw(Violation::UseAfterFree);
}

#[test]
fn a_released_handle_lives_until_it_is_unmapped() {
    let fixture = fixture();
    let (stream, handle, address) = (fixture.stream(), fixture.handle(2), fixture.reserve(2));
    fixture.map(address, 2, handle).unwrap();
    fixture.release(handle).unwrap();
    fixture.set_access(address, 2).unwrap();
    fixture.fill(address, 2 * GRANULE, 1, stream);
    fixture.sync(stream).unwrap();
    assert_eq!(fixture.used(), 2 * GRANULE as u64);
    fixture.unmap(address, 2).unwrap();
    assert_eq!(fixture.used(), 0);
    assert!(fixture.release(handle).is_err(), "it is gone");
    fixture.clean();
}

#[test]
fn what_is_no_whole_range_is_refused() {
    let fixture = fixture();
    let (one, two, address) = (fixture.handle(1), fixture.handle(1), fixture.reserve(2));
    let second = address + GRANULE as u64;
    let codes = [
        fixture.driver.handle_create(GRANULE - 1, PLAIN).map(drop),
        fixture.driver.handle_create(0, PLAIN).map(drop),
        fixture.driver.address_reserve(GRANULE, 3).map(drop),
        fixture.driver.address_reserve(1, GRANULE).map(drop),
        fixture.map(address, 2, one),
        fixture.map(address + 256, 1, one),
        fixture.map(address + 2 * GRANULE as u64, 1, one),
        fixture.set_access(address, 1),
        fixture.unmap(address, 1),
        fixture.free_addresses(address, 1),
    ]
    .map(|refused| refused.unwrap_err().code());
    assert_eq!(codes, [DriverError::INVALID_VALUE; 10]);
    fixture.map(address, 1, one).unwrap();
    let codes = [
        fixture.map(address, 1, two),
        fixture.set_access(address, 2),
        fixture.unmap(address, 2),
        fixture.free_addresses(address, 2),
    ]
    .map(|refused| refused.unwrap_err().code());
    assert_eq!(codes, [DriverError::INVALID_VALUE; 4]);
    fixture.map(second, 1, two).unwrap();
    fixture.set_access(address, 2).unwrap();
    fixture.unmap(address, 2).unwrap();
    fixture.free_addresses(address, 2).unwrap();
    assert!(fixture.driver.handle_create(1 << 60, PLAIN).is_err(), "more than there is");
    fixture.clean();
}

#[test]
fn a_range_over_several_handles_is_one_range() {
    let fixture = fixture();
    let stream = fixture.stream();
    let (handles, address) = ([1, 2, 1].map(|it| fixture.handle(it)), fixture.reserve(5));
    let mut at = address;
    for (handle, granules) in handles.into_iter().zip([1, 2, 1]) {
        fixture.map(at, granules, handle).unwrap();
        at += (granules * GRANULE) as u64;
    }
    fixture.set_access(address, 4).unwrap();
    fixture.fill(address + 7, 4 * GRANULE - 7, 9, stream);
    assert_eq!(fixture.download(address + (GRANULE - 4) as u64, 8, stream), [9; 8]);
    assert_eq!(fixture.download(address + (3 * GRANULE - 4) as u64, 8, stream), [9; 8]);
    assert!(fixture.try_fill(address + 8, 4 * GRANULE, 1, stream).is_err(), "past the last one");
    fixture.saw(Violation::UnmappedAddress);
    // A hole in the middle.
    fixture.unmap(address + GRANULE as u64, 2).unwrap();
    let _ = fixture.try_fill(address, 4 * GRANULE, 1, stream);
    fixture.saw(Violation::UseAfterFree);
    fixture.fill(address, GRANULE, 1, stream);
    fixture.fill(address + 3 * GRANULE as u64, GRANULE, 1, stream);
    fixture.sync(stream).unwrap();
    fixture.clean();
}

/// A handle is mapped again while work at its first address is pending, and that work is seen at the second one.
#[test]
fn a_second_mapping_has_the_bytes_and_the_uses_of_the_first() {
    for waits in [true, false] {
        let fixture = fixture();
        let (first, second) = (fixture.stream(), fixture.stream());
        let (handle, address) = (fixture.handle(1), fixture.reserve(2));
        let other = address + GRANULE as u64;
        fixture.map(address, 1, handle).unwrap();
        fixture.set_access(address, 1).unwrap();
        fixture.fill(address, GRANULE, 5, first);
        fixture.map(other, 1, handle).unwrap();
        fixture.set_access(other, 1).unwrap();
        if waits {
            let event = fixture.event();
            fixture.driver.event_record(event, first).unwrap();
            fixture.driver.stream_wait_event(second, event).unwrap();
            assert_eq!(fixture.download(other, 8, second), [5; 8]);
            assert!(fixture.try_fill(address, 8, 1, first).is_err(), "it was moved");
            fixture.saw(Violation::UnmappedAddress);
            fixture.unmap(address, 1).unwrap();
            assert_eq!(fixture.download(other + 8, 8, second), [5; 8]);
            fixture.fill(other, 8, 1, second);
            fixture.unmap(other, 1).unwrap();
            fixture.saw(Violation::FreeWhileInUse);
        } else {
            fixture.unmap(address, 1).unwrap();
            let _ = fixture.try_fill(other, 8, 1, second);
            let kinds: Vec<_> = fixture.sim.take_reports().iter().map(Report::kind).collect();
            assert_eq!(kinds, [Violation::FreeWhileInUse, Violation::UnorderedAccess]);
            let _ = fixture.driver.context_synchronize();
        }
        fixture.clean();
    }
}

/// A second mapping that gets no access is unmapped beside work at the first address, and the first one is not.
#[test]
fn a_mapping_without_access_is_unmapped_beside_work_at_another_address() {
    let fixture = fixture();
    let stream = fixture.stream();
    let (handle, address) = (fixture.handle(1), fixture.reserve(2));
    let other = address + GRANULE as u64;
    fixture.map(address, 1, handle).unwrap();
    fixture.set_access(address, 1).unwrap();
    fixture.fill(address, GRANULE, 5, stream);
    fixture.map(other, 1, handle).unwrap();
    fixture.unmap(other, 1).unwrap();
    assert!(fixture.sim.reports().is_empty());
    fixture.unmap(address, 1).unwrap();
    fixture.saw(Violation::FreeWhileInUse);
}

/// Its memory stays while any handle of it is there, or any mapping.
#[cfg(target_os = "linux")]
#[test]
fn a_handle_that_is_imported_is_one_of_its_own() {
    let fixture = fixture();
    let (one, two) = (fixture.reserve(1), fixture.reserve(1));
    let handle = fixture.driver.handle_create(GRANULE, SHAREABLE).unwrap();
    fixture.map(one, 1, handle).unwrap();
    fixture.set_access(one, 1).unwrap();
    let middle = one + GRANULE as u64 / 2;
    let found = fixture.driver.allocation_range(middle).unwrap();
    assert_eq!((found.address, found.bytes), (one, GRANULE));
    assert!(fixture.driver.allocation_range(two).is_err(), "nothing is mapped there");
    assert!(fixture.driver.handle_retain(two).is_err());
    let retained = fixture.driver.handle_retain(middle).unwrap();
    let descriptor = fixture.driver.handle_export(retained).unwrap();
    let imported = fixture.driver.handle_import(descriptor.as_fd()).unwrap();
    assert_ne!(imported, handle);
    fixture.map(two, 1, imported).unwrap();
    fixture.set_access(two, 1).unwrap();
    let other = fixture.driver.handle_import(descriptor.as_fd()).unwrap();
    assert_eq!(fixture.used(), GRANULE as u64, "the bytes are counted once");
    // Those that were created, retained and imported, each once.
    for handle in [handle, retained, imported, other] {
        fixture.release(handle).unwrap();
    }
    assert!(fixture.release(handle).is_err() && fixture.release(imported).is_err());
    fixture.unmap(one, 1).unwrap();
    assert_eq!(fixture.used(), GRANULE as u64, "it is mapped elsewhere");
    assert!(fixture.driver.handle_import(descriptor.as_fd()).is_err(), "that handle is gone");
    fixture.unmap(two, 1).unwrap();
    assert_eq!(fixture.used(), 0);
    let plain = fixture.handle(1);
    assert!(fixture.driver.handle_export(plain).is_err(), "it was not made to be shared");
    fixture.release(plain).unwrap();
    for address in [one, two] {
        fixture.free_addresses(address, 1).unwrap();
    }
    fixture.clean();
}
