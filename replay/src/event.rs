//! What all logs are read into.

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

/// One line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The place in the log's order, from 0.
    pub index: usize,
    /// The line of a text, or the record of a snapshot, from 1: what a person looks for.
    pub line: u64,
    /// The thread, as an index into [`Log::threads`].
    pub thread: usize,
    /// When, in nanoseconds since the log's first event with a time.
    pub time: Option<u64>,
    /// What was done.
    pub action: Action,
    /// The address in the process that wrote the log; 0 for a failure.
    pub address: u64,
    /// Bytes, as they were asked.
    pub size: u64,
    /// The stream, as an index into [`Log::streams`].
    pub stream: usize,
}

/// A log that was read.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The events of one device, in the log's order.
    pub events: Vec<Event>,
    /// The threads' names.
    pub threads: Vec<String>,
    /// The streams' names: `default`, `per-thread/NAME`, or the handle in hex.
    pub streams: Vec<String>,
    /// Whose events these are, where the log says.
    pub device: Option<i64>,
    /// Events of other devices, which were left out.
    pub other_devices: usize,
    /// The last line, if it is no whole line: its writer was killed. It is no event.
    pub cut: Option<u64>,
    /// What a line is called: `line` of a text, `record` of a snapshot.
    pub line_word: &'static str,
}

/// Gives names numbers in the order of their first use.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: HashMap<String, usize>,
    names: Vec<String>,
    /// A log names the same one many times in a row.
    last: usize,
}

impl Names {
    pub(crate) fn number(&mut self, name: &str) -> usize {
        if self.names.get(self.last).is_some_and(|last| last == name) {
            return self.last;
        }
        self.last = match self.numbers.get(name) {
            Some(number) => *number,
            None => {
                self.numbers.insert(name.to_owned(), self.names.len());
                self.names.push(name.to_owned());
                self.names.len() - 1
            }
        };
        self.last
    }

    pub(crate) fn into_vec(self) -> Vec<String> {
        self.names
    }
}
