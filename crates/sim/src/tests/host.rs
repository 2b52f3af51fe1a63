//! Host memory that is page-locked, registered, mapped or pageable.

use super::*;

fn write(pointer: NonNull<u8>, at: usize, value: u8) {
    // SAFETY: inside a live block of the test; operations run on this thread alone.
    unsafe { pointer.add(at).write(value) };
}

fn read(pointer: NonNull<u8>, at: usize) -> u8 {
    // SAFETY: as in `write`.
    unsafe { pointer.add(at).read() }
}

/// An asynchronous copy between `pinned` and `block`.
fn copy(fixture: &Fixture, up: bool, pinned: NonNull<u8>, block: DeviceAddress, stream: RawStream) {
    // SAFETY: both live for 64 bytes; the test is of the host's own writes.
    unsafe {
        if up {
            fixture
                .driver
                .copy_to_device(
                    RawCopy { target: block, source: pinned.as_ptr(), bytes: 64 },
                    stream,
                )
                .unwrap();
        } else {
            fixture
                .driver
                .copy_to_host(RawCopy { target: pinned.as_ptr(), source: block, bytes: 64 }, stream)
                .unwrap();
        }
    }
}

#[test]
fn the_host_must_not_write_while_a_copy_runs() {
    for (up, fault) in [(true, true), (true, false), (false, true), (false, false)] {
        let fixture = fixture();
        let (stream, block, pinned) = (fixture.stream(), fixture.alloc(64), fixture.pinned(128));
        fixture.fill(block, 64, 1, stream);
        copy(&fixture, up, pinned, block, stream);
        write(pinned, if fault { 63 } else { 64 }, 7);
        if fault {
            let error = fixture.sync(stream).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Simulation);
            let report = fixture.saw(Violation::HostWroteDuringCopy);
            assert_eq!(report.range(), (pinned.as_ptr() as u64, 64));
        } else {
            fixture.sync(stream).unwrap();
            fixture.clean();
        }
        write(pinned, 0, 7);
        fixture.clean();
    }
}

#[test]
fn a_write_of_the_device_is_not_one_of_the_host() {
    let fixture = fixture();
    let (stream, pinned) = (fixture.stream(), fixture.pinned(64));
    let (block, other) = (fixture.alloc(64), fixture.alloc(64));
    fixture.fill(block, 64, 1, stream);
    copy(&fixture, false, pinned, block, stream);
    copy(&fixture, true, pinned, other, stream);
    fixture.launch(&INCREMENT, &[buffer(pinned.as_ptr() as u64, 64, Access::ReadWrite)], stream);
    copy(&fixture, true, pinned, block, stream);
    assert_eq!(fixture.download(other, 64, stream), [1; 64]);
    assert_eq!(fixture.download(block, 4, stream), [2, 1, 1, 1]);
    fixture.clean();
}

/// The block may be larger than what is free, since its pages are not touched.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn page_locked_memory_fits_the_machine() {
    let fixture = fixture();
    let flags = HostFlags { mapped: true, portable: true, ..HostFlags::default() };
    let refused = |bytes| match fixture.driver.host_alloc(bytes, flags) {
        Ok(_) => panic!("{bytes} bytes"),
        Err(error) => assert_eq!(error.code(), DriverError::OUT_OF_MEMORY),
    };
    refused(1 << 46);
    let mut half = 1 << 45;
    let block = loop {
        match fixture.driver.host_alloc(half, flags) {
            Ok(block) => break block,
            Err(_) => half /= 2,
        }
    };
    // The machine has less than twice of that.
    refused(half);
    // SAFETY: allocated above, and not used.
    unsafe { fixture.driver.host_free(block) }.unwrap();
    let again = fixture.driver.host_alloc(half, flags).unwrap();
    // SAFETY: as above.
    unsafe { fixture.driver.host_free(again) }.unwrap();
    drop(fixture);
    for _ in 0..3 {
        // What a device leaves behind counts no more.
        self::fixture().driver.host_alloc(half, flags).unwrap();
    }
}

#[test]
fn what_is_no_memory_of_the_process_is_not_pinned() {
    let fixture = fixture();
    let pin = |pointer, bytes| {
        let memory = NonNull::slice_from_raw_parts(pointer, bytes);
        // SAFETY: wrong on purpose: the simulated device has to refuse what is no memory.
        unsafe { fixture.driver.host_register(memory, HostFlags::default()) }
    };
    // SAFETY: as above.
    let attach = |pointer, bytes| unsafe { fixture.driver.pageable_attach(pointer, bytes) };
    let mut memory = vec![0_u8; 4096];
    let own = NonNull::from(&mut memory[..]).cast::<u8>();
    let at = |address| NonNull::new(std::ptr::without_provenance_mut::<u8>(address)).unwrap();
    let mut wrong =
        vec![(own, usize::MAX), (own, isize::MAX as usize * 2), (at(usize::MAX), 1), (at(1), 1)];
    if cfg!(all(target_os = "linux", not(miri))) {
        wrong.extend([(own, 1 << 56), (at(1 << 60), 64), (at(64), 64)]);
    }
    for (pointer, bytes) in wrong {
        let code = DriverError::INVALID_VALUE;
        assert_eq!(
            pin(pointer, bytes).map_err(|it| it.code()),
            Err(code),
            "{bytes} at {pointer:?}"
        );
        assert_eq!(attach(pointer, bytes).map_err(|it| it.code()), Err(code), "{pointer:?}");
        assert_eq!((fixture.sim.registered_ranges(), fixture.sim.pageable_blocks()), (0, 0));
    }
    pin(own, 4096).unwrap();
    assert_eq!(pin(own, 1).unwrap_err().code(), DriverError::HOST_MEMORY_ALREADY_REGISTERED);
    // SAFETY: registered above, and not used.
    unsafe { fixture.driver.host_unregister(own) }.unwrap();
    attach(own, 4096).unwrap();
    // SAFETY: as above.
    unsafe { fixture.driver.pageable_detach(own) }.unwrap();
    fixture.clean();
}

#[test]
fn host_blocks_have_shadows_too() {
    for ordered in [false, true] {
        let fixture = fixture();
        let (first, second, pinned) = (fixture.stream(), fixture.stream(), fixture.pinned(64));
        let blocks = [fixture.alloc(64), fixture.alloc(64)];
        fixture.fill(blocks[0], 64, 1, first);
        fixture.fill(blocks[1], 64, 2, second);
        copy(&fixture, false, pinned, blocks[0], first);
        if ordered {
            fixture.order(first, second);
        }
        copy(&fixture, false, pinned, blocks[1], second);
        if ordered {
            fixture.clean();
            assert_eq!(read(pinned, 0), 2);
        } else {
            fixture.saw(Violation::UnorderedAccess);
        }
    }
}

#[test]
fn pinned_copies_are_asynchronous_and_pageable_ones_are_not() {
    let fixture = fixture();
    let (stream, block, pinned) = (fixture.stream(), fixture.alloc(64), fixture.pinned(64));
    write(pinned, 0, 1);
    let mut pageable = vec![4_u8; 64];
    fixture.upload(block, &pageable, stream);
    pageable.fill(5);
    copy(&fixture, false, pinned, block, stream);
    assert_eq!(read(pinned, 0), 1, "not yet");
    assert_eq!(fixture.download(block, 64, stream), [4; 64], "staged when it was enqueued");
    assert_eq!(read(pinned, 0), 4, "a copy to pageable memory waits for its stream");
    // The host sees it complete.
    // SAFETY: complete.
    unsafe { fixture.driver.mem_free(block).unwrap() };
    fixture.clean();
}

#[test]
fn only_mapped_memory_has_a_device_address() {
    let fixture = fixture();
    let stream = fixture.stream();
    let unmapped = fixture.driver.host_alloc(64, HostFlags::default()).unwrap();
    assert_eq!(fixture.driver.host_device_address(unmapped).unwrap_err().code(), 1);
    let address = unmapped.as_ptr() as u64;
    assert!(fixture.try_fill(address, 64, 0, stream).is_err());
    fixture.saw(Violation::UnmappedAddress);

    let mapped = fixture.pinned(64);
    let address = fixture.driver.host_device_address(mapped).unwrap();
    fixture.fill(address, 64, 9, stream);
    fixture.sync(stream).unwrap();
    assert_eq!(read(mapped, 63), 9);
    fixture.clean();

    let own = HostFlags { mapped: true, ..HostFlags::default() };
    let own = fixture.driver.host_alloc(64, own).unwrap();
    let other = self::fixture();
    assert!(other.driver.host_device_address(own).is_err(), "not portable");
    assert!(other.driver.host_device_address(mapped).is_ok(), "portable");
}

#[test]
fn managed_memory_is_the_hosts_and_the_devices() {
    let fixture = fixture();
    let (stream, address) = (fixture.stream(), fixture.driver.mem_alloc_managed(64).unwrap());
    let pointer = NonNull::new(address as usize as *mut u8).unwrap();
    for at in 0..64 {
        write(pointer, at, 1);
    }
    fixture.launch(&INCREMENT, &[buffer(address, 64, Access::ReadWrite)], stream);
    fixture.sync(stream).unwrap();
    assert_eq!(read(pointer, 0), 2);
    fixture.clean();
}

#[test]
fn memory_that_moves_from_pinned_to_pageable_is_forgotten() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(4096));
    for _ in 0..100 {
        let pinned = fixture.pinned(4096);
        // SAFETY: unused.
        unsafe { fixture.driver.host_free(pinned).unwrap() };
        let pageable = vec![1_u8; 4096];
        fixture.upload(block, &pageable, stream);
    }
    fixture.clean();
}

#[test]
fn big_blocks_work() {
    let fixture = fixture();
    let (block, stream) = (fixture.alloc(1 << 30), fixture.stream());
    fixture.fill(block + (1 << 29), 64, 3, stream);
    assert_eq!(fixture.download(block + (1 << 29), 64, stream), [3; 64]);
    fixture.clean();
}
