//! Headers and tools that PyPI has, where they are not installed.

use crate::process::quiet;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long a download may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// Downloads wheels and unpacks them into a folder, unless that was done before. The inner error is the reason of pip's.
pub(crate) fn download(
    packages: &[&str],
    folder: &Path,
    into: &Path,
) -> Result<Result<(), String>> {
    let done = into.join("complete");
    if fs::read_to_string(&done).is_ok_and(|text| text == packages.join("\n")) {
        return Ok(Ok(()));
    }
    let wheels = folder.join("wheels");
    for old in [&wheels, &into.to_path_buf()] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| old.display().to_string())?;
        }
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d"]);
    pip.arg(&wheels).args(packages);
    let finished = match quiet(&mut pip, Some(PATIENCE)) {
        Ok(finished) => finished,
        Err(error) => return Ok(Err(format!("python3 -m pip: {error:#}"))),
    };
    if !finished.status.success() {
        let said = finished.text.lines().rfind(|line| !line.trim().is_empty());
        return Ok(Err(format!("python3 -m pip: {}", said.unwrap_or("it failed").trim())));
    }
    fs::create_dir_all(into).with_context(|| into.display().to_string())?;
    for wheel in fs::read_dir(&wheels)? {
        let mut unpack = Command::new("python3");
        unpack.args(["-m", "zipfile", "-e"]).arg(wheel?.path()).arg(into);
        quiet(&mut unpack, Some(PATIENCE))?.ok()?;
    }
    // The libraries beside the headers are large, and no build reads them.
    fs::remove_dir_all(&wheels)?;
    let libraries = into.join("nvidia/cu13/lib");
    if libraries.exists() {
        fs::remove_dir_all(libraries)?;
    }
    fs::write(&done, packages.join("\n"))?;
    Ok(Ok(()))
}
