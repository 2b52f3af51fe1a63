//! A file has a name of its own, or one that few others have.

use super::Finding;
use super::source::Source;
use std::collections::BTreeMap;

/// How many files of the libraries may share a name.
const MOST: usize = 4;

/// The names that say what a file is to its folder or its crate.
const FREE: [&str; 4] = ["lib.rs", "main.rs", "mod.rs", "tests.rs"];

/// Files that share a name with four others get the name of what they hold.
pub(super) fn said_what_they_hold(sources: &[Source], findings: &mut Vec<Finding>) {
    let mut paths: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_of_libraries()) {
        let name = source.path.rsplit('/').next().unwrap_or_default();
        if !FREE.contains(&name) {
            paths.entry(name).or_default().push(&source.path);
        }
    }
    for (name, paths) in paths.into_iter().filter(|(_, paths)| paths.len() > MOST) {
        let text = format!(
            "{} files have the name {name}, {MOST} may; name them by what they hold: {}",
            paths.len(),
            paths.join(" ")
        );
        findings.push(Finding { path: paths[0].into(), line: 1, text });
    }
}
