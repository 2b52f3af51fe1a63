//! A borrowed slice that dies before its copy to the device.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(stream: &Stream, vec: &mut DeviceVec<u32>) -> Result<()> {
    stream.scope(|s| {
        let short_lived = [1_u32, 2, 3];
        s.upload(&short_lived, vec)
    })
}

fn main() {}
