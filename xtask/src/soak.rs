//! The soak of the pool, long: many random programs on the simulated device. And the same with a
//! fault compiled in, which it has to find.

use crate::Place;
use crate::cargo::{cargo, prepared};
use crate::faults::{build, is_plain};
use crate::house::source::{Source, sources};
use crate::process::{judged, shown};
use crate::report::Verdict;
use anyhow::{Context as _, Result, bail};
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

/// How many programs the step runs, unless the user says otherwise.
const PROGRAMS: (&str, &str) = ("AQUIFER_SOAK_PROGRAMS", "100000");

/// How many a faulty pool gets before it counts as one in which nothing was found.
const PROGRAMS_WITH_A_FAULT: &str = "20000";

/// A soak that takes longer has found nothing, or hangs.
const LIMIT: Duration = Duration::from_secs(900);

const COLUMNS: [&str; 2] = ["fault", "message"];

/// One row of tests/soak/faults.csv.
#[derive(Debug, PartialEq)]
struct Fault {
    name: String,
    message: String,
}

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let programs = std::env::var(PROGRAMS.0).unwrap_or_else(|_| PROGRAMS.1.into());
    let mut command = cargo(place);
    command
        .env(PROGRAMS.0, &programs)
        .args(["test", "--release", "-p", "aquifer", "--test", "soak"])
        .args(["--", "--nocapture", "--test-threads=1"]);
    let finished = shown(&mut command, Some(LIMIT))?.ok()?;
    let done: Vec<&str> = finished.text.lines().filter_map(summary).collect();
    if !done.iter().any(|line| line.starts_with(&format!("soak: {programs} programs"))) {
        bail!("the soak did not say that it ran {programs} programs");
    }
    Ok(Verdict::Passed(done.join("; ")))
}

/// The part of a line that says how many programs ran. The harness may have begun the line.
fn summary(line: &str) -> Option<&str> {
    let start = line.find("soak: ").or_else(|| line.find("soak of races: "))?;
    let text = &line[start..];
    text.contains(" programs in ").then_some(text)
}

pub(crate) fn faults(place: &Place) -> Result<Verdict> {
    run(place, None)
}

/// Runs every fault, or the one that is named.
pub(crate) fn run(place: &Place, only: Option<&str>) -> Result<Verdict> {
    let path = place.root.join("tests/soak/faults.csv");
    let file =
        std::fs::File::open(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut faults = read(file).with_context(|| path.display().to_string())?;
    let unknown = unknown(&faults, &sources(&place.root, &["src"])?);
    if !unknown.is_empty() {
        bail!("the source has no fault {}", unknown.join(", "));
    }
    if let Some(name) = only {
        faults.retain(|fault| fault.name == name);
        if faults.is_empty() {
            bail!("{} has no fault `{name}`", path.display());
        }
    }
    if faults.is_empty() {
        return Ok(Verdict::Skipped("tests/soak/faults.csv lists no fault".into()));
    }
    let (mut rows, mut survivors) = (Vec::new(), 0);
    for fault in &faults {
        let started = Instant::now();
        let word = match try_one(place, fault) {
            Ok(found) => found,
            Err(error) => {
                survivors += 1;
                format!("NOT FOUND: {error:#}")
            }
        };
        rows.push(format!("{:32} {:7.1}  {word}", fault.name, started.elapsed().as_secs_f64()));
    }
    println!("\n{:32} {:>7}", "fault", "seconds");
    for row in &rows {
        println!("{row}");
    }
    if survivors > 0 {
        bail!("{survivors} of {} faults were not found", faults.len());
    }
    Ok(Verdict::Passed(format!("faults: {} found", faults.len())))
}

/// Builds the soak with the fault in it and runs it. Says where the fault was found.
fn try_one(place: &Place, fault: &Fault) -> Result<String> {
    println!("\n-- fault {}", fault.name);
    let built = build(place, "soak-faults", "", &fault.name, "soak")?;
    let mut command = prepared(place, Command::new(&built.program));
    command
        .args(["--nocapture", "--test-threads=1"])
        .env(PROGRAMS.0, PROGRAMS_WITH_A_FAULT)
        .env("RUST_BACKTRACE", "0");
    for name in ["AQUIFER_SOAK_SEED", "AQUIFER_SOAK_FIRST", "AQUIFER_BACKEND"] {
        command.env_remove(name);
    }
    judged(&mut command, LIMIT, |finished| judge(fault, finished.status.success(), &finished.text))
}

/// Whether a soak that ended like this has found `fault`: it failed, and the first failure of a
/// program says the message.
fn judge(fault: &Fault, succeeded: bool, text: &str) -> Result<String> {
    if succeeded {
        bail!("the soak passed");
    }
    let mut failures = text.lines().filter(|line| line.starts_with("seed "));
    let Some(line) = failures.find(|line| line.contains(&fault.message)) else {
        bail!("no program failed and said `{}`", fault.message);
    };
    let seed = line.split(':').next().unwrap_or(line);
    Ok(format!("found by {seed}"))
}

/// Reads the rows of faults.csv. There may be none.
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
        let fault = Fault { name: field(0), message: field(1) };
        if record.iter().any(str::is_empty) || !is_plain(&fault.name) {
            bail!("an empty field, or a name of other than letters, digits, - and _: {fault:?}");
        }
        faults.push(fault);
    }
    Ok(faults)
}

/// Faults that only the file knows. The step `loom-faults` looks for those that only the source
/// knows: each of them has a row there, and a row here if random programs find it, too.
fn unknown(faults: &[Fault], sources: &[Source]) -> Vec<String> {
    let known: Vec<&str> = sources.iter().flat_map(|source| source.faults()).collect();
    let missing = faults.iter().filter(|fault| !known.contains(&fault.name.as_str()));
    missing.map(|fault| format!("`{}`", fault.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Fault {
        Fault { name: "skip_wait".into(), message: "UnorderedAccess".into() }
    }

    #[test]
    fn reads_rows_or_none() {
        assert_eq!(read("fault,message\n".as_bytes()).unwrap(), []);
        let one = "fault,message\n# why\nskip_wait, UnorderedAccess\n";
        assert_eq!(read(one.as_bytes()).unwrap(), [sample()]);
        for wrong in ["", "a,b\n", "fault,message\nskip wait,x\n", "fault,message\nskip_wait,\n"] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_fault_is_found_by_a_program_that_says_so() {
        let found = "running 2 tests\nseed 12: the device saw UnorderedAccess: x (seed 12)\n";
        assert_eq!(judge(&sample(), false, found).unwrap(), "found by seed 12");
        assert!(judge(&sample(), true, found).is_err());
        assert!(judge(&sample(), false, "seed 12: wrong data\n").is_err());
        assert!(judge(&sample(), false, "too little happened: UnorderedAccess\n").is_err());
    }

    #[test]
    fn the_file_names_faults_of_the_source() {
        let source = r#"fn f() { if !cfg!(aquifer_fault = "skip_wait") { wait() } }"#;
        let sources = [Source::parse("src/pool/steal.rs", source).unwrap()];
        assert!(unknown(&[sample()], &sources).is_empty());
        let other = Fault { name: "other".into(), message: "x".into() };
        assert_eq!(unknown(&[other], &sources), ["`other`"]);
    }

    #[test]
    fn finds_what_the_soak_says() {
        let line = "test programs_in_turns ... soak: 10 programs in 0.1 s";
        assert_eq!(summary(line), Some("soak: 10 programs in 0.1 s"));
        assert_eq!(
            summary("soak of races: 1 programs in 2 s"),
            Some("soak of races: 1 programs in 2 s")
        );
        assert_eq!(summary("a soak: of nothing"), None);
    }
}
