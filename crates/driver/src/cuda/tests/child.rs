//! Tests in a process of their own, with a driver library of their own.
//!
//! A process opens one driver library and keeps it, so each test runs this test binary again with
//! the loader's path set to a stand-in, and asserts there.

use super::super::library::Library;
use crate::sync::OnceLock;
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Which driver library the child finds.
#[derive(Clone, Copy)]
pub(super) enum Installed {
    Nothing,
    StandIn,
    Old,
}

const CHILD: &str = "AQUIFER_TEST_CHILD";

/// Runs `body` in a child process where `library` is the driver. `name` is the test's own.
pub(super) fn alone(
    name: &str,
    library: Installed,
    variables: &[(&str, &str)],
    body: impl FnOnce(&Log),
) {
    if env::var(CHILD).is_ok_and(|child| child == name) {
        return body(&Log::open());
    }
    let folder = folder(library);
    let log = folder.with_file_name(format!("{name}.log"));
    let _ = fs::remove_file(&log);
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("cuda::tests::{name}"), "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .env("STAND_IN_LOG", &log)
        .env(CHILD, name)
        .env_remove("STAND_IN_FAIL")
        .env_remove("STAND_IN_DEVICES")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{name}: {}\n{out}\n{err}\ncalls:\n{}",
        output.status,
        fs::read_to_string(&log).unwrap_or_default()
    );
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

/// The calls that the stand-in saw.
pub(super) struct Log {
    path: PathBuf,
    seen: std::cell::Cell<usize>,
}

impl Log {
    fn open() -> Self {
        Self { path: env::var("STAND_IN_LOG").unwrap().into(), seen: 0.into() }
    }

    /// The lines since the last call of this function.
    pub(super) fn take(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let lines = text.lines().skip(self.seen.get()).map(str::to_owned).collect::<Vec<_>>();
        self.seen.set(self.seen.get() + lines.len());
        lines
    }

    /// The lines of [`take`](Self::take) without the calls that only look.
    pub(super) fn changes(&self) -> Vec<String> {
        let quiet =
            |line: &String| line.starts_with("cuCtxGetCurrent") || line.starts_with("cuThread");
        self.take().into_iter().filter(|line| !quiet(line) && !line.starts_with("# mode")).collect()
    }
}

/// Makes the nth call of a function of the stand-in fail, counted from now.
pub(super) fn fail(name: &str, nth: u32, code: u32) {
    let name = CString::new(name).unwrap();
    let library = &Library::get().unwrap().handle;
    // SAFETY: the stand-in's own function, of this type; the name is a string for the call.
    unsafe {
        let ask = library.get::<unsafe extern "C" fn(*const c_char, u32, u32)>(b"stand_in_fail\0");
        ask.unwrap()(name.as_ptr(), nth, code);
    }
}

/// Sets the capture status of the stand-in's streams.
pub(super) fn capture(status: u32) {
    let library = &Library::get().unwrap().handle;
    // SAFETY: the stand-in's own function, of this type.
    unsafe {
        library.get::<unsafe extern "C" fn(u32)>(b"stand_in_capture\0").unwrap()(status);
    }
}

/// How many blocks and handles of the stand-in are alive.
pub(super) fn alive() -> usize {
    let library = &Library::get().unwrap().handle;
    // SAFETY: the stand-in's own function, of this type.
    unsafe { library.get::<unsafe extern "C" fn() -> usize>(b"stand_in_alive\0").unwrap()() }
}
