//! Rows of text.

use super::location::Places;
use super::queue::Log;
use super::record::{Action, Clock, Record};
use super::text::{Last, Piece, Text};
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

/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;

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
        let ordinal = device.ordinal() as u64;
        let action = |name| {
            Piece::of(|row| {
                row.piece::<16>(&Piece::new(name));
                row.decimal(ordinal);
                row.piece(&POINTER);
            })
        };
        Self::Events(Box::new(Events {
            actions: [action(b"Alloc,"), action(b"Alloc failure,"), action(b"Free,")],
            stream: Last::new(),
            bytes: Last::new(),
            memory: Memory { device, text: Piece::new(b",,"), asked: None, rows: 0 },
            places,
            live: 0,
            held: VecDeque::new(),
        }))
    }

    pub(super) fn header(&self, text: &mut Text) {
        text.add(match self {
            Self::Rmm(_) => b"Thread,Time,Action,Pointer,Size,Stream\n",
            Self::Events(_) => {
                b"Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,\
                  Current Allocs,Start,End,Elapsed,Location\n"
            }
        });
    }

    /// Adds what the record makes ready; gives the number of rows.
    pub(super) fn add(&mut self, record: &Record, text: &mut Text, log: &Log) -> u64 {
        match self {
            Self::Rmm(rmm) => rmm.add(record, text),
            Self::Events(events) => events.add(record, text, log),
        }
    }

    /// Adds the rows that wait for a free to return, as they are.
    pub(super) fn release(&mut self, text: &mut Text, log: &Log) -> u64 {
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

/// Between a device and an address.
const POINTER: Piece<8> = Piece::new(b",0x");

pub(super) struct Rmm {
    wall: u64,
    /// Nanoseconds from 1970 to the second that is in `clock`.
    second: u64,
    /// `,HH:MM:SS.`
    clock: Piece<16>,
    /// When the microsecond began that `start` is of.
    microsecond: u64,
    /// Thread and time, for the thread of the last row.
    start: Last<32>,
    bytes: Last<24>,
    stream: Last<24>,
}

impl Rmm {
    const ALLOCATE: Piece<24> = Piece::new(b",allocate,0x");
    const FAILURE: Piece<24> = Piece::new(b",allocate failure,0x");
    const FREE: Piece<24> = Piece::new(b",free,0x");

    fn new(wall: u64) -> Self {
        let mut rmm = Self {
            wall,
            second: 0,
            clock: Piece::new(b""),
            microsecond: 0,
            start: Last::new(),
            bytes: Last::new(),
            stream: Last::new(),
        };
        rmm.at_second(wall);
        rmm.at_microsecond(wall);
        rmm
    }

    #[inline]
    fn add(&mut self, record: &Record, text: &mut Text) -> u64 {
        let action = match record.action {
            Action::Allocate => &Self::ALLOCATE,
            Action::Failure => &Self::FAILURE,
            Action::Free => &Self::FREE,
            Action::Freed => return 0,
        };
        let time = self.wall.wrapping_add(record.end);
        if time.wrapping_sub(self.microsecond) >= 1000 {
            self.start = Last::new();
            self.at_microsecond(time);
        }
        text.row(|row| {
            let thread = u64::from(record.thread);
            row.again(&mut self.start, thread, |row| {
                row.decimal(thread);
                row.piece(&self.clock);
                row.six((self.microsecond - self.second) / 1000);
            });
            row.piece(action);
            row.hexadecimal(record.address);
            row.again(&mut self.bytes, record.bytes, |row| {
                row.byte(b',');
                row.decimal(record.bytes);
                row.byte(b',');
            });
            row.again(&mut self.stream, record.stream, |row| {
                row.decimal(record.stream);
                row.byte(b'\n');
            });
        });
        1
    }

    fn at_microsecond(&mut self, time: u64) {
        if time.wrapping_sub(self.second) >= SECOND {
            self.at_second(time);
        }
        self.microsecond = time - (time - self.second) % 1000;
    }

    #[cold]
    fn at_second(&mut self, time: u64) {
        let second = time / SECOND;
        self.second = second * SECOND;
        self.clock = Piece::of(|row| {
            row.byte(b',');
            for (value, after) in
                [(second / 3600 % 24, b':'), (second / 60 % 60, b':'), (second % 60, b'.')]
            {
                row.two(value);
                row.byte(after);
            }
        });
    }
}

/// The driver's answer about free memory, asked from the writing thread now and then.
struct Memory {
    device: Device,
    /// `,free,total` of what is known.
    text: Piece<48>,
    asked: Option<Instant>,
    rows: u32,
}

impl Memory {
    /// Asks again, if it is time.
    #[inline]
    fn look(&mut self, log: &Log) {
        let look = self.rows.is_multiple_of(LOOK_EVERY);
        self.rows = self.rows.wrapping_add(1);
        if look && !log.is_exiting() {
            self.ask();
        }
    }

    #[cold]
    fn ask(&mut self) {
        if self.asked.is_some_and(|asked| asked.elapsed() < MEMORY_GOOD_FOR) {
            return;
        }
        self.asked = Some(Instant::now());
        if let Ok(MemoryInfo { free, total, .. }) = self.device.memory_info() {
            self.text = Piece::of(|row| {
                row.byte(b',');
                row.decimal(free);
                row.byte(b',');
                row.decimal(total);
            });
        }
    }
}

/// A row that is whole but for the end of a free.
struct Row {
    record: Record,
    live: i64,
    open: bool,
}

pub(super) struct Events {
    /// `Alloc,0,0x`, in the order of [`Action`].
    actions: [Piece<48>; 3],
    stream: Last<24>,
    bytes: Last<24>,
    memory: Memory,
    places: Arc<Places>,
    /// Blocks allocated and not freed so far. Below zero if the upstream freed what this log never
    /// saw allocated.
    live: i64,
    /// Rows from the first free on that has not returned.
    held: VecDeque<Row>,
}

impl Events {
    fn add(&mut self, record: &Record, text: &mut Text, log: &Log) -> u64 {
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
    fn release(&mut self, text: &mut Text, log: &Log, ready: impl Fn(&Row) -> bool) -> u64 {
        let mut rows = 0;
        while self.held.front().is_some_and(&ready)
            && let Some(row) = self.held.pop_front()
        {
            self.row(&row, text, log);
            rows += 1;
        }
        rows
    }

    fn row(&mut self, row: &Row, text: &mut Text, log: &Log) {
        self.memory.look(log);
        let Row { record, live, open } = row;
        let action = match record.action {
            Action::Allocate => &self.actions[0],
            Action::Failure => &self.actions[1],
            Action::Free | Action::Freed => &self.actions[2],
        };
        text.row(|row| {
            row.piece(action);
            row.hexadecimal(record.address);
            row.again(&mut self.stream, record.stream, |row| {
                row.byte(b',');
                row.decimal(record.stream);
                row.byte(b',');
            });
            row.again(&mut self.bytes, record.bytes, |row| row.decimal(record.bytes));
            row.piece(&self.memory.text);
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
            quoted(text, &self.places.name(record.location));
            text.add(b"\n");
        }
    }
}

/// A field, in quotes where a comma, a quote or a line's end is in it.
fn quoted(text: &mut Text, field: &str) {
    if !field.contains([',', '"', '\n', '\r']) {
        text.add(field.as_bytes());
        return;
    }
    text.add(b"\"");
    text.add(field.replace('"', "\"\"").as_bytes());
    text.add(b"\"");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Text)) -> String {
        let mut text = Text::new(0);
        write(&mut text);
        String::from_utf8(text.written().to_vec()).unwrap()
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
        // In the same second, in the next one, and a thread that was late.
        for (end, time) in [
            (999_999_999, "01:46:40.999999"),
            (1_000_000_000, "01:46:41.000000"),
            (999_999_999, "01:46:40.999999"),
            (80_000_000_000_000, "00:00:00.000000"),
        ] {
            let row = text(|to| assert_eq!(rmm.add(&Record { end, ..record }, to), 1));
            assert!(row.starts_with(&format!("7,{time}")), "{row}");
        }
    }
}
