//! A vector written at home while it is lent to another stream for reading.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(vec: &mut DeviceVec<u32>, other: &Stream) -> Result<()> {
    let guard = vec.on(other)?;
    vec.push(1)?;
    drop(guard);
    Ok(())
}

fn main() {}
