//! Faults on purpose: for each row of `loom_tests/faults.csv` a model runs in a process that has this
//! fault alone ([`crate::faulty`]), and has to die with the message that the row names.
//!
//! The step `loom` is the other half: the same models without a fault have to pass.

use crate::Place;
use crate::faulty::{self, Faulty};
use crate::loom::{BOUND, FLAGS, SILENT_LIMITS, bound};
use crate::process::{judged, on_all_cores};
use crate::report::Verdict;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
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
    let by_programs = crate::soak::names(place)?;
    let copy = Faulty::copy(place)?;
    let complaints = compare(&faults, &by_programs, copy.names());
    if !complaints.is_empty() {
        bail!("{}", complaints.join("; "));
    }
    if let Some(name) = only {
        faults.retain(|fault| fault.name == name);
        if faults.is_empty() {
            bail!("{} has no fault `{name}`", path.display());
        }
    }
    let targets = faults.iter().map(|fault| fault.target.clone()).collect();
    let programs = copy.build(place, "loom-faults", FLAGS, &targets)?;
    let tried = on_all_cores(&faults, |fault| {
        let started = Instant::now();
        let outcome = try_one(place, fault, &programs[&fault.target]);
        (outcome, started.elapsed().as_secs_f64())
    });
    let mut rows = Vec::new();
    let mut survivors = 0;
    for (fault, (outcome, seconds)) in faults.iter().zip(tried) {
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

/// Runs the fault's model. An error if the fault was not found as it should be.
fn try_one(place: &Place, fault: &Fault, program: &Path) -> Result<()> {
    println!("\n-- fault {} in {}", fault.name, fault.place());
    let mut command = faulty::command(place, program, &fault.name);
    command.args([&fault.filter, "--nocapture", "--test-threads=1"]).env(BOUND.0, bound());
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

/// Whether a name is a fault's.
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

/// Faults that only the file knows, and faults that only the patches know. Those that random programs
/// find need no model.
fn compare(faults: &[Fault], by_programs: &[String], patched: &BTreeSet<String>) -> Vec<String> {
    let modelled: BTreeSet<&String> = faults.iter().map(|fault| &fault.name).collect();
    let without_row = patched
        .iter()
        .filter(|name| !modelled.contains(name) && !by_programs.contains(name))
        .map(|name| format!("the fault `{name}` of a patch has no row in a faults.csv"));
    let without_patch = modelled.iter().filter(|name| !patched.contains(**name));
    without_row
        .chain(without_patch.map(|name| format!("no patch has the fault `{name}`")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "fault,test target,test name filter,expected message\n";

    fn sample() -> Fault {
        Fault {
            name: "skip_wait".into(),
            target: "loom_pending_uses".into(),
            filter: "two_readers".into(),
            message: "race on block 0: 1, not 2".into(),
        }
    }

    #[test]
    fn reads_rows_and_quoted_commas() {
        let text = format!(
            "{HEADER}skip_wait,loom_pending_uses,two_readers,\"race on block 0: 1, not 2\"\n"
        );
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
    fn file_and_patches_have_the_same_faults() {
        let patched = |name: &str| BTreeSet::from([name.to_string()]);
        assert!(compare(&[sample()], &[], &patched("skip_wait")).is_empty());
        assert!(compare(&[], &["late_record".into()], &patched("late_record")).is_empty());
        assert_eq!(
            compare(&[sample()], &[], &patched("late_record")),
            [
                "the fault `late_record` of a patch has no row in a faults.csv",
                "no patch has the fault `skip_wait`",
            ]
        );
    }
}
