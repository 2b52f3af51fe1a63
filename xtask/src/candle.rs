//! The crate `candle/`, which wants CUDA's compiler when it is built, is checked to compile.

use crate::Place;
use crate::cargo::cargo;
use crate::process::{quiet, shown};
use crate::report::Verdict;
use anyhow::{Context as _, Result, ensure};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// What stands in for `nvcc`: build scripts ask it for its version, cudarc's in the fourth line, and want files of it. `cargo check` links
/// nothing, so empty files do, and no kernel of candle's is compiled.
const STAND_IN: &str = r#"#!/bin/sh
case "$1" in
    --version) printf '\n\n\nCuda compilation tools, release 13.0, V13.0.0\n'; exit;;
    --list-gpu-code) echo sm_90; exit;;
esac
folder=.
while [ $# -gt 0 ]; do
    case "$1" in
        -o) : > "$2"; exit;;
        --output-directory) folder=$2; shift;;
        *.cu) name=$(basename "$1" .cu);;
    esac
    shift
done
: > "$folder/$name.ptx"
"#;

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let mut fetch = cargo(place);
    fetch.args(["fetch", "--locked", "--manifest-path", "candle/Cargo.toml"]);
    let fetched = quiet(&mut fetch, None)?;
    ensure!(
        !fetched.text.contains("--locked"),
        "candle/Cargo.lock is not up to date: run `cargo update -w` in `candle`"
    );
    if !fetched.status.success() {
        return Ok(Verdict::Skipped("candle's crates are not to be had".into()));
    }
    let target = place.target.join("candle");
    let folder = target.join("toolkit").join("bin");
    stand_in(&folder)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths(std::iter::once(folder.clone()).chain(std::env::split_paths(&path)))?;
    let mut check = cargo(place);
    check
        .args(["clippy", "--locked", "--manifest-path", "candle/Cargo.toml", "--target-dir"])
        .arg(OsString::from(target))
        .args(["--", "-D", "warnings"])
        .env("PATH", path)
        .env("NVCC", folder.join("nvcc"))
        .env("CUDA_COMPUTE_CAP", "90");
    shown(&mut check, None)?.ok()?;
    Ok(Verdict::Passed("compiles; candle's own kernels were not compiled".into()))
}

fn stand_in(folder: &Path) -> Result<()> {
    let file = folder.join("nvcc");
    let written = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&file, STAND_IN))
        .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o755)));
    written.with_context(|| file.display().to_string())
}
