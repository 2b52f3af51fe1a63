//! Two mutable views of one vector at once.

use aquifer::{DeviceVec, Result};

fn misuse(vec: &mut DeviceVec<u32>) -> Result<()> {
    let one = vec.slice_mut(..10)?;
    let mut two = vec.slice_mut(5..)?;
    two.fill(0)?;
    drop(one);
    Ok(())
}

fn main() {}
