//! The crate for NVIDIA's crates. Its build wants CUDA's headers and libclang, which come from PyPI where they are not
//! installed.

use crate::Place;
use crate::cargo::{cargo, tests};
use crate::process::{quiet, shown};
use crate::pypi::download;
use crate::report::Verdict;
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// CUDA 13.0's headers, for the driver that most people have.
const HEADERS: [&str; 3] =
    ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88", "nvidia-curand==10.4.0.35"];

const LIBCLANG: &str = "libclang==18.1.1";

/// What a build of `cuda-bindings` finds by variables.
struct Found {
    toolkit: PathBuf,
    libclang: PathBuf,
    /// The compiler's own headers, for a libclang that came without them.
    headers: Option<PathBuf>,
}

/// Clippy, the tests and the documentation. Without a GPU, tests that want one say that they were skipped.
pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let folder = place.target.join("nvidia");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let found = match find(&folder)? {
        Ok(found) => found,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let cargo = |arguments: &[&str]| {
        let mut command = cargo(place);
        command
            .args(arguments)
            .args(["--manifest-path", "nvidia/Cargo.toml", "--target-dir"])
            .arg(folder.join("build"))
            .env("CUDA_TOOLKIT_PATH", &found.toolkit)
            .env("LIBCLANG_PATH", &found.libclang)
            .env("RUSTDOCFLAGS", "-D warnings");
        if let Some(headers) = &found.headers {
            command.env("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{}", headers.display()));
        }
        command
    };
    let format = ["fmt", "--manifest-path", "nvidia/Cargo.toml", "--check"];
    shown(crate::cargo::cargo(place).args(format), None)?.ok()?;
    let warnings = ["--", "-D", "warnings"];
    let all = ["clippy", "--locked", "--all-targets", "--all-features"];
    shown(cargo(&all).args(warnings), None)?.ok()?;
    shown(cargo(&["clippy", "--locked", "--lib"]).args(warnings), None)?.ok()?;
    shown(&mut cargo(&["doc", "--locked", "--no-deps", "--all-features"]), None)?.ok()?;
    tests(&mut cargo(&["test", "--locked", "--all-features"]))
}

/// The headers and libclang, or what is missing.
fn find(folder: &Path) -> Result<Result<Found, String>> {
    let pip = |what: &[&str], into: &Path| download(what, folder, into);
    let python = folder.join("headers");
    let toolkit = match std::env::var_os("CUDA_TOOLKIT_PATH") {
        Some(toolkit) => PathBuf::from(toolkit),
        None => match pip(&HEADERS, &python)? {
            Ok(()) => python.join("nvidia/cu13"),
            Err(missing) => return Ok(Err(format!("no headers of CUDA: {missing}"))),
        },
    };
    if let Some(libclang) = installed_libclang() {
        return Ok(Ok(Found { toolkit, libclang, headers: None }));
    }
    let python = folder.join("libclang");
    if let Err(missing) = pip(&[LIBCLANG], &python)? {
        return Ok(Err(format!("no libclang: {missing}")));
    }
    let libclang = python.join("libclang-18.1.1.data/platlib/clang/native");
    Ok(Ok(Found { toolkit, libclang, headers: headers_of_the_compiler() }))
}

/// The folder of a libclang that is named or installed, with its headers.
fn installed_libclang() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("LIBCLANG_PATH") {
        return Some(PathBuf::from(named));
    }
    let versions = fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let llvm = versions.filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("llvm-"))
    });
    llvm.map(|path| path.join("lib")).find(|lib| {
        let has_library = fs::read_dir(lib).is_ok_and(|files| {
            files.filter_map(Result::ok).any(|file| is_libclang(&file.file_name()))
        });
        // `stddef.h` and others, of a package of their own.
        has_library && lib.join("clang").exists()
    })
}

/// `libclang.so`, `libclang-14.so.1`, but not `libclang-cpp.so.14`.
fn is_libclang(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    name.contains(".so") && name.starts_with("libclang") && !name.starts_with("libclang-cpp")
}

/// The folder of `stddef.h`, as the C compiler says.
fn headers_of_the_compiler() -> Option<PathBuf> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let finished = quiet(Command::new(compiler).arg("-print-file-name=include"), None).ok()?;
    let path = PathBuf::from(finished.text.trim());
    path.is_dir().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::is_libclang;

    #[test]
    fn libclang_is_known_by_its_names() {
        let is = |name: &str| is_libclang(name.as_ref());
        assert!(is("libclang.so") && is("libclang.so.1") && is("libclang-14.so.14.0.6"));
        assert!(!is("libclang-cpp.so.14") && !is("libclangAST.a") && !is("libLLVM-14.so"));
    }
}
