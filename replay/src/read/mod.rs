//! The readers: one for each format, and which one a file wants.

mod cell;
mod error;
mod events;
mod pickle;
mod rmm;
mod torch;

pub use error::ReadError;

use crate::event::Log;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The formats of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// RMM's logging adaptor: `Thread,Time,Action,Pointer,Size,Stream`.
    Rmm,
    /// NBEP 7's events: twelve columns, the first of them `Event Type`.
    Events,
    /// PyTorch's `torch.cuda.memory._dump_snapshot`: a pickle.
    Torch,
}

/// Reads the log at `path`: of `format`, or of the format that its first bytes are of. Of a log
/// with several devices, the events of `device`, or of the first that has any.
///
/// # Errors
///
/// [`ReadError`] names the file, the line or record, the column and what was expected there.
pub fn read(path: &Path, format: Option<Format>, device: Option<i64>) -> Result<Log, ReadError> {
    let unreadable = |source| ReadError::Open { path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(unreadable)?);
    let start = reader.fill_buf().map_err(unreadable)?;
    let format = match format.or_else(|| detect(start)) {
        Some(format) => format,
        None => {
            let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let found = String::from_utf8_lossy(line).chars().take(80).collect();
            return Err(ReadError::Unknown { path: path.to_owned(), found });
        }
    };
    match format {
        Format::Rmm => rmm::read(path, reader),
        Format::Events => events::read(path, reader, device),
        Format::Torch => torch::read(path, reader, device),
    }
}

/// What the first bytes of a file are of.
fn detect(start: &[u8]) -> Option<Format> {
    // A pickle of protocol 2 or later starts with its PROTO code.
    if start.first() == Some(&0x80) {
        return Some(Format::Torch);
    }
    let line = start.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line).to_lowercase();
    let first = line.trim_start_matches('\u{feff}').split(',').next()?.trim().trim_matches('"');
    match first {
        "thread" => Some(Format::Rmm),
        "event type" => Some(Format::Events),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        assert_eq!(detect(b"Thread,Time,Action,Pointer,Size,Stream\n1,"), Some(Format::Rmm));
        assert_eq!(detect("\u{feff}\"Thread\",Time\r\n".as_bytes()), Some(Format::Rmm));
        assert_eq!(detect(b"Event Type,Device ID\n"), Some(Format::Events));
        assert_eq!(detect(b"\x80\x04\x95"), Some(Format::Torch));
        assert_eq!(detect(b""), None);
        assert_eq!(detect(b"{\"traceEvents\": []}"), None);
    }
}
