//! Tests in a process of their own, with a driver library of their own.
//!
//! A process opens one driver library and keeps it, so each test runs this test binary again with
//! the loader's path set to a stand-in, and asserts there.

use libloading::Library;
use std::cell::Cell;
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::{env, fs};

/// Which driver library the child finds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Installed {
    Nothing,
    StandIn,
    Old,
}

const CHILD: &str = "AQUIFER_DRIVER_CALLS_CHILD";

/// Runs `body` in a child process where `library` is the driver, and asserts that it passes.
/// `name` is the test's own, with its module.
pub(crate) fn alone(
    name: &str,
    library: Installed,
    variables: &[(&str, &str)],
    body: impl FnOnce(&StandIn),
) {
    let Some((output, calls)) = run(name, library, variables, body) else { return };
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let passed = output.status.success() && out.contains("1 passed");
    assert!(passed, "{name}: {}\n{out}\n{err}\ncalls:\n{calls}", output.status);
}

/// As [`alone`], for a child that is to die: what it left, or `None` in the child.
pub(crate) fn run(
    name: &str,
    library: Installed,
    variables: &[(&str, &str)],
    body: impl FnOnce(&StandIn),
) -> Option<(Output, String)> {
    if env::var(CHILD).is_ok_and(|child| child == name) {
        body(&StandIn::open());
        return None;
    }
    let folder = folder(library);
    let log = folder.with_file_name(format!("{}.log", name.replace("::", "-")));
    let _ = fs::remove_file(&log);
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .env("STAND_IN_LOG", &log)
        .env(CHILD, name)
        .env_remove("STAND_IN_FAIL")
        .env_remove("STAND_IN_DEVICES")
        .env_remove("AQUIFER_BACKEND")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    Some((output, fs::read_to_string(&log).unwrap_or_default()))
}

/// A folder with the library under the name that the loader is asked for first.
fn folder(library: Installed) -> &'static Path {
    static BUILT: OnceLock<[PathBuf; 3]> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        // The binary lies in <target>/<profile>/deps.
        let binary = env::current_exe().unwrap();
        let root = binary.ancestors().nth(3).unwrap().join("stand_in");
        let cargo = env::var("CARGO").unwrap_or_else(|_| env!("CARGO").to_owned());
        let status = Command::new(cargo)
            .args(["build", "--quiet", "-p", "stand_in_libcuda", "-p", "stand_in_libcuda_old"])
            .arg("--target-dir")
            .arg(&root)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .status()
            .unwrap();
        assert!(status.success(), "the stand-ins do not build");
        // Each run has folders of its own: two at a time must not pull them from under each other.
        let here = root.join(format!("run-{}", std::process::id()));
        ["nothing", "stand_in_libcuda", "stand_in_libcuda_old"].map(|name| {
            let folder = here.join(name);
            fs::create_dir_all(&folder).unwrap();
            if name != "nothing" {
                let from = root.join("debug").join(format!("lib{name}.so"));
                let to = folder.join("libcuda.so");
                let _ = fs::remove_file(&to);
                // A link keeps this very file when the next build replaces it.
                fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).unwrap();
            }
            folder
        })
    });
    match library {
        Installed::Nothing => &built[0],
        Installed::StandIn => &built[1],
        Installed::Old => &built[2],
    }
}

/// The stand-in in a child: the calls that it saw, and what it can be asked for.
pub(crate) struct StandIn {
    path: PathBuf,
    seen: Cell<usize>,
    library: OnceLock<Library>,
}

impl StandIn {
    fn open() -> Self {
        let path = env::var("STAND_IN_LOG").unwrap().into();
        Self { path, seen: 0.into(), library: OnceLock::new() }
    }

    fn library(&self) -> &Library {
        // SAFETY: the stand-in has no code that runs when it is loaded; it is loaded already.
        self.library.get_or_init(|| unsafe { Library::new("libcuda.so") }.unwrap())
    }

    /// The lines since the last call of this function.
    pub(crate) fn take(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let lines: Vec<_> = text.lines().skip(self.seen.get()).map(str::to_owned).collect();
        self.seen.set(self.seen.get() + lines.len());
        lines
    }

    /// As [`take`](Self::take), without the calls that only look or put something back.
    pub(crate) fn changes(&self) -> Vec<String> {
        let quiet =
            ["cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPush", "cuCtxPop", "cuThread", "#"];
        let loud = |line: &String| !quiet.iter().any(|quiet| line.starts_with(quiet));
        self.take().into_iter().filter(loud).collect()
    }

    /// As [`changes`](Self::changes), the names alone.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |line: String| line.split(' ').next().unwrap_or_default().to_owned();
        self.changes().into_iter().map(name).collect()
    }

    /// Makes the nth call of a function fail, counted from now.
    pub(crate) fn fail(&self, name: &str, nth: u32, code: u32) {
        let name = CString::new(name).unwrap();
        // SAFETY: the stand-in's own function, of this type; the name is a string for the call.
        unsafe {
            let ask = self
                .library()
                .get::<unsafe extern "C" fn(*const c_char, u32, u32)>(b"stand_in_fail\0");
            ask.unwrap()(name.as_ptr(), nth, code);
        }
    }

    /// Makes the next call of a function take so long.
    pub(crate) fn delay(&self, name: &str, milliseconds: u64) {
        let name = CString::new(name).unwrap();
        // SAFETY: the stand-in's own function, of this type; the name is a string for the call.
        unsafe {
            let ask =
                self.library().get::<unsafe extern "C" fn(*const c_char, u64)>(b"stand_in_delay\0");
            ask.unwrap()(name.as_ptr(), milliseconds);
        }
    }

    /// All calls since the last look, by name, those that only look or put something back too.
    pub(crate) fn all_names(&self) -> Vec<String> {
        let name = |line: String| line.split(' ').next().unwrap_or_default().to_owned();
        self.take().into_iter().filter(|line| !line.starts_with('#')).map(name).collect()
    }

    /// How many blocks and handles are alive.
    pub(crate) fn alive(&self) -> usize {
        let name = b"stand_in_alive\0";
        // SAFETY: the stand-in's own function, of this type.
        unsafe { self.library().get::<unsafe extern "C" fn() -> usize>(name).unwrap()() }
    }

    /// The calling thread's current context.
    pub(crate) fn now(&self) -> u64 {
        let mut context = 0;
        // SAFETY: the driver's function, of this type; the pointer is writable for the call.
        unsafe {
            let get =
                self.library().get::<unsafe extern "C" fn(*mut u64) -> u32>(b"cuCtxGetCurrent\0");
            assert_eq!(get.unwrap()(&raw mut context), 0);
        }
        context
    }

    /// Makes a context current, as another part of a program may have.
    pub(crate) fn stand_on(&self, context: u64) {
        // SAFETY: the driver's function, of this type; the stand-in takes any number.
        unsafe {
            let push =
                self.library().get::<unsafe extern "C" fn(u64) -> u32>(b"cuCtxPushCurrent_v2\0");
            assert_eq!(push.unwrap()(context), 0);
        }
    }
}

/// Whether a call was made in a context, or needs none: a stream that was made, or an event, tells of which
/// context it is.
pub(crate) fn is_in(line: &str, context: u64) -> bool {
    let by_event = ["cuEventQuery ", "cuEventSynchronize "];
    let by_stream = [
        "cuMemAllocFromPoolAsync ",
        "cuMemFreeAsync ",
        "cuEventRecord ",
        "cuStreamWaitEvent ",
        "cuStreamIsCapturing ",
        "cuStreamSynchronize ",
    ];
    let made = || u64::from_str_radix(value(line, "stream").trim_start_matches("0x"), 16);
    value(line, "ctx") == format!("{context:#x}")
        || by_event.iter().any(|name| line.starts_with(name))
        || by_stream.iter().any(|name| line.starts_with(name)) && made().is_ok_and(|it| it > 2)
}

/// The value of `key=` in a line of the log.
pub(crate) fn value<'a>(line: &'a str, key: &str) -> &'a str {
    let found = line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {key} in {line}"))
}
