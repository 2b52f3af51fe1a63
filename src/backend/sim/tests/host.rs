//! Host memory: page-locked, registered, mapped, pageable.

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
fn copy(rig: &Rig, up: bool, pinned: NonNull<u8>, block: DeviceAddress, stream: RawStream) {
    // SAFETY: both live for 64 bytes; whether the host keeps off is what is tested.
    unsafe {
        if up {
            rig.driver.copy_to_device(block, pinned.as_ptr(), 64, stream).unwrap();
        } else {
            rig.driver.copy_to_host(pinned.as_ptr(), block, 64, stream).unwrap();
        }
    }
}

#[test]
fn the_host_keeps_off_while_a_copy_runs() {
    for (up, fault) in [(true, true), (true, false), (false, true), (false, false)] {
        let rig = rig();
        let (stream, block, pinned) = (rig.stream(), rig.alloc(64), rig.pinned(128));
        rig.fill(block, 64, 1, stream);
        copy(&rig, up, pinned, block, stream);
        write(pinned, if fault { 63 } else { 64 }, 7);
        if fault {
            let error = rig.sync(stream).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Simulation);
            let report = rig.saw(Violation::HostWroteDuringCopy);
            assert_eq!(report.range(), (pinned.as_ptr() as u64, 64));
        } else {
            rig.sync(stream).unwrap();
            rig.clean();
        }
        write(pinned, 0, 7);
        rig.clean();
    }
}

#[test]
fn what_the_device_writes_is_not_the_hosts() {
    let rig = rig();
    let (stream, pinned) = (rig.stream(), rig.pinned(64));
    let (block, other) = (rig.alloc(64), rig.alloc(64));
    rig.fill(block, 64, 1, stream);
    copy(&rig, false, pinned, block, stream);
    copy(&rig, true, pinned, other, stream);
    rig.launch(&INCREMENT, &[buffer(pinned.as_ptr() as u64, 64, Access::ReadWrite)], stream);
    copy(&rig, true, pinned, block, stream);
    assert_eq!(rig.download(other, 64, stream), [1; 64]);
    assert_eq!(rig.download(block, 4, stream), [2, 1, 1, 1]);
    rig.clean();
}

#[test]
fn host_blocks_have_shadows_too() {
    for ordered in [false, true] {
        let rig = rig();
        let (first, second, pinned) = (rig.stream(), rig.stream(), rig.pinned(64));
        let blocks = [rig.alloc(64), rig.alloc(64)];
        rig.fill(blocks[0], 64, 1, first);
        rig.fill(blocks[1], 64, 2, second);
        copy(&rig, false, pinned, blocks[0], first);
        if ordered {
            rig.order(first, second);
        }
        copy(&rig, false, pinned, blocks[1], second);
        if ordered {
            rig.clean();
            assert_eq!(read(pinned, 0), 2);
        } else {
            rig.saw(Violation::UnorderedAccess);
        }
    }
}

#[test]
fn pinned_copies_are_asynchronous_and_pageable_ones_are_not() {
    let rig = rig();
    let (stream, block, pinned) = (rig.stream(), rig.alloc(64), rig.pinned(64));
    write(pinned, 0, 1);
    let mut pageable = vec![4_u8; 64];
    rig.upload(block, &pageable, stream);
    pageable.fill(5);
    copy(&rig, false, pinned, block, stream);
    assert_eq!(read(pinned, 0), 1, "not yet");
    assert_eq!(rig.download(block, 64, stream), [4; 64], "staged when it was enqueued");
    assert_eq!(read(pinned, 0), 4, "a copy to pageable memory waits for its stream");
    // And tells the host about it.
    // SAFETY: complete.
    unsafe { rig.driver.mem_free(block).unwrap() };
    rig.clean();
}

#[test]
fn only_mapped_memory_has_a_device_address() {
    let rig = rig();
    let stream = rig.stream();
    let unmapped = rig.driver.host_alloc(64, HostFlags::default()).unwrap();
    assert_eq!(rig.driver.host_device_address(unmapped).unwrap_err().code(), 1);
    let address = unmapped.as_ptr() as u64;
    assert!(rig.try_fill(address, 64, 0, stream).is_err());
    rig.saw(Violation::UnmappedAddress);

    let mapped = rig.pinned(64);
    let address = rig.driver.host_device_address(mapped).unwrap();
    rig.fill(address, 64, 9, stream);
    rig.sync(stream).unwrap();
    assert_eq!(read(mapped, 63), 9);
    rig.clean();

    let own = HostFlags { mapped: true, ..HostFlags::default() };
    let own = rig.driver.host_alloc(64, own).unwrap();
    let other = self::rig();
    assert!(other.driver.host_device_address(own).is_err(), "not portable");
    assert!(other.driver.host_device_address(mapped).is_ok(), "portable");
}

#[test]
fn managed_memory_is_the_hosts_and_the_devices() {
    let rig = rig();
    let (stream, address) = (rig.stream(), rig.driver.mem_alloc_managed(64).unwrap());
    let pointer = NonNull::new(address as usize as *mut u8).unwrap();
    for at in 0..64 {
        write(pointer, at, 1);
    }
    rig.launch(&INCREMENT, &[buffer(address, 64, Access::ReadWrite)], stream);
    rig.sync(stream).unwrap();
    assert_eq!(read(pointer, 0), 2);
    rig.clean();
}

#[test]
fn memory_that_moves_from_pinned_to_pageable_is_forgotten() {
    let rig = rig();
    let (stream, block) = (rig.stream(), rig.alloc(4096));
    for _ in 0..100 {
        let pinned = rig.pinned(4096);
        // SAFETY: unused.
        unsafe { rig.driver.host_free(pinned).unwrap() };
        let pageable = vec![1_u8; 4096];
        rig.upload(block, &pageable, stream);
    }
    rig.clean();
}

#[test]
fn big_blocks_work() {
    let rig = rig();
    let (block, stream) = (rig.alloc(1 << 30), rig.stream());
    rig.fill(block + (1 << 29), 64, 3, stream);
    assert_eq!(rig.download(block + (1 << 29), 64, stream), [3; 64]);
    rig.clean();
}
