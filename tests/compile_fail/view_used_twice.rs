//! A mutable view that was split, used again beside its parts.

use aquifer::{DeviceVec, Result};

fn misuse(vec: &mut DeviceVec<u32>) -> Result<()> {
    let whole = vec.as_mut_slice();
    let (mut head, _tail) = whole.split_at_mut(3)?;
    head.copy_from(&whole)
}

fn main() {}
