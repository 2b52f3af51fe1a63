//! The first frame outside, of stacks that are made up.

use super::*;

const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/adaptor/tracking/mod.rs");

/// A file of the pool, beside this crate.
fn of_the_pool() -> String {
    OURS.replace("/mr/src/adaptor/tracking/mod.rs", "/pool/src/whole_blocks.rs")
}

fn function(name: &str, file: Option<&str>) -> FrameFunction {
    FrameFunction {
        name: Some(name.into()),
        file: file.map(str::to_owned),
        line: file.map(|_| 7),
        column: file.map(|_| 9),
    }
}

fn caller(function: &str, line: Option<&str>) -> Option<Caller> {
    let column = line.map(|_| 9);
    Some(Caller { function: function.to_owned(), line: line.map(str::to_owned), column })
}

#[test]
fn the_crate_of_a_function_is_that_of_its_type_or_trait() {
    for (function, expected) in [
        ("aquifer::container::device_vec::DeviceVec<T>::zeroed_in", Some("aquifer")),
        (
            "<aquifer::adaptor::A<U> as aquifer::resource::DeviceResource>::allocate",
            Some("aquifer"),
        ),
        ("<alloc::sync::Arc<R> as aquifer::resource::DeviceResource>::allocate", Some("alloc")),
        ("<&mut dyn vectors::Part as core::fmt::Debug>::fmt", Some("vectors")),
        ("<F as vectors::Load>::load", Some("vectors")),
        ("<[T] as core::ops::Index>::index", Some("core")),
        ("vectors[0123abcd]::main::{{closure}}", Some("vectors")),
        ("aquifer_extra::main", Some("aquifer_extra")),
        ("__libc_start_main", None),
        ("<unknown>", None),
    ] {
        assert_eq!(krate(function), expected, "{function}");
    }
}

#[test]
fn the_first_frame_outside_is_named_with_its_line_where_there_is_one() {
    let ours = || {
        [
            function("std::backtrace::Backtrace::create", None),
            function("<aquifer::A as aquifer::R>::allocate", Some(OURS)),
            function("<aquifer_core::A as aquifer_core::R>::allocate", None),
            function("aquifer_pool::whole_blocks::take_upstream", Some(&of_the_pool())),
            function("take_upstream", Some(&of_the_pool())),
            function("_start", None),
        ]
        .into_iter()
    };
    assert_eq!(first_outside(ours()), None);
    let main = env::current_dir().unwrap().join("src/main.rs");
    let with = [function("vectors::main", main.to_str()), function("x::y", None)];
    let expected = caller("vectors::main", Some("./src/main.rs:7"));
    assert_eq!(first_outside(ours().chain(with)), expected);
    let without = [function("vectors::main", None), function("x::y", Some("/x.rs"))];
    assert_eq!(first_outside(ours().chain(without)), caller("vectors::main", None));
    let friend = [function("aquifer_friend::main", None)];
    assert_eq!(first_outside(ours().chain(friend)), caller("aquifer_friend::main", None));
    assert_eq!(first_outside([]), None);
    // A build with line tables alone.
    let bare = [
        function("create", Some("/rustc/0123/library/std/src/backtrace.rs")),
        function("allocate<f32>", Some(OURS)),
        function("leak", Some("/program/main.rs")),
    ];
    assert_eq!(first_outside(bare), caller("leak", Some("/program/main.rs:7")));
}
