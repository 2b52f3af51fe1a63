//! Builds the C library and installs it under a prefix, as C and C++ programs look for libraries.
//!
//! ```text
//! PREFIX/include/aquifer.h, aquifer_rmm.hpp, aquifer_thrust.hpp
//! PREFIX/lib/libaquifer.a, libaquifer.so -> libaquifer.so.0 -> libaquifer.so.VERSION
//! PREFIX/lib/pkgconfig/aquifer.pc
//! PREFIX/lib/cmake/aquifer/aquiferConfig.cmake, aquiferConfigVersion.cmake
//! ```
//!
//! The files for pkg-config and CMake find the rest from where they lie, so a prefix may be moved.

use crate::Place;
use crate::cargo::cargo;
use crate::process::shown;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// The number in the library's name for the loader, which capi/library/build.rs gives it. It grows with changes that old
/// programs cannot take.
const SOVERSION: &str = "0";

/// Builds by a profile of cargo, and installs; the files' paths.
pub(crate) fn install(place: &Place, prefix: &Path, profile: &str) -> Result<Vec<PathBuf>> {
    if !cfg!(target_os = "linux") {
        bail!("the C library is installed on Linux alone");
    }
    shown(cargo(place).args(["build", "-p", "libaquifer", "--profile", profile]), None)?.ok()?;
    let built = place.target.join(if profile == "dev" { "debug" } else { profile });
    let capi = place.root.join("capi");
    let version = version(&capi.join("library/Cargo.toml"))?;
    let mut installed = Installed { prefix: std::path::absolute(prefix)?, files: Vec::new() };
    for header in ["aquifer.h", "aquifer_rmm.hpp", "aquifer_thrust.hpp"] {
        installed.copy(&capi.join("include").join(header), &format!("include/{header}"))?;
    }
    installed.copy(&built.join("libaquifer.a"), "lib/libaquifer.a")?;
    let (library, name) =
        (format!("libaquifer.so.{version}"), format!("libaquifer.so.{SOVERSION}"));
    installed.copy(&built.join("libaquifer.so"), &format!("lib/{library}"))?;
    installed.link(&library, &format!("lib/{name}"))?;
    installed.link(&name, "lib/libaquifer.so")?;
    for (template, to) in [
        ("aquifer.pc.in", "lib/pkgconfig/aquifer.pc"),
        ("cmake/aquiferConfig.cmake.in", "lib/cmake/aquifer/aquiferConfig.cmake"),
        ("cmake/aquiferConfigVersion.cmake.in", "lib/cmake/aquifer/aquiferConfigVersion.cmake"),
    ] {
        let template = capi.join(template);
        let text = fs::read_to_string(&template).with_context(|| template.display().to_string())?;
        let text = text.replace("@VERSION@", &version).replace("@SOVERSION@", SOVERSION);
        installed.write(&text, to)?;
    }
    Ok(installed.files)
}

/// The version of a manifest's package.
fn version(manifest: &Path) -> Result<String> {
    let text = fs::read_to_string(manifest).with_context(|| manifest.display().to_string())?;
    let manifest: toml::Table = toml::from_str(&text)?;
    let version = manifest.get("package").and_then(|package| package.get("version"));
    Ok(version.and_then(toml::Value::as_str).context("the C library has no version")?.into())
}

struct Installed {
    prefix: PathBuf,
    files: Vec<PathBuf>,
}

impl Installed {
    /// Room for a file: its folder, and nothing of its name. A program that runs keeps the library that it has.
    fn place(&mut self, to: &str) -> Result<PathBuf> {
        let path = self.prefix.join(to);
        let folder = path.parent().context("a file has no folder")?;
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| path.display().to_string());
            }
            _ => self.files.push(path.clone()),
        }
        Ok(path)
    }

    fn copy(&mut self, from: &Path, to: &str) -> Result<()> {
        let path = self.place(to)?;
        fs::copy(from, &path)
            .with_context(|| format!("{} to {}", from.display(), path.display()))?;
        Ok(())
    }

    fn write(&mut self, text: &str, to: &str) -> Result<()> {
        let path = self.place(to)?;
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    fn link(&mut self, target: &str, to: &str) -> Result<()> {
        let path = self.place(to)?;
        #[cfg(unix)]
        std::os::unix::fs::symlink(target, &path)
            .with_context(|| format!("{} to {target}", path.display()))?;
        #[cfg(not(unix))]
        bail!("{} cannot be a link to {target}", path.display());
        Ok(())
    }
}
