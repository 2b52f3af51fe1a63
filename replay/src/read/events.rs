//! NBEP 7's event logs, as Numba's and RMM's Python layers write them.

use super::ReadError;
use super::cell::{Line, Table, Wrong, address, log_stream, number, stream};
use crate::event::{Action, Event, Log, LogStream, Numbered};
use crate::warning::{Part, Tally, Warning};
use std::io::Read;
use std::path::Path;

// All twelve, so that a table of something else is told from a log.
pub(super) const COLUMNS: &[&str] = &[
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
const LIVE: usize = 7;
const START: usize = 8;

pub(super) fn read(path: &Path, reader: impl Read, device: Option<i64>) -> Result<Log, ReadError> {
    let mut table = Table::new(path, reader, COLUMNS, true)?;
    let mut told = Told { chosen: device, ..Told::default() };
    let mut log = Log { line_word: "line", threads: vec![String::from("0")], ..Log::default() };
    while let Some(line) = table.next()? {
        let event = told.event(&line, log.events.len());
        log.unended = (event.is_ok() && line.unended).then_some(line.number);
        match event {
            Ok(Some(event)) => log.events.push(event),
            Ok(None) => log.other_devices += 1,
            Err(Wrong::Cut) => log.cut = Some(line.number),
            Err(Wrong::Read(error)) => return Err(error),
        }
    }
    log.warnings = told.warnings(log.other_devices);
    log.warnings.extend(table.warnings(log.unended));
    log.streams = told.streams.into_vec();
    log.device = told.chosen;
    match device {
        Some(device) if log.events.is_empty() && log.other_devices > 0 => {
            Err(ReadError::NoDevice { path: path.to_owned(), device })
        }
        _ => Ok(log),
    }
}

/// What the lines so far have told.
#[derive(Default)]
struct Told {
    chosen: Option<i64>,
    streams: Numbered<LogStream>,
    /// Seconds.
    first: Option<f64>,
    /// What the other devices allocate.
    elsewhere: Tally,
    live: Live,
}

/// Allocations that are live, as the lines have it and as their column does.
#[derive(Default)]
struct Live {
    /// By the lines of all devices, and by those of the chosen one: less than 0 after frees of what was live
    /// before.
    counted: [i64; 2],
    /// The least that the column has more than both. Threads write lines a little out of order.
    more: Option<i64>,
}

impl Live {
    fn count(&mut self, change: i64, is_chosen: bool) {
        self.counted[0] += change;
        self.counted[1] += if is_chosen { change } else { 0 };
    }

    /// What the column says behind a line. Some logs count each device by itself, and some all of them.
    fn compare(&mut self, column: i64) {
        let counted = self.counted[0].max(self.counted[1]);
        let more = column.saturating_sub(counted);
        self.more = Some(self.more.map_or(more, |least| least.min(more)));
    }
}

/// What an event type is; Aquifer's own log has failures.
fn action(text: &str) -> Option<Action> {
    match text.to_lowercase().as_str() {
        "alloc" | "allocate" => Some(Action::Allocate),
        "alloc failure" => Some(Action::Failure),
        "free" | "dealloc" => Some(Action::Free),
        _ => None,
    }
}

fn change(action: Action) -> i64 {
    match action {
        Action::Allocate => 1,
        Action::Free => -1,
        Action::Failure => 0,
    }
}

impl Told {
    fn warnings(&self, other_devices: usize) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if other_devices > 0 {
            let warning = Warning::new(Part::OtherDevices, self.elsewhere);
            let name = self.chosen.map(|device| device.to_string());
            warnings.push(Warning { name, number: other_devices as u64, ..warning });
        }
        if let Some(more) = self.live.more.and_then(|more| u64::try_from(more).ok())
            && more > 0
        {
            let warning = Warning::new(Part::UntoldBefore, Tally::default());
            warnings.push(Warning { number: more, ..warning });
        }
        warnings
    }

    /// The event of a line; `None` if it is another device's.
    fn event(&mut self, line: &Line<'_>, index: usize) -> Result<Option<Event>, Wrong> {
        line.fits()?;
        let device = |text: &str| text.parse().ok().filter(|_| !text.starts_with('+'));
        let owner = line.get(DEVICE, "a device's number", device)?;
        if owner != *self.chosen.get_or_insert(owner) {
            line.is_whole()?;
            let action = action(line.text(TYPE));
            self.live.count(action.map_or(0, change), false);
            if action == Some(Action::Allocate) {
                self.elsewhere.add(number(line.text(SIZE)).unwrap_or(0));
            }
            return Ok(None);
        }
        let action = line.get(TYPE, "`Alloc`, `Alloc failure` or `Free`", action)?;
        let address = line.get(ADDRESS, "an address, in decimal or as 0x..", address)?;
        let (key, kind) =
            line.get(STREAM, "a stream: a number, a handle or a name", |text| stream(text, "0"))?;
        let size = line.get(SIZE, "a size in bytes", |text| match text {
            "" if action == Action::Free => Some(None),
            _ => number(text).map(Some),
        })?;
        let start = line.get(START, "a time in seconds, or nothing", |text| match text {
            "" => Some(None),
            _ => text.parse::<f64>().ok().filter(|seconds| seconds.is_finite()).map(Some),
        })?;
        line.is_whole()?;
        self.live.count(change(action), true);
        if let Ok(column) = line.text(LIVE).parse() {
            self.live.compare(column);
        }
        let time = start.map(|start| {
            let since = start - *self.first.get_or_insert(start);
            (since.max(0.0) * 1e9).round() as u64
        });
        Ok(Some(Event {
            index,
            line: line.number,
            thread: 0,
            time,
            action,
            address,
            size,
            stream: self.streams.number(&key, || log_stream(line.text(STREAM), kind, "0")),
        }))
    }
}
