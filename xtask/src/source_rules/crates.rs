//! Each crate of `crates/` imports what its README says, and has one.

use super::{Finding, LIBRARIES};
use crate::cargo::CRATES;
use anyhow::{Context as _, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// What begins the line of a README that says which crates of ours it imports, or that it imports none.
const SAID: &str = "Imports of ours: ";

/// The crates whose README and Cargo.toml differ.
pub(super) fn said_imports(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for entry in root.join("crates").read_dir().context("crates")? {
        let folder = entry?.path();
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        findings.extend(unlisted(&name));
        findings.extend(compare(&name, &read("Cargo.toml")?, &read("README.md")?));
    }
    Ok(findings)
}

/// A crate whose sources no rule looks at, or that no step publishes.
fn unlisted(name: &str) -> Option<Finding> {
    let (sources, package) = (format!("crates/{name}/src"), format!("aquifer-{name}"));
    let is_listed = LIBRARIES.contains(&&*sources) && CRATES.contains(&&*package);
    let text = "the crate is not in LIBRARIES of the rules and CRATES of the steps";
    (!is_listed).then(|| Finding { path: sources, line: 1, text: text.into() })
}

fn compare(name: &str, manifest: &str, readme: &str) -> Option<Finding> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let imported: BTreeSet<&str> = section
        .lines()
        .filter_map(|line| line.split([' ', '=']).next())
        .filter(|name| name.starts_with("aquifer"))
        .collect();
    let finding =
        |line, text| Some(Finding { path: format!("crates/{name}/README.md"), line, text });
    let Some((line, said)) =
        readme.lines().zip(1..).find_map(|(line, number)| Some((number, line.strip_prefix(SAID)?)))
    else {
        return finding(1, format!("no line begins with `{SAID}`"));
    };
    let said: BTreeSet<&str> = said.split('`').skip(1).step_by(2).collect();
    if said == imported {
        return None;
    }
    finding(line, format!("it says {said:?}, and Cargo.toml has {imported:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"aquifer-pool\"\n\n[dependencies]\n\
        aquifer-sync = { path = \"../sync\" }\nlibc = \"0.2\"\n\n[dev-dependencies]\naquifer-x = \"1\"\n";

    #[test]
    fn a_crate_that_no_list_has_is_found() {
        assert_eq!(unlisted("pool"), None);
        assert!(unlisted("lagoon").is_some());
    }

    #[test]
    fn a_readme_names_what_is_imported() {
        assert_eq!(compare("pool", MANIFEST, "# pool\n\nImports of ours: `aquifer-sync`.\n"), None);
        assert_eq!(compare("pool", "[package]\n", "Imports of ours: none.\n"), None);
    }

    #[test]
    fn a_readme_that_says_more_or_less_or_nothing_is_found() {
        for (wrong, line) in [
            ("x\nImports of ours: none.\n", 2),
            ("Imports of ours: `aquifer-sync`, `aquifer-events`.\n", 1),
            ("# pool\n", 1),
        ] {
            let finding = compare("pool", MANIFEST, wrong).unwrap();
            assert_eq!((finding.line, &*finding.path), (line, "crates/pool/README.md"), "{wrong}");
        }
    }
}
