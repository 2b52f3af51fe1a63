//! Programs in C and C++ that use the library as outsiders do: compiled against the header, linked with the shared
//! library, run on the simulated device.

#[path = "programs/built.rs"]
mod built;

use built::{Compiler, Folder, Language, Sanitizers};
use std::path::Path;

/// Compiles a program and runs it, plainly and with the compiler's sanitizers. It has to say `all of it`.
fn passes(name: &str, language: Language) {
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
        let said = built::run(&program, library, &[folder.path()]);
        assert!(said.ends_with("all of it\n"), "{name} said: {said}");
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
fn hosts_load_it_and_call_their_entry_points() {
    passes("hosts.cpp", Language::Cpp);
}

#[test]
fn a_program_shares_blocks_and_takes_numpys_handlers() {
    passes("shared.c", Language::C);
}
