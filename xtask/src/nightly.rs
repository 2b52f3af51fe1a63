//! The steps that need a nightly toolchain. Where it, or a component, is missing they are skipped,
//! and say so.

use crate::Place;
use crate::cargo::{cargo, of_the_library, prepared, tests, without_cuda};
use crate::process::{quiet, shown};
use crate::programs;
use crate::report::Verdict;
use anyhow::{Result, bail};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The Rust version from which the standard library's `Allocator` is stable.
const STD_ALLOCATOR: (u32, u32) = (1, 100);

/// What the compile-fail tests compare is the text of the tested compiler, not of a nightly.
const NO_COMPILE_FAIL: [&str; 2] = ["--skip", "compile_fail"];

/// It measures what a pool holds, by the calls that the soaks make.
const MEASURES: [&str; 1] = ["adversary"];

/// They need an address that was freed to come back, which AddressSanitizer keeps from them.
const NEEDS_AN_ADDRESS_AGAIN: [&str; 2] =
    ["--skip", "a_block_goes_to_the_pool_that_its_memory_is_of_now"];

pub(crate) fn std_allocator(place: &Place) -> Result<Verdict> {
    let stable = on_stable(place)?;
    let Some(nightly) = nightly(place) else {
        return Ok(Verdict::Skipped(format!("no nightly toolchain is installed; {stable}")));
    };
    let mut command = nightly.cargo(place, "std-allocator");
    command.env("RUSTFLAGS", "--cfg aquifer_nightly").args([
        "test",
        "-p",
        "aquifer",
        "--features",
        "std-allocator",
        "--test",
        "std_allocator",
    ]);
    match tests(&mut command)? {
        Verdict::Passed(note) => Ok(Verdict::Passed(format!("{note}; {stable}"))),
        skipped => Ok(skipped),
    }
}

/// The feature on the toolchain in use: it builds from 1.100 on, and before says what it needs.
fn on_stable(place: &Place) -> Result<String> {
    let version = crate::msrv::compiler(place)?;
    let mut command = cargo(place);
    command.args(["check", "-p", "aquifer", "--features", "std-allocator"]);
    if (version.0, version.1) >= STD_ALLOCATOR {
        shown(&mut command, None)?.ok()?;
        return Ok("builds on the stable one too".into());
    }
    let finished = quiet(&mut command, None)?;
    if finished.status.success() {
        bail!(
            "std-allocator builds on Rust {}.{}, which has no stable Allocator",
            version.0,
            version.1
        );
    }
    // Only the errors: the command's own messages could hold the number by chance.
    let said = |line: &str| line.starts_with("error") && line.contains("1.100");
    if !finished.text.lines().any(said) {
        println!("{}", finished.text);
        bail!("std-allocator fails on an older Rust without an error that names 1.100");
    }
    Ok(format!("refused by name on Rust {}.{}", version.0, version.1))
}

pub(crate) fn asan(place: &Place) -> Result<Verdict> {
    let Some(nightly) = nightly(place) else { return Ok(no_nightly()) };
    if let Some(skipped) = wrong_host() {
        return Ok(skipped);
    }
    let mut command = nightly.cargo(place, "asan");
    command
        .env("RUSTFLAGS", "-Zsanitizer=address")
        // The soaks save more time by it than it costs.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .args(["test", "--lib", "--tests", "--target", TARGET])
        .args(of_the_library());
    // Tests forget guards and transfers on purpose, and ask for more memory than there is: neither what
    // they leak nor a refusal is an error.
    if std::env::var_os("ASAN_OPTIONS").is_none() {
        command.env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1");
    }
    let of_harness = [&NO_COMPILE_FAIL[..], &NEEDS_AN_ADDRESS_AGAIN].concat();
    programs::run_but(place, command, &MEASURES, &of_harness)
}

pub(crate) fn miri(place: &Place) -> Result<Verdict> {
    let Some(nightly) = nightly(place) else { return Ok(no_nightly()) };
    if !nightly.has(place, "miri") || !nightly.has(place, "rust-src") {
        return Ok(Verdict::Skipped(format!("{} lacks miri or rust-src", nightly.0)));
    }
    let mut command = nightly.cargo(place, "miri");
    if std::env::var_os("MIRIFLAGS").is_none() {
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    }
    command.args(["miri", "test", "--no-default-features", "--lib"]).args(without_cuda());
    tests(&mut command)
}

pub(crate) fn tsan(place: &Place) -> Result<Verdict> {
    let Some(nightly) = nightly(place) else { return Ok(no_nightly()) };
    if let Some(skipped) = wrong_host() {
        return Ok(skipped);
    }
    // Without a standard library built for it, TSan reports races that are none.
    if !nightly.has(place, "rust-src") {
        return Ok(Verdict::Skipped(format!("{} lacks rust-src", nightly.0)));
    }
    let mut command = nightly.cargo(place, "tsan");
    command
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .args(["test", "-Zbuild-std", "--lib", "--tests", "--target", TARGET])
        .args(of_the_library())
        .arg("--")
        .args(NO_COMPILE_FAIL);
    tests(&mut command)
}

/// How long each fuzz target runs, in seconds.
const FUZZ_SECONDS: u32 = 30;

/// The targets of `fuzz/`.
const FUZZ_TARGETS: [&str; 3] = ["heap", "logs", "stacks"];

/// What the fuzz targets run, on drawn inputs; then the targets, where there is a fuzzer.
pub(crate) fn fuzz(place: &Place) -> Result<Verdict> {
    let mut drawn = cargo(place);
    drawn.env("CARGO_TARGET_DIR", &place.target).args([
        "test",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--no-default-features",
        "--test",
        "inputs",
    ]);
    tests(&mut drawn)?;
    let Some(nightly) = nightly(place) else { return Ok(no_nightly()) };
    let mut version = nightly.cargo(place, "fuzz");
    let there = quiet(version.args(["fuzz", "--version"]), None);
    if !there.is_ok_and(|finished| finished.status.success()) {
        let why = "cargo-fuzz is not installed; drawn inputs passed";
        return Ok(Verdict::Skipped(why.into()));
    }
    for target in FUZZ_TARGETS {
        let mut command = nightly.cargo(place, "fuzz");
        let limit = format!("-max_total_time={FUZZ_SECONDS}");
        command.args(["fuzz", "run", target, "--", &limit, "-rss_limit_mb=4096"]);
        shown(&mut command, None)?.ok()?;
    }
    Ok(Verdict::Passed(format!("{} targets, {FUZZ_SECONDS} s each", FUZZ_TARGETS.len())))
}

fn no_nightly() -> Verdict {
    Verdict::Skipped("no nightly toolchain is installed".into())
}

fn wrong_host() -> Option<Verdict> {
    let host = (std::env::consts::ARCH, std::env::consts::OS);
    (host != ("x86_64", "linux"))
        .then(|| Verdict::Skipped(format!("runs on {TARGET} only, not on {} {}", host.0, host.1)))
}

/// The name of an installed nightly toolchain.
struct Nightly(String);

fn nightly(place: &Place) -> Option<Nightly> {
    let mut rustup = prepared(place, Command::new("rustup"));
    let finished = quiet(rustup.args(["toolchain", "list"]), None).ok()?.ok().ok()?;
    choose(&finished.text).map(Nightly)
}

/// The undated nightly if there is one, else the newest dated one.
fn choose(list: &str) -> Option<String> {
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    let mut nightlies: Vec<&str> = names.filter(|name| name.starts_with("nightly")).collect();
    nightlies.sort_unstable();
    let dated = |name: &&&str| name.split('-').nth(1).is_some_and(|part| part.starts_with("20"));
    let undated = nightlies.iter().find(|name| !dated(name));
    undated.or(nightlies.last()).map(ToString::to_string)
}

impl Nightly {
    /// cargo of this toolchain, with a target directory of its own.
    fn cargo(&self, place: &Place, folder: &str) -> Command {
        let mut command = prepared(place, Command::new("rustup"));
        command
            .args(["run", &self.0, "cargo"])
            .env("CARGO_TARGET_DIR", place.target.join(folder))
            .env_remove("CARGO")
            .env_remove("RUSTC");
        command
    }

    fn has(&self, place: &Place, component: &str) -> bool {
        let mut rustup = prepared(place, Command::new("rustup"));
        rustup.args(["component", "list", "--installed", "--toolchain", &self.0]);
        quiet(&mut rustup, None)
            .is_ok_and(|finished| finished.text.lines().any(|line| line.starts_with(component)))
    }
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn takes_the_undated_nightly_first() {
        let list = "stable-x86_64 (active, default)\nnightly-2026-01-01-x86_64\nnightly-x86_64\n";
        assert_eq!(choose(list).as_deref(), Some("nightly-x86_64"));
        let dated = "nightly-2026-01-01-x86_64\nnightly-2026-02-01-x86_64\n1.95.0-x86_64\n";
        assert_eq!(choose(dated).as_deref(), Some("nightly-2026-02-01-x86_64"));
        assert_eq!(choose("stable-x86_64\n"), None);
    }
}
