//! The soaks, long: many random programs on the simulated device. And the same with a fault, which has
//! to be found.

use crate::Place;
use crate::cargo::cargo;
use crate::faults::is_plain;
use crate::faulty::{self, Faulty};
use crate::process::{judged, on_all_cores, shown};
use crate::report::Verdict;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// A test target that runs random programs.
struct Soak {
    target: &'static str,
    /// How it begins the line that says how many programs ran.
    says: &'static str,
    /// Its environment: `PROGRAMS`, and what must not be set while it looks for a fault.
    prefix: &'static str,
    /// How many programs the step runs, unless the user says otherwise.
    programs: &'static str,
    /// How many programs one with a fault gets before it counts as one that found nothing.
    programs_with_a_fault: &'static str,
}

const SOAKS: [Soak; 4] = [
    Soak {
        target: "soak",
        says: "soak: ",
        prefix: "AQUIFER_SOAK",
        programs: "100000",
        programs_with_a_fault: "20000",
    },
    Soak {
        target: "capture_soak",
        says: "capture soak: ",
        prefix: "AQUIFER_CAPTURE_SOAK",
        // Two minutes; 100,000 programs are five.
        programs: "40000",
        programs_with_a_fault: "60000",
    },
    Soak {
        target: "collective_soak",
        says: "collective soak: ",
        prefix: "AQUIFER_COLLECTIVE_SOAK",
        // Most of a program is a wait: these take half a minute.
        programs: "3000",
        // One of the faults is found by a race, in about a thousand.
        programs_with_a_fault: "20000",
    },
    Soak {
        target: "adversary",
        says: "adversary: ",
        prefix: "AQUIFER_ADVERSARY",
        programs: "400",
        programs_with_a_fault: "400",
    },
];

/// A soak that takes longer has found nothing, or hangs.
const LIMIT: Duration = Duration::from_secs(900);

const COLUMNS: [&str; 2] = ["fault", "message"];

/// One row of a soak's faults.csv.
#[derive(Debug, PartialEq)]
struct Fault {
    name: String,
    message: String,
}

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let done = on_all_cores(&SOAKS, |soak| {
        let variable = soak.variable("PROGRAMS");
        let programs = std::env::var(&variable).unwrap_or_else(|_| soak.programs.into());
        let mut command = cargo(place);
        command
            .env(variable, &programs)
            .args(["test", "--release", "-p", "aquifer", "--test", soak.target])
            .args(["--", "--nocapture", "--test-threads=1"]);
        let finished = shown(&mut command, Some(LIMIT))?.ok()?;
        let lines: Vec<String> = finished.text.lines().filter_map(summary).collect();
        if !lines.iter().any(|line| line.starts_with(&format!("{}{programs} programs", soak.says)))
        {
            bail!("{} did not say that it ran {programs} programs", soak.target);
        }
        Ok(lines.join("; "))
    });
    let done: Result<Vec<String>> = done.into_iter().collect();
    Ok(Verdict::Passed(done?.join("; ")))
}

/// What `cargo xtask adversary` looks for.
#[derive(clap::Args)]
pub(crate) struct Adversary {
    /// How many programs each search plays.
    #[arg(long, default_value_t = 10_000)]
    programs: u64,
    /// Which programs are drawn.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// One of the searches, by a part of its name: `32 MiB and more`, `all sizes`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    only: String,
    /// Play this program instead, as a search has printed it.
    #[arg(long, value_name = "TEXT")]
    program: Option<String>,
}

/// Looks for the programs on which pools waste most.
pub(crate) fn adversary(place: &Place, asked: &Adversary) -> Result<()> {
    let mut command = cargo(place);
    command
        .env("AQUIFER_ADVERSARY_PROGRAMS", asked.programs.to_string())
        .env("AQUIFER_ADVERSARY_SEED", asked.seed.to_string())
        .env("AQUIFER_ADVERSARY_ONLY", &asked.only)
        .args(["test", "--release", "-p", "aquifer", "--test", "adversary", "programs_that_waste"])
        .args(["--", "--nocapture"]);
    match &asked.program {
        Some(program) => command.env("AQUIFER_ADVERSARY_PROGRAM", program),
        None => command.env_remove("AQUIFER_ADVERSARY_PROGRAM"),
    };
    shown(&mut command, None)?.ok()?;
    Ok(())
}

/// The part of a line that says how many programs ran. The harness may have begun the line.
fn summary(line: &str) -> Option<String> {
    let starts = [
        "capture soak: ",
        "collective soak: ",
        "adversary: ",
        "soak: ",
        "soak of races: ",
        "soak of patterns: ",
        "soak of racing patterns: ",
    ];
    let start = starts.iter().find_map(|start| line.find(start))?;
    let text = &line[start..];
    text.contains(" programs in ").then(|| text.into())
}

impl Soak {
    fn variable(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    fn faults(&self, place: &Place) -> Result<Vec<Fault>> {
        let path = place.root.join("tests").join(self.target).join("faults.csv");
        let file = std::fs::File::open(&path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        read(file).with_context(|| path.display().to_string())
    }
}

/// The names of the faults that some soak finds.
pub(crate) fn names(place: &Place) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for soak in &SOAKS {
        names.extend(soak.faults(place)?.into_iter().map(|fault| fault.name));
    }
    Ok(names)
}

pub(crate) fn faults(place: &Place) -> Result<Verdict> {
    run(place, None)
}

/// Runs every fault, or the one that is named.
pub(crate) fn run(place: &Place, only: Option<&str>) -> Result<Verdict> {
    let mut faults = Vec::new();
    for soak in &SOAKS {
        faults.extend(soak.faults(place)?.into_iter().map(|fault| (soak, fault)));
    }
    let copy = Faulty::copy(place)?;
    let unknown = unknown(faults.iter().map(|(_, fault)| fault), copy.names());
    if !unknown.is_empty() {
        bail!("no patch has the fault {}", unknown.join(", "));
    }
    if let Some(name) = only {
        faults.retain(|(_, fault)| fault.name == name);
        if faults.is_empty() {
            bail!("no soak has a fault `{name}`");
        }
    }
    if faults.is_empty() {
        return Ok(Verdict::Skipped("no faults.csv lists a fault".into()));
    }
    let targets = faults.iter().map(|(soak, _)| soak.target.into()).collect();
    let programs = copy.build(place, "soak-faults", "", &targets)?;
    let tried = on_all_cores(&faults, |(soak, fault)| {
        let started = Instant::now();
        let found = try_one(place, soak, fault, &programs[soak.target]);
        (found, started.elapsed().as_secs_f64())
    });
    let (mut rows, mut survivors) = (Vec::new(), 0);
    for ((soak, fault), (found, seconds)) in faults.iter().zip(tried) {
        let word = found.unwrap_or_else(|error| {
            survivors += 1;
            format!("NOT FOUND: {error:#}")
        });
        rows.push(format!("{:32} {:16} {seconds:7.1}  {word}", fault.name, soak.target));
    }
    println!("\n{:32} {:16} {:>7}", "fault", "soak", "seconds");
    for row in &rows {
        println!("{row}");
    }
    if survivors > 0 {
        bail!("{survivors} of {} faults were not found", faults.len());
    }
    Ok(Verdict::Passed(format!("faults: {} found", faults.len())))
}

/// Runs the soak with the fault in it. Says where the fault was found.
fn try_one(place: &Place, soak: &Soak, fault: &Fault, program: &Path) -> Result<String> {
    println!("\n-- fault {} in {}", fault.name, soak.target);
    let mut command = faulty::command(place, program, &fault.name);
    command.args(["--nocapture", "--test-threads=1"]).env_remove("AQUIFER_BACKEND");
    for name in ["SEED", "FIRST", "SECONDS"] {
        command.env_remove(soak.variable(name));
    }
    command.env(soak.variable("PROGRAMS"), soak.programs_with_a_fault);
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

/// Faults that only the files know. The step `loom-faults` looks for those that only the patches know:
/// each of them has a row there, or here if random programs find it, or both.
fn unknown<'a>(faults: impl Iterator<Item = &'a Fault>, patched: &BTreeSet<String>) -> Vec<String> {
    let missing = faults.filter(|fault| !patched.contains(&fault.name));
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
    fn the_file_names_faults_of_the_patches() {
        let patched = BTreeSet::from(["skip_wait".to_string()]);
        assert!(unknown([sample()].iter(), &patched).is_empty());
        let other = Fault { name: "other".into(), message: "x".into() };
        assert_eq!(unknown([other].iter(), &patched), ["`other`"]);
    }

    #[test]
    fn finds_what_the_soak_says() {
        let found = |line: &str| summary(line).unwrap_or_default();
        for said in [
            "soak: 10 programs in 0.1 s",
            "soak of races: 1 programs in 2 s",
            "soak of racing patterns: 1 programs in 2 s",
            "capture soak: 10 programs in 0.1 s",
            "collective soak: 10 programs in 0.1 s",
            "adversary: 10 programs in 0.1 s",
        ] {
            assert_eq!(found(said), said);
            assert_eq!(found(&format!("test programs ... {said}")), said);
        }
        assert_eq!(summary("a soak: of nothing"), None);
    }
}
