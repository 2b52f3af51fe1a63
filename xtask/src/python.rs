//! The Python package: built and installed as a user does, into virtual environments of its own, and tested there on the
//! simulated device.

use crate::Place;
use crate::process::{on_all_cores, quiet, shown};
use crate::report::Verdict;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Libraries with plug-ins that start without a GPU. PyTorch's is too large for each run: its part is tested against a
/// module that stands in for it.
const LIBRARIES: [&str; 3] = ["numba==0.68.*", "numba-cuda[cu13]==0.30.*", "cupy-cuda13x==14.*"];

/// NumPy's tests, in parts that take some two minutes each. A part is a process.
const NUMPY_SUITES: [&[&str]; 2] =
    [&["numpy._core"], &["numpy.lib", "numpy.ma", "numpy.linalg", "numpy.fft", "numpy.random"]];

/// A virtual environment.
struct Environment(PathBuf);

impl Environment {
    /// A new one, in the place of any that was there.
    fn new(place: &Place, python: &str, name: &str) -> Result<Self> {
        let path = place.target.join("python").join(name);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        shown(Command::new(python).args(["-m", "venv"]).arg(&path), None)?.ok()?;
        Ok(Self(path))
    }

    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(self.0.join("bin/python"));
        command.current_dir(folder).env("AQUIFER_BACKEND", "sim").env_remove("AQUIFER_STACK");
        command.env_remove("PYTHONPATH");
        command
    }

    fn install(&self, folder: &Path, what: &[&str]) -> Result<()> {
        let mut pip = self.command(folder);
        pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]).args(what);
        shown(&mut pip, None)?.ok()?;
        Ok(())
    }

    /// Runs pytest; its closing line.
    fn pytest(&self, folder: &Path, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(folder);
        command.args(["-m", "pytest", "-q", "-rs"]).args(arguments);
        let finished = shown(&mut command, Some(Duration::from_secs(1200)))?.ok()?;
        let last = finished.text.lines().rfind(|line| line.contains(" passed"));
        Ok(last.context("pytest said nothing of tests")?.trim_matches([' ', '=']).to_owned())
    }
}

/// A Python that the package is for.
fn python() -> Option<&'static str> {
    let names = ["python3", "python3.13", "python3.12", "python3.11", "python3.10"];
    names.into_iter().find(|name| {
        let asked = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))";
        quiet(Command::new(name).args(["-c", asked]), None).is_ok_and(|it| it.status.success())
    })
}

/// Builds the wheel by `pip install`, tests it where only NumPy is beside it, and again with the libraries and the checkers
/// of types.
pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let Some(python) = python() else {
        return Ok(Verdict::Skipped("no Python from 3.10 with venv was found".into()));
    };
    let source = place.root.join("python");
    let environment = Environment::new(place, python, "clean")?;
    environment.install(&place.root, &["./python[test]"])?;
    // From another folder: what is tested is what was installed.
    let elsewhere = place.target.join("python");
    let tests = source.join("tests");
    let tests = tests.to_string_lossy();
    let gpu = format!("--ignore={tests}/gpu");
    let common = ["--import-mode=importlib", "-p", "no:cacheprovider", &*gpu];
    let alone = environment.pytest(&elsewhere, &[&common[..], &[&*tests]].concat())?;
    environment.install(&place.root, &LIBRARIES)?;
    // With a Node.js of its own: pyright runs on one, and finds none on most machines.
    environment.install(&place.root, &["mypy>=1.11", "pyright[nodejs]"])?;
    // What looks at other libraries.
    let of_libraries =
        ["-k", "plugin or exit or readme or types or lines or doctests or docstrings"];
    let beside =
        environment.pytest(&elsewhere, &[&common[..], &of_libraries, &[&*tests]].concat())?;
    Ok(Verdict::Passed(format!("alone: {alone}; with Numba and CuPy: {beside}")))
}

/// NumPy's own tests, with arrays from 64 KiB on in page-locked memory.
pub(crate) fn numpy(place: &Place) -> Result<Verdict> {
    let Some(python) = python() else {
        return Ok(Verdict::Skipped("no Python from 3.10 with venv was found".into()));
    };
    let environment = Environment::new(place, python, "numpy")?;
    // Some of its tests build modules.
    let tools = ["hypothesis", "meson", "ninja"];
    environment.install(&place.root, &[&["./python[test]"], &tools[..]].concat())?;
    let plugin = place.root.join("python/tests");
    let elsewhere = place.target.join("python");
    let tools = std::iter::once(environment.0.join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(tools.chain(std::env::split_paths(&path)))?;
    let run = |suites: &&[&str]| -> Result<String> {
        let mut command = environment.command(&elsewhere);
        command.env("PYTHONPATH", &plugin).env("PATH", &path);
        command.args(["-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]);
        command.args(["-p", "numpy_suite", "--pyargs"]).args(*suites);
        let finished = shown(&mut command, Some(Duration::from_secs(1500)))?.ok()?;
        let last = finished.text.lines().rfind(|line| line.contains(" passed"));
        Ok(last.unwrap_or_default().trim_matches([' ', '=']).to_owned())
    };
    let passed: Result<Vec<String>> = on_all_cores(&NUMPY_SUITES, run).into_iter().collect();
    Ok(Verdict::Passed(passed?.join("; ")))
}
