//! The formats of a log, which turn records into rows of text.

use super::location::Locations;
use super::queue::LogQueue;
use super::record::{Action, LogClock, Record};
use super::text::{CachedText, ShortText, TextBuffer};
use crate::device::Device;
use crate::driver::MemoryInfo;
use crate::sync::Arc;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The columns of an allocation log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// RMM's columns `Thread,Time,Action,Pointer,Size,Stream`, which RMM's replay benchmark reads.
    ///
    /// - Thread is the system's id of the thread.
    /// - Time is `hour:minute:second.microsecond` in UTC.
    /// - Action is `allocate`, `allocate failure` or `free`.
    /// - Pointer is hexadecimal with `0x`, and `0x0` for a failure.
    /// - Size is in bytes.
    /// - Stream is the [`Stream::id`](crate::Stream::id) in decimal, and 0 for the legacy default stream.
    #[default]
    Rmm,
    /// The twelve columns of Numba's proposal NBEP 7, `Event Type,Device ID,Address,Stream,Size
    /// (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,Location`.
    ///
    /// - Event Type is `Alloc`, `Alloc failure` or `Free`.
    /// - Free Memory and Total Memory are bytes, or empty if the query of the driver failed. The query
    ///   is at most some 5 ms older than the moment when the log's thread formatted the row. That is
    ///   up to some dozen milliseconds after the call. As the process ends there are no more queries,
    ///   and the last rows have the last answer.
    /// - Current Allocs is the number of live blocks after this row.
    /// - Start and End are seconds since the adaptor was built.
    /// - Elapsed is their difference, the duration of the upstream's call.
    /// - Location is `file:line`, with [`locations`](crate::mr::LoggingOptions::locations).
    ///
    /// The row of a free has neither End nor Elapsed if the free has not returned when the log is
    /// flushed. The same holds when 65 536 rows wait for it.
    Events,
}

/// The age at which the driver is asked for its free memory again.
const MEMORY_MAX_AGE: Duration = Duration::from_millis(5);

/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// The most rows that wait for a free to return.
const MAX_WAITING: usize = 1 << 16;

/// Formats records, in their order.
pub(super) enum RowFormat {
    Rmm(Box<RmmFormat>),
    Events(Box<EventsFormat>),
}

impl RowFormat {
    pub(super) fn rmm(clock: &LogClock) -> Self {
        Self::Rmm(Box::new(RmmFormat::new(clock.wall_start())))
    }

    pub(super) fn events(device: Device, locations: Arc<Locations>) -> Self {
        let ordinal = device.ordinal() as u64;
        let action = |name| {
            ShortText::of(|row| {
                row.text::<16>(&ShortText::new(name));
                row.decimal(ordinal);
                row.text(&POINTER);
            })
        };
        Self::Events(Box::new(EventsFormat {
            actions: [action(b"Alloc,"), action(b"Alloc failure,"), action(b"Free,")],
            stream: CachedText::new(),
            bytes: CachedText::new(),
            memory: MemoryColumns { device, text: NO_MEMORY, queried: None, unchecked: true },
            locations,
            live: 0,
            waiting: VecDeque::new(),
        }))
    }

    pub(super) fn header(&self, text: &mut TextBuffer) {
        text.push(match self {
            Self::Rmm(_) => b"Thread,Time,Action,Pointer,Size,Stream\n",
            Self::Events(_) => {
                b"Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,\
                  Current Allocs,Start,End,Elapsed,Location\n"
            }
        });
    }

    /// Appends the rows that the record completes, and gives their number.
    pub(super) fn add(&mut self, record: &Record, text: &mut TextBuffer, log: &LogQueue) -> u64 {
        match self {
            Self::Rmm(rmm) => rmm.add(record, text),
            Self::Events(events) => events.add(record, text, log),
        }
    }

    /// Called where the writing thread may have slept or waited since the last row.
    pub(super) fn time_passed(&mut self) {
        if let Self::Events(events) = self {
            events.memory.unchecked = true;
        }
    }

    /// Appends the rows that wait for a free to return, without its duration, and gives their number.
    pub(super) fn write_waiting(&mut self, text: &mut TextBuffer, log: &LogQueue) -> u64 {
        let Self::Events(events) = self else { return 0 };
        events.write_while(text, log, |_| true)
    }

    /// The number of rows that wait for a free to return.
    pub(super) fn waiting(&self) -> u64 {
        match self {
            Self::Rmm(_) => 0,
            Self::Events(events) => events.waiting.len() as u64,
        }
    }
}

/// The memory columns without an answer of the driver.
const NO_MEMORY: ShortText<48> = ShortText::new(b",,");

/// Between a device and an address.
const POINTER: ShortText<8> = ShortText::new(b",0x");

pub(super) struct RmmFormat {
    wall_start: u64,
    /// Nanoseconds from 1970 to the second of `clock`.
    second: u64,
    /// `,HH:MM:SS.`
    clock: ShortText<16>,
    /// Nanoseconds from 1970 to the microsecond of `start`.
    microsecond: u64,
    /// Thread and time, for the thread of the last row.
    start: CachedText<32>,
    bytes: CachedText<24>,
    stream: CachedText<24>,
}

impl RmmFormat {
    const ALLOCATE: ShortText<24> = ShortText::new(b",allocate,0x");
    const FAILURE: ShortText<24> = ShortText::new(b",allocate failure,0x");
    const FREE: ShortText<24> = ShortText::new(b",free,0x");

    fn new(wall_start: u64) -> Self {
        let mut rmm = Self {
            wall_start,
            second: 0,
            clock: ShortText::new(b""),
            microsecond: 0,
            start: CachedText::new(),
            bytes: CachedText::new(),
            stream: CachedText::new(),
        };
        rmm.set_second(wall_start);
        rmm.set_microsecond(wall_start);
        rmm
    }

    #[inline]
    fn add(&mut self, record: &Record, text: &mut TextBuffer) -> u64 {
        let action = match record.action {
            Action::Allocate => &Self::ALLOCATE,
            Action::Failure => &Self::FAILURE,
            Action::Free => &Self::FREE,
            Action::FreeReturned => return 0,
        };
        let time = self.wall_start.wrapping_add(record.end);
        if time.wrapping_sub(self.microsecond) >= 1000 {
            self.start = CachedText::new();
            self.set_microsecond(time);
        }
        text.row(|row| {
            let thread = u64::from(record.thread);
            row.cached(&mut self.start, thread, |row| {
                row.decimal(thread);
                row.text(&self.clock);
                row.digits::<6>((self.microsecond - self.second) / 1000);
            });
            row.text(action);
            row.hexadecimal(record.address);
            row.cached(&mut self.bytes, record.bytes, |row| {
                row.byte(b',');
                row.decimal(record.bytes);
                row.byte(b',');
            });
            row.cached(&mut self.stream, record.stream, |row| {
                row.decimal(record.stream);
                row.byte(b'\n');
            });
        });
        1
    }

    fn set_microsecond(&mut self, time: u64) {
        if time.wrapping_sub(self.second) >= SECOND {
            self.set_second(time);
        }
        self.microsecond = time - (time - self.second) % 1000;
    }

    #[cold]
    fn set_second(&mut self, time: u64) {
        let second = time / SECOND;
        self.second = second * SECOND;
        self.clock = ShortText::of(|row| {
            row.byte(b',');
            for (value, after) in
                [(second / 3600 % 24, b':'), (second / 60 % 60, b':'), (second % 60, b'.')]
            {
                row.digits::<2>(value);
                row.byte(after);
            }
        });
    }
}

/// The driver's free memory, which the writing thread queries now and then.
struct MemoryColumns {
    device: Device,
    /// `,free,total`.
    text: ShortText<48>,
    queried: Option<Instant>,
    /// The age is to be checked before the next row.
    unchecked: bool,
}

impl MemoryColumns {
    /// Queries the driver again if the columns are too old. It asks for their age once between two
    /// calls of [`RowFormat::time_passed`], since the rows between take some microseconds.
    #[inline]
    fn refresh(&mut self, log: &LogQueue) {
        if std::mem::take(&mut self.unchecked) && !log.is_exiting() {
            self.query();
        }
    }

    #[cold]
    fn query(&mut self) {
        if self.queried.is_some_and(|queried| queried.elapsed() < MEMORY_MAX_AGE) {
            return;
        }
        self.queried = Some(Instant::now());
        self.text = match self.device.memory_info() {
            Ok(MemoryInfo { free, total, .. }) => ShortText::of(|row| {
                row.byte(b',');
                row.decimal(free as u64);
                row.byte(b',');
                row.decimal(total as u64);
            }),
            Err(_) => NO_MEMORY,
        };
    }
}

/// A row of the queue [`EventsFormat::waiting`].
struct EventRow {
    record: Record,
    live: i64,
    /// A free that has not returned.
    open: bool,
}

pub(super) struct EventsFormat {
    /// `Alloc,0,0x`, in the order of [`Action`].
    actions: [ShortText<48>; 3],
    stream: CachedText<24>,
    bytes: CachedText<24>,
    memory: MemoryColumns,
    locations: Arc<Locations>,
    /// Live blocks. Below zero after frees of blocks that were allocated past this log.
    live: i64,
    /// Rows in order, from the first free on that has not returned.
    waiting: VecDeque<EventRow>,
}

impl EventsFormat {
    fn add(&mut self, record: &Record, text: &mut TextBuffer, log: &LogQueue) -> u64 {
        match record.action {
            Action::Allocate => self.live += 1,
            Action::Free => self.live -= 1,
            Action::Failure => {}
            Action::FreeReturned => {
                // A thread is in one free at a time. Its row may be written already.
                let of_thread =
                    |row: &&mut EventRow| row.open && row.record.thread == record.thread;
                if let Some(row) = self.waiting.iter_mut().rev().find(of_thread) {
                    row.record.end = record.end;
                    row.open = false;
                }
                return self.write_while(text, log, |row| !row.open);
            }
        }
        let row =
            EventRow { record: *record, live: self.live, open: record.action == Action::Free };
        if self.waiting.is_empty() && !row.open {
            self.write_row(&row, text, log);
            return 1;
        }
        self.waiting.push_back(row);
        let mut rows = 0;
        if self.waiting.len() > MAX_WAITING
            && let Some(first) = self.waiting.pop_front()
        {
            self.write_row(&first, text, log);
            rows = 1 + self.write_while(text, log, |row| !row.open);
        }
        rows
    }

    /// Writes the waiting rows from the first on, while they are `ready`.
    fn write_while(
        &mut self,
        text: &mut TextBuffer,
        log: &LogQueue,
        ready: impl Fn(&EventRow) -> bool,
    ) -> u64 {
        let mut rows = 0;
        while self.waiting.front().is_some_and(&ready)
            && let Some(row) = self.waiting.pop_front()
        {
            self.write_row(&row, text, log);
            rows += 1;
        }
        rows
    }

    fn write_row(&mut self, row: &EventRow, text: &mut TextBuffer, log: &LogQueue) {
        self.memory.refresh(log);
        let EventRow { record, live, open } = row;
        let action = &self.actions[(record.action as usize).min(Action::Free as usize)];
        text.row(|row| {
            row.text(action);
            row.hexadecimal(record.address);
            row.cached(&mut self.stream, record.stream, |row| {
                row.byte(b',');
                row.decimal(record.stream);
                row.byte(b',');
            });
            row.cached(&mut self.bytes, record.bytes, |row| row.decimal(record.bytes));
            row.text(&self.memory.text);
            row.byte(b',');
            if *live < 0 {
                row.byte(b'-');
            }
            row.decimal(live.unsigned_abs());
            row.byte(b',');
            row.seconds(record.start);
            row.byte(b',');
            if !open {
                row.seconds(record.end);
            }
            row.byte(b',');
            if !open {
                row.seconds(record.end.saturating_sub(record.start));
            }
            row.byte(b',');
            if record.location == 0 {
                row.byte(b'\n');
            }
        });
        if record.location != 0 {
            push_field(text, &self.locations.get(record.location));
            text.push(b"\n");
        }
    }
}

/// Appends a field of CSV, in quotes if it has a comma, a quote or a line break.
fn push_field(text: &mut TextBuffer, field: &str) {
    if !field.contains([',', '"', '\n', '\r']) {
        text.push(field.as_bytes());
        return;
    }
    text.push(b"\"");
    text.push(field.replace('"', "\"\"").as_bytes());
    text.push(b"\"");
}

#[cfg(test)]
mod tests;
