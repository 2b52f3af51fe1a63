//! A thread's own default stream as a vector's home.

use aquifer::{Device, DeviceVec, Result};

fn misuse(device: &Device) -> Result<()> {
    let mine = device.per_thread_stream()?;
    DeviceVec::<u32>::new(&mine).map(drop)
}

fn main() {}
