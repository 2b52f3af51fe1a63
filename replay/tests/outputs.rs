//! Files that the program writes: each its own, and whole or not at all, whatever ends the program.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An empty folder with a log of so many allocations.
fn folder(name: &str, allocations: u64) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let mut text = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    for at in 1..=allocations {
        writeln!(text, "1,00:00:00.0,allocate,{:#x},256,16", at << 12).unwrap();
    }
    std::fs::write(folder.join("log.csv"), text).unwrap();
    folder
}

fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_aquifer-replay"));
    program.current_dir(folder).arg("log.csv").args(arguments);
    program
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    program(folder, arguments).output().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn one_file_is_not_two_outputs() {
    let folder = folder("one_file", 1);
    let whole = folder.join("x.out");
    for other in ["x.out", "./x.out", whole.to_str().unwrap()] {
        let output = run(&folder, &["--trace", "x.out", "--picture", other]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--trace and --picture are one file"), "{said}");
        assert_eq!(names(&folder), ["log.csv"]);
    }
    #[cfg(unix)]
    {
        std::fs::write(&whole, "old").unwrap();
        std::os::unix::fs::symlink("x.out", folder.join("link")).unwrap();
        let output = run(&folder, &["--trace", "x.out", "--picture", "link"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(std::fs::read_to_string(&whole).unwrap(), "old");
        // What is no file takes both.
        let output = run(&folder, &["--trace", "/dev/null", "--picture", "/dev/null"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let output = run(&folder, &["--trace", "x.out", "--picture", "y.out"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_dash_is_no_output() {
    let folder = folder("dash", 1);
    for option in ["--trace", "--picture"] {
        let output = run(&folder, &[option, "-"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("for standard output say /dev/stdout"), "{said}");
        assert_eq!(names(&folder), ["log.csv"]);
        assert_eq!(run(&folder, &[option, "./-"]).status.code(), Some(0));
        std::fs::remove_file(folder.join("-")).unwrap();
    }
}

/// A program that is interrupted leaves nothing, and ends by the signal, as its shell expects.
#[cfg(unix)]
#[test]
fn a_signal_leaves_no_half_file() {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    for (signal, name) in [(2, "-INT"), (15, "-TERM")] {
        // Driver calls of the simulated device take their time.
        let folder = folder("signal", 200_000);
        let arguments = ["--resource", "cuda", "--trace", "a.json", "--picture", "a.svg"];
        let mut running = program(&folder, &arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while names(&folder).iter().filter(|name| name.ends_with(".partial")).count() < 2 {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", names(&folder));
            assert_eq!(running.try_wait().unwrap(), None);
            std::thread::sleep(Duration::from_millis(5));
        }
        let sent = Command::new("kill").args([name, &running.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(running.wait().unwrap().signal(), Some(signal));
        assert_eq!(names(&folder), ["log.csv"]);
    }
}
