//! glibc 2.28 for a linker: the shared libraries' symbols with their versions, and none of the code.
//!
//! The system's compiler links the wheel with them. So the wheel has no newer symbol, and its unwinder is the process's
//! `libgcc_s`. `maturin --zig` would link LLVM's unwinder into it, in which an exception of C++ ends the process.

use crate::Place;
use crate::environment::Environment;
use crate::process::shown;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// The oldest glibc that has the wheel's symbols.
pub(super) const VERSION: (u32, u32) = (2, 28);

/// Zig has the symbols of each glibc and makes such libraries. pip checks its SHA-256.
const ZIGLANG: &str = "xtask/src/wheel/ziglang.txt";

/// The libraries by the names that a program is linked with.
const LIBRARIES: [&str; 5] = ["libdl", "libm", "libpthread", "librt", "libutil"];

/// A folder of libraries for `-L`. It is made once.
pub(super) fn libraries(place: &Place, python: &Path) -> Result<PathBuf> {
    let (major, minor) = VERSION;
    let version = format!("{}-linux-gnu.{major}.{minor}", std::env::consts::ARCH);
    let zig = fs::read_to_string(place.root.join(ZIGLANG)).context(ZIGLANG)?;
    let folder = place.target.join("python").join(&version);
    let made_by = folder.join("ziglang.txt");
    // Written last, so a folder that has it is complete.
    if fs::read_to_string(&made_by).is_ok_and(|by| by == zig) {
        return Ok(folder);
    }
    let environment = Environment::new(place, python, "ziglang")?;
    environment.install(
        &place.root,
        &["--no-deps", "--only-binary=:all:", "--require-hashes", "-r", ZIGLANG],
    )?;
    let work = environment.programs().join("glibc");
    fs::create_dir_all(&work)?;
    fs::write(work.join("empty.c"), "int empty;\n")?;
    let mut link = environment.command(&work);
    link.args(["-m", "ziglang", "cc", "-target", &version, "-shared", "-fPIC", "empty.c"]);
    link.args(["-o", "empty.so"]).env("ZIG_GLOBAL_CACHE_DIR", work.join("cache"));
    link.env("ZIG_LOCAL_CACHE_DIR", work.join("cache"));
    shown(&mut link, None)?.ok()?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder)?;
    copy_libraries(&work.join("cache/o"), &folder)?;
    write_libc(&folder)?;
    fs::write(&made_by, zig)?;
    // 400 MB, which nothing needs again.
    environment.remove()?;
    Ok(folder)
}

/// Copies what Zig has made, out of the folders of its cache.
fn copy_libraries(cache: &Path, folder: &Path) -> Result<()> {
    for entry in fs::read_dir(cache).with_context(|| cache.display().to_string())? {
        for file in fs::read_dir(entry?.path())? {
            let path = file?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("lib") && (name.contains(".so.") || name == "libc_nonshared.a") {
                fs::copy(&path, folder.join(&name))?;
            }
            if let Some((library, _)) =
                name.split_once(".so.").filter(|it| LIBRARIES.contains(&it.0))
            {
                fs::copy(&path, folder.join(format!("{library}.so")))?;
            }
        }
    }
    Ok(())
}

/// `libc.so`, as glibc installs it: a text that names the library, what is linked statically, and the loader.
fn write_libc(folder: &Path) -> Result<()> {
    let part = |name: &str| -> Result<String> {
        let path = folder.join(name);
        if !path.exists() {
            bail!("Zig has made no {name}");
        }
        Ok(format!("\"{}\"", path.display()))
    };
    let text = format!(
        "GROUP ( {} {} AS_NEEDED ( {} ) )\n",
        part("libc.so.6")?,
        part("libc_nonshared.a")?,
        part("libld.so.2")?,
    );
    fs::write(folder.join("libc.so"), text)?;
    Ok(())
}
