//! A soak of captures: random programs whose threads race for the streams that one of them records a
//! graph on, with the order checker of the simulated device and the values of the vectors as judges.
//!
//! A program is its seed, but its threads race: what one run finds, another may not. A failing one
//! prints its operations. `AQUIFER_CAPTURE_SOAK_SEED=N cargo test --release --test capture_soak` runs
//! it again a thousand times. `AQUIFER_CAPTURE_SOAK_PROGRAMS` says how many programs there are,
//! `AQUIFER_CAPTURE_SOAK_FIRST` which seed is the first, `AQUIFER_CAPTURE_SOAK_SECONDS` for how long
//! they run instead.

mod captures;
#[path = "../soak/complaints.rs"]
#[allow(dead_code, reason = "the soak of the pool uses all of it")]
mod complaints;
mod copies;
#[path = "../soak/counts.rs"]
mod counts;
#[path = "../support/kernels.rs"]
mod kernels;
mod launches;
mod lost;
mod player;
mod program;
#[path = "../soak/random.rs"]
#[allow(dead_code, reason = "the soak of the pool uses all of it")]
mod random;
mod shared;
#[path = "../support/mod.rs"]
mod support;
mod tally;
mod turns;
mod undeclared;
mod wakers;
#[path = "../soak/watch.rs"]
mod watch;

use complaints::Complaints;
use counts::Tally;
use std::time::{Duration, Instant};
use watch::{Watch, number};

/// Programs of an ordinary `cargo test`, and of one on a GPU.
const PROGRAMS: u64 = 2_000;
const PROGRAMS_ON_GPU: u64 = 300;

/// Runs of one program that is named by its seed.
const RUNS_OF_ONE: u64 = 1_000;

fn report(seed: u64, why: &str) -> String {
    format!(
        "seed {seed}: {why}; run it again with AQUIFER_CAPTURE_SOAK_SEED={seed} cargo test \
         --release --test capture_soak"
    )
}

#[test]
fn programs_that_capture() {
    let complaints = Complaints::listen();
    let watch = Watch::start(report);
    let (on_gpu, started) = (support::on_gpu(), Instant::now());
    let one = number("AQUIFER_CAPTURE_SOAK_SEED");
    let first = one.or(number("AQUIFER_CAPTURE_SOAK_FIRST")).unwrap_or(0);
    let default = match (one, on_gpu) {
        (Some(_), _) => RUNS_OF_ONE,
        (None, true) => PROGRAMS_ON_GPU,
        (None, false) => PROGRAMS,
    };
    let seconds = number("AQUIFER_CAPTURE_SOAK_SECONDS").map(Duration::from_secs);
    let wanted = number("AQUIFER_CAPTURE_SOAK_PROGRAMS").unwrap_or(default);
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
    println!("capture soak: {done} programs in {seconds:.1} s{tally}");
    let too_few = tally::too_few(&tally, done as usize, on_gpu);
    if one.is_none() && done >= 1_000 {
        assert!(too_few.is_empty(), "too little happened: {}", too_few.join("; "));
    }
}
