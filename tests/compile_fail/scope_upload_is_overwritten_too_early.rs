//! The source of an upload is overwritten while the copy may run.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(stream: &Stream, vec: &mut DeviceVec<u32>) -> Result<()> {
    let mut host = [1_u32; 3];
    stream.scope(|s| {
        s.upload(&host, vec)?;
        host[0] = 2;
        Ok(())
    })
}

fn main() {}
