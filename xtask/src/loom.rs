//! loom's models: the test targets of `loom_tests/`, built with `--cfg aquifer_loom`.

use crate::Place;
use crate::cargo::{Counts, cargo};
use crate::examples::stems;
use crate::process::shown;
use crate::report::Verdict;
use anyhow::{Result, bail};

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
    let names = stems(&place.root.join("loom_tests"))?;
    let mut failed = Vec::new();
    let mut models = 0;
    for name in &names {
        let target = format!("loom_{name}");
        let mut command = cargo(place);
        command
            .env("RUSTFLAGS", FLAGS)
            .env("CARGO_TARGET_DIR", place.target.join("loom"))
            .env(BOUND.0, bound())
            .args(["test", "--release", "-p", "aquifer", "--test", &target])
            .args(["--", "--nocapture"]);
        for limit in SILENT_LIMITS {
            command.env_remove(limit);
        }
        let finished = shown(&mut command, None)?;
        let passed = Counts::of(&finished.text).passed;
        models += passed;
        if !finished.status.success() {
            failed.push(format!("{target} ({})", finished.status));
        } else if passed == 0 {
            failed.push(format!("{target} (no model ran: is it built for aquifer_loom?)"));
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(Verdict::Passed(format!("models: {models} passed, preemption bound {}", bound())))
}
