//! The buffers of a transfer, used while it has them.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(stream: &Stream, host: Vec<u32>, device: DeviceVec<u32>) -> Result<()> {
    let upload = stream.upload(host, device)?;
    println!("{}", host.len());
    device.to_vec()?;
    upload.wait()?;
    Ok(())
}

fn main() {}
