//! The readers: one for each format, and which one a file wants.

mod cell;
mod error;
mod events;
mod pickle;
mod rmm;
mod torch;

pub use error::ReadError;

use crate::event::{Log, printable};
use error::brief;
use std::fs::File;
use std::io::{self, Read};
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

impl Format {
    /// The name that the program's option `--format` has for it.
    fn name(self) -> &'static str {
        match self {
            Self::Rmm => "rmm",
            Self::Events => "events",
            Self::Torch => "torch",
        }
    }
}

/// Reads the log at `path`: of `format`, or of the format that its first bytes are of. The path `-` is
/// standard input. Of a log with several devices, the events of `device`, or of the first that has
/// any. What is not read, or not as it stands, is among the log's warnings.
///
/// # Errors
///
/// [`ReadError`] names the file, the line or record, the column and what was expected there.
pub fn read(path: &Path, format: Option<Format>, device: Option<i64>) -> Result<Log, ReadError> {
    let name = name(path);
    if name != path {
        return of(name, io::stdin().lock(), format, device);
    }
    let file = File::open(path);
    of(
        name,
        file.map_err(|source| ReadError::Open { path: path.to_owned(), source })?,
        format,
        device,
    )
}

/// What a log at `path` is called: `standard input` for `-`.
pub fn name(path: &Path) -> &Path {
    if path == Path::new("-") { Path::new("standard input") } else { path }
}

/// The bytes of a file in which its format is looked for.
const START: u64 = 8192;

fn of(
    path: &Path,
    mut reader: impl Read,
    format: Option<Format>,
    device: Option<i64>,
) -> Result<Log, ReadError> {
    let mut start = Vec::new();
    let looked = reader.by_ref().take(START).read_to_end(&mut start);
    looked.map_err(|source| ReadError::Open { path: path.to_owned(), source })?;
    if let Some(what) = no_log(&start) {
        return Err(ReadError::NoLog { path: path.to_owned(), what });
    }
    let detected = detect(&start);
    let found = brief(&String::from_utf8_lossy(first_line(&start)));
    let Some(format) = format.or(detected) else {
        return Err(ReadError::Unknown { path: path.to_owned(), found });
    };
    if format != Format::Torch && detected == Some(Format::Torch) {
        return Err(ReadError::IsPickle { path: path.to_owned(), asked: format.name() });
    }
    if format != Format::Torch && ends_in_cr(&start) {
        let what = "its lines end in CR alone: make them LF first, with tr '\\r' '\\n'";
        return Err(ReadError::NoLog { path: path.to_owned(), what });
    }
    let reader = (&*start).chain(reader);
    let mut log = match format {
        Format::Rmm if device.is_some() => Err(ReadError::NoDevices { path: path.to_owned() }),
        Format::Rmm => rmm::read(path, reader),
        Format::Events => events::read(path, reader, device),
        Format::Torch => match torch::read(path, reader, device) {
            Err(ReadError::Pickle { path, .. }) if detected != Some(Format::Torch) => {
                Err(ReadError::NoPickle { path, found })
            }
            read => read,
        },
    }?;
    log.name = printable(&path.file_name().unwrap_or_default().to_string_lossy());
    Ok(log)
}

/// The first line that is not blank.
fn first_line(start: &[u8]) -> &[u8] {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let mut lines = start.trim_ascii_start().split(|byte| *byte == b'\n');
    lines.next().unwrap_or_default().trim_ascii_end()
}

/// Whether a text's first line goes on behind a CR, as in files of the first Macs.
fn ends_in_cr(start: &[u8]) -> bool {
    let mut parts = first_line(start).split(|byte| *byte == b'\r');
    parts.next();
    parts.any(|part| !part.is_empty())
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
        _ if first_line(start).is_empty() => Some(
            "the file begins with nothing but blank lines: was the log flushed, and its program at \
             an end?",
        ),
        _ => None,
    }
}

/// What the first bytes of a file are of.
fn detect(start: &[u8]) -> Option<Format> {
    // A pickle of protocol 2 or later starts with its PROTO code; before it, a dict with these.
    if start.first() == Some(&0x80) || start.starts_with(b"(dp") || start.starts_with(b"}q") {
        return Some(Format::Torch);
    }
    let line = first_line(start).split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).to_lowercase();
    let names: Vec<&str> =
        line.split(',').map(|name| name.trim().trim_matches('"').trim()).collect();
    let there = |columns: &[&str]| {
        columns.iter().filter(|column| names.contains(&&*column.to_lowercase())).count()
    };
    let formats = [(Format::Rmm, rmm::COLUMNS), (Format::Events, events::COLUMNS)];
    let whole = formats.iter().find(|(_, columns)| there(columns) == columns.len());
    // Otherwise the one of which most is there, so that the column is named that lacks.
    let most = || formats.iter().find(|(_, columns)| 2 * there(columns) > columns.len());
    if let Some((format, _)) = whole.or_else(most) {
        return Some(*format);
    }
    match *names.first()? {
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
        assert_eq!(
            detect(b"Size,Action, \"Pointer\" ,Stream,More,Time,thread\r\n"),
            Some(Format::Rmm)
        );
        // One column lacks, which is named; of something else more do.
        assert_eq!(detect(b"Size,Action,Pointer,Stream,Time\n"), Some(Format::Rmm));
        assert_eq!(detect(b"Size,Action,Pointer,More\n"), None);
        let events = events::COLUMNS.join(",").replace("Address,", "");
        assert_eq!(detect(events.as_bytes()), Some(Format::Events));
        assert_eq!(detect(b"\n \r\n\xef\xbb\xbf"), None);
        assert_eq!(detect(b"\xef\xbb\xbf\n \r\nThread,Time\n"), Some(Format::Rmm));
        assert_eq!(detect(b"\x80\x04\x95"), Some(Format::Torch));
        assert_eq!(detect(b""), None);
        assert_eq!(detect(b"{\"traceEvents\": []}"), None);
    }
}
