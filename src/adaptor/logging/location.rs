//! Which line of the program asked.

use crate::sync::trusted::Mutex;
use std::backtrace::Backtrace;
use std::collections::HashMap;

/// Crates whose frames are not the caller's: this one, and those it is reached through.
const PASSED: [&str; 5] = ["aquifer::", "std::", "core::", "alloc::", "allocator_api2::"];

/// The lines that asked, each with a number, so that a record stays small. As many as the program
/// has places that allocate.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: Mutex<(HashMap<String, u32>, Vec<String>)>,
}

impl Places {
    /// The number of the line that called into this crate. Microseconds: it walks the stack.
    pub(super) fn here(&self) -> u32 {
        let Some(place) = caller(&Backtrace::force_capture().to_string()) else { return 0 };
        let mut known = self.known.lock();
        let (numbers, names) = &mut *known;
        if let Some(number) = numbers.get(&place) {
            return *number;
        }
        names.push(place.clone());
        let number = u32::try_from(names.len()).unwrap_or(0);
        numbers.insert(place, number);
        number
    }

    /// The line of a number; empty for 0.
    pub(super) fn name(&self, number: u32) -> String {
        let index = (number as usize).wrapping_sub(1);
        self.known.lock().1.get(index).cloned().unwrap_or_default()
    }
}

/// The first frame that is not of [`PASSED`], as `file:line`; its function where the build kept no
/// lines.
fn caller(trace: &str) -> Option<String> {
    let mut named: Option<&str> = None;
    for line in trace.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("at ") {
            if named.is_some() {
                return Some(without_column(place).to_owned());
            }
            continue;
        }
        if let Some(function) = named {
            return Some(function.to_owned());
        }
        let name = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let name = name.strip_prefix(": ").unwrap_or(name);
        let bare = name.trim_start_matches(['<', '&', '(']).trim_start_matches("dyn ");
        if !bare.is_empty() && !PASSED.iter().any(|passed| bare.starts_with(passed)) {
            named = Some(name);
        }
    }
    named.map(str::to_owned)
}

fn without_column(place: &str) -> &str {
    match place.rsplit_once(':') {
        Some((line, column)) if column.parse::<u32>().is_ok() && line.contains(':') => line,
        _ => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frame_of_somebody_else_is_the_caller() {
        let trace = "   0: std::backtrace::Backtrace::create\n             at /rustc/x/lib.rs:1:2\n\
                     \x20  1: <aquifer::LoggingAdaptor<U> as aquifer::DeviceResource>::allocate\n\
                     \x20            at ./src/adaptor/logging.rs:9:5\n\
                     \x20  2: program::work\n             at ./program, old/main.rs:42:13\n";
        assert_eq!(caller(trace).as_deref(), Some("./program, old/main.rs:42"));
        let bare = "   0: aquifer::a\n   1: program::work\n   2: main\n";
        assert_eq!(caller(bare).as_deref(), Some("program::work"));
        assert_eq!(caller("   0: core::a\n"), None);
    }
}
