//! Finds out whether the standard library's `Allocator` is there for the feature `std-allocator`.

use std::env;
use std::process::Command;

/// The first Rust whose `std::alloc::Allocator` is stable.
const STABLE_SINCE: u32 = 100;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(aquifer_std_allocator)");
    if env::var_os("CARGO_FEATURE_STD_ALLOCATOR").is_none() {
        return;
    }
    // On a nightly before that, whoever builds says that the gate may be used.
    let nightly = env::var_os("CARGO_CFG_AQUIFER_NIGHTLY").is_some();
    if nightly || minor_version().is_some_and(|minor| minor >= STABLE_SINCE) {
        println!("cargo::rustc-cfg=aquifer_std_allocator");
    }
}

/// The compiler's `x` of 1.x.
fn minor_version() -> Option<u32> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let version = text.split_whitespace().nth(1)?;
    version.strip_prefix("1.")?.split('.').next()?.parse().ok()
}
