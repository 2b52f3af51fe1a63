//! A copy of this repository with every fault in it, each of which waits to be chosen when a program
//! starts.
//!
//! `loom_tests/faults/` has a patch for each file of the copy that differs: `PATH.patch` for `PATH`. A
//! patch asks `fault::is("NAME")` where the program goes wrong, and the program has the fault that the
//! variable `AQUIFER_FAULT` names. So all faults cost one build.

use crate::Place;
use crate::cargo::{build_tests, cargo, prepared};
use crate::tree::{files, write};
use anyhow::{Context as _, Result, anyhow, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the fault of a program of the copy.
const VARIABLE: &str = "AQUIFER_FAULT";

const ASKS: &str = "fault::is(\"";

const PATCHES: &str = "loom_tests/faults";

/// The copy, as the repository and its patches are now.
pub(crate) struct Faulty {
    root: PathBuf,
    names: BTreeSet<String>,
}

impl Faulty {
    /// Brings the copy up to date. A patch that does not apply is an error.
    pub(crate) fn copy(place: &Place) -> Result<Self> {
        let root = place.target.join("faults/copy");
        let mut files = files(&place.root, place)?;
        write(&place.target.join("faults/base"), &files, place)?;
        let mut names = BTreeSet::new();
        for (path, patch) in patches(place)? {
            let base = match files.get(&path) {
                Some(base) => text(&path, base)?,
                None => String::new(),
            };
            let patch = text(&path, &patch)?;
            let patch = diffy::Patch::from_str(&patch)
                .with_context(|| format!("{PATCHES}/{}.patch is no patch", path.display()))?;
            let patched = diffy::apply(&base, &patch)
                .map_err(|error| anyhow!("{PATCHES}/{}.patch: {error}", path.display()))?;
            names.extend(asked(&patched).map(Into::into));
            files.insert(path, patched.into_bytes());
        }
        write(&root, &files, place)?;
        Ok(Self { root, names })
    }

    /// The faults that can be chosen.
    pub(crate) fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Builds test targets of the copy in `folder`. Returns the programs by their targets.
    pub(crate) fn build(
        &self,
        place: &Place,
        folder: &str,
        flags: &str,
        targets: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, PathBuf>> {
        let mut command = cargo(place);
        command
            .current_dir(&self.root)
            .env("RUSTFLAGS", flags)
            .env("CARGO_TARGET_DIR", place.target.join(folder));
        build_tests(&mut command, targets).context("the copy with faults")
    }
}

/// `program` of the copy, with the fault `name`.
pub(crate) fn command(place: &Place, program: &Path, name: &str) -> Command {
    let mut command = prepared(place, Command::new(program));
    command.env(VARIABLE, name).env("RUST_BACKTRACE", "0");
    command
}

/// Writes the patches anew, from the copy as somebody has edited it. An error if the repository has
/// changed since the copy was made: that would become a part of the patches.
pub(crate) fn save(place: &Place) -> Result<usize> {
    let (base, copy) = (place.target.join("faults/base"), place.target.join("faults/copy"));
    let (ours, theirs) = (files(&place.root, place)?, files(&copy, place)?);
    let was = files(&base, place)?;
    if let Some(changed) = ours.iter().find(|(path, content)| was.get(*path) != Some(*content)) {
        bail!("{} has changed since `cargo xtask faults apply`", changed.0.display());
    }
    let folder = place.root.join(PATCHES);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut count = 0;
    for (path, faulty) in &theirs {
        let own = ours.get(path).map_or(&[][..], Vec::as_slice);
        if own == faulty || path.starts_with(PATCHES) {
            continue;
        }
        let (base, faulty) = (text(path, own)?, text(path, faulty)?);
        let name = path.display().to_string();
        let patch = diffy::DiffOptions::new()
            .set_original_filename(format!("a/{name}"))
            .set_modified_filename(format!("b/{name}"))
            .create_patch(&base, &faulty)
            .to_string();
        let into = folder.join(format!("{name}.patch"));
        fs::create_dir_all(into.parent().context("a file has a folder")?)?;
        fs::write(into, patch)?;
        count += 1;
    }
    Ok(count)
}

/// The patches by the paths of the files that they change.
fn patches(place: &Place) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let found = files(&place.root.join(PATCHES), place)?;
    if found.is_empty() {
        bail!("{PATCHES} has no patch");
    }
    let named = |(path, patch): (PathBuf, Vec<u8>)| match path.extension() {
        Some(end) if end == "patch" => Ok((path.with_extension(""), patch)),
        _ => bail!("{PATCHES}/{} is no patch", path.display()),
    };
    found.into_iter().map(named).collect()
}

fn text(path: &Path, content: &[u8]) -> Result<String> {
    let text = String::from_utf8(content.to_vec());
    text.with_context(|| format!("{} is no text", path.display()))
}

/// The names that a source asks for.
fn asked(source: &str) -> impl Iterator<Item = &str> {
    source.split(ASKS).skip(1).filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_a_source_asks_for() {
        let source = r#"if crate::fault::is("one") && !fault::is("two") {}"#;
        assert_eq!(asked(source).collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn a_patch_that_does_not_apply_is_an_error() {
        let patch = diffy::create_patch("one\ntwo\nthree\n", "one\nfault\nthree\n").to_string();
        let patch = diffy::Patch::from_str(&patch).unwrap();
        assert_eq!(
            diffy::apply("zero\none\ntwo\nthree\n", &patch).unwrap(),
            "zero\none\nfault\nthree\n"
        );
        assert!(diffy::apply("one\n2\nthree\n", &patch).is_err());
    }
}
