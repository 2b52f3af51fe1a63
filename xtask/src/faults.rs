//! Faults on purpose: each row of `loom_tests/faults.csv` is compiled into the crate alone, and its
//! model, in a process of its own, has to die with the message that the row names.
//!
//! The step `loom` is the other half: the same models without a fault have to pass.

use crate::Place;
use crate::cargo::{cargo, prepared};
use crate::house::source::{Source, sources};
use crate::loom::{BOUND, FLAGS, SILENT_LIMITS, bound};
use crate::process::{judged, quiet};
use crate::report::Verdict;
use anyhow::{Context as _, Result, bail};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A faulty model that is still looking after this long counts as one that found nothing.
const LIMIT: Duration = Duration::from_secs(300);

const COLUMNS: [&str; 4] = ["fault", "test target", "test name filter", "expected message"];

/// One row of the file.
#[derive(Debug, PartialEq)]
struct Fault {
    name: String,
    target: String,
    filter: String,
    message: String,
}

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    run(place, None).map(Verdict::Passed)
}

/// Runs every fault, or the rows of the one that is named. The note counts them.
pub(crate) fn run(place: &Place, only: Option<&str>) -> Result<String> {
    let path = place.root.join("loom_tests/faults.csv");
    let file =
        std::fs::File::open(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut faults = read(file).with_context(|| path.display().to_string())?;
    let complaints = compare(&faults, &sources(&place.root, &["src", "loom_tests"])?);
    if !complaints.is_empty() {
        bail!("{}", complaints.join("; "));
    }
    if let Some(name) = only {
        faults.retain(|fault| fault.name == name);
        if faults.is_empty() {
            bail!("{} has no fault `{name}`", path.display());
        }
    }
    let mut rows = Vec::new();
    let mut survivors = 0;
    for fault in &faults {
        let started = Instant::now();
        let outcome = try_one(place, fault);
        let seconds = started.elapsed().as_secs_f64();
        let word = match outcome {
            Ok(()) => "found".into(),
            Err(error) => {
                survivors += 1;
                format!("NOT FOUND: {error:#}")
            }
        };
        rows.push(format!("{:32} {:44} {seconds:7.1}  {word}", fault.name, fault.place()));
    }
    println!("\n{:32} {:44} {:>7}", "fault", "model", "seconds");
    for row in &rows {
        println!("{row}");
    }
    if survivors > 0 {
        bail!("{survivors} of {} faults were not found", faults.len());
    }
    Ok(format!("faults: {} found, preemption bound {}", faults.len(), bound()))
}

impl Fault {
    fn place(&self) -> String {
        format!("{}::{}", self.target, self.filter)
    }
}

/// Builds the fault's model and runs it. An error if the fault was not found as it should be.
fn try_one(place: &Place, fault: &Fault) -> Result<()> {
    println!("\n-- fault {} in {}", fault.name, fault.place());
    let built = build(place, "loom-faults", FLAGS, &fault.name, &fault.target)?;
    let mut command = prepared(place, Command::new(&built.program));
    command
        .args([&fault.filter, "--nocapture", "--test-threads=1"])
        .env(BOUND.0, bound())
        .env("RUST_BACKTRACE", "0");
    for limit in SILENT_LIMITS {
        command.env_remove(limit);
    }
    judged(&mut command, LIMIT, |finished| judge(fault, finished.status.success(), &finished.text))
}

/// Whether a model that ended like this has found `fault`.
fn judge(fault: &Fault, succeeded: bool, text: &str) -> Result<()> {
    let ran = text
        .lines()
        .filter_map(|line| line.strip_prefix("running ")?.split(' ').next()?.parse::<u64>().ok())
        .sum::<u64>();
    if ran == 0 {
        bail!("`{}` is no test of {}", fault.filter, fault.target);
    }
    if succeeded {
        bail!("the model passed");
    }
    if !text.contains(&fault.message) {
        bail!("the model failed without saying `{}`", fault.message);
    }
    Ok(())
}

/// A program with a fault in it. What was built for it alone is deleted when it is dropped: nobody
/// runs it again, and all faults' programs together are some gigabytes.
pub(crate) struct Built {
    pub(crate) program: PathBuf,
    files: Vec<PathBuf>,
}

impl Drop for Built {
    fn drop(&mut self) {
        for file in &self.files {
            // What cannot be deleted costs disk and nothing else.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Builds a test target with the fault `name` in it, in a folder that such builds share.
///
/// The fault's cfg comes through a wrapper of rustc that cargo uses for the workspace's own packages
/// alone. With RUSTFLAGS cargo would build every dependency again for each fault.
pub(crate) fn build(
    place: &Place,
    folder: &str,
    flags: &str,
    name: &str,
    target: &str,
) -> Result<Built> {
    let folder = place.target.join(folder);
    let wrapper = wrapper(&folder, name)?;
    let mut command = cargo(place);
    command
        .env("RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", &folder)
        .env("RUSTC_WORKSPACE_WRAPPER", wrapper)
        .args(["test", "--release", "-p", "aquifer", "--test", target])
        .args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let finished = quiet(&mut command, None)?;
    if !finished.status.success() {
        println!("{}", finished.text);
        bail!("it does not compile");
    }
    built(&finished.text, target).with_context(|| format!("cargo built no program for {target}"))
}

/// `target`'s program and the library in it, by cargo's messages.
fn built(messages: &str, target: &str) -> Option<Built> {
    let (mut program, mut files) = (None, Vec::new());
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let name = message.pointer("/target/name").and_then(|name| name.as_str());
        if name == Some(target) {
            program = message["executable"].as_str().map(PathBuf::from).or(program);
        } else if name != Some("aquifer") {
            continue;
        }
        let paths = message["filenames"].as_array().into_iter().flatten();
        files.extend(paths.filter_map(|path| path.as_str()).map(PathBuf::from));
    }
    Some(Built { program: program?, files })
}

/// A program that calls rustc with the fault's cfg. Its path is part of what cargo compares, so each
/// fault has its own and none is mistaken for another's build.
#[cfg(unix)]
fn wrapper(folder: &Path, name: &str) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;

    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("rustc-with-{name}"));
    // `name` is checked when the file is read: letters, digits, - and _.
    let script = format!("#!/bin/sh\nexec \"$@\" --cfg 'aquifer_fault=\"{name}\"'\n");
    if std::fs::read_to_string(&path).ok().as_deref() != Some(&script) {
        std::fs::write(&path, script)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(path)
}

#[cfg(not(unix))]
fn wrapper(_: &Path, _: &str) -> Result<PathBuf> {
    bail!("the faults are compiled in through a shell script, which needs a Unix")
}

/// Whether a fault's name is one that a shell script may hold.
pub(crate) fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

/// Reads the rows of faults.csv.
fn read(file: impl Read) -> Result<Vec<Fault>> {
    let mut reader =
        csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(file);
    if reader.headers()? != &csv::StringRecord::from(COLUMNS.to_vec()) {
        bail!("the first line has to be `{}`", COLUMNS.join(","));
    }
    let mut faults: Vec<Fault> = Vec::new();
    for record in reader.records() {
        let record = record?;
        let field = |index| record.get(index).unwrap_or_default().to_string();
        let fault = Fault { name: field(0), target: field(1), filter: field(2), message: field(3) };
        if record.iter().any(str::is_empty) || !is_plain(&fault.name) {
            bail!(
                "an empty field, or a fault's name of other than letters, digits, - and _: {fault:?}"
            );
        }
        faults.push(fault);
    }
    if faults.is_empty() {
        bail!("there is no fault in it");
    }
    Ok(faults)
}

/// Faults that only the file knows, and faults that only the source knows.
fn compare(faults: &[Fault], sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    let in_source: Vec<&str> = sources.iter().flat_map(|source| source.faults()).collect();
    for name in &in_source {
        if faults.iter().all(|fault| fault.name != *name) {
            complaints.push(format!("the fault `{name}` of the source has no row in faults.csv"));
        }
    }
    for fault in faults {
        if !in_source.contains(&fault.name.as_str()) {
            complaints.push(format!("the source has no fault `{}`", fault.name));
        }
    }
    complaints.sort();
    complaints.dedup();
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "fault,test target,test name filter,expected message\n";

    fn sample() -> Fault {
        Fault {
            name: "skip_wait".into(),
            target: "loom_debts".into(),
            filter: "two_readers".into(),
            message: "race on block 0: 1, not 2".into(),
        }
    }

    #[test]
    fn reads_rows_and_quoted_commas() {
        let text =
            format!("{HEADER}skip_wait,loom_debts,two_readers,\"race on block 0: 1, not 2\"\n");
        assert_eq!(read(text.as_bytes()).unwrap(), [sample()]);
    }

    #[test]
    fn refuses_files_that_would_check_nothing() {
        let row = |row: &str| format!("{HEADER}{row}\n");
        for text in [
            String::new(),
            HEADER.to_string(),
            "a,b,c,d\n1,2,3,4\n".into(),
            row("one,two,three"),
            row("name,target,filter,"),
            row("na'me,target,filter,message"),
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_survivor_is_one_whatever_it_printed() {
        let message = "running 1 test\nrace on block 0: 1, not 2\n";
        assert!(judge(&sample(), false, message).is_ok());
        assert!(judge(&sample(), true, message).is_err());
        assert!(judge(&sample(), false, "running 1 test\nsomething else\n").is_err());
        assert!(judge(&sample(), false, "running 0 tests\nrace on block 0: 1, not 2\n").is_err());
    }

    #[test]
    fn file_and_source_have_the_same_faults() {
        let source = |text| vec![Source::parse("src/pool/steal.rs", text).unwrap()];
        let same = source(r#"fn f() { if !cfg!(aquifer_fault = "skip_wait") { wait() } }"#);
        assert!(compare(&[sample()], &same).is_empty());
        let other = source(r#"#[cfg(not(aquifer_fault = "late_record"))] fn f() {}"#);
        assert_eq!(
            compare(&[sample()], &other),
            [
                "the fault `late_record` of the source has no row in faults.csv",
                "the source has no fault `skip_wait`",
            ]
        );
    }

    #[test]
    fn finds_the_program_in_the_messages() {
        let messages = r#"   Compiling aquifer
{"reason":"compiler-artifact","target":{"name":"loom"},"filenames":["/t/libloom.rlib"],"executable":null}
{"reason":"compiler-artifact","target":{"name":"aquifer"},"filenames":["/t/libaquifer.rlib"],"executable":null}
{"reason":"compiler-artifact","target":{"name":"loom_debts"},"filenames":["/t/debts-1"],"executable":"/t/debts-1"}"#;
        let found = built(messages, "loom_debts").unwrap();
        assert_eq!(found.program, PathBuf::from("/t/debts-1"));
        assert_eq!(found.files, ["/t/libaquifer.rlib", "/t/debts-1"].map(PathBuf::from));
        assert!(built(messages, "loom_pool").is_none());
    }
}
