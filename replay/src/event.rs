//! What all logs are read into.

use crate::warning::Warning;
use std::collections::HashMap;

/// What one line of a log says was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Memory was handed out.
    Allocate,
    /// Memory was taken back.
    Free,
    /// An allocation was refused when the log was written.
    Failure,
}

/// The line of memory that was live before the first.
pub const BEFORE: u64 = 0;

/// The line of what came behind the last.
pub const AFTER: u64 = u64::MAX;

/// One line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The place in the log's order, from 0.
    pub index: usize,
    /// The line of a text, or the record of a snapshot, from 1: what a person looks for. [`BEFORE`] and
    /// [`AFTER`] for what a snapshot has live and no record has.
    pub line: u64,
    /// The thread, as an index into [`Log::threads`].
    pub thread: usize,
    /// When, in nanoseconds since the log's first event with a time.
    pub time: Option<u64>,
    /// What was done.
    pub action: Action,
    /// The address in the process that wrote the log; 0 for a failure.
    pub address: u64,
    /// Bytes, as they were asked. `None` for a free whose log does not tell.
    pub size: Option<u64>,
    /// The stream, as an index into [`Log::streams`].
    pub stream: usize,
}

/// What a stream of a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// CUDA's legacy default stream.
    Default,
    /// The default stream of a thread.
    PerThread,
    /// A stream that was made.
    Other,
}

/// A stream of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogStream {
    /// As the log names it at its first use, without control characters, and at most 255 characters
    /// of it. The default stream of a thread has the thread's name behind it.
    pub name: String,
    /// What it is.
    pub kind: StreamKind,
}

/// Characters of a name that are kept.
const LONGEST_NAME: usize = 255;

/// A name that any output can carry: control characters, which XML cannot, become U+FFFD.
pub(crate) fn printable(name: &str) -> String {
    let shown = |c: char| {
        if c.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&c) { '\u{fffd}' } else { c }
    };
    name.chars().take(LONGEST_NAME).map(shown).collect()
}

/// A log that was read.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The file's name.
    pub name: String,
    /// The events of one device, in the log's order.
    pub events: Vec<Event>,
    /// The threads' names.
    pub threads: Vec<String>,
    /// The streams.
    pub streams: Vec<LogStream>,
    /// Whose events these are, where the log says.
    pub device: Option<i64>,
    /// Events of other devices, which were left out.
    pub other_devices: usize,
    /// The last line, if it is no whole line: its writer was killed. It is no event.
    pub cut: Option<u64>,
    /// The last line, if it is an event and has no end: its last cell may be cut off.
    pub unended: Option<u64>,
    /// What is not replayed, or not as it stands.
    pub warnings: Vec<Warning>,
    /// What a line is called: `line` of a text, `record` of a snapshot.
    pub line_word: &'static str,
}

/// Gives keys numbers in the order of their first use, and keeps what belongs to each.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    numbers: HashMap<String, usize>,
    keys: Vec<String>,
    values: Vec<T>,
    /// A log names the same one many times in a row.
    last: usize,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), keys: Vec::new(), values: Vec::new(), last: 0 }
    }
}

impl<T> Numbered<T> {
    /// The number of a key. `value` is made at its first use.
    pub(crate) fn number(&mut self, key: &str, value: impl FnOnce() -> T) -> usize {
        if self.keys.get(self.last).is_some_and(|last| last == key) {
            return self.last;
        }
        self.last = match self.numbers.get(key) {
            Some(number) => *number,
            None => {
                self.numbers.insert(key.to_owned(), self.keys.len());
                self.keys.push(key.to_owned());
                self.values.push(value());
                self.keys.len() - 1
            }
        };
        self.last
    }

    pub(crate) fn into_vec(self) -> Vec<T> {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printable() {
        assert_eq!(printable("a\u{1}b<&\"\u{ffff}é"), "a\u{fffd}b<&\"\u{fffd}é");
        assert_eq!(printable(&"x".repeat(1000)).len(), 255);
    }

    #[test]
    fn the_first_spelling_stays() {
        let mut numbered = Numbered::default();
        assert_eq!(numbered.number("a", || 1), 0);
        assert_eq!(numbered.number("b", || 2), 1);
        assert_eq!(numbered.number("a", || 3), 0);
        assert_eq!(numbered.into_vec(), [1, 2]);
    }
}
