//! NVTX, as a tool that was injected into the program hears it.

#![cfg(all(feature = "nvtx", target_os = "linux"))]

mod memory;
mod old_regions;
#[path = "../support/mod.rs"]
mod support;
mod tool;

use aquifer::{
    CudaResource, DeviceBlock, DeviceLayout, DeviceResource, PoolResource, Stream,
    mr::{MissPolicy, MissStep},
};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const CHILD: &str = "AQUIFER_TEST_NVTX_CHILD";
const MIB: usize = 1 << 20;

/// The stand-in for a tool, built here.
fn tool() -> PathBuf {
    // The binary lies in <target>/<profile>/deps.
    let binary = std::env::current_exe().unwrap();
    let root = binary.ancestors().nth(3).unwrap().join("stand_in_nvtx");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| env!("CARGO").to_owned());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "-p", "stand_in_nvtx", "--target-dir"])
        .arg(&root)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .unwrap();
    assert!(status.success(), "the stand-in does not build");
    root.join("debug").join("libstand_in_nvtx.so")
}

/// Runs one test of this file in a process of its own.
fn child(name: &str, tool: &Path, log: &Path) -> Output {
    child_with(name, tool, log, &[])
}

fn child_with(name: &str, tool: &Path, log: &Path, set: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("NVTX_INJECTION64_PATH", tool)
        .env("STAND_IN_NVTX_LOG", log)
        .envs(set.iter().copied())
        .output()
        .unwrap()
}

fn take(pool: &PoolResource, stream: &Stream) -> DeviceBlock {
    pool.allocate(stream, DeviceLayout::new(MIB).unwrap()).unwrap()
}

fn give(pool: &PoolResource, stream: &Stream, block: DeviceBlock) {
    // SAFETY: allocated from the pool; nothing uses it.
    unsafe { pool.deallocate(stream, block) };
}

fn work() {
    let device = support::device();
    let (first, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = PoolResource::builder(CudaResource::new(&device))
        .initial_size(MIB)
        .maximum_size(MIB)
        .miss_policy(MissPolicy::new([MissStep::Gather]))
        .build()
        .unwrap();
    let block = take(&pool, &first);
    give(&pool, &first, block);
    let block = take(&pool, &second);
    give(&pool, &second, block);
    pool.wait_and_trim(0).unwrap();
}

#[test]
fn a_tool_hears_of_growth_gathering_and_trims() {
    let name = "a_tool_hears_of_growth_gathering_and_trims";
    if std::env::var_os(CHILD).is_some() {
        return work();
    }
    let log = std::env::temp_dir().join(format!("aquifer-{}-nvtx.log", std::process::id()));
    let _ = std::fs::remove_file(&log);
    let output = child(name, &tool(), &log);
    assert!(output.status.success(), "{output:?}");
    let heard = std::fs::read_to_string(&log).unwrap();
    let _ = std::fs::remove_file(&log);
    let expected = [
        "domain aquifer",
        "push pool: grow",
        "pop",
        "push pool: gather",
        "pop",
        "push pool: wait and trim",
        "pop",
    ];
    assert_eq!(heard.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_tool_that_is_not_there_changes_nothing() {
    let name = "a_tool_that_is_not_there_changes_nothing";
    if std::env::var_os(CHILD).is_some() {
        return work();
    }
    let nowhere = std::env::temp_dir().join("aquifer-no-such-tool.so");
    let output = child(name, &nowhere, &nowhere);
    assert!(output.status.success(), "{output:?}");
    // A library that is there, and is no tool.
    let output = child(name, Path::new("libc.so.6"), &nowhere);
    assert!(output.status.success(), "{output:?}");
    assert!(!nowhere.exists());
}

/// A tool may have threads of its own by then, whose code is to stay.
#[test]
fn a_tool_that_hears_no_ranges_stays_loaded() {
    let name = "a_tool_that_hears_no_ranges_stays_loaded";
    if std::env::var_os(CHILD).is_some() {
        work();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains("libstand_in_nvtx"), "the tool was unloaded");
        return;
    }
    let log = std::env::temp_dir().join(format!("aquifer-{}-no-ranges.log", std::process::id()));
    let output = child_with(name, &tool(), &log, &[("STAND_IN_NVTX_NO_RANGES", "1")]);
    assert!(output.status.success(), "{output:?}");
    assert!(!log.exists());
}
