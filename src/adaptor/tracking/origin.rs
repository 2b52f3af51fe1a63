//! Who allocated: the first frame of a backtrace that is neither ours nor the language's.

use std::backtrace::Backtrace;

/// What stands between an allocation and the code that wanted it.
const PASSED_OVER: [&str; 4] = ["aquifer", "std", "core", "alloc"];

/// The function, and the file and line where they are known, as the backtrace prints them.
pub(super) fn origin(backtrace: &Backtrace) -> Option<String> {
    // The frames themselves are not stable; their printed form has one line for the function and
    // one for the place.
    first_outside(&backtrace.to_string())
}

fn first_outside(text: &str) -> Option<String> {
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(function) = function(line) else { continue };
        let place = lines.next_if(|line| line.trim_start().starts_with("at "));
        let outside = match krate(function) {
            Some(krate) => !PASSED_OVER.contains(&krate),
            // A build with line tables only prints names without paths, and places.
            None => place.is_some_and(|place| is_outside(place.trim())),
        };
        if outside {
            return Some(match place {
                Some(place) => format!("{} in {function}", place.trim()),
                None => format!("in {function}"),
            });
        }
    }
    None
}

/// Whether `at <file>:<line>:<column>` is neither in this crate's source nor in the language's.
fn is_outside(place: &str) -> bool {
    const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/");
    let file = place.strip_prefix("at ").unwrap_or(place);
    // What lies below the working directory is printed relative to it.
    let absolute = match (file.strip_prefix("./"), std::env::current_dir()) {
        (Some(rest), Ok(folder)) => folder.join(rest).to_string_lossy().into_owned(),
        _ => file.to_owned(),
    };
    !absolute.starts_with(OURS) && !absolute.contains("/rustc/") && !absolute.contains("/library/")
}

/// The function of a line such as `   3: vectors::main`.
fn function(line: &str) -> Option<&str> {
    let (number, function) = line.trim_start().split_once(": ")?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some(function)
}

/// The crate of a function: of its type, where it is a trait's; of the trait, where the type is a
/// parameter. `None` for what has no path: a function of C, or a frame without a name.
fn krate(function: &str) -> Option<&str> {
    head(function).or_else(|| head(function.split_once(" as ")?.1))
}

/// The first name of a path, past what may stand before it.
fn head(text: &str) -> Option<&str> {
    let outside = |letter: char| !letter.is_alphanumeric() && letter != '_';
    let mut path = text.trim_start_matches(outside);
    for word in ["mut ", "const ", "dyn "] {
        path = path.strip_prefix(word).unwrap_or(path);
    }
    let (name, mut rest) = path.split_at(path.find(outside)?);
    // Newer symbols may carry the crate's number: `name[0123abcd]::path`.
    if let Some(number) = rest.strip_prefix('[') {
        rest = number.split_once(']')?.1;
    }
    rest.starts_with("::").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_first_frame_outside_is_named_with_its_place_where_there_is_one() {
        let ours = "   0: std::backtrace::Backtrace::create\n   1: <aquifer::A as aquifer::R>::allocate\n\
                    \x20            at ./src/a.rs:1:2\n   2: _start\n";
        assert_eq!(first_outside(ours), None);
        let with =
            format!("{ours}   3: vectors::main\n             at ./src/main.rs:7:9\n   4: x::y\n");
        assert_eq!(first_outside(&with).unwrap(), "at ./src/main.rs:7:9 in vectors::main");
        let without = format!("{ours}   3: vectors::main\n   4: x::y\n             at ./x.rs:1:1");
        assert_eq!(first_outside(&without).unwrap(), "in vectors::main");
        assert_eq!(first_outside("disabled backtrace"), None);
        // As a build with line tables only prints them.
        let bare = concat!(
            "   0: create\n             at /rustc/0123/library/std/src/backtrace.rs:1:1\n",
            "   1: allocate<f32>\n             at ",
            env!("CARGO_MANIFEST_DIR"),
            "/src/adaptor/tracking/mod.rs:2:3\n   2: leak\n             at ./main.rs:7:9\n",
        );
        assert_eq!(first_outside(bare).unwrap(), "at ./main.rs:7:9 in leak");
    }
}
