//! A soak of the pool: random programs over streams, events and threads, with the order checker of
//! the simulated device as their judge, or with kernels and patterns on a GPU.
//!
//! A program is its seed. A failing one prints it:
//! `AQUIFER_SOAK_SEED=N cargo test --release --test soak TEST` replays it, threads and all, with its
//! operations. `AQUIFER_SOAK_PROGRAMS` says how many there are, `AQUIFER_SOAK_FIRST` which seed is
//! the first.

#![allow(clippy::forget_non_drop, reason = "that a guard is forgotten has to change nothing")]

mod ballast;
mod callbacks;
mod captures;
mod complaints;
mod counts;
mod failing_calls;
mod foreign_streams;
#[cfg(unix)]
mod forks;
#[path = "../support/kernels.rs"]
mod kernels;
mod managers;
mod patterns;
mod player;
mod program;
mod random;
mod setup;
mod shared;
mod sharing;
#[path = "../support/mod.rs"]
mod support;
mod tally;
mod turns;
mod waits;
mod watch;

use complaints::Complaints;
use counts::Tally;
use program::{Failed, Mode, run};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;
use watch::{Watch, number};

/// Programs of an ordinary `cargo test`, and of one on a GPU.
const PROGRAMS: u64 = 3_000;
const PROGRAMS_ON_GPU: u64 = 1_000;

/// Of so many programs one runs with threads that race; what it finds may not replay.
const RACING: u64 = 10;

/// And one has a pattern, of the same seeds: the others' numbers stay as they are.
const PATTERNED: u64 = 20;

/// One soak at a time: it listens to the whole process.
static ALONE: LazyLock<Mutex<Complaints>> = LazyLock::new(|| Mutex::new(Complaints::listen()));

fn report(test: &str, seed: u64, why: &str) -> String {
    format!(
        "seed {seed}: {why}; replay with AQUIFER_SOAK_SEED={seed} cargo test --release --test soak \
         {test}"
    )
}

/// Runs programs; at the first failure it stops, after a replay that shows the operations.
fn soak(test: &str, what: &str, seeds: std::ops::Range<u64>, mode: Mode) {
    let complaints = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let of_test = test.to_owned();
    let watch = Watch::start(move |seed, why| report(&of_test, seed, why));
    let (started, programs) = (Instant::now(), seeds.end - seeds.start);
    let one = number("AQUIFER_SOAK_SEED");
    let mut tally = Tally::default();
    for seed in one.map_or(seeds, |seed| seed..seed + 1) {
        watch.program(seed);
        let mode = Mode { trace: one.is_some(), ..mode };
        let Failed { why, mut trace } = match run(seed, mode, &complaints) {
            Ok(done) => {
                tally.join(&done);
                continue;
            }
            Err(failed) => failed,
        };
        if trace.len() < 2 {
            watch.program(seed);
            trace = match run(seed, Mode { trace: true, ..mode }, &complaints) {
                Ok(_) => vec!["it does not fail again".into()],
                Err(again) => again.trace,
            };
        }
        panic!("{}\n  {}", report(test, seed, &why), trace.join("\n  "));
    }
    let seconds = started.elapsed().as_secs_f64();
    let count = if one.is_some() { 1 } else { programs };
    println!("{what}: {count} programs in {seconds:.1} s{tally}");
    let too_few = tally::too_few(&tally, programs as usize, mode.patterns, support::on_gpu());
    if one.is_none() && !mode.free {
        assert!(too_few.is_empty(), "too little happened: {}", too_few.join("; "));
    }
}

fn seeds() -> std::ops::Range<u64> {
    let default = if support::on_gpu() { PROGRAMS_ON_GPU } else { PROGRAMS };
    let first = number("AQUIFER_SOAK_FIRST").unwrap_or(0);
    first..first + number("AQUIFER_SOAK_PROGRAMS").unwrap_or(default)
}

/// The first of so many parts of the seeds.
fn part(parts: u64) -> std::ops::Range<u64> {
    let seeds = seeds();
    seeds.start..seeds.start + (seeds.end - seeds.start) / parts
}

#[test]
fn programs_in_turns() {
    let mode = Mode { forks: true, ..Mode::default() };
    soak("programs_in_turns", "soak", seeds(), mode);
}

#[test]
fn programs_that_race() {
    let mode = Mode { free: true, forks: true, ..Mode::default() };
    soak("programs_that_race", "soak of races", part(RACING), mode);
}

#[test]
fn patterns_in_turns() {
    let mode = Mode { patterns: true, ..Mode::default() };
    soak("patterns_in_turns", "soak of patterns", part(PATTERNED), mode);
}

#[test]
fn patterns_that_race() {
    let mode = Mode { patterns: true, free: true, ..Mode::default() };
    soak("patterns_that_race", "soak of racing patterns", part(PATTERNED * RACING), mode);
}
