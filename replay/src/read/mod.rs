//! The readers: one for each format, and which one a file wants.

mod cell;
mod error;
mod events;
mod pickle;
mod rmm;
mod torch;

pub use error::ReadError;

use crate::event::{Log, printable};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
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
    let mut file = File::open(path).map_err(unreadable)?;
    let cut = cut(&mut file);
    let mut reader = BufReader::new(file);
    let start = reader.fill_buf().map_err(unreadable)?;
    if let Some(what) = no_log(start) {
        return Err(ReadError::NoLog { path: path.to_owned(), what });
    }
    let format = match format.or_else(|| detect(start)) {
        Some(format) => format,
        None => {
            let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let found = String::from_utf8_lossy(line).chars().take(80).collect();
            return Err(ReadError::Unknown { path: path.to_owned(), found });
        }
    };
    let mut log = match format {
        Format::Rmm if device.is_some() => Err(ReadError::NoDevices { path: path.to_owned() }),
        Format::Rmm => rmm::read(path, reader, cut),
        Format::Events => events::read(path, reader, device, cut),
        Format::Torch => torch::read(path, reader, device),
    }?;
    log.name = printable(&path.file_name().unwrap_or_default().to_string_lossy());
    Ok(log)
}

/// How many bytes a file has, if its last line does not end. `None` for what has no end to look at,
/// as a pipe.
fn cut(file: &mut File) -> Option<u64> {
    let mut last = [0];
    let looked = file.seek(SeekFrom::End(-1)).and_then(|at| {
        file.read_exact(&mut last)?;
        Ok(at + 1)
    });
    file.rewind().ok()?;
    looked.ok().filter(|_| last != *b"\n")
}

/// What a file is that nobody can read here, by its first bytes.
fn no_log(start: &[u8]) -> Option<&'static str> {
    match start {
        [] => Some("the file is empty: was the log flushed, and its program at an end?"),
        [0x1f, 0x8b, ..] => Some("the file is compressed: unpack it first, with gunzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            Some("the file is compressed: unpack it first, with unzstd")
        }
        [b'P', b'K', 3, 4, ..] => Some("the file is a zip archive: unpack it first"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            Some("the file is in UTF-16: make it UTF-8 first, with iconv")
        }
        _ => None,
    }
}

/// What the first bytes of a file are of.
fn detect(start: &[u8]) -> Option<Format> {
    // A pickle of protocol 2 or later starts with its PROTO code; before it, a dict with these.
    if start.first() == Some(&0x80) || start.starts_with(b"(dp") || start.starts_with(b"}q") {
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
