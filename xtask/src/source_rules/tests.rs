//! Every rule is shown something bad, which it has to flag, and something good.

use super::source::{Source, sources};
use super::{Rule, check, circles, file_names, layers, needs, rules};
use std::path::Path;

/// The lines in which `rule` finds something.
fn found(rule: Rule, path: &str, text: &str) -> Vec<usize> {
    let source = Source::parse(path, text).unwrap();
    let mut findings = Vec::new();
    rule(&source, &mut findings);
    assert!(findings.iter().all(|finding| finding.to_string().starts_with(path)));
    findings.into_iter().map(|finding| finding.line).collect()
}

#[test]
fn locks_are_named_in_sync_alone() {
    for bad in [
        "use std::sync::Mutex;",
        "use ::std::sync::Mutex;",
        "use std::{fmt, sync::{Arc, Weak}};",
        "use std::sync;",
        "fn f() { let x = core::sync::atomic::AtomicU8::new(0); }",
        "use alloc::sync::Arc;",
        "use parking_lot::Mutex;",
        "use parking_lot as locks;",
        "fn f() { let q = crossbeam::queue::SegQueue::<u8>::new(); }",
        "use crossbeam_utils::CachePadded;",
        "use loom::sync::Mutex;",
        "extern crate crossbeam;",
        "thread_local! { static X: u8 = 0; }",
        "std::thread_local! { static X: u8 = 0; }",
        "macro_rules! m { () => { std::sync::Mutex::new(()) } }",
        "#[cfg(test)] mod tests { use std::sync::Mutex; }",
    ] {
        assert!(!found(rules::locks_through_sync, "src/pool/steal.rs", bad).is_empty(), "{bad}");
        assert!(
            found(rules::locks_through_sync, "crates/sync/src/lib.rs", bad).is_empty(),
            "{bad}"
        );
        assert!(found(rules::locks_through_sync, "tests/pool.rs", bad).is_empty(), "{bad}");
    }
    for good in [
        "use crate::sync::{Arc, Mutex, trusted};",
        "// use std::sync::Mutex;\n/* parking_lot::Mutex */ /// std::sync::Arc\nstruct S;",
        "fn f() { g(\"std::sync\"); }",
        "use std::{fmt, thread};",
        "use crate::sync::thread_local; thread_local! { static X: u8 = 0; }",
        "crate::sync::thread_local! { static X: u8 = 0; }",
        "fn f(loom: u8) -> u8 { loom }",
    ] {
        assert!(found(rules::locks_through_sync, "src/stream.rs", good).is_empty(), "{good}");
    }
}

#[test]
fn a_bad_import_in_a_group_has_its_own_line() {
    let text = "use std::{\n    fmt,\n    sync::Arc,\n};\n";
    assert_eq!(found(rules::locks_through_sync, "src/pool.rs", text), [3]);
}

#[test]
fn the_models_cfg_is_named_in_sync_and_the_models() {
    for bad in [
        "#[cfg(aquifer_loom)] mod model;",
        "#[cfg(not(aquifer_loom))] fn f() {}",
        "fn f() -> bool { cfg!(aquifer_loom) }",
        "#![cfg_attr(aquifer_loom, allow(unused))]",
    ] {
        assert_eq!(found(rules::loom_through_sync, "src/pool/steal.rs", bad), [1], "{bad}");
        assert_eq!(found(rules::loom_through_sync, "tests/pool.rs", bad), [1], "{bad}");
        assert!(found(rules::loom_through_sync, "crates/sync/src/lib.rs", bad).is_empty());
        assert!(found(rules::loom_through_sync, "loom_tests/pending_uses.rs", bad).is_empty());
    }
    assert_eq!(found(rules::loom_through_sync, "src/pool.rs", "#[cfg(loom)] fn f() {}"), [1]);
    assert!(found(rules::loom_through_sync, "src/pool.rs", "// cfg(aquifer_loom)\n").is_empty());
}

#[test]
fn events_are_told_through_the_debug_log() {
    for bad in [
        "fn f() { tracing::error!(\"x\"); }",
        "use tracing::warn;",
        "fn f() { ::tracing::debug!(\"x\") }",
    ] {
        assert_eq!(found(rules::events_through_debug_log, "src/pool/core.rs", bad), [1], "{bad}");
        assert!(found(rules::events_through_debug_log, "src/debug_log/tell.rs", bad).is_empty());
        assert!(found(rules::events_through_debug_log, "tests/traced.rs", bad).is_empty());
    }
    for good in ["use tracing::Level;", "fn f() { tracing::enabled!(tracing::Level::TRACE); }"] {
        let found = found(rules::events_through_debug_log, "src/adaptor/traced.rs", good);
        assert!(found.is_empty(), "{good}");
    }
}

#[test]
fn modules_import_modules_below_them() {
    for (path, bad) in [
        ("crates/core/src/event.rs", "use crate::container::Device;"),
        ("crates/core/src/device/sim/mod.rs", "use crate::{error::Error, pinned::PinnedAlloc};"),
        ("crates/core/src/stream.rs", "fn f() { crate::transfer::start(); }"),
        ("crates/core/src/stream/mod.rs", "use super::resource::Block;"),
        ("crates/core/src/container/buffer.rs", "use crate::transfer::Upload;"),
        ("crates/core/src/order/mod.rs", "use crate::container::DeviceVec;"),
        ("crates/core/src/resource/heap.rs", "use super::super::interop;"),
        (
            "crates/core/src/resource/heap.rs",
            "mod inner { use super::super::super::container::DeviceVec; }",
        ),
        ("crates/core/src/pinned/mod.rs", "macro_rules! m { () => { $crate::transfer::f() } }"),
        ("crates/core/src/event.rs", "use crate::Stream;"),
        ("crates/core/src/event.rs", "use crate::*;"),
        ("crates/core/src/event.rs", "use crate::lib;"),
        ("crates/core/src/event.rs", "macro_rules! m { () => {} } use crate::n;"),
        ("crates/core/src/event.rs", "use crate::inside::f;"),
        ("crates/core/src/event.rs", "impl crate::resource::Plug for Event {}"),
        ("crates/core/src/cellar.rs", "use crate::error::Error;"),
    ] {
        assert_eq!(found(layers::check, path, bad), [1], "{path}: {bad}");
    }
    for (path, good) in [
        ("crates/core/src/stream.rs", "use crate::{error::Error, event::Event, sync::Arc};"),
        ("crates/core/src/interop/mod.rs", "use crate::transfer::Upload;"),
        (
            "crates/core/src/resource/heap.rs",
            "use super::epoch::Stamp; pub(crate) fn f() {} pub(super) struct S;",
        ),
        ("crates/core/src/event.rs", "#[cfg(test)] mod tests { use super::*; use crate::Device; }"),
        ("crates/core/src/event.rs", "/// [`DeviceVec`](crate::container::DeviceVec)\nstruct S;"),
        (
            "crates/core/src/lib.rs",
            "mod pool; pub use container::DeviceVec; pub use crate::host::PinnedAlloc;",
        ),
        ("crates/core/src/event.rs", "macro_rules! m { () => {} } pub use crate::m;"),
        (
            "crates/core/src/event.rs",
            "#[macro_export] macro_rules! m { () => { $crate::inside::f() } }",
        ),
        ("tests/pool.rs", "use crate::common;"),
    ] {
        assert!(found(layers::check, path, good).is_empty(), "{path}: {good}");
    }
}

#[test]
fn no_module_is_in_two_layers() {
    let modules: Vec<_> = layers::LAYERS.concat();
    for (index, module) in modules.iter().enumerate() {
        assert!(!modules[..index].contains(module), "{module}");
    }
}

#[test]
fn nothing_panics_outside_tests() {
    for bad in [
        "fn f() { g().unwrap(); }",
        "fn f() { g()\n.expect(\"why\"); }",
        "fn f() { panic!(\"no\"); }",
        "fn f() { std::todo!() }",
        "fn f() { unimplemented!() }",
        "fn f() { match x { _ => unreachable!() } }",
        "fn f() { x.map(Option::unwrap); }",
        "#[cfg(not(test))] mod product { fn f() { x.unwrap() } }",
        "#[cfg(any(test, unix))] mod product { fn f() { x.unwrap() } }",
        "#[cfg(test)] mod tests {} mod product { fn f() { x.unwrap() } }",
        "#[cfg(test)] mod tests; mod product { fn f() { x.unwrap() } }",
        "macro_rules! m { ($x:expr) => { $x.unwrap() } }",
    ] {
        assert_eq!(found(rules::no_panics, "src/event.rs", bad).len(), 1, "{bad}");
        assert_eq!(found(rules::no_panics, "replay/src/plan.rs", bad).len(), 1, "{bad}");
        assert!(found(rules::no_panics, "src/event/tests.rs", bad).is_empty());
        assert!(found(rules::no_panics, "src/event/tests/drop.rs", bad).is_empty());
        assert!(found(rules::no_panics, "tests/event.rs", bad).is_empty());
    }
    for good in [
        "#[cfg(test)] mod tests { fn f() { x.unwrap(); mod inner { fn g() { panic!() } } } }",
        "#[cfg(all(test, unix))]\n#[allow(unused)]\nmod tests { fn f() { x.unwrap() } }",
        "/// let x = f().unwrap();\nfn f() { x.unwrap_or_default(); /* panic!() */ }",
        "fn f() { std::panic::catch_unwind(g); x.unwrap_or_else(h); }",
        "#[expect(unused, reason = \"none\")] fn f() {}",
        "fn f() { g(\".unwrap()\") }",
    ] {
        assert!(found(rules::no_panics, "src/event.rs", good).is_empty(), "{good}");
    }
}

#[test]
fn files_stay_short() {
    let long = "fn f() {}\n".repeat(801);
    for folder in
        ["src", "tests", "loom_tests", "benches", "replay/benches", "replay/src", "replay/tests"]
    {
        let path = format!("{folder}/tests/long.rs");
        assert_eq!(found(rules::short_files, &path, &long), [801]);
        assert!(found(rules::short_files, &path, &long[10..]).is_empty());
    }
    let shipped = "fn f() {}\n".repeat(601);
    assert_eq!(found(rules::short_files, "src/pool/long.rs", &shipped), [601]);
    assert!(found(rules::short_files, "src/pool/long.rs", &shipped[10..]).is_empty());
}

/// The circles of a crate of these files.
fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let parse = |(path, text): &(&str, &str)| Source::parse(path, text).unwrap();
    let sources: Vec<Source> = files.iter().map(parse).collect();
    needs::circles(&circles::needs(&sources)).into_iter().map(|circle| circle.join(" ")).collect()
}

#[test]
fn files_that_import_each_other_are_found() {
    let root = ("src/lib.rs", "mod a; mod b;");
    for (module, child) in [
        ("mod b; use b::B; pub struct A;", "use super::A; pub struct B;"),
        ("mod b; pub use b::B; pub struct A(B);", "use crate::a::A; pub struct B;"),
        ("mod b; pub struct A; fn f() { b::g(); }", "pub fn g() { super::h(); }"),
        ("mod b; use self::b as c; fn f() -> c::B {}", "use super::*;"),
        ("mod b; use crate::a::{b::{self, B}}; fn f() {}", "mod m { use super::super::A; }"),
        ("mod b; fn f() { crate::a::b::h() }", "use super::f as g;"),
        ("mod b; m! { use super::a::b::B; }", "m! { super::f() }"),
    ] {
        let files = [root, ("src/a/mod.rs", module), ("src/a/b.rs", child)];
        assert_eq!(circles(&files), ["src/a/b.rs src/a/mod.rs"], "{module} {child}");
    }
    let three = [
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", "use crate::b::B;"),
        ("src/b.rs", "fn f() { crate::c::g() }"),
        ("src/c.rs", "use crate::{fmt, a::A};"),
    ];
    assert_eq!(circles(&three), ["src/a.rs src/b.rs src/c.rs"]);
}

#[test]
fn a_re_export_or_a_test_is_no_import() {
    for (module, child, other) in [
        // The child takes the sibling's item by the parent's name for it.
        ("mod b; mod c; pub use b::B; pub use c::C;", "use super::C;", "pub struct C;"),
        ("mod b; mod c; use b::B;", "use super::c::C; pub struct B;", "pub struct C;"),
        ("mod b; pub use b::{self, B}; struct A;", "use super::A; pub struct B;", ""),
        ("mod b; pub struct A;", "#[cfg(test)] mod tests { use crate::a::c::C; }", "use super::b;"),
        ("use c::C; fn f(b: u8) { x.b() }", "use super::f;", "use std::c::B;"),
    ] {
        let files = [
            ("src/lib.rs", "mod a; pub use a::B;"),
            ("src/a/mod.rs", module),
            ("src/a/b.rs", child),
            ("src/a/c.rs", other),
            ("src/a/tests.rs", "use super::b::B;"),
        ];
        assert_eq!(circles(&files), Vec::<String>::new(), "{module} {child} {other}");
    }
}

/// The circles of a crate with a type `A` of which two files have methods.
fn circles_of_two(first: &str, second: &str, others: &[(&str, &str)]) -> Vec<String> {
    let mut files =
        vec![("src/lib.rs", "pub struct A;"), ("src/b.rs", first), ("src/c.rs", second)];
    files.extend(others);
    circles(&files)
}

#[test]
fn files_that_call_each_others_methods_are_found() {
    const FIRST: &str = "use crate::A; impl A { fn f(&self) { self.g() } }";
    // With these, a name alone tells no type.
    let others = ("src/d.rs", "struct D; impl D { fn f(&self) {} fn g(&self) {} fn n() {} }");
    for (first, second) in [
        (FIRST, "use crate::A; impl A { fn g(&self) { self.f() } }"),
        (FIRST, "use crate::A; impl A { fn g(&self) { m!(1, { x = self.f() }) } }"),
        (FIRST, "use crate::A; impl A { fn g(&self) { self.f::<u8>() } }"),
        (FIRST, "use crate::A; impl A { fn g(&self) { Self::f(self) } }"),
        (FIRST, "use crate::A; impl A { fn g(&self) { x.map(Self::f) } }"),
        (FIRST, "use crate::A; impl A { fn g(&self) { fn f() {} self.f() } }"),
        (
            FIRST,
            "use crate::A; impl A { const fn g(&self) {} } impl T for A { fn f() { self.f() } }",
        ),
        (FIRST, "use crate::A as B; impl B { fn g(&self) {} } fn h() { B::f(b) }"),
        (FIRST, "impl crate::A { fn g(&self) {} } fn h() { crate::A::f() }"),
        (FIRST, "mod m { impl super::super::A { fn g(&self) { self.f() } } }"),
        (
            "use crate::A; impl A { fn f() -> u8 { Self::N } }",
            "use crate::A; impl A { const N: u8 = Self::f(); }",
        ),
        (
            "use crate::A; impl<'a, T: Fn(u8) -> Vec<T>> A<'a, [T; 2]> where T: F<T> { fn f() { Self::g() } }",
            "use crate::A; impl<T> A<T> where for<'b> T: F<'b> { fn g(&self) { self.f() } }",
        ),
        (
            "use crate::A; #[m] impl A { fn f(&self) { self.g() } }",
            "use crate::A; unsafe impl<T> D<T> for &'a mut A<T> { fn d() { self.f() } } impl A { fn g() {} }",
        ),
    ] {
        let circles = circles_of_two(first, second, &[others]);
        assert_eq!(circles, ["src/b.rs src/c.rs"], "{first} {second}");
    }
    let third = ("src/d.rs", "use crate::A; impl A { fn h(&self) { self.f() } }");
    let second = "use crate::A; impl A { fn g(&self) { self.h() } }";
    assert_eq!(circles_of_two(FIRST, second, &[third]), ["src/b.rs src/c.rs src/d.rs"]);
}

#[test]
fn a_name_that_is_defined_once_tells_the_type() {
    let first = "use crate::A; impl A { fn f(&self) { self.g() } }";
    for second in [
        "use crate::A; impl A { fn g(&self) {} } fn h(a: &A) { a.f() }",
        "use crate::A; impl A { fn g(&self) {} } fn h() { x().f() }",
        "use crate::A; impl A { fn g(&self) {} } #[cfg(test)] mod tests { fn f() {} } fn h() { x.a.f() }",
    ] {
        assert_eq!(circles_of_two(first, second, &[]), ["src/b.rs src/c.rs"], "{second}");
    }
}

#[test]
fn an_import_and_a_call_make_a_circle() {
    for second in [
        "use crate::{A, b::B}; impl A { fn g(&self) -> B {} }",
        "impl crate::A { fn g(&self) { crate::b::h() } }",
    ] {
        let first = "use crate::A; impl A { fn f(&self) { self.g() } } pub struct B; pub fn h() {}";
        assert_eq!(circles_of_two(first, second, &[]), ["src/b.rs src/c.rs"], "{second}");
    }
    // The file of the type calls what another has for it.
    let files = [
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "pub struct A; impl Drop for A { fn drop(&mut self) { self.end() } }"),
        ("src/b.rs", "use crate::a::A; impl A { pub fn end(&self) {} }"),
    ];
    assert_eq!(circles(&files), ["src/a.rs src/b.rs"]);
}

#[test]
fn calls_that_go_one_way_or_may_mean_others_make_no_circle() {
    const FIRST: &str =
        "use crate::A; impl A { fn f(&self) { self.g() } fn len(&self) {} fn once(&self) {} }";
    let other = ("src/d.rs", "pub struct D; impl D { fn f(&self) {} }");
    for second in [
        "use crate::A; impl A { fn g(&self) {} }",
        "use crate::A; impl A { fn g(&self) { self.h() } fn h(&self) { Self::g() } }",
        // Two types have an `f`.
        "use crate::A; impl A { fn g(&self, a: &A) { a.f() } }",
        "use crate::{A, d::D}; impl A { fn g(&self, d: D) { d.f(); D::f() } }",
        "use crate::A; struct S; impl S { fn f(&self) {} fn x(&self) { self.f() } } impl A { fn g() {} }",
        // Std has a `len`.
        "use crate::A; impl A { fn g(&self, v: Vec<u8>) { v.len() } }",
        // A field, a range, a function and a path of another's.
        "use crate::A; impl A { fn g(&self) { (self.once)(); once(); 0..once(); x::once() } }",
        "use crate::A; impl A { fn g(&self) {} } #[cfg(test)] mod t { fn t() { A::f(a); a.once() } }",
    ] {
        assert_eq!(circles_of_two(FIRST, second, &[other]), Vec::<String>::new(), "{second}");
    }
    // Both files have an `f`, for one target each.
    let both = "use crate::A; #[cfg(unix)] impl A { fn f(&self) {} fn g(&self) { self.h() } }";
    let again = "use crate::A; #[cfg(windows)] impl A { fn f(&self) {} fn h(&self) { self.f() } }";
    assert_eq!(circles_of_two(both, again, &[]), Vec::<String>::new());
    // What calls a method of the name alone does not know the type.
    let files = [
        ("src/lib.rs", "mod a; mod b; mod d;"),
        ("src/a.rs", "use crate::b::B; pub struct A; impl A { fn f(&self) {} }"),
        ("src/d.rs", "use crate::a::A; impl A { fn g(&self) {} }"),
        ("src/b.rs", "pub struct B; fn h() { x.g() }"),
    ];
    assert_eq!(circles(&files), Vec::<String>::new());
    // Types of one name in two modules.
    let files = [
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "pub struct A; impl A { fn f(&self) { self.g() } }"),
        ("src/b.rs", "pub struct A; impl A { fn g(&self) { self.f() } }"),
    ];
    assert_eq!(circles(&files), Vec::<String>::new());
}

#[test]
fn a_circle_says_which_methods_make_it() {
    let sources = [
        ("src/a.rs", "pub struct A; impl A { fn f(&self) { self.g(); self.h() } }"),
        ("src/b.rs", "use crate::a::A; impl A { fn g(&self) {} fn h(&self) {} }"),
    ]
    .map(|(path, text)| Source::parse(path, text).unwrap());
    let mut findings = Vec::new();
    circles::no_circles(&sources, &mut findings);
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    let text = "src/a.rs:1: 2 files need each other:\n    \
        src/a.rs: src/b.rs (g, h)\n    src/b.rs: src/a.rs";
    assert_eq!(finding.to_string(), text);
}

#[test]
fn a_name_of_a_file_is_one_of_few() {
    let parse = |path: &&str| Source::parse(path, "").unwrap();
    let found = |paths: &[&str]| {
        let mut findings = Vec::new();
        let sources: Vec<Source> = paths.iter().map(parse).collect();
        file_names::said_what_they_hold(&sources, &mut findings);
        findings.len()
    };
    let four = ["src/a/x.rs", "src/b/x.rs", "src/c/x.rs", "crates/pool/src/x.rs"];
    assert_eq!(found(&four), 0);
    for (fifth, findings) in [
        ("src/d/x.rs", 1),
        ("src/d/tests/x.rs", 1),
        ("crates/sync/src/x.rs", 1),
        ("src/d/y.rs", 0),
        ("src/d/xx.rs", 0),
        ("tests/x.rs", 0),
    ] {
        assert_eq!(found(&[&four[..], &[fifth]].concat()), findings, "{fifth}");
    }
    for name in ["mod", "tests", "lib", "main"] {
        let paths = ["a", "b", "c", "d", "e"].map(|folder| format!("src/{folder}/{name}.rs"));
        assert_eq!(found(&paths.each_ref().map(String::as_str)), 0, "{name}");
    }
}

#[test]
fn no_test_is_ignored() {
    for bad in [
        "#[test] #[ignore] fn f() {}",
        "#[test] #[ignore = \"slow\"] fn f() {}",
        "#[cfg_attr(miri, ignore)] #[test] fn f() {}",
    ] {
        assert_eq!(found(rules::nothing_ignored, "tests/pool.rs", bad), [1], "{bad}");
    }
    for good in ["// #[ignore]\n", "fn ignore() {}", "fn f() { g(\"#[ignore]\") }"] {
        assert!(found(rules::nothing_ignored, "tests/pool.rs", good).is_empty(), "{good}");
    }
}

#[test]
fn no_example_is_ignored() {
    for bad in [
        "/// ```ignore\n/// f();\n/// ```\nfn f() {}",
        "//! ```rust,ignore\n//! f();\n//! ```",
        "#[doc = \"```ignore\\nf();\\n```\"] fn f() {}",
    ] {
        assert_eq!(found(rules::no_ignored_doctest, "src/pool.rs", bad), [1], "{bad}");
    }
    for good in [
        "/// ```no_run\n/// ignore();\n/// ```\nfn f() {}",
        "/// ```\n/// f();\n/// ```\n/// Others ignore it.\nfn f() {}",
        "/** ```text\n ignore\n ``` */ fn f() {}",
    ] {
        assert!(found(rules::no_ignored_doctest, "src/pool.rs", good).is_empty(), "{good}");
    }
}

#[test]
fn an_example_that_must_not_compile_says_so() {
    for bad in [
        "/// ```compile_fail\n/// f();\n/// ```\nfn f() {}",
        "/// It goes:\n///\n/// ```compile_fail\n/// f();\n/// ```\nfn f() {}",
        "/// This does not compile.\n///\n/// It goes:\n/// ```compile_fail\n/// f();\n/// ```\nfn f() {}",
    ] {
        let lines = found(rules::said_not_to_compile, "src/pool.rs", bad);
        assert_eq!(lines.len(), 1, "{bad}");
    }
    for good in [
        "/// This does not compile, since\n/// it is wrong:\n///\n/// ```compile_fail\n/// f();\n/// ```\nfn f() {}",
        "/// ```\n/// f();\n/// ```\nfn f() {}",
    ] {
        assert!(found(rules::said_not_to_compile, "src/pool.rs", good).is_empty(), "{good}");
    }
}

#[test]
fn this_program_keeps_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let own = sources(root, &["xtask/src"]).unwrap();
    assert!(!own.is_empty());
    assert_eq!(check(&own), []);
}

#[test]
fn what_is_no_rust_is_an_error_with_its_place() {
    let error = Source::parse("src/x.rs", "fn f() {\n").err().unwrap();
    assert!(error.to_string().starts_with("src/x.rs:"), "{error}");
}
