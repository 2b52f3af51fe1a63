//! RMM's logs.

use super::ReadError;
use super::cell::{Clock, Table, address, number, stream, time_of_day};
use crate::event::{Action, Event, Log, Names};
use std::io::Read;
use std::path::Path;

const COLUMNS: &[&str] = &["Thread", "Time", "Action", "Pointer", "Size", "Stream"];
const THREAD: usize = 0;
const TIME: usize = 1;
const ACTION: usize = 2;
const POINTER: usize = 3;
const SIZE: usize = 4;
const STREAM: usize = 5;

pub(super) fn read(path: &Path, reader: impl Read) -> Result<Log, ReadError> {
    let mut table = Table::new(path, reader, COLUMNS)?;
    let (mut threads, mut streams) = (Names::default(), Names::default());
    let mut clock = Clock::default();
    let mut events = Vec::new();
    while let Some(line) = table.next()? {
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
        let stream =
            line.get(STREAM, "a stream: a number, a handle as 0x.. or a name", |text| {
                stream(text, thread)
            })?;
        events.push(Event {
            index: events.len(),
            line: line.number,
            thread: threads.number(thread),
            time: Some(clock.since_first(time)),
            action,
            address: line.get(POINTER, "an address as 0x.., or (nil)", address)?,
            size: line.get(SIZE, "a size in bytes", number)?,
            stream: streams.number(&stream),
        });
    }
    Ok(Log {
        events,
        threads: threads.into_vec(),
        streams: streams.into_vec(),
        line_word: "line",
        ..Log::default()
    })
}
