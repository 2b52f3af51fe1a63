//! A vector and its chunks, of which one is in a transfer: none is used twice.

use aquifer::{DeviceVec, Result, Stream, pinned::HostChunk};

fn misuse(stream: &Stream, host: Vec<u32>, device: DeviceVec<u32>) -> Result<()> {
    let mut whole = HostChunk::new(host);
    let tail = whole.split_off(1)?;
    let chunks = device.into_chunks(1)?;
    for chunk in chunks {
        let upload = stream.upload(tail, chunk)?;
        upload.wait()?;
    }
    device.to_vec()?;
    println!("{}", chunks.len());
    Ok(())
}

fn main() {}
