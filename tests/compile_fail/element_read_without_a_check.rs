//! The device may hold bytes that are no value of the type.

use aquifer::{DeviceCopy, DeviceVec};

#[derive(Clone, Copy)]
#[repr(transparent)]
struct BelowTen(u32);

// SAFETY: an integer.
unsafe impl DeviceCopy for BelowTen {}

fn misuse(vec: &DeviceVec<BelowTen>) {
    let _ = vec.to_vec();
    let _ = vec.get(0);
}

fn main() {}
