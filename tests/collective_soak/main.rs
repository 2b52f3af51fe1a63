//! A soak of collectives: random programs whose ranks give the same collectives, between work of their
//! own on the same memory. In some of them a rank is lost on the way.
//!
//! A program is its seed, but its threads race: what one run finds, another may not. A failing one
//! prints its operations. `AQUIFER_COLLECTIVE_SOAK_SEED=N cargo test --release --test collective_soak` runs
//! it again a hundred times. `AQUIFER_COLLECTIVE_SOAK_PROGRAMS` says how many programs there are,
//! `AQUIFER_COLLECTIVE_SOAK_FIRST` which seed is the first, `AQUIFER_COLLECTIVE_SOAK_SECONDS` for how long
//! they run instead. All of them run on simulated devices.

mod call;
#[path = "../soak/complaints.rs"]
#[allow(dead_code, reason = "the soak of the pool uses all of it")]
mod complaints;
#[path = "../soak/counts.rs"]
mod counts;
#[path = "../support/kernels.rs"]
mod kernels;
mod lost;
mod memory;
mod plan;
mod player;
mod program;
#[path = "../soak/random.rs"]
#[allow(dead_code, reason = "the soak of the pool uses all of it")]
mod random;
mod rank;
mod shared;
#[path = "../support/mod.rs"]
mod support;
mod tally;
#[path = "../soak/watch.rs"]
mod watch;

use complaints::Complaints;
use counts::Tally;
use std::time::{Duration, Instant};
use watch::{Watch, number};

/// Programs of an ordinary `cargo test`.
const PROGRAMS: u64 = 500;

/// Runs of one program that is named by its seed.
const RUNS_OF_ONE: u64 = 100;

fn report(seed: u64, why: &str) -> String {
    format!(
        "seed {seed}: {why}; run it again with AQUIFER_COLLECTIVE_SOAK_SEED={seed} cargo test \
         --release --test collective_soak"
    )
}

#[test]
fn programs_of_ranks() {
    let complaints = Complaints::listen();
    let watch = Watch::start(report);
    let started = Instant::now();
    let one = number("AQUIFER_COLLECTIVE_SOAK_SEED");
    let first = one.or(number("AQUIFER_COLLECTIVE_SOAK_FIRST")).unwrap_or(0);
    let default = if one.is_some() { RUNS_OF_ONE } else { PROGRAMS };
    let seconds = number("AQUIFER_COLLECTIVE_SOAK_SECONDS").map(Duration::from_secs);
    let wanted = number("AQUIFER_COLLECTIVE_SOAK_PROGRAMS").unwrap_or(default);
    let goes_on = |done| match seconds {
        Some(seconds) => started.elapsed() < seconds,
        None => done < wanted,
    };
    let (mut done, mut tally) = (0, Tally::default());
    while goes_on(done) {
        let seed = one.unwrap_or(first + done);
        watch.program(seed);
        match program::run(seed, &complaints) {
            Ok(found) => tally.join(&found),
            Err(failed) => {
                panic!("\n{}\n  {}", report(seed, &failed.why), failed.trace.join("\n  "));
            }
        }
        done += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("collective soak: {done} programs in {seconds:.1} s{tally}");
    let too_few = tally::too_few(&tally, done as usize);
    if one.is_none() && done >= PROGRAMS {
        assert!(too_few.is_empty(), "too little happened: {}", too_few.join("; "));
    }
}
