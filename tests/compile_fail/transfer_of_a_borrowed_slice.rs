//! A transfer that would own a borrowed slice.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(stream: &Stream, host: &mut [u32], device: DeviceVec<u32>) -> Result<()> {
    stream.upload(host, device)?.wait()?;
    Ok(())
}

fn main() {}
