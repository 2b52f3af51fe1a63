//! NBEP 7's event logs, as Numba's and RMM's Python layers write them.

use super::ReadError;
use super::cell::{Table, address, number, stream};
use crate::event::{Action, Event, Log, Names};
use std::io::Read;
use std::path::Path;

// All twelve, so that a table of something else is told from a log.
const COLUMNS: &[&str] = &[
    "Event Type",
    "Device ID",
    "Address",
    "Stream",
    "Size (bytes)",
    "Free Memory",
    "Total Memory",
    "Current Allocs",
    "Start",
    "End",
    "Elapsed",
    "Location",
];
const TYPE: usize = 0;
const DEVICE: usize = 1;
const ADDRESS: usize = 2;
const STREAM: usize = 3;
const SIZE: usize = 4;
const START: usize = 8;

pub(super) fn read(path: &Path, reader: impl Read, device: Option<i64>) -> Result<Log, ReadError> {
    let mut table = Table::new(path, reader, COLUMNS)?;
    let mut streams = Names::default();
    let mut events = Vec::new();
    let (mut chosen, mut other_devices, mut first) = (device, 0, None);
    while let Some(line) = table.next()? {
        let owner = line.get(DEVICE, "a device's number", |text| text.parse().ok())?;
        if owner != *chosen.get_or_insert(owner) {
            other_devices += 1;
            continue;
        }
        let action = line.get(TYPE, "`Alloc`, `Alloc failure` or `Free`", |text| {
            match text.to_lowercase().as_str() {
                "alloc" | "allocate" => Some(Action::Allocate),
                // Aquifer's own log has them.
                "alloc failure" => Some(Action::Failure),
                "free" | "dealloc" => Some(Action::Free),
                _ => None,
            }
        })?;
        let start = line.get(START, "a time in seconds, or nothing", |text| match text {
            "" => Some(None),
            _ => text.parse::<f64>().ok().filter(|seconds| seconds.is_finite()).map(Some),
        })?;
        let time = start.map(|start| {
            let since = start - *first.get_or_insert(start);
            (since.max(0.0) * 1e9).round() as u64
        });
        let stream =
            line.get(STREAM, "a stream: a number, a handle or a name", |text| stream(text, "0"))?;
        events.push(Event {
            index: events.len(),
            line: line.number,
            thread: 0,
            time,
            action,
            address: line.get(ADDRESS, "an address, in decimal or as 0x..", address)?,
            size: line.get(SIZE, "a size in bytes", number)?,
            stream: streams.number(&stream),
        });
    }
    match device {
        Some(device) if events.is_empty() && other_devices > 0 => {
            Err(ReadError::NoDevice { path: path.to_owned(), device })
        }
        _ => Ok(Log {
            events,
            threads: vec![String::from("0")],
            streams: streams.into_vec(),
            device: chosen,
            other_devices,
            line_word: "line",
        }),
    }
}
