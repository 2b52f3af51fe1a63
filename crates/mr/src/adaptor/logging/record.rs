//! The record of one call.

use crate::sync::trusted::thread_local;
use std::cell::Cell;
use std::time::SystemTime;

/// The call that a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Allocate,
    Failure,
    /// A free, before the upstream's.
    Free,
    /// The return of this thread's last free. It occurs only in logs with durations, and has no row.
    FreeReturned,
}

impl Action {
    const ALL: [Self; 4] = [Self::Allocate, Self::Failure, Self::Free, Self::FreeReturned];
}

/// One call. With the sequence number of its slot it fills a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) action: Action,
    pub(super) thread: u32,
    /// A number of [`Locations`](super::location::Locations), or 0 for none.
    pub(super) location: u32,
    /// Nanoseconds of the [`LogClock`].
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
}

/// Words of a record in a slot of the ring.
pub(super) const WORDS: usize = 7;

impl Record {
    #[inline]
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let Self { action, thread, location, start, end, address, bytes, stream } = self;
        let numbers = u64::from(thread) | u64::from(location) << 32;
        [action as u64, numbers, start, end, address, bytes, stream]
    }

    #[inline]
    pub(super) fn from_words(words: [u64; WORDS]) -> Self {
        let [action, numbers, start, end, address, bytes, stream] = words;
        let action = Action::ALL[action as usize % Action::ALL.len()];
        let (thread, location) = (numbers as u32, (numbers >> 32) as u32);
        Self { action, thread, location, start, end, address, bytes, stream }
    }
}

/// The time since the start of a log, monotonic, and the wall-clock time of the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogClock {
    start: u64,
    wall: SystemTime,
}

impl LogClock {
    pub(super) fn new() -> Self {
        Self { start: monotonic(), wall: SystemTime::now() }
    }

    /// Nanoseconds since the start.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        monotonic().saturating_sub(self.start)
    }

    /// Nanoseconds from the start of 1970, UTC, to the start of the log.
    pub(super) fn wall_start(&self) -> u64 {
        let since = self.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
    }
}

/// Nanoseconds of the system's monotonic clock. The call is direct, since the checks of
/// `Instant` would add a third.
#[cfg(unix)]
#[inline]
fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the local above; every Unix system has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(not(unix))]
fn monotonic() -> u64 {
    static ZERO: crate::sync::OnceLock<std::time::Instant> = crate::sync::OnceLock::new();
    let passed = ZERO.get_or_init(std::time::Instant::now).elapsed();
    passed.as_secs() * 1_000_000_000 + u64::from(passed.subsec_nanos())
}

/// The system's id of the calling thread on Linux. Elsewhere it is a number of this process.
#[inline]
pub(super) fn thread_id() -> u32 {
    thread_local! {
        static ID: Cell<u32> = const { Cell::new(0) };
    }
    ID.with(|id| {
        if id.get() == 0 {
            id.set(system_thread_id());
        }
        id.get()
    })
}

#[cfg(target_os = "linux")]
fn system_thread_id() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() }.unsigned_abs()
}

#[cfg(not(target_os = "linux"))]
fn system_thread_id() -> u32 {
    crate::sync::trusted::unique() as u32
}
