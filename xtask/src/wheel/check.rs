//! What a wheel has to be before anybody gets it.

use super::glibc;
use crate::Place;
use crate::environment::Environment;
use crate::process::{quiet, shown};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Functions that the stable ABI has from 3.11 on, and 3.10 exports alike (python/src/host_bytes.rs). The tests run on 3.10.
const OF_LATER_ABI: [&str; 2] = ["PyBuffer_Release", "PyObject_GetBuffer"];

/// What PyPI shows, and what a lawyer asks for.
const METADATA: [&str; 5] = [
    "Name: aquifer-cuda",
    "License-Expression: MIT OR Apache-2.0",
    "License-File: LICENSE-APACHE",
    "License-File: LICENSE-MIT",
    "Project-URL: Documentation, ",
];

/// Checks a wheel's tags, symbols, unwinder and licences.
pub(super) fn check(
    place: &Place,
    tools: &Environment,
    wheel: &Path,
    is_for_all: bool,
) -> Result<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let (major, minor) = glibc::VERSION;
    let platform = format!("manylinux_{major}_{minor}_{}", std::env::consts::ARCH);
    let pythons = if is_for_all { "-cp310-abi3" } else { "t" };
    if !name.ends_with(&format!("{pythons}-{platform}.whl")) {
        bail!("{name} has not the tags {pythons}-{platform}");
    }
    let folder = unpacked(place, tools, wheel)?;
    check_libraries(&folder)?;
    check_metadata(&folder)?;
    let mut auditwheel = tools.command(&place.target);
    auditwheel.args(["-m", "auditwheel", "show"]).arg(wheel);
    let said = shown(&mut auditwheel, None)?.ok()?.text;
    if !is_manylinux(&said) {
        bail!("auditwheel finds {name} fit for no platform as old as {platform}");
    }
    if is_for_all {
        check_abi(place, tools, wheel)?;
    }
    Ok(())
}

fn unpacked(place: &Place, tools: &Environment, wheel: &Path) -> Result<PathBuf> {
    let folder = place.target.join("python/unpacked");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let mut zipfile = tools.command(&place.target);
    zipfile.args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder);
    quiet(&mut zipfile, None)?.ok()?;
    Ok(folder)
}

/// Whether the tag that `auditwheel show` names is the wheel's or an older one.
fn is_manylinux(said: &str) -> bool {
    let (major, minor) = glibc::VERSION;
    let tag = said.split('"').nth(1).unwrap_or_default();
    let of_glibc = tag.strip_prefix(&format!("manylinux_{major}_"));
    let oldest = of_glibc.and_then(|rest| rest.split('_').next()?.parse::<u32>().ok());
    oldest.is_some_and(|oldest| oldest <= minor)
}

/// The one file of a folder whose name ends so.
fn find(folder: &Path, end: &str) -> Result<PathBuf> {
    let files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths = files.flatten().map(|it| it.path());
    paths.into_iter().find(|path| path.to_string_lossy().ends_with(end)).with_context(|| {
        format!("the wheel has nothing in {} that ends with {end}", folder.display())
    })
}

/// The native module needs no newer glibc, and unwinds by `libgcc_s`.
fn check_libraries(folder: &Path) -> Result<()> {
    let library = find(&folder.join("aquifer"), ".so")?;
    let mut readelf = Command::new("readelf");
    readelf.args(["--wide", "--dynamic", "--version-info"]).arg(&library);
    let said = quiet(&mut readelf, None)?.ok()?.text;
    let newest = newest_glibc(&said).context("the library names no version of glibc")?;
    if newest > glibc::VERSION {
        bail!("the library needs GLIBC_{}.{}", newest.0, newest.1);
    }
    if !said.contains("Shared library: [libgcc_s.so.1]") {
        bail!(
            "the library has an unwinder of its own, in which an exception of C++ may end the process"
        );
    }
    println!("newest symbol of glibc: {}.{}; unwinder: libgcc_s.so.1", newest.0, newest.1);
    Ok(())
}

/// The newest version of glibc that `readelf` names.
fn newest_glibc(said: &str) -> Option<(u32, u32)> {
    let versions = said.split("Name: GLIBC_").skip(1).filter_map(|rest| {
        let mut numbers = rest.split_whitespace().next()?.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

fn check_metadata(folder: &Path) -> Result<()> {
    let information = find(folder, ".dist-info")?;
    let metadata = fs::read_to_string(information.join("METADATA"))?;
    for line in METADATA {
        if !metadata.lines().any(|has| has.starts_with(line)) {
            bail!("the wheel's METADATA has no line `{line}`");
        }
    }
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let path = information.join("licenses").join(licence);
        if !fs::metadata(&path).is_ok_and(|file| file.len() > 1000) {
            bail!("the wheel has no text of {licence}");
        }
    }
    Ok(())
}

/// All symbols of Python's are of the stable ABI of 3.10.
fn check_abi(place: &Place, tools: &Environment, wheel: &Path) -> Result<()> {
    let mut abi3audit = tools.command(&place.target);
    abi3audit.args(["-m", "abi3audit", "--report"]).arg(wheel);
    let said = shown(&mut abi3audit, None)?.text;
    let report = said.lines().find(|line| line.starts_with('{'));
    let report: serde_json::Value =
        serde_json::from_str(report.context("abi3audit has reported nothing")?)?;
    let scanned = report["specs"].as_object().and_then(|specs| specs.values().next());
    let result = &scanned.context("abi3audit has scanned nothing")?["wheel"][0]["result"];
    let outside = result["non_abi3_symbols"].as_array().context("abi3audit has no result")?;
    let later = result["future_abi3_objects"].as_object().context("abi3audit has no result")?;
    let later: BTreeSet<&str> = later.keys().map(String::as_str).collect();
    if !outside.is_empty() || later != BTreeSet::from(OF_LATER_ABI) {
        bail!("not of 3.10's stable ABI: {outside:?}, and later {later:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_newest_glibc() {
        let said = "Name: GLIBC_2.9  Flags\n Name: GCC_4.2.0 \n Name: GLIBC_2.28  Flags: none\nName: GLIBC_2.3.4 ";
        assert_eq!(newest_glibc(said), Some((2, 28)));
        assert_eq!(newest_glibc("Name: GCC_3.0"), None);
    }

    #[test]
    fn reads_the_tag_of_auditwheel() {
        let said =
            |tag: &str| format!("x.whl is consistent with\nthe following platform tag: \"{tag}\".");
        assert!(is_manylinux(&said("manylinux_2_28_x86_64")));
        assert!(is_manylinux(&said("manylinux_2_17_x86_64")));
        assert!(
            !is_manylinux(&said("manylinux_2_34_x86_64")) && !is_manylinux(&said("linux_x86_64"))
        );
        assert!(!is_manylinux(""));
    }
}
