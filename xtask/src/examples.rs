//! Builds the examples, runs each one on the simulated device, and asks each for its help. What cannot be
//! written is an error of theirs.

use crate::Place;
use crate::cargo::{cargo, prepared};
use crate::process::{Finished, quiet, shown};
use crate::report::Verdict;
use anyhow::{Context as _, Result, bail, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// The packages of examples and their folders, whose every Rust file is a program; the files of folders in them are
/// parts of one. Each package is built by itself: together, one would have what the other asks of a library.
const PACKAGES: [(&str, &str); 4] = [
    ("aquifer-examples", "examples"),
    ("aquifer-examples-beside", "examples/beside"),
    ("aquifer-examples-devices", "examples/devices"),
    ("aquifer-examples-libraries", "examples/libraries"),
];

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let (mut ran, mut failed) = (0, Vec::new());
    for (package, folder) in PACKAGES {
        let names = stems(&place.root.join(folder))?;
        shown(cargo(place).args(["build", "--release", "-p", package, "--bins"]), None)?.ok()?;
        for name in names {
            ran += 1;
            if let Err(error) = example(place, &name) {
                println!("example {name}: {error:#}");
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {ran} examples failed: {}", failed.len(), failed.join(", "));
    }
    Ok(Verdict::Passed(format!("examples: {ran} ran, {ran} gave their help")))
}

fn example(place: &Place, name: &str) -> Result<()> {
    let program = place.target.join("release").join(name);
    let mut help = prepared(place, Command::new(&program));
    let help = quiet(help.arg("--help"), Some(LIMIT)).and_then(Finished::ok)?;
    is_help(&help.text, name)?;
    let mut run = prepared(place, Command::new(&program));
    shown(run.env("AQUIFER_BACKEND", "sim"), Some(LIMIT))?.ok()?;
    if Path::new(FULL).exists() {
        for argument in ["", "--help"] {
            let mut run = prepared(place, Command::new("sh"));
            run.args(["-c", &format!("exec \"$0\" {argument} > {FULL}")]).arg(&program);
            let finished = quiet(run.env("AQUIFER_BACKEND", "sim"), Some(LIMIT))?;
            says_that_it_is_full(&finished)
                .with_context(|| format!("`{name} {argument} > {FULL}`: {}", finished.text))?;
        }
    }
    Ok(())
}

/// A device that is as a full disk, where there is one.
const FULL: &str = "/dev/full";

/// Whether a program whose output was not to be written ended with an error.
fn says_that_it_is_full(finished: &Finished) -> Result<()> {
    ensure!(finished.status.code() == Some(1), "{}, and not 1", finished.status);
    ensure!(finished.text.contains(": standard output: No space left"), "it does not say so");
    Ok(())
}

/// Whether a program that was asked for its help gave it: what it does, and how it is called.
fn is_help(text: &str, name: &str) -> Result<()> {
    let about = text.lines().next().unwrap_or_default();
    ensure!(
        !about.is_empty() && !about.starts_with("Usage:"),
        "`--help` does not begin with what the program does: `{about}`"
    );
    ensure!(text.contains(&format!("Usage: {name}")), "`--help` does not say `Usage: {name}`");
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_says_what_the_program_does_and_how_it_is_called() {
        assert!(is_help("Counts bytes.\n\nUsage: count [FILE]\n", "count").is_ok());
        for bad in ["", "Usage: count\n", "Counts bytes.\n", "Counts bytes.\n\nUsage: other\n"] {
            assert!(is_help(bad, "count").is_err(), "{bad}");
        }
    }
}
