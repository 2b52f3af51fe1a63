//! The steps that are one call of cargo, and what the others need of it.

use crate::Place;
use crate::process::{Finished, quiet, shown};
use crate::programs;
use crate::report::Verdict;
use crate::source_rules::links;
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The optional features of the crate that are checked with the default ones.
pub(crate) const OPTIONS: &str = "--features=aquifer/sim,aquifer/debug-log,aquifer/nvtx,aquifer/nvrtc,aquifer/half,aquifer/arrow,aquifer/bytes,aquifer/memmap2,aquifer/zerocopy";

/// The crates of the library, each behind those that it imports.
pub(crate) const CRATES: [&str; 14] = [
    "aquifer-sync",
    "aquifer-nvtx",
    "aquifer-events",
    "aquifer-pool",
    "aquifer-ptx",
    "aquifer-driver",
    "aquifer-collective",
    "aquifer-nvrtc",
    "aquifer-sim",
    "aquifer-core",
    "aquifer-mr",
    "aquifer-nccl",
    "aquifer-plug",
    "aquifer",
];

/// `-p` for each crate of the library.
pub(crate) fn of_the_library() -> impl Iterator<Item = &'static str> {
    CRATES.iter().flat_map(|name| ["-p", name])
}

/// `-p` for each crate that is something without CUDA. The tests of the others turn it on, in all crates.
pub(crate) fn without_cuda() -> impl Iterator<Item = &'static str> {
    CRATES.iter().filter(|name| **name != "aquifer-nvrtc").flat_map(|name| ["-p", name])
}

/// cargo, the same that runs this program, in the repository's root.
pub(crate) fn cargo(place: &Place) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    prepared(place, Command::new(program))
}

/// `command` in the repository's root, without the variables that `cargo run` gave this program and
/// that would make every step rebuild what the user's own cargo has built.
pub(crate) fn prepared(place: &Place, mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|prefix| text.starts_with(prefix))
        {
            command.env_remove(&name);
        }
    }
    command.current_dir(&place.root);
    command
}

pub(crate) fn format(place: &Place) -> Result<Verdict> {
    ensure_component(place, "rustfmt", "fmt")?;
    shown(cargo(place).args(["fmt", "--all", "--check"]), None)?.ok()?;
    Ok(Verdict::Passed(String::new()))
}

pub(crate) fn clippy(place: &Place) -> Result<Verdict> {
    clippy_with(place, &["--workspace", OPTIONS])
}

pub(crate) fn clippy_minimal(place: &Place) -> Result<Verdict> {
    let packages: Vec<_> = without_cuda().chain(["--no-default-features"]).collect();
    clippy_with(place, &packages)
}

/// The library as programs get it: no warning, and nothing of the simulated device in it.
pub(crate) fn without_sim(place: &Place) -> Result<Verdict> {
    const SYMBOL: &[u8] = b"aquifer_sim";
    // With all crates below it.
    let library = |features: &[&str]| -> Result<Vec<u8>> {
        let target = place.root.join("target/without-sim");
        let mut build = cargo(place);
        build.args(["rustc", "-p", "aquifer", "--lib", "--crate-type", "staticlib"]).args(features);
        build.env("RUSTFLAGS", "-D warnings").arg("--target-dir").arg(&target);
        shown(&mut build, None)?.ok()?;
        Ok(std::fs::read(target.join("debug/libaquifer.a"))?)
    };
    let has_it = |library: &[u8]| library.windows(SYMBOL.len()).any(|name| name == SYMBOL);
    // What is looked for is there where it should be: else its absence would show nothing.
    if !has_it(&library(&["--features=sim"])?) {
        bail!("a build with the feature `sim` has no symbol of the simulated device");
    }
    for features in [&[][..], &["--no-default-features"]] {
        if has_it(&library(features)?) {
            bail!("a build without the feature `sim` has symbols of the simulated device");
        }
    }
    Ok(Verdict::Passed("3 builds".into()))
}

fn clippy_with(place: &Place, what: &[&str]) -> Result<Verdict> {
    ensure_component(place, "clippy", "clippy")?;
    let mut command = cargo(place);
    command.arg("clippy").args(what).args(["--all-targets", "--", "-D", "warnings"]);
    shown(&mut command, None)?.ok()?;
    Ok(Verdict::Passed(String::new()))
}

pub(crate) fn test(place: &Place) -> Result<Verdict> {
    let mut build = cargo(place);
    build.args(["test", "--workspace", OPTIONS, "--lib", "--bins", "--tests"]);
    programs::run(place, build, &[])
}

pub(crate) fn test_minimal(place: &Place) -> Result<Verdict> {
    // The crates below that have no feature of their own are the same as in `test`.
    let packages = ["aquifer", "aquifer-core", "aquifer-driver", "aquifer-plug"];
    let mut test = cargo(place);
    test.arg("test").args(packages.iter().flat_map(|name| ["-p", name]));
    test.args(["--no-default-features", "--lib", "--tests"]);
    // On the way without a lock, which pools do not take where the simulated device follows them.
    test.env("AQUIFER_TEST_POOL_CHECKS", "off");
    programs::run(place, test, &[])
}

/// The features that cut events out of the program, one after the other: each is a build of its own.
const LOG_LEVELS: [&str; 5] = ["off", "error", "warn", "info", "debug"];

pub(crate) fn log_levels(place: &Place) -> Result<Verdict> {
    for level in LOG_LEVELS {
        let features = format!("--features=debug-log,nvtx,log-level-{level}");
        tests(cargo(place).args(["test", "-p", "aquifer", &features, "--test", "debug_log"]))?;
    }
    Ok(Verdict::Passed(format!("{} levels", LOG_LEVELS.len())))
}

pub(crate) fn doctest(place: &Place) -> Result<Verdict> {
    let mut test = cargo(place);
    test.args(["test", "--doc", "--no-fail-fast", "-p", "aquifer-replay", OPTIONS])
        .args(of_the_library());
    tests(&mut test)
}

pub(crate) fn doc(place: &Place) -> Result<Verdict> {
    let mut command = cargo(place);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command.args(["doc", "--no-deps", "-p", "aquifer-replay", OPTIONS]).args(of_the_library());
    shown(&mut command, None)?.ok()?;
    let links = links::in_documentation(place)?;
    Ok(Verdict::Passed(format!("{links} links to it")))
}

/// Removes what cargo unpacked and built of our crates when they were packaged before. It takes a version for unchanged, and
/// would build the crates above on the old sources.
fn forget_packaged(target: &Path) -> Result<()> {
    if target.is_dir() {
        std::fs::remove_dir_all(target)?;
    }
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let Some(sources) = home.and_then(|home| home.join("registry/src").read_dir().ok()) else {
        return Ok(());
    };
    for registry in sources {
        let registry = registry?;
        // The registry of a `publish --dry-run` has no host, which the name of its folder begins with.
        if !registry.file_name().to_string_lossy().starts_with('-') {
            continue;
        }
        for unpacked in registry.path().read_dir()? {
            let unpacked = unpacked?;
            if unpacked.file_name().to_string_lossy().starts_with("aquifer") {
                std::fs::remove_dir_all(unpacked.path())?;
            }
        }
    }
    Ok(())
}

pub(crate) fn package(place: &Place) -> Result<Verdict> {
    let target = place.target.join("packaged");
    forget_packaged(&target)?;
    let mut publish = cargo(place);
    publish.env("CARGO_TARGET_DIR", &target);
    publish.args(["publish", "--dry-run", "--allow-dirty"]).args(of_the_library());
    shown(&mut publish, None)?.ok()?;
    Ok(Verdict::Passed(format!("{} crates", CRATES.len())))
}

/// Builds test targets of the crate with one call of `cargo`, which has its folders and flags already,
/// optimised. Returns the programs by their targets.
pub(crate) fn build_tests(
    cargo: &mut Command,
    targets: &BTreeSet<String>,
) -> Result<BTreeMap<String, PathBuf>> {
    cargo
        .args(["test", "--release", "-p", "aquifer", "--no-run"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(targets.iter().flat_map(|target| ["--test", target]));
    let finished = quiet(cargo, None)?;
    if !finished.status.success() {
        println!("{}", finished.text);
        bail!("the tests do not compile");
    }
    let programs = programs_by_target(&finished.text);
    if let Some(missing) = targets.iter().find(|target| !programs.contains_key(*target)) {
        bail!("cargo built no program for {missing}");
    }
    Ok(programs)
}

/// The programs that cargo's messages say it built, by their targets.
pub(crate) fn programs_by_target(messages: &str) -> BTreeMap<String, PathBuf> {
    let program = |line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let name = message.pointer("/target/name")?.as_str()?;
        Some((name.into(), message["executable"].as_str()?.into()))
    };
    messages.lines().filter_map(program).collect()
}

/// Runs a test command; at least one test must have run. The note counts them.
pub(crate) fn tests(command: &mut Command) -> Result<Verdict> {
    judge_tests(&[shown(command, None)?])
}

/// What the processes of a test harness say together.
pub(crate) fn judge_tests(processes: &[Finished]) -> Result<Verdict> {
    let text: String = processes.iter().map(|finished| finished.text.as_str()).collect();
    let counts = Counts::of(&text);
    if let Some(failed) = processes.iter().find(|finished| !finished.status.success()) {
        bail!("{}: {}{}", failed.status, counts.note(), failures(&text));
    }
    if counts.passed == 0 {
        bail!("no test ran");
    }
    Ok(Verdict::Passed(counts.note()))
}

/// What the test harness said, summed over its processes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    failed: u64,
    ignored: u64,
    /// Tests that said on a line of their own that they could not run here: `skipped: NAME: WHY`.
    skipped: u64,
}

impl Counts {
    pub(crate) fn of(text: &str) -> Self {
        let mut counts = Self::default();
        for line in text.lines() {
            if line.starts_with("skipped: ") {
                counts.skipped += 1;
            }
            let Some((_, rest)) = line.split_once("test result: ") else { continue };
            for part in rest.split(['.', ';']) {
                let mut words = part.split_whitespace();
                let (Some(number), Some(word)) = (words.next(), words.next()) else { continue };
                let Ok(number) = number.parse::<u64>() else { continue };
                match word {
                    "passed" => counts.passed += number,
                    "failed" => counts.failed += number,
                    "ignored" => counts.ignored += number,
                    _ => {}
                }
            }
        }
        // A test that skips returns, so the harness counts it as passed.
        counts.passed = counts.passed.saturating_sub(counts.skipped);
        counts
    }

    fn note(&self) -> String {
        let mut note = format!("tests: {} passed", self.passed);
        for (number, word) in
            [(self.failed, "failed"), (self.ignored, "ignored"), (self.skipped, "skipped")]
        {
            if number > 0 {
                note.push_str(&format!(", {number} {word}"));
            }
        }
        note
    }
}

/// What the harness printed of the tests that failed: their names, and each panic with the lines that
/// follow it. A table is the end of a log, and often all that is kept of it.
pub(crate) fn failures(text: &str) -> String {
    const LINES_OF_A_PANIC: usize = 12;
    const LINES: usize = 200;
    let mut failures = String::new();
    let mut left = 0;
    let told = text.lines().filter(|line| {
        if line.contains("panicked at ") {
            left = LINES_OF_A_PANIC;
        } else if line.is_empty() || line.starts_with("stack backtrace") {
            left = 0;
        }
        let named = line.starts_with("test ") && line.ends_with(" ... FAILED");
        let told = named || left > 0;
        left = left.saturating_sub(1);
        told
    });
    for line in told.take(LINES) {
        failures.push_str("\n    ");
        failures.push_str(line);
    }
    failures
}

/// Makes sure that `cargo SUBCOMMAND` is there; asks rustup for it where it is not.
fn ensure_component(place: &Place, component: &str, subcommand: &str) -> Result<()> {
    let there = || {
        quiet(cargo(place).args([subcommand, "--version"]), None)
            .is_ok_and(|finished| finished.status.success())
    };
    if there() {
        return Ok(());
    }
    let mut rustup = prepared(place, Command::new("rustup"));
    let tried = shown(rustup.args(["component", "add", "rustfmt", "clippy"]), None);
    if there() {
        return Ok(());
    }
    match tried.and_then(crate::process::Finished::ok) {
        Ok(_) => bail!("`cargo {subcommand}` is still missing after rustup added {component}"),
        Err(error) => {
            bail!(
                "{component} is missing and could not be added; install it by hand: `rustup component add {component}` ({error:#})"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_what_the_harness_said() {
        let text = "running 3 tests\n\
            skipped: pinned: no GPU\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.10s\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";
        let counts = Counts::of(text);
        assert_eq!(counts, Counts { passed: 3, failed: 2, ignored: 1, skipped: 1 });
        assert_eq!(counts.note(), "tests: 3 passed, 2 failed, 1 ignored, 1 skipped");
    }

    #[test]
    fn names_what_failed_and_quotes_its_panic() {
        let text = "test one ... ok\n\
            test two ... FAILED\n\
            \n\
            ---- two stdout ----\n\
            thread 'two' panicked at tests/it/two.rs:3:5:\n\
            assertion failed: false\n\
            stack backtrace:\n\
            0: std\n";
        assert_eq!(
            failures(text),
            "\n    test two ... FAILED\
             \n    thread 'two' panicked at tests/it/two.rs:3:5:\
             \n    assertion failed: false"
        );
    }

    #[test]
    fn finds_the_programs_in_the_messages() {
        let messages = r#"   Compiling aquifer
{"reason":"compiler-artifact","target":{"name":"aquifer"},"filenames":["/t/libaquifer.rlib"],"executable":null}
{"reason":"compiler-artifact","target":{"name":"loom_gate"},"filenames":["/t/gate-1"],"executable":"/t/gate-1"}
warning: no JSON"#;
        let found = programs_by_target(messages);
        assert_eq!(found, BTreeMap::from([("loom_gate".into(), PathBuf::from("/t/gate-1"))]));
    }

    #[test]
    fn no_test_is_no_pass() {
        let mut silent = Command::new("sh");
        silent.args(["-c", "echo 'test result: ok. 0 passed; 0 failed; 0 ignored'"]);
        assert!(tests(&mut silent).is_err());
    }
}
