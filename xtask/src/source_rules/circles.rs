//! No two files of a library need each other, directly or by way of others.
//!
//! A file needs another that it imports, and one whose methods it calls: a type's `impl` blocks may
//! stand in many files, which then call each other without an import.

use super::Finding;
use super::calls::calls;
use super::imports::imports;
use super::needs::{Needs, circles};
use super::source::Source;
use std::collections::BTreeSet;

pub(super) fn no_circles(sources: &[Source], findings: &mut Vec<Finding>) {
    let needs = needs(sources);
    for circle in circles(&needs) {
        let mut text = format!("{} files need each other:", circle.len());
        for file in &circle {
            text.push_str(&format!("\n    {file}:"));
            for (other, methods) in needs[file].iter().filter(|(other, _)| circle.contains(other)) {
                text.push_str(&format!(" {other}"));
                if !methods.is_empty() {
                    let methods: Vec<&str> = methods.iter().copied().collect();
                    text.push_str(&format!(" ({})", methods.join(", ")));
                }
            }
        }
        findings.push(Finding { path: circle[0].into(), line: 1, text });
    }
}

/// Each file of the libraries that is not of tests, with what it needs.
pub(super) fn needs(sources: &[Source]) -> Needs<'_> {
    let without_methods =
        |files: BTreeSet<_>| files.into_iter().map(|file| (file, BTreeSet::new())).collect();
    let mut needs: Needs<'_> = imports(sources)
        .into_iter()
        .map(|(file, imported)| (file, without_methods(imported)))
        .collect();
    for (file, called) in calls(sources, &needs) {
        let known = needs.entry(file).or_default();
        for (other, methods) in called {
            known.entry(other).or_default().extend(methods);
        }
    }
    needs
}
