//! loom's models: the test targets of `loom_tests/`, built with `--cfg aquifer_loom`.

use crate::Place;
use crate::cargo::{Counts, build_tests, cargo, failures, prepared};
use crate::examples::stems;
use crate::process::shown;
use crate::report::Verdict;
use anyhow::{Result, anyhow, bail};
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Debug assertions stay on, as the models lean on them; the build is optimised all the same.
pub(crate) const FLAGS: &str = "--cfg aquifer_loom -C debug-assertions=on";

/// loom's bound on preemptions: the user's, or this one.
pub(crate) const BOUND: (&str, &str) = ("LOOM_MAX_PREEMPTIONS", "3");

/// loom's own limits end a model early and call that a pass, so they are never handed on.
pub(crate) const SILENT_LIMITS: [&str; 2] = ["LOOM_MAX_PERMUTATIONS", "LOOM_MAX_DURATION"];

/// The bound on preemptions that holds for this run.
pub(crate) fn bound() -> String {
    std::env::var(BOUND.0).unwrap_or_else(|_| BOUND.1.into())
}

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let stems = stems(&place.root.join("loom_tests"))?;
    let targets = stems.iter().map(|stem| format!("loom_{stem}")).collect();
    let mut build = cargo(place);
    build.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", place.target.join("loom"));
    let programs = build_tests(&mut build, &targets)?;
    // From the last name on, whose models take the longest.
    let queue = Mutex::new(programs.iter().rev());
    let ran = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((target, program)) = next else { return Ok(()) };
            let mut command = prepared(place, Command::new(program));
            command.arg("--nocapture").env(BOUND.0, bound());
            for limit in SILENT_LIMITS {
                command.env_remove(limit);
            }
            let started = Instant::now();
            let finished = shown(&mut command, None)?;
            let passed = Counts::of(&finished.text).passed;
            let row = format!("{target:20} {passed:6} {:9.1}", started.elapsed().as_secs_f64());
            let failed = complaint(target, finished.status, passed)
                .map(|complaint| complaint + &failures(&finished.text));
            ran.lock().unwrap_or_else(PoisonError::into_inner).push((row, passed, failed));
        }
    };
    // A model runs on one core at a time.
    std::thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(anyhow!("a thread of this program panicked")))
        })
    })?;
    let (mut rows, mut failed, mut models) = (Vec::new(), Vec::new(), 0);
    for (row, passed, complaint) in ran.into_inner().unwrap_or_else(PoisonError::into_inner) {
        rows.push(row);
        models += passed;
        failed.extend(complaint);
    }
    rows.sort();
    println!("\n{:20} {:>6} {:>9}", "target", "models", "seconds");
    for row in &rows {
        println!("{row}");
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(Verdict::Passed(format!("models: {models} passed, preemption bound {}", bound())))
}

/// Why the models of `target` have not passed. A target that ran no model proves nothing.
fn complaint(target: &str, status: ExitStatus, passed: u64) -> Option<String> {
    if !status.success() {
        return Some(format!("{target} ({status})"));
    }
    (passed == 0).then(|| format!("{target} (no model ran: is it built for aquifer_loom?)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn a_target_without_a_model_has_failed() {
        let (good, bad) = (ExitStatus::from_raw(0), ExitStatus::from_raw(101 << 8));
        assert_eq!(complaint("loom_gate", good, 3), None);
        assert!(complaint("loom_gate", good, 0).unwrap().contains("no model ran"));
        assert!(complaint("loom_gate", bad, 3).unwrap().contains("101"));
    }
}
