//! One oldest Rust version, said alike in Cargo.toml and README.md, and met by the compiler in use.

use crate::Place;
use crate::cargo::prepared;
use crate::process::quiet;
use crate::report::Verdict;
use anyhow::{Context as _, Result, bail};
use std::process::Command;

pub(crate) type Version = (u32, u32, u32);

/// In README.md, the first version after each of these words is the stated one.
const WORDS: [&str; 3] = ["msrv", "minimum supported rust", "rust-version"];

/// How far behind the word the version may stand, in characters.
const REACH: usize = 200;

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let read = |name: &str| {
        std::fs::read_to_string(place.root.join(name)).with_context(|| format!("reading {name}"))
    };
    let stated = compare(&read("Cargo.toml")?, &read("README.md")?)?;
    let used = compiler(place)?;
    if used < stated {
        bail!("rustc {}.{}.{} is older than {}.{}", used.0, used.1, used.2, stated.0, stated.1);
    }
    Ok(Verdict::Passed(format!(
        "rust-version {}.{}, tested with {}.{}.{}",
        stated.0, stated.1, used.0, used.1, used.2
    )))
}

/// The version of the compiler that cargo uses here.
pub(crate) fn compiler(place: &Place) -> Result<Version> {
    let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = prepared(place, Command::new(program));
    let finished = quiet(command.arg("--version"), None)?.ok()?;
    finished
        .text
        .lines()
        .find_map(|line| version(line.strip_prefix("rustc ")?))
        .context("rustc does not say its version")
}

fn compare(manifest: &str, readme: &str) -> Result<Version> {
    let manifest: toml::Table = manifest.parse().context("Cargo.toml")?;
    let stated = manifest
        .get("package")
        .and_then(|package| package.get("rust-version")?.as_str())
        .and_then(version)
        .context("Cargo.toml has no rust-version")?;
    let mut found = false;
    let readme = readme.to_lowercase();
    for word in WORDS {
        for (at, _) in readme.match_indices(word) {
            let behind: String = readme[at + word.len()..].chars().take(REACH).collect();
            let Some(named) =
                behind.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(version)
            else {
                continue;
            };
            found = true;
            if named != stated {
                bail!(
                    "README.md says {}.{} after `{word}`, Cargo.toml {}.{}",
                    named.0,
                    named.1,
                    stated.0,
                    stated.1
                );
            }
        }
    }
    if !found {
        bail!("README.md does not say the oldest Rust version (MSRV)");
    }
    Ok(stated)
}

/// A version of Rust: `1.95`, `1.95.0`, or one with a suffix (`1.97.0-nightly`).
fn version(text: &str) -> Option<Version> {
    let number = text.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let mut parts = number.trim_end_matches('.').split('.').map(|part| part.parse().ok());
    let version = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    (version.0 == 1).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"x\"\nrust-version = \"1.95\"\n";

    #[test]
    fn reads_versions() {
        assert_eq!(version("1.95"), Some((1, 95, 0)));
        assert_eq!(version("1.95."), Some((1, 95, 0)));
        assert_eq!(version("1.97.0-nightly (4d1f98451 2026-05-15)"), Some((1, 97, 0)));
        assert_eq!(version("13.0"), None);
        assert_eq!(version("one"), None);
    }

    #[test]
    fn readme_and_manifest_agree() {
        let good = "## MSRV\n\nRust 1.95. The feature std-allocator needs 1.100.\n";
        assert_eq!(compare(MANIFEST, good).unwrap(), (1, 95, 0));
        assert!(compare(MANIFEST, "MSRV: 1.94").is_err());
        assert!(compare(MANIFEST, "Minimum supported Rust version: 1.95; MSRV 1.93").is_err());
    }

    #[test]
    fn silence_is_no_agreement() {
        assert!(compare(MANIFEST, "Runs on CUDA 12.8.").is_err());
        assert!(compare("[package]\nname = \"x\"\n", "MSRV 1.95").is_err());
    }
}
