//! An element that is not plain data: not every bit pattern is a `bool`.

fn misuse(_: aquifer::DeviceVec<bool>) {}

fn main() {}
