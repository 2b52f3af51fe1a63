//! Compiles kernels/fold.cu where the variable NVCC names a compiler of CUDA's. Without it, `static_pool` has the host form alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=kernels/fold.cu");
    println!("cargo::rerun-if-env-changed=NVCC");
    println!("cargo::rustc-check-cfg=cfg(has_fold)");
    let Some(nvcc) = env::var_os("NVCC") else { return Ok(()) };
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let status = Command::new(&nvcc)
        .args(["-O3", "--lib", "-arch=compute_75", "-Xcompiler=-fPIC", "kernels/fold.cu", "-o"])
        .arg(out.join("libfold.a"))
        .status()?;
    if !status.success() {
        return Err(io::Error::other(format!("{} kernels/fold.cu: {status}", nvcc.display())));
    }
    // The toolkit's own folder of libraries, beside the compiler's.
    let toolkit =
        Path::new(&nvcc).parent().and_then(Path::parent).unwrap_or(Path::new("/usr/local/cuda"));
    for folder in ["lib64", "lib"] {
        println!("cargo::rustc-link-search=native={}", toolkit.join(folder).display());
    }
    println!("cargo::rustc-link-search=native={}", out.display());
    for library in ["static=fold", "static=cudart_static", "stdc++", "rt", "dl", "pthread"] {
        println!("cargo::rustc-link-lib={library}");
    }
    println!("cargo::rustc-cfg=has_fold");
    Ok(())
}
