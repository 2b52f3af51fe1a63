//! The programs of a test command, as many at a time as the machine has cores. `cargo test` runs one after the other, and
//! many of them have one thread or sleep. Programs that share a GPU run alone.

use crate::Place;
use crate::cargo::{judge_tests, prepared};
use crate::process::{Finished, on_all_cores, quiet, shown};
use crate::report::Verdict;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Those that take the longest, which begin first.
const LONGEST: [&str; 4] = ["serial", "it", "adversary", "family"];

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(1200);

/// Whether the programs take a GPU, which they share.
fn uses_a_gpu() -> bool {
    match std::env::var("AQUIFER_BACKEND") {
        Ok(backend) => backend != "sim",
        Err(_) => Path::new("/dev/nvidiactl").exists(),
    }
}

/// A program of tests.
#[derive(Debug, PartialEq)]
struct Program {
    target: String,
    executable: PathBuf,
    /// The package's folder, in which it runs.
    folder: PathBuf,
    package: String,
}

/// Builds what `test`, a `cargo test`, would run, and runs that with the arguments `of_harness`.
pub(crate) fn run(place: &Place, test: Command, of_harness: &[&str]) -> Result<Verdict> {
    run_but(place, test, &[], of_harness)
}

/// As [`run`], but for the programs of some targets.
pub(crate) fn run_but(
    place: &Place,
    mut test: Command,
    but: &[&str],
    of_harness: &[&str],
) -> Result<Verdict> {
    shown(test.arg("--no-run"), None)?.ok()?;
    // Once more, for a program: it has nothing left to build.
    let built = quiet(test.args(["--message-format", "json"]), None)?.ok()?;
    let mut programs: Vec<Program> = built.text.lines().filter_map(program).collect();
    programs.retain(|program| !but.contains(&&*program.target));
    programs.sort_by_key(|program| {
        LONGEST.iter().position(|name| *name == program.target).unwrap_or(LONGEST.len())
    });
    let variables: Vec<_> = test
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect();
    let run = |program: &Program| {
        println!("$ {}", program.executable.display());
        let mut command = prepared(place, Command::new(&program.executable));
        // As cargo does, for the tests that ask.
        command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
        command.env("CARGO_PKG_NAME", &program.package);
        command.envs(variables.iter().cloned()).args(of_harness);
        let finished = quiet(&mut command, Some(LIMIT))
            .with_context(|| program.executable.display().to_string())?;
        println!("of {}:\n{}", program.executable.display(), finished.text);
        Ok(finished)
    };
    let finished: Vec<Result<Finished>> = match uses_a_gpu() {
        true => programs.iter().map(run).collect(),
        false => on_all_cores(&programs, run),
    };
    judge_tests(&finished.into_iter().collect::<Result<Vec<_>>>()?)
}

/// The program of tests of which a message of cargo tells.
fn program(message: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    if !message.pointer("/profile/test")?.as_bool()? {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    // `path+file:///folder#name@version`, or without the name, which is the folder's then.
    let id = message["package_id"].as_str()?.rsplit_once('#')?.1;
    let package = match id.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => folder.file_name()?.to_string_lossy().into_owned(),
    };
    Some(Program {
        target: message.pointer("/target/name")?.as_str()?.to_owned(),
        executable: message["executable"].as_str()?.into(),
        folder,
        package,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_tests_has_its_folder_and_package() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/core#aquifer-core@0.1.0",
            "manifest_path":"/w/crates/core/Cargo.toml","target":{"name":"aquifer_core"},"profile":{"test":true},
            "executable":"/w/target/debug/deps/aquifer_core-1"}"#;
        let found = program(line).unwrap();
        assert_eq!((&*found.target, &*found.package), ("aquifer_core", "aquifer-core"));
        assert_eq!(found.folder, Path::new("/w/crates/core"));
        let unnamed = line.replace("#aquifer-core@", "#");
        assert_eq!(program(&unnamed).unwrap().package, "core");
    }

    #[test]
    fn a_library_and_a_binary_are_no_programs_of_tests() {
        let line = |test, executable| {
            format!(
                r#"{{"package_id":"path+file:///w#1","manifest_path":"/w/Cargo.toml","target":{{"name":"a"}},
                "profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        assert!(program(&line(true, r#""/w/a""#)).is_some());
        assert_eq!(program(&line(false, r#""/w/a""#)), None);
        assert_eq!(program(&line(true, "null")), None);
        assert_eq!(program("no message"), None);
    }
}
