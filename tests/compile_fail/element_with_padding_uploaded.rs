//! The bytes of padding have no value that a copy could read.

use aquifer::{DeviceCopy, DeviceVec, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
struct Padded {
    count: u32,
    factor: f64,
}

// SAFETY: two numbers, without pointers.
unsafe impl DeviceCopy for Padded {}

fn misuse(stream: &Stream) {
    let _ = DeviceVec::from_slice(stream, &[Padded { count: 1, factor: 0.5 }]);
}

fn main() {}
