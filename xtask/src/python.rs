//! The Python package: the wheel that users get, installed into clean virtual environments, and tested there on the simulated
//! device.

use crate::Place;
use crate::environment::{self, Environment};
use crate::process::{on_all_cores, shown};
use crate::report::Verdict;
use crate::wheel;
use anyhow::Result;
use std::path::Path;
use std::time::Duration;

/// Libraries with plug-ins that start without a GPU. PyTorch's is too large for each run: its part is tested against a
/// module that stands in for it.
const LIBRARIES: [&str; 3] = ["numba==0.68.*", "numba-cuda[cu13]==0.30.*", "cupy-cuda13x==14.*"];

/// What reads the types of the package.
/// pyright runs on Node.js, of which most machines have none.
const CHECKERS: [&str; 2] = ["mypy>=1.11", "pyright[nodejs]"];

/// What looks at other libraries.
const OF_LIBRARIES: &str =
    "plugin or exit or readme or types or lines or doctests or docstrings or rmm_module";

/// NumPy's tests, in parts that take some two minutes each. A part is a process.
const NUMPY_SUITES: [&[&str]; 2] =
    [&["numpy._core"], &["numpy.lib", "numpy.ma", "numpy.linalg", "numpy.fft", "numpy.random"]];

/// The oldest Python, one between, and the newest. The wheel is the same for all.
const VERSIONS: [&str; 3] = ["3.10", "3.12", "3.14"];

/// What is tested on each of them: buffers, other libraries' protocols, a host in C++, the command.
const ON_EACH: &str = "buffer or dlpack or numpy or host or command or distribution";

const NO_PYTHON: &str = "no Python from 3.10 with venv was found";

/// The wheel with an extra, for pip.
fn with_extra(wheel: &Path, extra: &str) -> String {
    format!("{}[{extra}]", wheel.display())
}

/// A part of the step. Each has an environment of its own, and pytest one core.
enum Part {
    /// All tests, with NumPy alone beside the package.
    Alone,
    /// What looks at other libraries, beside them and the checkers of types.
    Beside,
    /// The source distribution.
    Source,
    /// The same wheel on another Python.
    On(&'static str),
}

/// Builds the wheel, and tests it where only NumPy is beside it, with the libraries and the checkers of types, and on the
/// oldest and the newest Python.
pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let Some(python) = environment::python(None) else {
        return Ok(Verdict::Skipped(NO_PYTHON.into()));
    };
    let wheel = with_extra(&wheel::build(place)?, "test");
    let tests = place.root.join("python/tests");
    let tests = tests.to_string_lossy();
    let gpu = format!("--ignore={tests}/gpu");
    let common = ["--import-mode=importlib", "-p", "no:cacheprovider", &*gpu];
    let run = |name: &str, python: &Path, beside: &[&str], chosen: &[&str]| -> Result<String> {
        let environment = Environment::new(place, python, name)?;
        environment.install(&place.root, &[&[&*wheel], beside].concat())?;
        // From another folder: what is tested is what was installed.
        let elsewhere = place.target.join("python");
        environment.pytest(&elsewhere, &[&common[..], chosen, &[&*tests]].concat())
    };
    let parts = [Part::Alone, Part::Beside, Part::Source]
        .into_iter()
        .chain(VERSIONS.map(Part::On))
        .collect::<Vec<_>>();
    let said = on_all_cores(&parts, |part| match part {
        Part::Alone => Ok(format!("alone: {}", run("clean", &python, &[], &[])?)),
        Part::Beside => {
            let beside = [&LIBRARIES[..], &CHECKERS].concat();
            let passed = run("libraries", &python, &beside, &["-k", OF_LIBRARIES])?;
            Ok(format!("with Numba and CuPy: {passed}"))
        }
        Part::Source => Ok(format!("from the source: {}", from_source(place, &python)?)),
        Part::On(version) => match environment::python(Some(version)) {
            Some(python) => {
                Ok(format!("{version}: {}", run(version, &python, &[], &["-k", ON_EACH])?))
            }
            None => Ok(format!("{version}: NOT TESTED, as it is not installed")),
        },
    });
    let said: Result<Vec<String>> = said.into_iter().collect();
    Ok(Verdict::Passed(said?.join("; ")))
}

/// Has pip build the source distribution, and the distribution of the name `rmm`, which needs this version of the package.
fn from_source(place: &Place, python: &Path) -> Result<String> {
    let environment = Environment::new(place, python, "source")?;
    wheel::install_sdist(place, &environment)?;
    environment.install(&place.root, &["./python/rmm_module"])?;
    let mut program = environment.command(&place.target);
    let asked = "import aquifer, rmm; assert rmm.mr.PoolMemoryResource is aquifer.mr.PoolMemoryResource; \
                 print(rmm.mr.get_current_device_resource())";
    program.args(["-c", asked]);
    Ok(shown(&mut program, None)?.ok()?.text.trim().into())
}

/// NumPy's own tests, with arrays from 64 KiB on in page-locked memory.
pub(crate) fn numpy(place: &Place) -> Result<Verdict> {
    let Some(python) = environment::python(None) else {
        return Ok(Verdict::Skipped(NO_PYTHON.into()));
    };
    let wheel = with_extra(&wheel::build(place)?, "test");
    let environment = Environment::new(place, &python, "numpy")?;
    // Some of its tests build modules.
    environment.install(&place.root, &[&*wheel, "hypothesis", "meson", "ninja"])?;
    let plugin = place.root.join("python/tests");
    let elsewhere = place.target.join("python");
    let tools = std::iter::once(environment.programs());
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
