//! A CSV with a header, cell by cell: addresses, times, streams.

use super::ReadError;
use super::error::brief;
use crate::event::{LogStream, StreamKind, printable};
use crate::warning::{Named, Part, Tally, Warning};
use csv::{ReaderBuilder, StringRecord, Terminator};
use std::io::{self, Read};
use std::path::Path;

/// A CSV whose columns were found by the names in its header.
pub(super) struct Table<'a, R> {
    path: &'a Path,
    reader: csv::Reader<Tail<R>>,
    record: StringRecord,
    /// The number of the line that was read, from 1; 0 before the first.
    number: u64,
    columns: Columns,
    /// Line ends inside cells, and the first line that has one.
    joined: Option<(Tally, u64)>,
}

/// What a table's header says of its lines.
#[derive(Default)]
struct Columns {
    names: &'static [&'static str],
    /// Where each of `names` is in a line.
    places: Vec<usize>,
    /// Cells of the header.
    width: usize,
    /// Whether a line may have more.
    more: bool,
    /// The columns that are not wanted.
    unread: Vec<String>,
}

/// Remembers how a file ends.
struct Tail<R> {
    inner: R,
    last: u8,
    ended: bool,
}

impl<R: Read> Read for Tail<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        match buffer[..count].last() {
            Some(last) => self.last = *last,
            None => self.ended |= !buffer.is_empty(),
        }
        Ok(count)
    }
}

/// One line of a [`Table`].
pub(super) struct Line<'a> {
    path: &'a Path,
    record: &'a StringRecord,
    columns: &'a Columns,
    /// The number of the line, from 1.
    pub(super) number: u64,
    /// Whether the line is the file's last and does not end: its writer may have been killed.
    pub(super) unended: bool,
}

/// Why a line is no event.
pub(super) enum Wrong {
    /// It is the last one, and is cut off.
    Cut,
    /// It is not what it should be.
    Read(ReadError),
}

impl<'a, R: Read> Table<'a, R> {
    /// `names` are the columns that are wanted; others are passed over. With `last_splits`, the last of
    /// them is text that may hold commas without quotes.
    pub(super) fn new(
        path: &'a Path,
        reader: R,
        names: &'static [&'static str],
        last_splits: bool,
    ) -> Result<Self, ReadError> {
        let reader = Tail { inner: reader, last: b'\n', ended: false };
        // Not at `\r\n`, where lines are counted wrong; the `\r` is trimmed.
        let end = Terminator::Any(b'\n');
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .terminator(end)
            .from_reader(reader);
        let (record, columns) = (StringRecord::new(), Columns::default());
        let mut table = Self { path, reader, record, number: 0, columns, joined: None };
        table.advance()?;
        let header = &table.record;
        let line = table.number.max(1);
        let mut places = Vec::new();
        for name in names {
            let is_it = |cell: &str| cell.trim_start_matches('\u{feff}').eq_ignore_ascii_case(name);
            let mut found = header.iter().enumerate().filter(|(_, cell)| is_it(cell));
            let (place, _) = found.next().ok_or_else(|| ReadError::Header {
                path: path.to_owned(),
                line,
                column: name,
                expected: names.join(","),
                found: brief(&header.iter().collect::<Vec<_>>().join(",")),
            })?;
            if found.next().is_some() {
                return Err(ReadError::TwoColumns { path: path.to_owned(), line, column: name });
            }
            places.push(place);
        }
        let width = header.len();
        let more = last_splits && places.last() == Some(&(width - 1));
        let unread = header.iter().enumerate().filter(|(at, _)| !places.contains(at));
        let unread = unread.map(|(_, cell)| brief(cell)).collect();
        table.columns = Columns { names, places, width, more, unread };
        Ok(table)
    }

    /// What was not read of the lines, or not as a line. `unended` is the last one, if it has no end.
    pub(super) fn warnings(&self, unended: Option<u64>) -> Vec<Warning> {
        let mut unread = Named::default();
        self.columns.unread.iter().for_each(|name| unread.at(name.clone()).add(0));
        let joined = self.joined.map(|(tally, first)| Warning {
            line: Some(first),
            ..Warning::new(Part::JoinedLines, tally)
        });
        let unended = unended.map(|line| Warning {
            line: Some(line),
            number: 1,
            ..Warning::new(Part::Unended, Tally::default())
        });
        unread.of(Part::Column).chain(joined).chain(unended).collect()
    }

    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>, ReadError> {
        if !self.advance()? {
            return Ok(None);
        }
        let tail = self.reader.get_ref();
        Ok(Some(Line {
            path: self.path,
            record: &self.record,
            columns: &self.columns,
            number: self.number,
            unended: tail.ended && tail.last != b'\n',
        }))
    }

    /// Reads the next line that is not blank; `false` if there is none.
    fn advance(&mut self) -> Result<bool, ReadError> {
        loop {
            let mut bytes = std::mem::take(&mut self.record).into_byte_record();
            let more = self.reader.read_byte_record(&mut bytes);
            if !more.map_err(|source| unreadable(self.path, self.number, source))? {
                return Ok(false);
            }
            // Where the reader began is no use: it passes over empty lines. It stands behind the line's
            // end, if there is one, or at the end of the file, which it then has met.
            let end = u64::from(!self.reader.get_ref().ended);
            let inside = bytes.as_slice().iter().filter(|byte| **byte == b'\n').count() as u64;
            self.number = self.reader.position().line() - inside - end;
            self.record =
                StringRecord::from_byte_record(bytes).map_err(|wrong| ReadError::Csv {
                    path: self.path.to_owned(),
                    line: self.number,
                    source: wrong.utf8_error().clone(),
                })?;
            self.record.trim();
            for _ in 0..inside {
                self.joined.get_or_insert((Tally::default(), self.number)).0.add(0);
            }
            // A line of a `\r` or of spaces alone is none. One of commas has cells, if empty ones.
            if self.record.len() > 1 || self.record.iter().any(|cell| !cell.is_empty()) {
                return Ok(true);
            }
        }
    }
}

/// Why there is no line behind line `before`.
fn unreadable(path: &Path, before: u64, source: csv::Error) -> ReadError {
    let path = path.to_owned();
    let source = match source.into_kind() {
        csv::ErrorKind::Io(source) => source,
        other => io::Error::other(format!("{other:?}")),
    };
    match before {
        0 => ReadError::Open { path, source },
        line => ReadError::Interrupted { path, line, source },
    }
}

impl Line<'_> {
    /// The text of a column, by its index in the table's names; empty where the line is short.
    pub(super) fn text(&self, column: usize) -> &str {
        self.record.get(self.columns.places[column]).unwrap_or_default()
    }

    /// The value of a column, made by `parse`.
    pub(super) fn get<'b, T>(
        &'b self,
        column: usize,
        expected: &'static str,
        parse: impl FnOnce(&'b str) -> Option<T>,
    ) -> Result<T, Wrong> {
        parse(self.text(column)).ok_or_else(|| {
            let place = self.columns.places[column];
            // What has a comma behind it was written whole.
            if self.unended && place + 1 >= self.record.len() {
                return Wrong::Cut;
            }
            Wrong::Read(ReadError::Cell {
                path: self.path.to_owned(),
                line: self.number,
                column: self.columns.names[column],
                expected,
                found: match self.record.get(place) {
                    Some(text) => format!("{:?}", brief(text)),
                    None => String::from("the end of the line"),
                },
            })
        })
    }

    /// Whether the line has no more cells than the header.
    pub(super) fn fits(&self) -> Result<(), Wrong> {
        let (expected, found) = (self.columns.width, self.record.len());
        if found > expected && !self.columns.more {
            return Err(Wrong::Read(ReadError::Cells {
                path: self.path.to_owned(),
                line: self.number,
                expected,
                found,
            }));
        }
        Ok(())
    }

    /// Whether the line has all its cells, if it is one that may have been cut off.
    pub(super) fn is_whole(&self) -> Result<(), Wrong> {
        match self.unended && self.record.len() < self.columns.width {
            true => Err(Wrong::Cut),
            false => Ok(()),
        }
    }
}

/// An address: `0x..`, decimal, or `(nil)`.
pub(super) fn address(text: &str) -> Option<u64> {
    if text.eq_ignore_ascii_case("(nil)") {
        return Some(0);
    }
    number(text)
}

/// A number in decimal or, behind `0x`, in hex. Without a sign, which Rust's numbers may have.
pub(super) fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))
}

/// A stream, however it was written: by number, handle or word. All spellings of one stream have one
/// key. Streams that CUDA gives to each thread are told apart by `thread`.
pub(super) fn stream(text: &str, thread: &str) -> Option<(String, StreamKind)> {
    let default = || (String::from("default"), StreamKind::Default);
    let per_thread = || (format!("per-thread/{thread}"), StreamKind::PerThread);
    match address(text) {
        // CUDA's own handles: NULL, cudaStreamLegacy, cudaStreamPerThread.
        Some(0 | 1) => return Some(default()),
        Some(2) => return Some(per_thread()),
        Some(handle) => return Some((format!("{handle:#x}"), StreamKind::Other)),
        None => {}
    }
    let word = text.to_lowercase();
    match word.as_str() {
        "" => None,
        "default" | "legacy" | "legacy default" | "default stream" | "legacy stream"
        | "cudastreamlegacy" => Some(default()),
        "per-thread" | "per-thread default" | "per_thread" | "ptds" | "cudastreamperthread" => {
            Some(per_thread())
        }
        // No key of the others begins so.
        _ => Some((format!("={text}"), StreamKind::Other)),
    }
}

/// A stream of a log that writes it so.
pub(super) fn log_stream(text: &str, kind: StreamKind, thread: &str) -> LogStream {
    let name = match kind {
        StreamKind::PerThread => printable(&format!("{text} of thread {thread}")),
        _ => printable(text),
    };
    LogStream { name, kind }
}

/// `HH:MM:SS.ffffff` (RMM before 22.06: `HH:MM:SS:ffffff`) in nanoseconds since midnight.
pub(super) fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split([':', '.']);
    let decimal = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    let mut whole = |below: u64| {
        let value: u64 = parts.next().filter(|text| decimal(text))?.parse().ok()?;
        (value < below).then_some(value)
    };
    // 60 is a leap second.
    let seconds = (whole(24)? * 60 + whole(60)?) * 60 + whole(61)?;
    let nanoseconds = match parts.next() {
        None => 0,
        Some(digits) if digits.len() <= 9 && decimal(digits) => {
            digits.parse::<u64>().ok()? * 10_u64.pow(9 - digits.len() as u32)
        }
        Some(_) => return None,
    };
    parts.next().is_none().then_some(seconds * 1_000_000_000 + nanoseconds)
}

/// Times of day of one log, which may pass midnight, since its first.
#[derive(Default)]
pub(super) struct Clock {
    first: Option<u64>,
    last: u64,
    days: u64,
}

impl Clock {
    pub(super) fn since_first(&mut self, of_day: u64) -> u64 {
        const DAY: u64 = 24 * 60 * 60 * 1_000_000_000;
        // Threads' lines may stand a little out of order; half a day back is the next day.
        if self.last > of_day && self.last - of_day > DAY / 2 {
            self.days += 1;
        }
        let first = *self.first.get_or_insert(of_day);
        // And half a day ahead is a late line of the day before.
        if self.days > 0 && of_day > self.last && of_day - self.last > DAY / 2 {
            return ((self.days - 1) * DAY + of_day).saturating_sub(first);
        }
        self.last = of_day;
        (self.days * DAY + of_day).saturating_sub(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_one_key() {
        let key = |text| stream(text, "7");
        for text in ["0", "0x0", "(nil)", "0x1", "default", "Legacy", "legacy default"] {
            assert_eq!(
                key(text).unwrap(),
                (String::from("default"), StreamKind::Default),
                "{text}"
            );
        }
        for text in ["2", "0x2", "per-thread", "per-thread default"] {
            let own = (String::from("per-thread/7"), StreamKind::PerThread);
            assert_eq!(key(text).unwrap(), own, "{text}");
        }
        assert_eq!(key("255"), key("0xFF"));
        assert_eq!(key("255").unwrap().1, StreamKind::Other);
        assert_ne!(key("copies"), key("Copies"));
        assert_eq!(key(""), None);
    }

    #[test]
    fn streams_are_named_as_they_are_written() {
        let name = |text| log_stream(text, stream(text, "7").unwrap().1, "7").name;
        assert_eq!(name("0"), "0");
        assert_eq!(name("94000000000016"), "94000000000016");
        assert_eq!(name("0x557E194cb810"), "0x557E194cb810");
        assert_eq!(name("per-thread"), "per-thread of thread 7");
        assert_eq!(name("2"), "2 of thread 7");
        assert_eq!(name("a\u{1}b"), "a\u{fffd}b");
    }

    /// A disk that fails behind the third line.
    struct Failing(&'static [u8]);

    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::other("the disk is gone")),
                bytes => Ok(bytes),
            }
        }
    }

    #[test]
    fn a_file_that_fails_in_the_middle_is_no_wrong_csv() {
        let path = Path::new("a.csv");
        let mut table = Table::new(path, Failing(b"a,b\n1,2\n3,4\n"), &["a", "b"], false).unwrap();
        assert_eq!(table.next().unwrap().unwrap().number, 2);
        assert_eq!(table.next().unwrap().unwrap().number, 3);
        let error = table.next().err().unwrap();
        assert_eq!(error.to_string(), "a.csv: cannot be read after line 3");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(source, "the disk is gone");
        let error = Table::new(path, Failing(b""), &["a"], false).err().unwrap();
        assert_eq!(error.to_string(), "a.csv: cannot be read");
    }

    #[test]
    fn times_of_day() {
        assert_eq!(time_of_day("00:00:01.5"), Some(1_500_000_000));
        assert_eq!(time_of_day("01:02:03:000004"), Some(3_723_000_004_000));
        assert_eq!(time_of_day("23:59:59"), Some(86_399_000_000_000));
        for bad in
            ["", "24:00:00", "1:2", "00:00:00.1234567890", "00:00:00.1.2", "a:b:c", "00:00:00.-1"]
        {
            assert_eq!(time_of_day(bad), None, "{bad}");
        }
        for signed in ["+0:00:00.1", "00:+0:00.1", "00:00:+0.1", "00:00:00.+1", "-0:00:00"] {
            assert_eq!(time_of_day(signed), None, "{signed}");
        }
    }

    #[test]
    fn numbers_have_no_sign() {
        assert_eq!(
            (number("4096"), number("0x1000"), number("0X1000")),
            (Some(4096), Some(4096), Some(4096))
        );
        for signed in ["+1", "-1", "0x+1", "0x-1", "+0x1", "0x", "", "+"] {
            assert_eq!(number(signed), None, "{signed}");
        }
    }

    #[test]
    fn a_clock_passes_midnight_and_not_a_step_back() {
        let second = 1_000_000_000;
        let mut clock = Clock::default();
        assert_eq!(clock.since_first(86_399 * second), 0);
        assert_eq!(clock.since_first(second), 2 * second);
        assert_eq!(clock.since_first(3 * second), 4 * second);
        // A thread that was slow to write its line, and the one after it.
        assert_eq!(clock.since_first(86_399 * second), 0);
        assert_eq!(clock.since_first(3 * second), 4 * second);
        assert_eq!(clock.since_first(2 * second), 3 * second);
    }
}
