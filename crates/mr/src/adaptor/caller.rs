//! The caller of this crate, which is the first frame of a backtrace outside this
//! crate and the standard library.

use super::call_stack::{CallStack, FrameFunction, short_path};
use crate::driver::{OWN_CRATES, OwnFiles};
use backtrace::SymbolName;
use std::env;
use std::path::Path;

/// Crates besides ours whose frames lie between an allocation and the program's code.
const SKIPPED: [&str; 5] = ["std", "core", "alloc", "allocator_api2", "backtrace"];

/// A function, and the line in it if it is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) function: String,
    /// `file:line`.
    pub(super) line: Option<String>,
    pub(super) column: Option<u32>,
}

impl Caller {
    /// Reads debug information up to the caller's frame, which may take milliseconds.
    pub(super) fn find(stack: &CallStack) -> Option<Self> {
        first_outside(stack.functions())
    }
}

fn first_outside(functions: impl IntoIterator<Item = FrameFunction>) -> Option<Caller> {
    functions.into_iter().find_map(|FrameFunction { name, file, line, column }| {
        let function = format!("{:#}", SymbolName::new(&name?));
        let place = file.zip(line);
        let outside = match krate(&function) {
            Some(krate) => !is_own_crate(krate) && !SKIPPED.contains(&krate),
            // A build with line tables alone has lines, and names without paths.
            None => place.as_ref().is_some_and(|(file, _)| is_outside(file)),
        };
        outside.then(|| {
            let folder = env::current_dir().ok();
            let line = place.map(|(file, line)| {
                format!("{}:{line}", short_path(Path::new(&file), folder.as_deref()))
            });
            Caller { function, line, column }
        })
    })
}

/// Whether a crate is one of ours: `aquifer`, or a part of it. Other libraries may begin with the same word.
fn is_own_crate(krate: &str) -> bool {
    krate.strip_prefix("aquifer").is_some_and(|part| {
        part.is_empty() || part.strip_prefix('_').is_some_and(|part| OWN_CRATES.contains(&part))
    })
}

/// Whether a file is outside the source of our crates and of the [`SKIPPED`] ones.
fn is_outside(file: &str) -> bool {
    let theirs = ["/rustc/", "/library/", "/allocator-api2-", "/backtrace-0."];
    let own = OwnFiles::beside(env!("CARGO_MANIFEST_DIR"), "mr");
    !own.is_some_and(|own| own.contain(file)) && !theirs.iter().any(|part| file.contains(part))
}

/// The crate of a function. The crate of a trait's method is its type's crate, or the trait's if the type
/// is a parameter. `None` for names without a path, such as those of C functions and unnamed frames.
fn krate(function: &str) -> Option<&str> {
    first_segment(function).or_else(|| first_segment(function.split_once(" as ")?.1))
}

/// The first name of a path, past references, brackets and keywords.
fn first_segment(text: &str) -> Option<&str> {
    let outside = |letter: char| !letter.is_alphanumeric() && letter != '_';
    let mut path = text.trim_start_matches(outside);
    for word in ["mut ", "const ", "dyn "] {
        path = path.strip_prefix(word).unwrap_or(path);
    }
    let (name, mut rest) = path.split_at(path.find(outside)?);
    // v0 symbols may have the crate's disambiguator: `name[0123abcd]::path`.
    if let Some(number) = rest.strip_prefix('[') {
        rest = number.split_once(']')?.1;
    }
    rest.starts_with("::").then_some(name)
}

#[cfg(test)]
mod tests;
