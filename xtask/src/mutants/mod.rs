//! Mutants: small faults in the source, each of which a test has to find.
//!
//! [`places`] finds where a fault can be put in. [`programs`] builds one copy that has all those of a run,
//! and the variable `AQUIFER_MUTANT` chooses one when a program starts. [`list`] is the committed list.

mod list;
mod modules;
mod places;
mod programs;
mod rewrite;

use crate::Place;
use crate::cargo::prepared;
use crate::process::quiet;
use crate::report::Verdict;
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Subcommand;
use fastrand::Rng;
use list::{Row, State};
use modules::{MODULES, Module};
use places::{Places, find};
use programs::{Mutant, Outcome, Programs, Tests};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

#[derive(Subcommand)]
pub(crate) enum Task {
    /// List all mutants that can be made.
    List {
        /// Only of this module.
        #[arg(long, value_name = "NAME")]
        module: Option<String>,
    },
    /// Draw mutants, and run the closest tests with each; fails if they find less than 70 of 100.
    Draw {
        #[arg(long, default_value_t = 30)]
        count: usize,
        /// Printed where it is not given.
        #[arg(long)]
        seed: Option<u64>,
        /// Only of this module.
        #[arg(long, value_name = "NAME")]
        module: Option<String>,
    },
    /// Run the mutants of tests/mutants.csv; fails if one that a test killed lives.
    Run {
        /// Ten of them, which the last commit chooses.
        #[arg(long)]
        ten: bool,
        /// Only of this module.
        #[arg(long, value_name = "NAME")]
        module: Option<String>,
    },
}

/// How many of a hundred drawn mutants tests have to find.
const PERCENT: usize = 70;

/// What tests may take beyond three times as long as without a mutant.
const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    committed(place, None, true).map(Verdict::Passed)
}

/// Runs a command. The note says what came of it.
pub(crate) fn run(place: &Place, task: &Task) -> Result<String> {
    match task {
        Task::List { module } => all(place, module.as_deref()),
        Task::Draw { count, seed, module } => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            let seed = seed.unwrap_or_else(|| now.as_secs());
            draw(place, module.as_deref(), *count, seed)
        }
        Task::Run { ten, module } => committed(place, module.as_deref(), *ten),
    }
}

/// A source with its places.
struct Mutable {
    module: &'static Module,
    text: String,
    places: Places,
}

/// The sources of the modules by their paths, without those of tests.
fn sources(place: &Place, only: Option<&str>) -> Result<BTreeMap<String, Mutable>> {
    if let Some(name) = only
        && MODULES.iter().all(|module| module.name != name)
    {
        let known: Vec<_> = MODULES.iter().map(|module| module.name).collect();
        bail!("there is no module `{name}`; the modules are {}", known.join(", "));
    }
    let mut sources = BTreeMap::new();
    for module in MODULES.iter().filter(|module| only.is_none_or(|name| module.name == name)) {
        let path = place.root.join(module.path);
        let files = if path.is_file() {
            vec![module.path.to_owned()]
        } else {
            let files = crate::tree::files(&path, place)?;
            files.into_keys().map(|file| format!("{}/{}", module.path, file.display())).collect()
        };
        for file in files {
            let of_tests = file.contains("/tests/") || file.ends_with("/tests.rs");
            if of_tests || !file.ends_with(".rs") {
                continue;
            }
            let text = std::fs::read_to_string(place.root.join(&file))?;
            let places = find(&text).with_context(|| file.clone())?;
            sources.insert(file, Mutable { module, text, places });
        }
    }
    Ok(sources)
}

fn all(place: &Place, only: Option<&str>) -> Result<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (file, source) in sources(place, only)? {
        for mutation in &source.places.mutations {
            println!(
                "{}",
                list::line([
                    source.module.name,
                    &file,
                    &mutation.function,
                    &mutation.words,
                    "",
                    "",
                    "",
                ])?
            );
        }
        *counts.entry(source.module.name).or_default() += source.places.mutations.len();
    }
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    Ok(format!("mutants: {}", counts.join(", ")))
}

/// Tests for each mutant, and the time that they may take.
struct Trial<'p> {
    place: &'p Place,
    programs: Programs,
    limits: BTreeMap<Tests, Duration>,
}

impl<'p> Trial<'p> {
    /// Builds the copy, and runs the tests without a mutant: they have to pass.
    fn prepare(place: &'p Place, mutants: &[Mutant], tests: BTreeSet<Tests>) -> Result<Self> {
        let started = Instant::now();
        let targets = tests.iter().map(|tests| tests.target.clone()).collect();
        let programs = Programs::build(place, mutants, &targets)?;
        println!("built in {:.1} s", started.elapsed().as_secs_f64());
        let mut limits = BTreeMap::new();
        for tests in tests {
            let (outcome, took) = programs.run(place, 0, &tests, Duration::from_secs(600))?;
            if let Outcome::Killed(by) = outcome {
                bail!("without a mutant, {by} fails");
            }
            println!("{:7.1} s without a mutant: {}", took.as_secs_f64(), tests);
            limits.insert(tests, 3 * took + PATIENCE);
        }
        Ok(Self { place, programs, limits })
    }

    /// Runs each mutant's tests until one fails, two mutants at a time. `None` for those that do not compile.
    fn try_all(
        &self,
        tests: &[&[Tests]],
        tell: impl Fn(usize, Option<&Outcome>, Duration) + Sync,
    ) -> Result<Vec<Option<Outcome>>> {
        let queue = Mutex::new(0..tests.len());
        let outcomes = Mutex::new(BTreeMap::new());
        let work = || -> Result<()> {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(at) = next else { return Ok(()) };
                let started = Instant::now();
                let number = u32::try_from(at + 1)?;
                let outcome = match self.programs.refused.contains(&number) {
                    true => None,
                    false => Some(self.try_one(number, tests[at])?),
                };
                tell(at, outcome.as_ref(), started.elapsed());
                outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(at, outcome);
            }
        };
        std::thread::scope(|scope| {
            let workers = [scope.spawn(work), scope.spawn(work)];
            workers.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| Err(anyhow!("a thread of this program panicked")))
            })
        })?;
        Ok(outcomes.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect())
    }

    fn try_one(&self, number: u32, tests: &[Tests]) -> Result<Outcome> {
        for tests in tests {
            let limit = self.limits[tests];
            let (outcome, _) = self.programs.run(self.place, number, tests, limit)?;
            if outcome != Outcome::Lives {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Lives)
    }
}

impl std::fmt::Display for Tests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}::{}", self.target, self.filters.join("|"))
    }
}

/// The closest tests of a module.
fn closest(module: &Module) -> Vec<Tests> {
    let tests = module.tests.iter().map(|(target, filters)| Tests {
        target: (*target).into(),
        filters: filters.iter().map(|filter| (*filter).into()).collect(),
    });
    tests.collect()
}

fn draw(place: &Place, only: Option<&str>, count: usize, seed: u64) -> Result<String> {
    println!("seed {seed}");
    let equal: Vec<Row> =
        list::committed(&place.root)?.into_iter().filter(|row| row.state == State::Equal).collect();
    let mut possible = Vec::new();
    for (file, source) in sources(place, only)? {
        if source.module.tests.is_empty() {
            continue;
        }
        for mutation in source.places.mutations {
            if !equal.iter().any(|row| row.is_of(&file, &mutation.function, &mutation.words)) {
                let module = source.module.name.into();
                possible.push(Mutant { module, file: file.clone(), mutation });
            }
        }
    }
    let drawn = Rng::with_seed(seed).choose_multiple(possible, count);
    let tests: BTreeMap<&str, Vec<Tests>> = MODULES
        .iter()
        .filter(|module| drawn.iter().any(|mutant| mutant.module == module.name))
        .map(|module| (module.name, closest(module)))
        .collect();
    let trial = Trial::prepare(place, &drawn, tests.values().flatten().cloned().collect())?;
    let of_each: Vec<&[Tests]> =
        drawn.iter().map(|mutant| &*tests[mutant.module.as_str()]).collect();
    let outcomes = trial.try_all(&of_each, |at, outcome, _| {
        let Mutant { module, file, mutation } = &drawn[at];
        let by = match outcome {
            Some(Outcome::Killed(by)) => by.as_str(),
            _ => "",
        };
        let fields = [module, file, &mutation.function, &mutation.words, word(outcome), by, ""];
        println!("{}", list::line(fields).unwrap_or_default());
    })?;
    let killed = outcomes.iter().filter(|one| matches!(one, Some(Outcome::Killed(_)))).count();
    let made = outcomes.iter().flatten().count();
    let note = format!(
        "seed {seed}: {killed} of {made} drawn mutants killed, {} do not compile",
        trial.programs.refused.len()
    );
    if made == 0 || 100 * killed < PERCENT * made {
        bail!("{note}; {PERCENT} of 100 have to be");
    }
    Ok(note)
}

/// Runs the committed list, or ten of it.
fn committed(place: &Place, only: Option<&str>, ten: bool) -> Result<String> {
    let started = Instant::now();
    let sources = sources(place, None)?;
    let mut rows = Vec::new();
    // Each row has to name what there is, also if it is not run.
    for row in list::committed(&place.root)? {
        let source = sources.get(&row.file).with_context(|| format!("no {}", row.file))?;
        let mutation = source
            .places
            .named(&source.text, &row.function, &row.mutation)
            .with_context(|| format!("{}: a row of {}", row.file, list::PATH))?;
        if row.module != source.module.name {
            bail!("{} is of the module {}", row.file, source.module.name);
        }
        rows.push((row, mutation));
    }
    let listed = rows.len();
    rows.retain(|(row, _)| {
        row.state == State::Killed && only.is_none_or(|name| row.module == name)
    });
    if ten {
        let seed = seed_of_commit(place)?;
        println!("seed {seed}");
        rows = Rng::with_seed(seed).choose_multiple(rows, 10);
    }
    if rows.is_empty() {
        bail!("{} has no row to run", list::PATH);
    }
    let mutant = |(row, mutation): &(Row, places::Mutation)| Mutant {
        module: row.module.clone(),
        file: row.file.clone(),
        mutation: mutation.clone(),
    };
    let mutants: Vec<Mutant> = rows.iter().map(mutant).collect();
    let tests: Vec<Tests> = rows.iter().map(|(row, _)| named(&row.test)).collect();
    let trial = Trial::prepare(place, &mutants, tests.iter().cloned().collect())?;
    let built = started.elapsed();
    let of_each: Vec<&[Tests]> = tests.iter().map(std::slice::from_ref).collect();
    let what = |row: &Row| format!("{} {}: {}", row.file, row.function, row.mutation);
    let outcomes = trial.try_all(&of_each, |at, outcome, took| {
        let (row, word) = (&rows[at].0, word(outcome));
        println!("{:7.1} s  {word:8} {}  by {}", took.as_secs_f64(), what(row), row.test);
    })?;
    let lives =
        rows.iter().zip(&outcomes).filter(|(_, outcome)| word(outcome.as_ref()) != "killed");
    let alive: Vec<String> = lives
        .map(|((row, _), outcome)| format!("{} ({})", what(row), word(outcome.as_ref())))
        .collect();
    if !alive.is_empty() {
        bail!("{} of {} known mutants live: {}", alive.len(), rows.len(), alive.join("; "));
    }
    Ok(format!(
        "mutants: {} killed of {listed} listed, built in {:.0} s, run in {:.0} s",
        rows.len(),
        built.as_secs_f64(),
        (started.elapsed() - built).as_secs_f64()
    ))
}

fn word(outcome: Option<&Outcome>) -> &'static str {
    match outcome {
        None => "refused by the compiler",
        Some(Outcome::Killed(_)) => "killed",
        Some(Outcome::Lives) => "LIVES",
    }
}

/// The test that a row names.
fn named(test: &str) -> Tests {
    let (target, filter) = test.split_once("::").unwrap_or((test, ""));
    Tests { target: target.into(), filters: vec![filter.into()] }
}

/// A seed that another commit changes.
fn seed_of_commit(place: &Place) -> Result<u64> {
    let head =
        quiet(prepared(place, Command::new("git")).args(["rev-parse", "HEAD"]), None)?.ok()?;
    let start: String = head.text.trim().chars().take(15).collect();
    u64::from_str_radix(&start, 16).with_context(|| format!("`{start}` is no commit"))
}
