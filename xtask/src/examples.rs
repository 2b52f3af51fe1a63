//! Builds the examples and runs each one on the simulated device.

use crate::Place;
use crate::cargo::{cargo, prepared};
use crate::process::shown;
use crate::report::Verdict;
use anyhow::{Context as _, Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let names = stems(&place.root.join("examples"))?;
    shown(cargo(place).args(["build", "--release", "-p", "aquifer", "--examples"]), None)?.ok()?;
    let mut failed = Vec::new();
    for name in &names {
        let program = place.target.join("release/examples").join(name);
        let mut command = prepared(place, Command::new(program));
        command.env("AQUIFER_BACKEND", "sim");
        let ran = shown(&mut command, Some(LIMIT)).and_then(crate::process::Finished::ok);
        if let Err(error) = ran {
            println!("example {name}: {error:#}");
            failed.push(name.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} examples failed: {}", failed.len(), names.len(), failed.join(", "));
    }
    Ok(Verdict::Passed(format!("examples: {} ran", names.len())))
}

/// The names of the Rust files that lie in `folder` itself, sorted. None at all is an error.
pub(crate) fn stems(folder: &Path) -> Result<Vec<String>> {
    let entries =
        folder.read_dir().with_context(|| format!("{} cannot be read", folder.display()))?;
    let mut stems = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(stem) = path.file_stem()
        {
            stems.push(stem.to_string_lossy().into_owned());
        }
    }
    if stems.is_empty() {
        bail!("{} holds no Rust file", folder.display());
    }
    stems.sort();
    Ok(stems)
}
