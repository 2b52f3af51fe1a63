//! A borrowed slice that dies before its copy from the device.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(stream: &Stream, vec: &DeviceVec<u32>) -> Result<()> {
    stream.scope(|s| {
        let mut short_lived = [0_u32; 3];
        s.download(vec, &mut short_lived)
    })
}

fn main() {}
