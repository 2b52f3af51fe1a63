//! An element that is not plain data.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(stream: &Stream) -> Result<()> {
    let references: DeviceVec<&'static u8> = DeviceVec::new(stream)?;
    drop(references);
    let truths = DeviceVec::from_slice(stream, &[true, false])?;
    drop(truths);
    Ok(())
}

fn main() {}
