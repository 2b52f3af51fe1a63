//! The library that the tests' programs are linked with, and the compilers.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// What a test that cannot run here says, straight to standard error: the harness does not swallow it.
pub(crate) fn skipped(name: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// cargo, the same that built this test.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(repository());
    cargo
}

/// The folder of the profile that this test was built with: it lies in the `deps` of that.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_path_buf()
}

/// The target folder that this test was built into.
pub(crate) fn target_folder() -> PathBuf {
    profile_folder().parent().unwrap().to_path_buf()
}

/// The profile that this test was built with.
pub(crate) fn profile() -> &'static str {
    static PROFILE: LazyLock<String> = LazyLock::new(|| {
        let folder = profile_folder();
        let name = folder.file_name().unwrap().to_str().unwrap();
        if name == "debug" { "dev".into() } else { name.into() }
    });
    &PROFILE
}

/// Builds the shared library of a package, which cargo does not do for a test. A folder that has it by these names.
fn build(package: &str, library: &str, folder: &str, names: &[&str]) -> PathBuf {
    let mut build = cargo();
    build.args(["build", "-p", package, "--locked", "--profile", profile()]);
    build.env("CARGO_TARGET_DIR", target_folder());
    finished(&mut build);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    for name in names {
        let link = folder.join(name);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(profile_folder().join(library), link).unwrap();
    }
    folder
}

/// A folder that has the shared library by both of its names.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        build("libaquifer", "libaquifer.so", "lib", &["libaquifer.so", "libaquifer.so.0"])
    });
    &LIBRARY
}

/// A folder that has a driver which does nothing.
fn stand_in() -> &'static Path {
    static STAND_IN: LazyLock<PathBuf> = LazyLock::new(|| {
        build("stand_in_libcuda", "libstand_in_libcuda.so", "stand_in", &["libcuda.so.1"])
    });
    &STAND_IN
}

/// What a program runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Backend {
    Simulated,
    /// The driver's calls, of a library that stands in for it: the warm ways are those of a GPU.
    StandIn,
}

/// Runs a command that has to succeed.
pub(crate) fn finished(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    output
}

/// Runs a program on the simulated device, with the library of a folder; what it wrote.
pub(crate) fn run(program: &Path, library: &Path, arguments: &[&Path]) -> String {
    run_on(Backend::Simulated, program, library, arguments)
}

/// As [`run`].
pub(crate) fn run_on(
    backend: Backend,
    program: &Path,
    library: &Path,
    arguments: &[&Path],
) -> String {
    // As the heap does without the sanitizer: a size that no machine has is null, and no error of the program. The
    // stand-in leaks what it has of a thread that calls it as it ends.
    let (name, driver, sanitizer) = match backend {
        Backend::Simulated => ("sim", None, "allocator_may_return_null=1"),
        Backend::StandIn => {
            ("cuda", Some(stand_in()), "allocator_may_return_null=1:detect_leaks=0")
        }
    };
    let folders = std::env::join_paths(driver.into_iter().chain([library])).unwrap();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("AQUIFER_BACKEND", name)
        .env("ASAN_OPTIONS", sanitizer)
        .env_remove("AQUIFER_STACK");
    command.env("LD_LIBRARY_PATH", folders).env_remove("LD_PRELOAD");
    String::from_utf8(finished(&mut command).stdout).unwrap()
}

/// Whether a command is installed.
pub(crate) fn is_installed(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A new folder in cargo's folder for tests, which goes with this value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Language {
    C,
    Cpp,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sanitizers {
    Off,
    On,
}

pub(crate) struct Compiler {
    command: &'static str,
    standard: &'static str,
}

impl Compiler {
    /// The system's compiler. Without one the test `name` is skipped.
    pub(crate) fn find(language: Language, name: &str) -> Option<Self> {
        let (command, standard) = match language {
            Language::C => ("cc", "-std=c11"),
            Language::Cpp => ("c++", "-std=c++17"),
        };
        if !is_installed(command) {
            skipped(name, &format!("there is no {command}"));
            return None;
        }
        Some(Self { command, standard })
    }

    /// The compiler with the flags of all programs.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.command);
        command.args([self.standard, "-Wall", "-Wextra", "-Werror", "-g", "-pthread"]);
        command
    }

    /// As [`command`](Self::command), with the compiler's sanitizers.
    pub(crate) fn sanitizing(&self) -> Command {
        let mut command = self.command();
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]);
        command
    }

    /// Whether a program with sanitizers can be linked, and runs.
    pub(crate) fn has_sanitizers(&self) -> bool {
        let folder = Folder::new(&format!("sanitizers-{}", self.command));
        let (source, program) = (folder.path().join("empty.c"), folder.path().join("empty"));
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let mut compile = self.sanitizing();
        if self.command == "c++" {
            compile.args(["-x", "c++"]);
        }
        let compiled = compile.arg(&source).arg("-o").arg(&program).output();
        compiled.is_ok_and(|output| output.status.success())
            && Command::new(&program).output().is_ok_and(|output| output.status.success())
    }

    /// Compiles a program against the library in a folder.
    pub(crate) fn compile(
        &self,
        source: &Path,
        folder: &Folder,
        library: &Path,
        sanitizers: Sanitizers,
    ) -> PathBuf {
        let program = folder.path().join("program");
        let mut compile = match sanitizers {
            Sanitizers::Off => self.command(),
            Sanitizers::On => self.sanitizing(),
        };
        compile.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
        // A program that opens the library at run time is linked without it.
        compile.arg("-Wl,--as-needed").arg(source).arg("-o").arg(&program).arg("-L").arg(library);
        compile.args(["-laquifer", "-ldl"]);
        finished(&mut compile);
        program
    }
}
