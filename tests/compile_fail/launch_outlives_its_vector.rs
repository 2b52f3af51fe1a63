//! A launch used when the vector that it borrowed is gone.

use aquifer::{DeviceVec, Kernel, LaunchConfig, Result, Stream};

fn misuse(stream: &Stream, kernel: &Kernel, mut vec: DeviceVec<u32>) -> Result<()> {
    let launch = stream.launch(kernel).in_out(&mut vec)?;
    drop(vec);
    unsafe { launch.launch(LaunchConfig::for_elements(1)) }
}

fn main() {}
