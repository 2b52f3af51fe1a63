//! A reference to memory of the host means nothing on the device.

fn misuse(_: aquifer::DeviceVec<&'static u32>) {}

fn main() {}
