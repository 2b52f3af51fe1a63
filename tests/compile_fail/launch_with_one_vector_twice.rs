//! A launch that reads the vector that it writes, as two arguments.

use aquifer::{DeviceVec, Kernel, LaunchConfig, Result, Stream};

fn misuse(stream: &Stream, kernel: &Kernel, mut vec: DeviceVec<u32>) -> Result<()> {
    let launch = stream.launch(kernel).output(&mut vec)?.input(&vec)?;
    unsafe { launch.launch(LaunchConfig::for_elements(1)) }
}

fn main() {}
