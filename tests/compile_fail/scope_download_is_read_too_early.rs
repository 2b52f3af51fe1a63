//! The target of a download is read before the scope has waited for it.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(stream: &Stream, vec: &DeviceVec<u32>) -> Result<u32> {
    let mut host = [0_u32; 3];
    stream.scope(|s| {
        s.download(vec, &mut host)?;
        Ok(host[0])
    })
}

fn main() {}
