//! `cargo xtask wheel`: wheels of the Python package for Linux with glibc 2.28 and later, checked when they are made.

mod check;
mod glibc;

use crate::Place;
use crate::cargo::prepared;
use crate::environment::{self, Environment};
use crate::process::{quiet, shown};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What builds a wheel and looks at it.
const TOOLS: [&str; 3] = ["maturin==1.16.0", "auditwheel==6.8.2", "abi3audit==0.0.26"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A Python without the global lock, such as python3.14t. The wheel is for its version alone.
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// Write the source distribution as well.
    #[arg(long)]
    sdist: bool,
    /// The folder for the files, in the target directory unless absolute.
    #[arg(long, default_value = "wheels", value_name = "FOLDER")]
    into: PathBuf,
}

/// Which Pythons a wheel is for.
enum For<'a> {
    /// All from 3.10 on that have the global lock.
    All,
    /// One that has none: the stable ABI has no such version.
    One(&'a Path),
}

/// Builds and checks what is asked for; the files.
pub(crate) fn run(place: &Place, arguments: &Arguments) -> Result<Vec<PathBuf>> {
    let into = place.target.join(&arguments.into);
    let mut files = vec![match &arguments.python {
        Some(python) => build_for(place, &into, For::One(python))?,
        None => build_for(place, &into, For::All)?,
    }];
    if arguments.sdist {
        files.push(sdist(place, &tools(place)?, &into)?);
    }
    Ok(files)
}

/// Builds and checks the wheel for all Pythons that have the global lock.
pub(crate) fn build(place: &Place) -> Result<PathBuf> {
    build_for(place, &place.target.join("wheels"), For::All)
}

/// Builds the source distribution: the package with all crates that it is made of.
fn sdist(place: &Place, tools: &Environment, into: &Path) -> Result<PathBuf> {
    let mut maturin = maturin(place, tools);
    maturin.arg("sdist");
    made(maturin, into)
}

/// Has pip build and install the source distribution, as where there is no wheel for the machine.
pub(crate) fn install_sdist(place: &Place, into: &Environment) -> Result<()> {
    let sdist = sdist(place, &tools(place)?, &place.target.join("wheels"))?;
    let mut pip = into.command(&place.target);
    pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]).arg(sdist);
    // The same code, built in a third of the time.
    for (name, value) in
        [("LTO", "off"), ("OPT_LEVEL", "0"), ("CODEGEN_UNITS", "16"), ("DEBUG", "0")]
    {
        pip.env(format!("CARGO_PROFILE_CAPI_{name}"), value);
    }
    pip.env("CARGO_TARGET_DIR", place.target.join("python/sdist-build"));
    shown(&mut pip, None)?.ok()?;
    Ok(())
}

fn build_for(place: &Place, into: &Path, python: For<'_>) -> Result<PathBuf> {
    let target = target()?;
    if let For::One(python) = python {
        require_free_threaded(python)?;
    }
    let tools = tools(place)?;
    let glibc = glibc::libraries(place, &tools.programs().join("python"))?;
    let mut maturin = maturin(place, &tools);
    maturin.args(["build", "--locked", "--target", target, "--auditwheel", "check"]);
    let (major, minor) = glibc::VERSION;
    maturin.arg("--manylinux").arg(format!("{major}_{minor}"));
    if let For::One(python) = python {
        maturin.arg("--no-default-features").arg("--interpreter").arg(python);
    }
    // For the target alone: what runs while it is built is linked as ever.
    let flags = format!("-Clink-arg=-L{}", glibc.display());
    maturin.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags);
    let wheel = made(maturin, into)?;
    check::check(place, &tools, &wheel, matches!(python, For::All))?;
    Ok(wheel)
}

/// The target of a wheel for this machine, if there are wheels for its kind.
fn target() -> Result<&'static str> {
    let libc = if cfg!(target_env = "gnu") { "glibc" } else { "another libc" };
    target_of(std::env::consts::ARCH, std::env::consts::OS, libc)
}

fn target_of(arch: &str, system: &str, libc: &str) -> Result<&'static str> {
    match (arch, system, libc) {
        ("x86_64", "linux", "glibc") => Ok("x86_64-unknown-linux-gnu"),
        ("aarch64", "linux", "glibc") => Ok("aarch64-unknown-linux-gnu"),
        _ => bail!(
            "there are wheels for Linux with glibc on x86_64 and aarch64, and not for {system} with {libc} on {arch} \
             (`pip install ./python` builds the package for the machine that it runs on)"
        ),
    }
}

fn require_free_threaded(python: &Path) -> Result<()> {
    let asked = "import sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED'))";
    let answer = quiet(Command::new(python).args(["-c", asked]), None)?.ok()?;
    if answer.text.trim() != "1" {
        bail!(
            "{} has the global lock, and the wheel of `cargo xtask wheel` without --python is for it",
            python.display()
        );
    }
    Ok(())
}

fn tools(place: &Place) -> Result<Environment> {
    let python = environment::python(None).context("no Python from 3.10 with venv was found")?;
    Environment::kept(place, &python, "tools", &TOOLS)
}

fn maturin(place: &Place, tools: &Environment) -> Command {
    let mut maturin = prepared(place, Command::new(tools.programs().join("maturin")));
    maturin.env("CARGO_TARGET_DIR", &place.target);
    maturin
}

/// Runs maturin on the package; the one file that it wrote.
fn made(mut maturin: Command, into: &Path) -> Result<PathBuf> {
    let new = into.join("new");
    if new.exists() {
        fs::remove_dir_all(&new).with_context(|| new.display().to_string())?;
    }
    maturin.args(["--manifest-path", "python/Cargo.toml", "--out"]).arg(&new);
    shown(&mut maturin, None)?.ok()?;
    let file = fs::read_dir(&new)?.next().context("maturin has written nothing")??;
    let path = into.join(file.file_name());
    fs::rename(file.path(), &path).with_context(|| path.display().to_string())?;
    fs::remove_dir_all(&new)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_machines_that_have_no_wheel() {
        assert_eq!(target_of("aarch64", "linux", "glibc").unwrap(), "aarch64-unknown-linux-gnu");
        for (arch, system, libc) in [
            ("x86_64", "linux", "another libc"),
            ("riscv64", "linux", "glibc"),
            ("x86_64", "windows", "another libc"),
        ] {
            let error = target_of(arch, system, libc).unwrap_err().to_string();
            assert!(error.contains(&format!("not for {system} with {libc} on {arch}")), "{error}");
        }
    }

    #[test]
    fn refuses_a_wheel_of_its_own_where_the_lock_is() {
        let Some(python) = environment::python(None) else { return };
        let error = require_free_threaded(&python).unwrap_err().to_string();
        assert!(error.contains("has the global lock"), "{error}");
    }
}
