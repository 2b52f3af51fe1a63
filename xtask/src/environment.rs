//! Pythons of this machine, and virtual environments.

use crate::Place;
use crate::process::{quiet, shown};
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A virtual environment.
pub(crate) struct Environment(PathBuf);

impl Environment {
    /// A new one, in the place of any that was there.
    pub(crate) fn new(place: &Place, python: &Path, name: &str) -> Result<Self> {
        let path = place.target.join("python").join(name);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        shown(Command::new(python).args(["-m", "venv"]).arg(&path), None)?.ok()?;
        Ok(Self(path))
    }

    /// One with these distributions, which stays from run to run.
    pub(crate) fn kept(
        place: &Place,
        python: &Path,
        name: &str,
        distributions: &[&str],
    ) -> Result<Self> {
        let path = place.target.join("python").join(name);
        let (list, wanted) = (path.join("installed.txt"), distributions.join("\n"));
        // Written last, so one that is there is complete.
        if fs::read_to_string(&list).is_ok_and(|installed| installed == wanted) {
            return Ok(Self(path));
        }
        let made = Self::new(place, python, name)?;
        made.install(&place.root, distributions)?;
        fs::write(&list, wanted).with_context(|| list.display().to_string())?;
        Ok(made)
    }

    /// Deletes it.
    pub(crate) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.0).with_context(|| self.0.display().to_string())
    }

    /// The folder of its programs.
    pub(crate) fn programs(&self) -> PathBuf {
        self.0.join("bin")
    }

    /// Its Python, for the simulated device.
    pub(crate) fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(self.programs().join("python"));
        command.current_dir(folder).env("AQUIFER_BACKEND", "sim").env_remove("AQUIFER_STACK");
        command.env_remove("PYTHONPATH");
        command
    }

    pub(crate) fn install(
        &self,
        folder: &Path,
        what: &[impl AsRef<std::ffi::OsStr>],
    ) -> Result<()> {
        let mut pip = self.command(folder);
        pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]).args(what);
        shown(&mut pip, None)?.ok()?;
        Ok(())
    }

    /// Runs pytest; its closing line.
    pub(crate) fn pytest(&self, folder: &Path, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(folder);
        command.args(["-m", "pytest", "-q", "-rs"]).args(arguments);
        let finished = shown(&mut command, Some(Duration::from_secs(1200)))?.ok()?;
        let last = finished.text.lines().rfind(|line| line.contains(" passed"));
        Ok(last.context("pytest said nothing of tests")?.trim_matches([' ', '=']).to_owned())
    }
}

/// A Python that the package is for: of a version such as `3.12`, or of any.
pub(crate) fn python(version: Option<&str>) -> Option<PathBuf> {
    let names: &[&str] = match &version {
        Some(version) => &[&format!("python{version}")],
        None => &["python3", "python3.13", "python3.12", "python3.11", "python3.10"],
    };
    let versions = version.into_iter().flat_map(of_pyenv);
    names.iter().map(PathBuf::from).chain(versions).find(|python| {
        let asked = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))";
        quiet(Command::new(python).args(["-c", asked]), None).is_ok_and(|it| it.status.success())
    })
}

/// Those of a version that pyenv has. Its own commands name the chosen version alone.
fn of_pyenv(version: &str) -> Vec<PathBuf> {
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".pyenv"))
    });
    let Some(Ok(installed)) = root.map(|root| fs::read_dir(root.join("versions"))) else {
        return Vec::new();
    };
    let program = OsString::from(format!("python{version}"));
    installed
        .flatten()
        .map(|it| it.path().join("bin").join(&program))
        .filter(|it| it.exists())
        .collect()
}
