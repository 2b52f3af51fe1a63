//! The files of a folder, and copies of the repository.

use crate::Place;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Makes `files` all that there is below `root`.
pub(crate) fn write(root: &Path, files: &BTreeMap<PathBuf, Vec<u8>>, place: &Place) -> Result<()> {
    for stale in self::files(root, place)?.keys().filter(|path| !files.contains_key(*path)) {
        fs::remove_file(root.join(stale))?;
    }
    for (path, content) in files {
        let path = root.join(path);
        // What is as it was keeps its time, so cargo builds nothing twice.
        if fs::read(&path).ok().as_ref() != Some(content) {
            fs::create_dir_all(path.parent().context("a file has a folder")?)?;
            fs::write(&path, content)?;
        }
    }
    Ok(())
}

/// The files below `root` by their paths there, without what a build or an editor leaves.
pub(crate) fn files(root: &Path, place: &Place) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(folder) = folders.pop().filter(|folder| folder.exists()) {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
            if hidden || path == place.target || path.ends_with("target") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                let content = fs::read(&path)?;
                found.insert(path.strip_prefix(root)?.to_path_buf(), content);
            }
        }
    }
    Ok(found)
}
