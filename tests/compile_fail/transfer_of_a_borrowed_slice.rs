//! A transfer that would own a borrowed slice.

fn misuse(_: aquifer::Transfer<&mut [u32]>) {}

fn main() {}
