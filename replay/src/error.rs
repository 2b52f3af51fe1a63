//! Why a replay ended early.

use crate::words::line;
use aquifer::{Error, ErrorKind};
use std::fmt;

/// Where in a log a replay was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the first operation.
    Start,
    /// At this line or record.
    Line(u64),
    /// After the last operation.
    End,
}

/// A replay that ended with an error, which is no lack of memory: that is a failure in the report.
#[derive(Clone, Debug)]
pub struct ReplayError {
    /// Where.
    pub moment: Moment,
    /// What a line is called: `line` of a text, `record` of a snapshot.
    pub line_word: &'static str,
    /// What the device or the resource said.
    pub error: Error,
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { moment, line_word, error } = self;
        match moment {
            Moment::Start => error.fmt(f),
            Moment::Line(at) => write!(f, "{}: {error}", line(line_word, *at)),
            Moment::End => write!(f, "after the last {line_word}: {error}"),
        }
    }
}

impl std::error::Error for ReplayError {}

/// What an error says, without the advice in brackets: that is for programs which allocate, and a
/// replay shows what they would meet.
pub(crate) fn without_advice(error: &Error) -> String {
    let mut words = error.to_string();
    if error.kind() == ErrorKind::OutOfMemory
        && words.ends_with(')')
        && let Some(at) = words.rfind(" (")
    {
        words.truncate(at);
    }
    words
}

/// Whether an error is the answer of a resource that is full, and not the end of a replay.
pub(crate) fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::OutOfMemory
}
