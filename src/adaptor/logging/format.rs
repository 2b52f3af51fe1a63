//! Rows of text.

use super::location::Places;
use super::queue::Log;
use super::record::{Action, Clock, Record};
use crate::backend::MemoryInfo;
use crate::device::Device;
use crate::sync::Arc;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The columns of an allocation log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// RMM's: `Thread,Time,Action,Pointer,Size,Stream`, which RMM's replay benchmark reads.
    ///
    /// Thread: the system's number of it. Time: `hour:minute:second.microsecond` in UTC. Action:
    /// `allocate`, `allocate failure` or `free`. Pointer: hexadecimal with `0x`, `0x0` for a failure.
    /// Size: bytes. Stream: [`Stream::id`](crate::Stream::id), in decimal, 0 for the legacy default
    /// stream.
    #[default]
    Rmm,
    /// The twelve columns of Numba's proposal NBEP 7: `Event Type,Device ID,Address,Stream,Size
    /// (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,Location`.
    ///
    /// Event Type: `Alloc`, `Alloc failure` or `Free`. Free and Total Memory: bytes, as the driver
    /// said when the row was written, at most 5 ms before; empty if it did not answer. Current
    /// Allocs: blocks that are allocated after this row. Start, End: seconds since the adaptor was
    /// built; Elapsed: their difference, which the upstream call took. A row of a free that has not
    /// returned when the log is flushed, or while 65 536 rows come after it, has neither End nor
    /// Elapsed. Location: `file:line`, if [`locations`](crate::LoggingOptions::locations) are asked
    /// for.
    Events,
}

/// How long the driver's answer about free memory is good.
const MEMORY_GOOD_FOR: Duration = Duration::from_millis(5);

/// Rows between two looks at the clock for it.
const LOOK_EVERY: u32 = 64;

/// Rows that wait at most for a free to return.
const HELD: usize = 1 << 16;

/// Turns records into text, in their order.
pub(super) enum Rows {
    Rmm(Box<Rmm>),
    Events(Box<Events>),
}

impl Rows {
    pub(super) fn rmm(clock: &Clock) -> Self {
        Self::Rmm(Box::new(Rmm::new(clock.wall())))
    }

    pub(super) fn events(device: Device, places: Arc<Places>) -> Self {
        let memory = Memory { device, known: None, asked: None, rows: 0 };
        Self::Events(Box::new(Events {
            memory,
            places,
            live: 0,
            held: VecDeque::new(),
            line: Line::new(),
        }))
    }

    pub(super) fn header(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(match self {
            Self::Rmm(_) => b"Thread,Time,Action,Pointer,Size,Stream\n",
            Self::Events(_) => {
                b"Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,\
                  Current Allocs,Start,End,Elapsed,Location\n"
            }
        });
    }

    /// Adds what the record makes ready; gives the number of rows.
    pub(super) fn add(&mut self, record: &Record, text: &mut Vec<u8>, log: &Log) -> u64 {
        match self {
            Self::Rmm(rmm) => rmm.add(record, text),
            Self::Events(events) => events.add(record, text, log),
        }
    }

    /// Adds the rows that wait for a free to return, as they are.
    pub(super) fn release(&mut self, text: &mut Vec<u8>, log: &Log) -> u64 {
        let Self::Events(events) = self else { return 0 };
        events.release(text, log, |_| true)
    }

    /// How many rows wait for a free to return.
    pub(super) fn held(&self) -> u64 {
        match self {
            Self::Rmm(_) => 0,
            Self::Events(events) => events.held.len() as u64,
        }
    }
}

pub(super) struct Rmm {
    wall: u64,
    /// The second whose `HH:MM:SS.` is in `clock`.
    second: u64,
    clock: [u8; 9],
    line: Line,
}

impl Rmm {
    fn new(wall: u64) -> Self {
        Self { wall, second: u64::MAX, clock: *b"00:00:00.", line: Line::new() }
    }

    fn add(&mut self, record: &Record, text: &mut Vec<u8>) -> u64 {
        let action: &[u8] = match record.action {
            Action::Allocate => b",allocate,0x",
            Action::Failure => b",allocate failure,0x",
            Action::Free => b",free,0x",
            Action::Freed => return 0,
        };
        let time = self.wall.wrapping_add(record.end);
        self.at_second(time / 1_000_000_000);
        let line = &mut self.line;
        line.byte(b'\n');
        line.decimal(record.stream);
        line.byte(b',');
        line.decimal(record.bytes);
        line.byte(b',');
        line.hexadecimal(record.address);
        line.bytes(action);
        line.padded::<6>(time / 1000 % 1_000_000);
        line.bytes(&self.clock);
        line.byte(b',');
        line.decimal(u64::from(record.thread));
        line.move_to(text);
        1
    }

    fn at_second(&mut self, second: u64) {
        if self.second == second {
            return;
        }
        self.second = second;
        for (at, value) in [(0, second / 3600 % 24), (3, second / 60 % 60), (6, second % 60)] {
            self.clock[at] = b'0' + (value / 10) as u8;
            self.clock[at + 1] = b'0' + (value % 10) as u8;
        }
    }
}

/// The driver's answer about free memory, asked from the writing thread now and then.
struct Memory {
    device: Device,
    known: Option<MemoryInfo>,
    asked: Option<Instant>,
    rows: u32,
}

impl Memory {
    fn now(&mut self, log: &Log) -> Option<MemoryInfo> {
        let look = self.rows.is_multiple_of(LOOK_EVERY);
        self.rows = self.rows.wrapping_add(1);
        let stale = || self.asked.is_none_or(|asked| asked.elapsed() >= MEMORY_GOOD_FOR);
        if look && stale() && !log.is_exiting() {
            self.asked = Some(Instant::now());
            self.known = self.device.memory_info().ok().or(self.known);
        }
        self.known
    }
}

/// A row that is whole but for the end of a free.
struct Row {
    record: Record,
    live: i64,
    open: bool,
}

pub(super) struct Events {
    memory: Memory,
    places: Arc<Places>,
    /// Blocks allocated and not freed so far. Below zero if the upstream freed what this log never
    /// saw allocated.
    live: i64,
    /// Rows from the first free on that has not returned.
    held: VecDeque<Row>,
    line: Line,
}

impl Events {
    fn add(&mut self, record: &Record, text: &mut Vec<u8>, log: &Log) -> u64 {
        match record.action {
            Action::Allocate => self.live += 1,
            Action::Free => self.live -= 1,
            Action::Failure => {}
            Action::Freed => {
                // A thread is in one free at a time. Not found: it was released before.
                let of_thread = |row: &&mut Row| row.open && row.record.thread == record.thread;
                if let Some(row) = self.held.iter_mut().rev().find(of_thread) {
                    row.record.end = record.end;
                    row.open = false;
                }
                return self.release(text, log, |row| !row.open);
            }
        }
        let row = Row { record: *record, live: self.live, open: record.action == Action::Free };
        if self.held.is_empty() && !row.open {
            self.row(&row, text, log);
            return 1;
        }
        self.held.push_back(row);
        let mut rows = 0;
        if self.held.len() > HELD
            && let Some(first) = self.held.pop_front()
        {
            self.row(&first, text, log);
            rows = 1 + self.release(text, log, |row| !row.open);
        }
        rows
    }

    /// Writes the held rows from the first on, while they are `ready`.
    fn release(&mut self, text: &mut Vec<u8>, log: &Log, ready: impl Fn(&Row) -> bool) -> u64 {
        let mut rows = 0;
        while self.held.front().is_some_and(&ready)
            && let Some(row) = self.held.pop_front()
        {
            self.row(&row, text, log);
            rows += 1;
        }
        rows
    }

    fn row(&mut self, row: &Row, text: &mut Vec<u8>, log: &Log) {
        let record = &row.record;
        let memory = self.memory.now(log);
        let line = &mut self.line;
        line.byte(b',');
        if !row.open {
            line.seconds(record.end.saturating_sub(record.start));
        }
        line.byte(b',');
        if !row.open {
            line.seconds(record.end);
        }
        line.byte(b',');
        line.seconds(record.start);
        line.byte(b',');
        line.decimal(row.live.unsigned_abs());
        if row.live < 0 {
            line.byte(b'-');
        }
        line.byte(b',');
        if let Some(memory) = memory {
            line.decimal(memory.total);
        }
        line.byte(b',');
        if let Some(memory) = memory {
            line.decimal(memory.free);
        }
        for value in [record.bytes, record.stream] {
            line.byte(b',');
            line.decimal(value);
        }
        line.byte(b',');
        line.hexadecimal(record.address);
        line.bytes(b",0x");
        line.decimal(self.memory.device.ordinal() as u64);
        line.bytes(match record.action {
            Action::Allocate => b"Alloc,",
            Action::Failure => b"Alloc failure,",
            Action::Free | Action::Freed => b"Free,",
        });
        line.move_to(text);
        if record.location != 0 {
            quoted(text, &self.places.name(record.location));
        }
        text.push(b'\n');
    }
}

/// A field, in quotes where a comma, a quote or a line's end is in it.
fn quoted(text: &mut Vec<u8>, field: &str) {
    if !field.contains([',', '"', '\n', '\r']) {
        text.extend_from_slice(field.as_bytes());
        return;
    }
    text.push(b'"');
    text.extend_from_slice(field.replace('"', "\"\"").as_bytes());
    text.push(b'"');
}

/// Two digits each, from 00 to 99.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut value = 0;
    while value < 100 {
        pairs[value] = [b'0' + (value / 10) as u8, b'0' + (value % 10) as u8];
        value += 1;
    }
    pairs
};

/// A row, written from its end to its start, which is how digits come. By hand, since a busy
/// program's rows come faster than `write!` makes them.
struct Line {
    text: [u8; Self::LONGEST],
    at: usize,
}

impl Line {
    /// More than twelve fields of the largest values.
    const LONGEST: usize = 320;

    fn new() -> Self {
        Self { text: [0; Self::LONGEST], at: Self::LONGEST }
    }

    fn move_to(&mut self, text: &mut Vec<u8>) {
        text.extend_from_slice(&self.text[self.at..]);
        self.at = Self::LONGEST;
    }

    fn byte(&mut self, byte: u8) {
        self.at -= 1;
        self.text[self.at] = byte;
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.at -= bytes.len();
        self.text[self.at..self.at + bytes.len()].copy_from_slice(bytes);
    }

    fn pair(&mut self, value: u64) {
        self.bytes(&PAIRS[(value % 100) as usize]);
    }

    fn decimal(&mut self, mut value: u64) {
        while value >= 100 {
            self.pair(value);
            value /= 100;
        }
        if value >= 10 {
            self.pair(value);
        } else {
            self.byte(b'0' + value as u8);
        }
    }

    /// With zeros in front.
    fn padded<const WIDTH: usize>(&mut self, mut value: u64) {
        for _ in 0..WIDTH / 2 {
            self.pair(value);
            value /= 100;
        }
        if WIDTH % 2 == 1 {
            self.byte(b'0' + (value % 10) as u8);
        }
    }

    fn hexadecimal(&mut self, mut value: u64) {
        loop {
            self.byte(b"0123456789abcdef"[(value & 15) as usize]);
            value >>= 4;
            if value == 0 {
                break;
            }
        }
    }

    /// Nanoseconds, as seconds.
    fn seconds(&mut self, nanoseconds: u64) {
        self.padded::<9>(nanoseconds % 1_000_000_000);
        self.byte(b'.');
        self.decimal(nanoseconds / 1_000_000_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(write: impl FnOnce(&mut Line)) -> String {
        let mut line = Line::new();
        write(&mut line);
        text(|to| line.move_to(to))
    }

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut text = Vec::new();
        write(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn numbers_are_written_as_format_writes_them() {
        for value in [0, 1, 9, 10, 15, 16, 99, 255, 4096, 1 << 40, u64::MAX - 1, u64::MAX] {
            assert_eq!(line(|to| to.decimal(value)), format!("{value}"));
            assert_eq!(line(|to| to.hexadecimal(value)), format!("{value:x}"));
        }
        assert_eq!(line(|to| to.padded::<6>(1203)), "001203");
        assert_eq!(line(|to| to.seconds(61_000_000_007)), "61.000000007");
    }

    #[test]
    fn fields_are_quoted_where_they_need_it() {
        assert_eq!(text(|to| quoted(to, "a b.rs:1")), "a b.rs:1");
        assert_eq!(text(|to| quoted(to, "a, \"b\".rs:1")), "\"a, \"\"b\"\".rs:1\"");
    }

    #[test]
    fn the_time_of_day_is_utc() {
        // 2001-09-09 01:46:40.000001 UTC is a billion seconds and a microsecond after 1970.
        let mut rmm = Rmm::new(1_000_000_000_000_000_000);
        let record = Record {
            action: Action::Failure,
            thread: 7,
            location: 0,
            start: 0,
            end: 1000,
            address: 0,
            bytes: 1 << 40,
            stream: 18,
        };
        let row = text(|to| assert_eq!(rmm.add(&record, to), 1));
        assert_eq!(row, "7,01:46:40.000001,allocate failure,0x0,1099511627776,18\n");
    }

    #[test]
    fn the_widest_row_has_room() {
        let widest = line(|to| {
            for _ in 0..3 {
                to.seconds(u64::MAX);
            }
            for _ in 0..7 {
                to.decimal(u64::MAX);
            }
            to.hexadecimal(u64::MAX);
            to.bytes(b"Alloc failure,0x-,,,,,,,,,,,");
        });
        assert!(widest.len() < Line::LONGEST);
    }
}
