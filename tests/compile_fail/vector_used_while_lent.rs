//! A vector used at home while it is lent to another stream for writing.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(vec: &mut DeviceVec<u32>, other: &Stream) -> Result<()> {
    let guard = vec.on_mut(other)?;
    vec.to_vec()?;
    drop(guard);
    Ok(())
}

fn main() {}
