//! What is wrong with a log, and where.

use std::io;
use std::path::PathBuf;

/// Characters of a log that a message shows.
const SHOWN: usize = 80;

/// The start of what is in a log, which may be the whole file.
pub(super) fn brief(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A log could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file itself.
    #[error("{}: cannot be read", path.display())]
    Open {
        /// The log.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file, behind some of its lines.
    #[error("{}: cannot be read after line {line}", path.display())]
    Interrupted {
        /// The log.
        path: PathBuf,
        /// The last line that was read, from 1.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// The format is none that is known here.
    #[error(
        "{}: no format is known that starts with {found:?}: expected RMM's header \
         `Thread,Time,Action,Pointer,Size,Stream`, NBEP 7's `Event Type,Device ID,...` or a \
         pickle of PyTorch (--format says which it is)",
        path.display()
    )]
    Unknown {
        /// The log.
        path: PathBuf,
        /// Its first line; of a long one the start.
        found: String,
    },
    /// The file is nothing that a log can be.
    #[error("{}: {what}", path.display())]
    NoLog {
        /// The log.
        path: PathBuf,
        /// What it is, and what to do.
        what: &'static str,
    },
    /// The header lacks a column.
    #[error("{}:{line}: no column {column}: expected the header `{expected}`, found {found:?}", path.display())]
    Header {
        /// The log.
        path: PathBuf,
        /// The header's line, from 1.
        line: u64,
        /// The column that is not there.
        column: &'static str,
        /// All columns of the format.
        expected: String,
        /// The header as it is; of a long one the start.
        found: String,
    },
    /// The header has a column twice.
    #[error("{}:{line}: two columns {column}: which one is it?", path.display())]
    TwoColumns {
        /// The log.
        path: PathBuf,
        /// The header's line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
    },
    /// A line has more cells than the header.
    #[error("{}:{line}: {found} cells, and the header has {expected}", path.display())]
    Cells {
        /// The log.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The header's cells.
        expected: usize,
        /// The line's.
        found: usize,
    },
    /// A line is no line of a CSV.
    #[error("{}:{line}: not a line of a CSV in UTF-8", path.display())]
    Csv {
        /// The log.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// Why.
        source: csv::Utf8Error,
    },
    /// A cell has not what its column wants.
    #[error("{}:{line}: column {column}: expected {expected}, found {found}", path.display())]
    Cell {
        /// The log.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column's name.
        column: &'static str,
        /// What belongs there.
        expected: &'static str,
        /// What is there, in quotes; of a long cell the start.
        found: String,
    },
    /// The file is not a pickle, or not a whole one.
    #[error("{}: byte {offset}: not a whole pickle: {reason}", path.display())]
    Pickle {
        /// The log.
        path: PathBuf,
        /// Where in the file, from 0.
        offset: u64,
        /// Why.
        reason: &'static str,
    },
    /// The file is a pickle, and another format was asked.
    #[error(
        "{}: the file is a pickle, as PyTorch's snapshots are, and --format {asked} reads a CSV: \
         leave --format out",
        path.display()
    )]
    IsPickle {
        /// The log.
        path: PathBuf,
        /// The format, as the program names it.
        asked: &'static str,
    },
    /// A pickle was asked, and the file is none.
    #[error("{}: not a pickle: it begins with {found:?}; leave --format torch out", path.display())]
    NoPickle {
        /// The log.
        path: PathBuf,
        /// Its first line; of a long one the start.
        found: String,
    },
    /// A value of a snapshot is not what its place wants.
    #[error("{}: {place}: expected {expected}, found {found}", path.display())]
    Record {
        /// The log.
        path: PathBuf,
        /// The record, and the way to the value in Python: `record 13 (device_traces[0][12]['addr'])`.
        place: String,
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// No event is of the device that was asked.
    #[error("{}: no events of device {device}", path.display())]
    NoDevice {
        /// The log.
        path: PathBuf,
        /// The device's number.
        device: i64,
    },
    /// A device was asked of a log that tells none.
    #[error("{}: a log of RMM does not tell devices: leave --log-device out", path.display())]
    NoDevices {
        /// The log.
        path: PathBuf,
    },
}
