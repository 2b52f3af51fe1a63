//! A cast would make values of a type whose owner checks each.

use aquifer::{DeviceCopy, DeviceVec};

#[derive(Clone, Copy)]
#[repr(transparent)]
struct BelowTen(u32);

// SAFETY: an integer.
unsafe impl DeviceCopy for BelowTen {}

fn misuse(vec: DeviceVec<u32>) {
    let _ = vec.cast::<BelowTen>();
}

fn main() {}
