//! Which line of the program asked.

use crate::adaptor::caller::Caller;
use crate::sync::trusted::Mutex;
use std::backtrace::Backtrace;
use std::collections::HashMap;

/// The lines that asked, each with a number, so that a record stays small. As many as the program
/// has places that allocate.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: Mutex<(HashMap<String, u32>, Vec<String>)>,
}

impl Places {
    /// The number of the line that called into this crate, or of its function where the build kept no
    /// lines. Walks the stack, and looks each frame up.
    pub(super) fn here(&self) -> u32 {
        let Some(caller) = Caller::of(&Backtrace::force_capture()) else { return 0 };
        let place = match caller.place {
            Some(place) => without_column(&place).to_owned(),
            None => caller.function,
        };
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
    fn a_line_has_no_column() {
        for (place, line) in [
            ("./program, old/main.rs:42:13", "./program, old/main.rs:42"),
            ("./main.rs:42", "./main.rs:42"),
            ("C:\\main.rs:1:2", "C:\\main.rs:1"),
            ("main.rs", "main.rs"),
        ] {
            assert_eq!(without_column(place), line);
        }
    }
}
