//! Programs in C and C++ that use the library as outsiders do: compiled against the header, linked with the shared
//! library, run on the simulated device.
#![cfg(target_os = "linux")]

#[path = "programs/built.rs"]
mod built;
#[path = "programs/install.rs"]
mod install;

use built::{Backend, Compiler, Folder, Language, Sanitizers};
use std::path::{Path, PathBuf};

/// Compiles a program and runs it, plainly and with the compiler's sanitizers. It has to say `all of it`.
fn passes(name: &str, language: Language) {
    passes_on(&[Backend::Simulated], name, language);
}

/// As [`passes`], on several.
fn passes_on(backends: &[Backend], name: &str, language: Language) {
    let Some(compiler) = Compiler::find(language, name) else { return };
    let library = built::library();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    for sanitizers in [Sanitizers::Off, Sanitizers::On] {
        if sanitizers == Sanitizers::On && !compiler.has_sanitizers() {
            built::skipped(name, "the compiler has no sanitizers");
            return;
        }
        let folder = Folder::new(&format!("{name}-{sanitizers:?}"));
        let program = compiler.compile(&source, &folder, library, sanitizers);
        for backend in backends {
            let said = built::run_on(*backend, &program, library, &[folder.path()]);
            assert!(said.ends_with("all of it\n"), "{name} on {backend:?} said: {said}");
        }
    }
}

#[test]
fn a_careful_program_in_c() {
    passes("outsider.c", Language::C);
}

#[test]
fn a_careful_program_in_cpp() {
    passes("outsider.cpp", Language::Cpp);
}

#[test]
fn a_program_that_misuses_it_gets_codes() {
    passes("misuse.c", Language::C);
}

#[test]
fn a_program_is_warm_and_things_change() {
    passes_on(&[Backend::Simulated, Backend::StandIn], "warm.c", Language::C);
}

#[test]
fn hosts_load_it_and_call_their_entry_points() {
    passes("hosts.cpp", Language::Cpp);
}

#[test]
fn a_program_shares_blocks_and_takes_numpys_handlers() {
    passes("shared.c", Language::C);
}

/// The header alone, by the standards that programs are written in.
#[test]
fn compilers_of_all_standards_take_the_header() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/aquifer.h");
    for (language, of, standards) in [
        (Language::C, "c", ["c99", "c11", "c17", "gnu2x"]),
        (Language::Cpp, "c++", ["c++11", "c++14", "c++17", "c++20"]),
    ] {
        let Some(compiler) = Compiler::find(language, "the header") else { return };
        for standard in standards {
            let mut compile = compiler.command();
            compile.arg(format!("-std={standard}")).args(["-pedantic-errors", "-fsyntax-only"]);
            built::finished(compile.args(["-x", of]).arg(&header));
        }
    }
}

/// `AQUIFER_TEST_RMM` is a folder of unpacked wheels: librmm, rapids_logger, and the headers and the runtime of CUDA.
#[test]
fn rmm_allocates_of_a_stack() {
    let Some(wheels) = std::env::var_os("AQUIFER_TEST_RMM").map(PathBuf::from) else {
        return built::skipped("rmm", "AQUIFER_TEST_RMM names no folder of RMM's wheels");
    };
    let Some(compiler) = Compiler::find(Language::Cpp, "rmm") else { return };
    let folder = Folder::new("rmm");
    let program = folder.path().join("program");
    let capi = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compile = compiler.command();
    compile.arg("-std=c++20").arg("-I").arg(capi.join("include"));
    // RMM's own copy of CCCL before any other.
    for include in
        ["librmm/include/rapids", "librmm/include", "rapids_logger/include", "nvidia/cu13/include"]
    {
        compile.arg("-isystem").arg(wheels.join(include));
    }
    compile.arg(capi.join("tests/programs/rmm.cpp")).arg("-o").arg(&program);
    let libraries = [
        (built::library().to_path_buf(), "-laquifer"),
        (wheels.join("librmm/lib64"), "-lrmm"),
        (wheels.join("rapids_logger/lib64"), "-lrapids_logger"),
        (wheels.join("nvidia/cu13/lib"), "-l:libcudart.so.13"),
    ];
    for (folder, library) in &libraries {
        compile.arg("-L").arg(folder).arg(format!("-Wl,-rpath,{}", folder.display())).arg(library);
    }
    built::finished(&mut compile);
    assert_eq!(built::run(&program, built::library(), &[]), "all of it\n");
}

/// Headers that have Thrust: `AQUIFER_TEST_THRUST` names a folder, RMM's wheels have theirs, and a toolkit of CUDA 13.
fn thrust() -> Option<PathBuf> {
    let named = std::env::var_os("AQUIFER_TEST_THRUST").map(PathBuf::from);
    let of_rmm = std::env::var_os("AQUIFER_TEST_RMM")
        .map(|wheels| Path::new(&wheels).join("librmm/include/rapids"));
    let of_cuda = PathBuf::from("/usr/local/cuda/include/cccl");
    named.or(of_rmm).or(Some(of_cuda)).filter(|folder| folder.join("thrust/version.h").is_file())
}

/// With the host as Thrust's device, on managed memory of the simulated one.
#[test]
fn thrust_sorts_and_scans_with_memory_of_a_stack() {
    let Some(headers) = thrust() else {
        return built::skipped("thrust", "AQUIFER_TEST_THRUST names no folder of Thrust's headers");
    };
    let Some(compiler) = Compiler::find(Language::Cpp, "thrust") else { return };
    let capi = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = built::library();
    for (sanitizers, count) in [(Sanitizers::Off, "10000000"), (Sanitizers::On, "1000000")] {
        if sanitizers == Sanitizers::On && !compiler.has_sanitizers() {
            return built::skipped("thrust", "the compiler has no sanitizers");
        }
        let folder = Folder::new(&format!("thrust-{sanitizers:?}"));
        let program = folder.path().join("program");
        let mut compile = match sanitizers {
            Sanitizers::Off => compiler.command(),
            Sanitizers::On => compiler.sanitizing(),
        };
        compile.args(["-O2", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"]);
        // Thrust binds a reference to a null policy, which it does not use (thrust/detail/reference.h).
        compile.arg("-fno-sanitize=null");
        compile.arg("-I").arg(capi.join("include")).arg("-isystem").arg(&headers);
        compile.args(["-x", "c++"]).arg(capi.join("tests/programs/thrust.cu")).args(["-x", "none"]);
        compile.arg("-o").arg(&program).arg("-L").arg(library).arg("-laquifer");
        built::finished(&mut compile);
        let log = folder.path().join("log.csv");
        let said = built::run(&program, library, &[&log, Path::new(count)]);
        let bytes = 4 * count.parse::<usize>().unwrap();
        assert_eq!(
            said,
            format!(
                "thrust: sort and scan of {count} are the CPU's; {bytes} bytes of temporary memory in 1 blocks, 0 in use\n"
            )
        );
    }
}

/// `AQUIFER_TEST_RMM` may have the compiler's wheels, too.
#[test]
fn nvcc_compiles_thrust_over_a_stack_and_over_rmm() {
    let wheels = std::env::var_os("AQUIFER_TEST_RMM").map(PathBuf::from);
    let Some(wheels) = wheels.filter(|wheels| wheels.join("nvidia/cu13/bin/nvcc").is_file()) else {
        return built::skipped("nvcc", "AQUIFER_TEST_RMM names no folder with nvcc");
    };
    let folder = Folder::new("nvcc");
    let mut build = std::process::Command::new(built::repository().join("capi/tests/thrust.sh"));
    built::finished(build.arg(wheels).arg(built::library()).arg(folder.path()));
    for program in ["thrust", "thrust_rmm"] {
        assert!(folder.path().join(program).is_file(), "{program}");
    }
}
