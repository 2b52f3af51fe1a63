//! What the soak's programs log replays as it was: the same calls, and the same peak.
//!
//! Two accounts are kept, one above the log and one below. A block counts in the account above for
//! less long than in the log, and in the one below for longer: the row of an allocation comes between
//! the two, and so does that of a free. So the log's peak lies between theirs, whatever the threads
//! do; where threads take turns nothing comes between and all three are one.

#![allow(
    clippy::forget_non_drop,
    reason = "the soak's: that a guard is forgotten has to change nothing"
)]

mod account;
#[path = "../../../tests/soak/ballast.rs"]
mod ballast;
#[path = "../../../tests/soak/callbacks.rs"]
mod callbacks;
#[path = "../../../tests/soak/captures.rs"]
mod captures;
#[path = "../../../tests/soak/complaints.rs"]
mod complaints;
#[allow(dead_code, reason = "the soak itself uses more of it")]
#[path = "../../../tests/soak/counts.rs"]
mod counts;
#[path = "../../../tests/soak/failing_calls.rs"]
mod failing_calls;
#[path = "../../../tests/soak/foreign_streams.rs"]
mod foreign_streams;
#[cfg(unix)]
#[path = "../../../tests/soak/forks.rs"]
mod forks;
#[path = "../../../tests/support/kernels.rs"]
mod kernels;
#[path = "../../../tests/soak/managers.rs"]
mod managers;
#[path = "../../../tests/soak/patterns.rs"]
mod patterns;
#[path = "../../../tests/soak/player.rs"]
mod player;
#[allow(dead_code, reason = "the soak itself uses more of it")]
#[path = "../../../tests/soak/program.rs"]
mod program;
#[path = "../../../tests/soak/random.rs"]
mod random;
#[path = "../../../tests/soak/setup.rs"]
mod setup;
#[path = "../../../tests/soak/shared.rs"]
mod shared;
#[path = "../../../tests/soak/sharing.rs"]
mod sharing;
#[path = "../../../tests/support/mod.rs"]
mod support;
#[allow(dead_code, reason = "the soak itself uses more of it")]
#[path = "../../../tests/soak/tally.rs"]
mod tally;
#[path = "../../../tests/soak/turns.rs"]
mod turns;
#[path = "../../../tests/soak/waits.rs"]
mod waits;

use account::{Account, Accounted};
use aquifer::mr::{LogFormat, LoggingAdaptor};
use aquifer_replay::engine::replay;
use aquifer_replay::plan::Plan;
use aquifer_replay::read::{Format, read};
use aquifer_replay::stack::{Backend, Options, Resource};
use complaints::Complaints;
use program::{Mode, run_over};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Programs whose threads take turns, and programs whose threads race. A program is its seed.
const IN_TURNS: u64 = 200;
const RACING: u64 = 60;

/// One at a time: it listens to the whole process.
static ALONE: LazyLock<Mutex<Complaints>> = LazyLock::new(|| Mutex::new(Complaints::listen()));

/// A file that goes with its test.
struct Scrap(PathBuf);

impl Drop for Scrap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs the program of `seed` over a log of its pool, and reads the log.
fn logged(seed: u64, free: bool, complaints: &Complaints) -> ([Account; 2], Plan) {
    let name = format!("aquifer-soak-log-{}-{seed}-{free}.csv", std::process::id());
    let file = Scrap(std::env::temp_dir().join(name));
    let (format, of) = match seed % 2 {
        0 => (LogFormat::Rmm, Format::Rmm),
        _ => (LogFormat::Events, Format::Events),
    };
    // Now and then whoever allocates has to wait for the log.
    let capacity = if seed.is_multiple_of(5) { 2 } else { 1 << 12 };
    let accounts = [(); 2].map(|()| Arc::new(Mutex::new(Account::default())));
    let [above, below] = &accounts;
    let mode = Mode { free, ..Mode::default() };
    let run = run_over(seed, mode, complaints, &|pool| {
        let log = LoggingAdaptor::builder(Accounted::new(pool, below))
            .path(&file.0)
            .format(format)
            .capacity(capacity)
            .build()?;
        Ok(Arc::new(Accounted::new(log, above)))
    });
    if let Err(failed) = run {
        panic!("seed {seed}: {}\n  {}", failed.why, failed.trace.join("\n  "));
    }
    // All that holds the log is gone by now, and so is all that it had to write.
    let log = read(&file.0, None, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(read(&file.0, Some(of), None).unwrap().events, log.events, "seed {seed}");
    let accounts = accounts.map(|account| *account.lock().unwrap_or_else(PoisonError::into_inner));
    (accounts, Plan::new(&log))
}

/// What has to be so whatever the threads do.
fn compare(seed: u64, [above, below]: [Account; 2], plan: &Plan) {
    assert!(plan.problems.is_empty(), "seed {seed}: {:?}", plan.problems);
    assert_eq!((plan.empty, plan.leaks), (0, 0), "seed {seed}: empty ones, leaks");
    assert_eq!((above.live, above.allocations), (0, above.frees), "seed {seed}: {above:?}");
    assert_eq!(plan.slots, above.allocations, "seed {seed}: allocations");
    assert_eq!(plan.steps.len(), above.allocations + above.frees, "seed {seed}: operations");
    assert_eq!(plan.failures, above.failures, "seed {seed}: failures");
    let of_threads = |account: Account| Account { peak: 0, ..account };
    assert_eq!(of_threads(above), of_threads(below), "seed {seed}: the accounts");
    let peaks = (above.peak, plan.peak_live, below.peak);
    assert!(peaks.0 <= peaks.1 && peaks.1 <= peaks.2, "seed {seed}: peaks {peaks:?}");
}

/// Replays it on the device of the suite, against plain memory or a pool.
fn replayed(seed: u64, plan: &Plan) {
    let backend = if support::on_gpu() { Backend::Cuda(0) } else { Backend::Simulated };
    let resource = if seed.is_multiple_of(3) { Resource::Cuda } else { Resource::Pool };
    let options = Options { resource, backend, capacity: Some(1 << 30) };
    let report = replay(plan, &options, &|_| {}).unwrap().report;
    assert!(report.failures.is_empty(), "seed {seed}: {:?}", report.failures);
    assert_eq!(report.peak_live, plan.peak_live, "seed {seed}");
    assert_eq!((report.operations, report.served), (plan.steps.len(), plan.slots), "seed {seed}");
    assert_eq!((report.leaks, report.problems), (0, 0), "seed {seed}");
    assert_eq!(report.failures_of_log, plan.failures, "seed {seed}");
}

#[test]
fn logs_of_programs_in_turns_replay_with_the_same_peak() {
    let complaints = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut operations, mut failures, mut threads) = (0, 0, 0);
    for seed in 0..IN_TURNS {
        let (accounts, plan) = logged(seed, false, &complaints);
        compare(seed, accounts, &plan);
        assert_eq!(plan.peak_live, accounts[0].peak, "seed {seed}: the peak");
        assert_eq!(plan.peak_live, accounts[1].peak, "seed {seed}: the peak below");
        replayed(seed, &plan);
        operations += plan.steps.len();
        failures += plan.failures;
        threads += usize::from(plan.threads.len() > 1);
    }
    // Logs in which nothing happens prove nothing.
    println!("{IN_TURNS} logs: {operations} operations, {failures} failures, {threads} of threads");
    assert!(operations > 20 * IN_TURNS as usize && failures > 20 && threads > 20);
}

#[test]
fn logs_of_programs_that_race_replay_with_a_peak_between_the_accounts() {
    let complaints = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut operations, mut threads) = (0, 0);
    for seed in 0..RACING {
        let (accounts, plan) = logged(seed, true, &complaints);
        compare(seed, accounts, &plan);
        replayed(seed, &plan);
        operations += plan.steps.len();
        threads += usize::from(plan.threads.len() > 1);
    }
    println!("{RACING} logs: {operations} operations, {threads} of threads");
    // Events name no thread.
    assert!(operations > 20 * RACING as usize && threads > RACING as usize / 4);
}
