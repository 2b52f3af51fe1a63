//! The copy with mutants, built once, and its test programs.

use super::modules::MODULES;
use super::places::Mutation;
use super::rewrite::{ASKS, VARIABLE, Written, blamed, rewrite};
use crate::Place;
use crate::cargo::{OPTIONS, cargo, prepared, programs_by_target};
use crate::process::{Finished, quiet, quiet_until};
use crate::tree;
use anyhow::{Context as _, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A mutation of a file, in the build under its number.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    pub(crate) module: String,
    pub(crate) file: String,
    pub(crate) mutation: Mutation,
}

/// Tests of one target: those whose names have one of the filters.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Tests {
    pub(crate) target: String,
    pub(crate) filters: Vec<String>,
}

/// A built copy. A mutant's number is its place in the list from 1.
pub(crate) struct Programs {
    root: PathBuf,
    by_target: BTreeMap<String, PathBuf>,
    /// The mutants that do not compile.
    pub(crate) refused: BTreeSet<u32>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The first test that failed, or how the program ended where it names none.
    Killed(String),
    Lives,
}

/// Starts a test program. A mutant may allocate without end: then it goes first, and leaves no core.
const START: &str = "echo 1000 > /proc/self/oom_score_adj; ulimit -c 0; exec \"$0\" \"$@\"";

impl Programs {
    /// Builds `targets` of the copy with all mutants, without those that the compiler refuses.
    pub(crate) fn build(
        place: &Place,
        mutants: &[Mutant],
        targets: &BTreeSet<String>,
    ) -> Result<Self> {
        let root = place.target.join("mutants/copy");
        let files = tree::files(&place.root, place)?;
        let mut refused = BTreeSet::new();
        loop {
            let mut mutated = files.clone();
            let written = mutate(&mut mutated, mutants, &refused)?;
            tree::write(&root, &mutated, place)?;
            let finished = compile(place, &root, targets)?;
            if finished.status.success() {
                let by_target = programs_by_target(&finished.text);
                if let Some(missing) =
                    targets.iter().find(|target| !by_target.contains_key(*target))
                {
                    bail!("cargo built no program for {missing}");
                }
                return Ok(Self { root, by_target, refused });
            }
            let more = refusals(&finished.text, &written);
            if more.is_subset(&refused) {
                println!("{}", rendered(&finished.text));
                bail!("the copy with mutants does not compile");
            }
            refused.extend(more);
        }
    }

    /// Runs the tests with a mutant, 0 for none. Also says how long they took.
    pub(crate) fn run(
        &self,
        place: &Place,
        number: u32,
        tests: &Tests,
        limit: Duration,
    ) -> Result<(Outcome, Duration)> {
        let program = &self.by_target[&tests.target];
        // A group of its own, which ends with it.
        let mut command = prepared(place, Command::new("sh"));
        command
            .args(["-c", START])
            .arg(program)
            .args(&tests.filters)
            .current_dir(self.folder(&tests.target))
            .env(VARIABLE, number.to_string())
            .env("RUST_BACKTRACE", "0")
            .env_remove("AQUIFER_BACKEND")
            .process_group(0);
        let started = Instant::now();
        let outcome = match quiet_until(&mut command, limit, is_failure) {
            Ok(finished) => judge(tests, &finished)?,
            Err(error) if format!("{error:#}").contains("was killed") => {
                Outcome::Killed(format!("{}::{} (time)", tests.target, tests.filters.join("|")))
            }
            Err(error) => return Err(error),
        };
        Ok((outcome, started.elapsed()))
    }

    /// Where cargo would start the tests of a target: the folder of their package.
    fn folder(&self, target: &str) -> PathBuf {
        match package(target) {
            "aquifer" => self.root.clone(),
            "aquifer-capi" => self.root.join("capi"),
            own => self.root.join("crates").join(own.trim_start_matches("aquifer-")),
        }
    }
}

fn package(target: &str) -> &'static str {
    match target {
        "aquifer_capi" | "programs" => "aquifer-capi",
        "aquifer_core" => "aquifer-core",
        "aquifer_plug" => "aquifer-plug",
        "aquifer_pool" => "aquifer-pool",
        _ => "aquifer",
    }
}

/// Whether a target is the unit tests of a library.
fn is_library(target: &str) -> bool {
    target.starts_with("aquifer_")
}

/// Puts the mutants into `files`. Returns what was written where.
fn mutate(
    files: &mut BTreeMap<PathBuf, Vec<u8>>,
    mutants: &[Mutant],
    refused: &BTreeSet<u32>,
) -> Result<BTreeMap<String, Vec<Written>>> {
    let mut by_file: BTreeMap<&str, Vec<(u32, &Mutation)>> = BTreeMap::new();
    for (number, mutant) in (1..).zip(mutants) {
        if !refused.contains(&number) {
            by_file.entry(&mutant.file).or_default().push((number, &mutant.mutation));
        }
    }
    let mut all = BTreeMap::new();
    for (file, chosen) in by_file {
        let content = files.get_mut(&PathBuf::from(file)).with_context(|| format!("no {file}"))?;
        let text = String::from_utf8(content.clone())?;
        let (text, written) = rewrite(&text, chosen).with_context(|| file.to_owned())?;
        *content = text.into_bytes();
        all.insert(file.to_owned(), written);
    }
    let roots: BTreeSet<&str> = MODULES.iter().map(|module| module.root).collect();
    for root in roots {
        if let Some(content) = files.get_mut(&PathBuf::from(root)) {
            content.extend_from_slice(ASKS.as_bytes());
        }
    }
    Ok(all)
}

fn compile(place: &Place, root: &std::path::Path, targets: &BTreeSet<String>) -> Result<Finished> {
    let mut command = cargo(place);
    command.current_dir(root).env("CARGO_TARGET_DIR", place.target.join("mutants/build")).args([
        "test",
        "--no-run",
        "--message-format",
        "json",
    ]);
    let packages: BTreeSet<&str> = targets.iter().map(|target| package(target)).collect();
    if packages.contains("aquifer") {
        command.arg(OPTIONS);
    }
    command.args(packages.iter().flat_map(|package| ["-p", package]));
    let (own, others): (Vec<_>, Vec<_>) = targets.iter().partition(|target| is_library(target));
    if !own.is_empty() {
        command.arg("--lib");
    }
    command.args(others.iter().flat_map(|test| ["--test", test]));
    println!("building {} of the copy with mutants", Vec::from_iter(targets.clone()).join(", "));
    quiet(&mut command, None)
}

/// The messages of the compiler among those of cargo.
fn messages(text: &str) -> impl Iterator<Item = serde_json::Value> {
    let message = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["reason"] == "compiler-message").then(|| message["message"].clone())
    };
    text.lines().filter_map(message).filter(|message| message["level"] == "error")
}

fn rendered(text: &str) -> String {
    let all = messages(text).filter_map(|message| Some(message["rendered"].as_str()?.to_owned()));
    let all: Vec<String> = all.collect();
    if all.is_empty() { text.to_owned() } else { all.join("\n") }
}

/// The mutants that errors of the compiler name.
fn refusals(text: &str, written: &BTreeMap<String, Vec<Written>>) -> BTreeSet<u32> {
    let mut refused = BTreeSet::new();
    for message in messages(text) {
        let spans = message["spans"].as_array().cloned().unwrap_or_default();
        let (first, others): (Vec<_>, Vec<_>) =
            spans.into_iter().partition(|span| span["is_primary"] == true);
        for span in first.into_iter().chain(others) {
            let number = |name: &str| usize::try_from(span[name].as_u64()?).ok();
            let (Some(file), Some(start), Some(end)) =
                (span["file_name"].as_str(), number("byte_start"), number("byte_end"))
            else {
                continue;
            };
            let blamed =
                written.get(file).map_or_else(Vec::new, |written| blamed(written, &(start..end)));
            if !blamed.is_empty() {
                refused.extend(blamed);
                break;
            }
        }
    }
    refused
}

/// Whether a line of the harness says that a test failed: no other one is needed then.
fn is_failure(line: &str) -> bool {
    line.starts_with("test ") && line.ends_with(" ... FAILED")
}

/// What the end of a test program says of its mutant.
fn judge(tests: &Tests, finished: &Finished) -> Result<Outcome> {
    let text = &finished.text;
    let ran: u64 = text
        .lines()
        .filter_map(|line| line.strip_prefix("running ")?.split(' ').next()?.parse::<u64>().ok())
        .sum();
    if finished.status.success() {
        if ran == 0 {
            bail!("{} has no test `{}`", tests.target, tests.filters.join("|"));
        }
        return Ok(Outcome::Lives);
    }
    let failed = |line: &str| {
        let name = line.strip_prefix("test ")?.split(" ... ").next()?;
        let name = name.trim_end_matches(" - should panic");
        is_failure(line).then(|| name.to_owned())
    };
    let panicked = |line: &str| {
        let name = line.strip_prefix("thread '")?.split('\'').next()?;
        (line.contains(" panicked at ") && name.contains("::")).then(|| name.to_owned())
    };
    let by = text.lines().find_map(failed).or_else(|| text.lines().find_map(panicked));
    Ok(Outcome::Killed(match by {
        Some(name) => format!("{}::{name}", tests.target),
        None => format!("{}::{} ({})", tests.target, tests.filters.join("|"), finished.status),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    fn ended(code: i32, text: &str) -> Finished {
        Finished { status: ExitStatus::from_raw(code << 8), text: text.into() }
    }

    #[test]
    fn a_mutant_dies_by_the_first_test_that_fails() {
        let tests = Tests { target: "it".into(), filters: vec!["a::".into()] };
        let text = "running 2 tests\ntest a::x ... ok\ntest a::y ... FAILED\n";
        assert_eq!(judge(&tests, &ended(101, text)).unwrap(), Outcome::Killed("it::a::y".into()));
        assert_eq!(judge(&tests, &ended(0, "running 2 tests\n")).unwrap(), Outcome::Lives);
        assert!(judge(&tests, &ended(0, "running 0 tests\n")).is_err());
        let aborted = "running 2 tests\nthread 'a::z' (7) panicked at src/x.rs:1:1:\n";
        assert_eq!(judge(&tests, &ended(6, aborted)).unwrap(), Outcome::Killed("it::a::z".into()));
        let Outcome::Killed(by) = judge(&tests, &ended(6, "running 2 tests\n")).unwrap() else {
            panic!("no test names it");
        };
        assert!(by.starts_with("it::a:: ("), "{by}");
    }

    #[test]
    fn errors_name_their_mutants() {
        let own = Written { number: 3, own: 10..20, whole: 5..40 };
        let written = BTreeMap::from([("src/a.rs".to_owned(), vec![own])]);
        let message = |level: &str, start: u32| {
            format!(
                r#"{{"reason":"compiler-message","message":{{"level":"{level}","spans":[{{"file_name":"src/a.rs","byte_start":{start},"byte_end":{},"is_primary":true}}]}}}}"#,
                start + 2
            )
        };
        assert_eq!(refusals(&message("error", 12), &written), BTreeSet::from([3]));
        assert!(refusals(&message("warning", 12), &written).is_empty());
        assert!(refusals(&message("error", 50), &written).is_empty());
    }
}
