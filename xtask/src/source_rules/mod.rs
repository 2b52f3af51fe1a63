//! The rules of the source that no compiler checks.

mod calls;
mod circles;
mod crates;
mod file_names;
mod front_door;
mod impls;
mod imports;
mod layers;
pub(crate) mod links;
mod lists;
mod needs;
mod rules;
pub(crate) mod source;
#[cfg(test)]
mod tests;

use crate::Place;
use crate::report::Verdict;
use anyhow::{Result, bail};
use source::{Source, sources};
use std::fmt;

/// The folders whose Rust files are looked at.
const FOLDERS: [&str; 28] = [
    "src",
    "crates/collective/src",
    "crates/core/src",
    "crates/driver/src",
    "crates/events/src",
    "crates/mr/src",
    "crates/nccl/src",
    "crates/nvrtc/src",
    "crates/nvtx/src",
    "crates/plug/src",
    "crates/pool/src",
    "crates/ptx/src",
    "crates/sim/src",
    "crates/sync/src",
    "tests",
    "loom_tests",
    "benches",
    "examples",
    "fuzz/fuzz_targets",
    "fuzz/src",
    "fuzz/tests",
    "nvidia/examples",
    "nvidia/src",
    "nvidia/tests",
    "xtask/src",
    "replay/benches",
    "replay/src",
    "replay/tests",
];

/// The sources of the crate that people name, and of those below it.
pub(crate) const LIBRARIES: [&str; 14] = [
    "src",
    "crates/collective/src",
    "crates/core/src",
    "crates/driver/src",
    "crates/events/src",
    "crates/mr/src",
    "crates/nccl/src",
    "crates/nvrtc/src",
    "crates/nvtx/src",
    "crates/plug/src",
    "crates/pool/src",
    "crates/ptx/src",
    "crates/sim/src",
    "crates/sync/src",
];

/// Something in a file that breaks a rule.
#[derive(Debug, PartialEq)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

/// Adds what it finds in one file.
type Rule = fn(&Source, &mut Vec<Finding>);

const RULES: [Rule; 9] = [
    rules::locks_through_sync,
    rules::loom_through_sync,
    rules::events_through_debug_log,
    layers::check,
    rules::no_panics,
    rules::short_files,
    rules::nothing_ignored,
    rules::no_ignored_doctest,
    rules::said_not_to_compile,
];

/// Adds what it finds in all files together.
type WholeRule = fn(&[Source], &mut Vec<Finding>);

const WHOLE_RULES: [WholeRule; 2] = [circles::no_circles, file_names::said_what_they_hold];

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let sources = sources(&place.root, &FOLDERS)?;
    if !sources.iter().any(|source| source.path == "src/lib.rs") {
        bail!("src/lib.rs was not found, so nothing was checked");
    }
    let mut findings = check(&sources);
    for rule in WHOLE_RULES {
        rule(&sources, &mut findings);
    }
    findings.extend(links::relative(&place.root)?);
    findings.extend(crates::said_imports(&place.root)?);
    findings.extend(front_door::few_names(&place.root)?);
    findings.extend(lists::complete(&place.root)?);
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings in {} files", findings.len(), sources.len());
    }
    // The last one is that of the links.
    let rules = RULES.len() + WHOLE_RULES.len() + 1;
    Ok(Verdict::Passed(format!("{} files, {rules} rules", sources.len())))
}

fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for rule in RULES {
            rule(source, &mut findings);
        }
    }
    findings
}

impl Source {
    fn finding(&self, line: usize, text: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, text: text.into() }
    }

    fn is_in(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Whether it is of the crate that people name, or of one below it.
    fn is_of_libraries(&self) -> bool {
        LIBRARIES.iter().any(|folder| self.is_in(folder))
    }

    /// A file of tests by its name: `tests.rs`, or anything in a folder `tests`.
    fn is_tests(&self) -> bool {
        let mut parts: Vec<&str> = self.path.split('/').collect();
        parts.pop() == Some("tests.rs") || parts.contains(&"tests")
    }
}
