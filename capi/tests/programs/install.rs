//! The library as it is installed: by pkg-config, by CMake, and by the lines of the README.

use super::built::{self, Compiler, Folder, Language};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A prefix that the library is installed under, with a space in its name.
fn prefix() -> &'static Path {
    static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed here");
        let _ = std::fs::remove_dir_all(&prefix);
        let mut install = built::cargo();
        install.args(["xtask", "install-capi"]).arg(&prefix);
        install.args(["--profile", built::profile()]);
        install.env("CARGO_TARGET_DIR", built::target_folder());
        built::finished(&mut install);
        prefix
    });
    &PREFIX
}

fn library_folder() -> PathBuf {
    prefix().join("lib")
}

/// pkg-config's flags, as they are written.
fn pkg_config(arguments: &[&str]) -> String {
    let mut command = Command::new("pkg-config");
    command.args(arguments).env("PKG_CONFIG_PATH", library_folder().join("pkgconfig"));
    String::from_utf8(built::finished(&mut command).stdout).unwrap()
}

/// The text of the README's block of a language.
fn block<'a>(readme: &'a str, language: &str, which: usize) -> &'a str {
    let begin = format!("\n```{language}\n");
    let (at, _) = readme.match_indices(&begin).nth(which).unwrap();
    let rest = &readme[at + begin.len()..];
    &rest[..rest.find("```").unwrap()]
}

#[test]
fn all_files_are_there() {
    let lib = library_folder();
    let library = format!("libaquifer.so.{VERSION}");
    for file in ["libaquifer.a", &library, "pkgconfig/aquifer.pc"] {
        assert!(lib.join(file).is_file(), "{file}");
    }
    assert_eq!(
        std::fs::read_link(lib.join("libaquifer.so")).unwrap(),
        Path::new("libaquifer.so.0")
    );
    assert_eq!(std::fs::read_link(lib.join("libaquifer.so.0")).unwrap(), Path::new(&library));
    for header in ["aquifer.h", "aquifer_rmm.hpp", "aquifer_thrust.hpp"] {
        assert!(prefix().join("include").join(header).is_file(), "{header}");
    }
    for file in ["cmake/aquifer/aquiferConfig.cmake", "cmake/aquifer/aquiferConfigVersion.cmake"] {
        let text = std::fs::read_to_string(lib.join(file)).unwrap();
        assert!(!text.contains('@'), "{file}: {text}");
    }
}

#[test]
fn the_lines_of_the_readme_work() {
    if Compiler::find(Language::C, "README.md").is_none() {
        return;
    }
    if !built::is_installed("pkg-config") {
        return built::skipped("README.md", "there is no pkg-config");
    }
    let readme = std::fs::read_to_string(built::repository().join("capi/README.md")).unwrap();
    let folder = Folder::new("readme");
    std::fs::write(folder.path().join("program.c"), block(&readme, "c", 0)).unwrap();
    let (compile, run) = (block(&readme, "sh", 1), block(&readme, "sh", 2));
    assert!(compile.starts_with("cc ") && run.contains("./program"), "{compile}{run}");
    // A shell splits at the space that the prefix has, as a user's would: by a link without one.
    let link = folder.path().join("prefix");
    std::os::unix::fs::symlink(prefix(), &link).unwrap();
    let mut shell = Command::new("sh");
    shell.current_dir(folder.path()).args(["-e", "-c", &format!("{compile}{run}")]);
    shell.env("PKG_CONFIG_PATH", link.join("lib/pkgconfig"));
    shell.env("LD_LIBRARY_PATH", link.join("lib")).env_remove("LD_PRELOAD");
    let said = String::from_utf8(built::finished(&mut shell).stdout).unwrap();
    assert_eq!(said, format!("aquifer {VERSION}: allocated and freed in the order of a stream\n"));
}

#[test]
fn pkg_config_links_the_static_library() {
    let Some(compiler) = Compiler::find(Language::C, "static") else { return };
    if !built::is_installed("pkg-config") {
        return built::skipped("static", "there is no pkg-config");
    }
    assert_eq!(pkg_config(&["--modversion", "aquifer"]).trim(), VERSION);
    let flags = pkg_config(&["--static", "--libs", "aquifer"]);
    let folder = Folder::new("static");
    let program = folder.path().join("program");
    let source = built::repository().join("capi/tests/programs/outsider.c");
    let mut compile = compiler.command();
    compile.arg("-I").arg(prefix().join("include")).arg(source).arg("-o").arg(&program);
    compile.arg(library_folder().join("libaquifer.a"));
    // What the archive needs besides itself.
    let needed = |flag: &&str| flag.starts_with("-l") && *flag != "-laquifer";
    compile.args(flags.split_whitespace().filter(needed));
    built::finished(&mut compile);
    let said = built::run(&program, Path::new("/nowhere"), &[folder.path()]);
    assert_eq!(said, "all of it\n");
}

#[test]
fn cmake_finds_it() {
    if !built::is_installed("cmake") {
        return built::skipped("cmake", "there is no cmake");
    }
    if Compiler::find(Language::C, "cmake").is_none() {
        return;
    }
    let folder = Folder::new("cmake");
    let project = "cmake_minimum_required(VERSION 3.16)\n\
        project(outsider C)\n\
        find_package(aquifer ${VERSION} REQUIRED)\n\
        find_package(aquifer ${VERSION}.1 QUIET)\n\
        if(aquifer_FOUND)\n  message(FATAL_ERROR \"a later version was found\")\nendif()\n\
        find_package(aquifer REQUIRED)\n\
        foreach(kind aquifer static)\n\
        add_executable(with_${kind} ${SOURCE})\n\
        set_property(TARGET with_${kind} PROPERTY C_STANDARD 11)\n\
        target_link_libraries(with_${kind} PRIVATE aquifer::${kind})\n\
        endforeach()\n";
    std::fs::write(folder.path().join("CMakeLists.txt"), project).unwrap();
    let build = folder.path().join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(folder.path()).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display()));
    let source = built::repository().join("capi/tests/programs/outsider.c");
    configure.arg(format!("-DVERSION={VERSION}"));
    configure.arg(format!("-DSOURCE={}", source.display()));
    built::finished(&mut configure);
    built::finished(Command::new("cmake").arg("--build").arg(&build));
    for program in ["with_aquifer", "with_static"] {
        // CMake's own path to the library.
        let said = built::run(&build.join(program), Path::new("/nowhere"), &[folder.path()]);
        assert_eq!(said, "all of it\n", "{program}");
    }
}
