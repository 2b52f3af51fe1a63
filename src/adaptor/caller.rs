//! Who called: the first frame of a backtrace that is neither ours nor the language's.

use std::fmt::Display;

/// What stands between an allocation and the code that wanted it.
const PASSED_OVER: [&str; 6] = ["aquifer", "std", "core", "alloc", "allocator_api2", "backtrace"];

/// A function, and the place in it where that is known, as a backtrace prints them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) function: String,
    /// `file:line:column`.
    pub(super) place: Option<String>,
}

impl Caller {
    /// Of a backtrace, of the standard library or as it would print it. Reads debug information, which
    /// may take milliseconds.
    pub(super) fn of(backtrace: &impl Display) -> Option<Self> {
        // The frames themselves are not stable; their printed form has one line for the function
        // and one for the place.
        first_outside(&backtrace.to_string())
    }
}

fn first_outside(text: &str) -> Option<Caller> {
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(function) = function(line) else { continue };
        let place = lines.next_if(|line| line.trim_start().starts_with("at "));
        let place = place.map(|place| place.trim().trim_start_matches("at "));
        let outside = match krate(function) {
            Some(krate) => !PASSED_OVER.contains(&krate),
            // A build with line tables only prints names without paths, and places.
            None => place.is_some_and(is_outside),
        };
        if outside {
            let (function, place) = (function.to_owned(), place.map(str::to_owned));
            return Some(Caller { function, place });
        }
    }
    None
}

/// Whether `<file>:<line>:<column>` is not in the source of a crate that is passed over.
fn is_outside(file: &str) -> bool {
    const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/");
    // What lies below the working directory is printed relative to it.
    let absolute = match (file.strip_prefix("./"), std::env::current_dir()) {
        (Some(rest), Ok(folder)) => folder.join(rest).to_string_lossy().into_owned(),
        _ => file.to_owned(),
    };
    let theirs = ["/rustc/", "/library/", "/allocator-api2-", "/backtrace-0."];
    !absolute.starts_with(OURS) && !theirs.iter().any(|part| absolute.contains(part))
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

    fn caller(function: &str, place: Option<&str>) -> Option<Caller> {
        Some(Caller { function: function.to_owned(), place: place.map(str::to_owned) })
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
    fn the_first_frame_outside_is_named_with_its_place_where_there_is_one() {
        let ours = "   0: std::backtrace::Backtrace::create\n   1: <aquifer::A as aquifer::R>::allocate\n\
                    \x20            at ./src/a.rs:1:2\n   2: _start\n";
        assert_eq!(first_outside(ours), None);
        let with =
            format!("{ours}   3: vectors::main\n             at ./src/main.rs:7:9\n   4: x::y\n");
        assert_eq!(first_outside(&with), caller("vectors::main", Some("./src/main.rs:7:9")));
        let without = format!("{ours}   3: vectors::main\n   4: x::y\n             at ./x.rs:1:1");
        assert_eq!(first_outside(&without), caller("vectors::main", None));
        assert_eq!(first_outside("disabled backtrace"), None);
        // As a build with line tables only prints them.
        let bare = concat!(
            "   0: create\n             at /rustc/0123/library/std/src/backtrace.rs:1:1\n",
            "   1: allocate<f32>\n             at ",
            env!("CARGO_MANIFEST_DIR"),
            "/src/adaptor/tracking/mod.rs:2:3\n   2: leak\n             at ./main.rs:7:9\n",
        );
        assert_eq!(first_outside(bare), caller("leak", Some("./main.rs:7:9")));
    }
}
