//! RMM's logs.

use super::ReadError;
use super::cell::{Clock, Line, Table, Wrong, address, log_stream, number, stream, time_of_day};
use crate::event::{Action, Event, Log, LogStream, Numbered, printable};
use std::io::Read;
use std::path::Path;

pub(super) const COLUMNS: &[&str] = &["Thread", "Time", "Action", "Pointer", "Size", "Stream"];
const THREAD: usize = 0;
const TIME: usize = 1;
const ACTION: usize = 2;
const POINTER: usize = 3;
const SIZE: usize = 4;
const STREAM: usize = 5;

pub(super) fn read(path: &Path, reader: impl Read) -> Result<Log, ReadError> {
    let mut table = Table::new(path, reader, COLUMNS, false)?;
    let mut told = Told::default();
    let mut log = Log { line_word: "line", ..Log::default() };
    while let Some(line) = table.next()? {
        match told.event(&line, log.events.len()) {
            Ok(event) => {
                log.events.push(event);
                log.unended = line.unended.then_some(line.number);
            }
            Err(Wrong::Cut) => log.cut = Some(line.number),
            Err(Wrong::Read(error)) => return Err(error),
        }
    }
    log.warnings = table.warnings(log.unended);
    log.threads = told.threads.into_vec();
    log.streams = told.streams.into_vec();
    Ok(log)
}

/// What the lines so far have told.
#[derive(Default)]
struct Told {
    threads: Numbered<String>,
    streams: Numbered<LogStream>,
    clock: Clock,
}

impl Told {
    fn event(&mut self, line: &Line<'_>, index: usize) -> Result<Event, Wrong> {
        line.fits()?;
        let thread = line
            .get(THREAD, "a thread's number", |text| Some(text).filter(|text| !text.is_empty()))?;
        let time = line.get(TIME, "a time as HH:MM:SS.ffffff", time_of_day)?;
        let action =
            line.get(ACTION, "`allocate`, `allocate failure` or `free`", |text| match text {
                "allocate" => Some(Action::Allocate),
                "free" => Some(Action::Free),
                "allocate failure" | "failure" => Some(Action::Failure),
                _ => None,
            })?;
        let expected = "an address, in decimal or as 0x.., or (nil)";
        let address = line.get(POINTER, expected, address)?;
        let size = Some(line.get(SIZE, "a size in bytes", number)?);
        let (key, kind) =
            line.get(STREAM, "a stream: a number, a handle as 0x.. or a name", |text| {
                stream(text, thread)
            })?;
        line.is_whole()?;
        Ok(Event {
            index,
            line: line.number,
            thread: self.threads.number(thread, || printable(thread)),
            time: Some(self.clock.since_first(time)),
            action,
            address,
            size,
            stream: self.streams.number(&key, || log_stream(line.text(STREAM), kind, thread)),
        })
    }
}
