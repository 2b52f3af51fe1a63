//! Alignment, poison and watchpoints of the host memory behind blocks.

use super::*;

#[test]
fn memory_is_aligned_and_poisoned() {
    for (bytes, alignment) in [(1, 256), (1000, 4096), (100 << 20, 4096)] {
        let memory = Backing::allocate(bytes, alignment, true).unwrap();
        assert_eq!(memory.pointer().as_ptr() as usize % alignment, 0);
        // SAFETY: the last byte of live memory.
        let last = unsafe { memory.pointer().add(bytes - 1).read() };
        assert_eq!(last, if bytes <= POISON_LIMIT { POISON } else { 0 });
    }
    assert!(Backing::allocate(usize::MAX, 256, true).is_none());
}

#[cfg(target_os = "linux")]
#[test]
fn pages_of_big_blocks_are_not_touched() {
    for (bytes, poison) in [(1_usize << 30, true), (1 << 30, false), (32 << 20, false)] {
        touches_few(bytes, poison);
    }
    // More than any host has.
    assert!(Backing::allocate(1 << 42, 4096, false).is_some());
}

#[cfg(target_os = "linux")]
fn touches_few(bytes: usize, poison: bool) {
    let pages = bytes / 4096;
    let memory = Backing::allocate(bytes, 4096, poison).unwrap();
    let mut resident = vec![0_u8; pages];
    // SAFETY: asks about live memory, with one byte for each of its pages.
    let code = unsafe {
        libc::mincore(memory.pointer().as_ptr().cast(), bytes, resident.as_mut_ptr().cast())
    };
    assert_eq!(code, 0);
    let touched = resident.iter().filter(|&&page| page & 1 == 1).count();
    assert!(touched < pages / 100, "{touched} of {pages} pages");
}

#[test]
fn every_byte_counts() {
    let mut bytes = [7_u8; 61];
    let sum = checksum(bytes.as_ptr(), 61);
    for index in 0..61 {
        bytes[index] ^= 1;
        assert_ne!(checksum(bytes.as_ptr(), 61), sum, "{index}");
        bytes[index] ^= 1;
    }
    assert_eq!(checksum(bytes.as_ptr(), 61), sum);
}

#[test]
fn writes_of_the_device_are_not_those_of_the_host() {
    let memory = Backing::allocate(64, 256, true).unwrap();
    let start = memory.pointer().as_ptr();
    let write = |value: u8| {
        // SAFETY: live memory, touched here alone.
        unsafe { start.write(value) }
    };
    memory.watch(1, start, 64, true);
    memory.before_write(start as usize, 8);
    write(1);
    memory.after_write(start as usize, 8);
    assert!(!memory.unwatch(1, true));
    memory.watch(2, start, 64, true);
    write(2);
    memory.before_write(start as usize, 8);
    memory.after_write(start as usize, 8);
    assert!(memory.unwatch(2, true), "the write before the device's own is the host's");
    assert!(!memory.unwatch(2, true), "a watchpoint ends once");
}
