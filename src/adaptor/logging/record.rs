//! What one operation leaves in the queue.

use crate::sync::trusted::thread_local;
use std::cell::Cell;
use std::time::SystemTime;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Allocate,
    Failure,
    /// A free that is about to begin.
    Free,
    /// The last free of this thread has returned. Only in logs whose rows say how long it took.
    Freed,
}

/// One operation. With the queue's stamp it fills a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) action: Action,
    pub(super) thread: u32,
    /// A number of [`Places`](super::location::Places); 0 is nowhere.
    pub(super) location: u32,
    /// Nanoseconds of the [`Clock`].
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
}

/// Words of a record in the queue.
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
        const ALLOCATE: u64 = Action::Allocate as u64;
        const FAILURE: u64 = Action::Failure as u64;
        const FREE: u64 = Action::Free as u64;
        let [action, numbers, start, end, address, bytes, stream] = words;
        let action = match action {
            ALLOCATE => Action::Allocate,
            FAILURE => Action::Failure,
            FREE => Action::Free,
            _ => Action::Freed,
        };
        let (thread, location) = (numbers as u32, (numbers >> 32) as u32);
        Self { action, thread, location, start, end, address, bytes, stream }
    }
}

/// Time since a log was begun, and when on the wall that was. Monotonic: a wall clock that is set
/// meanwhile changes nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    zero: u64,
    wall: SystemTime,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { zero: monotonic(), wall: SystemTime::now() }
    }

    /// Nanoseconds since the log was begun.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        monotonic().saturating_sub(self.zero)
    }

    /// Nanoseconds from the start of 1970, UTC, to the beginning of the log.
    pub(super) fn wall(&self) -> u64 {
        let since = self.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
    }
}

/// Nanoseconds of the system's monotonic clock. Asked directly: what `Instant` checks besides is a
/// quarter of the whole.
#[cfg(unix)]
#[inline]
fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the local above; the clock is one that every system has.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(not(unix))]
fn monotonic() -> u64 {
    static ZERO: crate::sync::OnceLock<std::time::Instant> = crate::sync::OnceLock::new();
    let passed = ZERO.get_or_init(std::time::Instant::now).elapsed();
    passed.as_secs() * 1_000_000_000 + u64::from(passed.subsec_nanos())
}

/// The system's number of the calling thread; elsewhere than on Linux one of our own.
#[inline]
pub(super) fn thread() -> u32 {
    thread_local! {
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(ask());
        }
        number.get()
    })
}

#[cfg(target_os = "linux")]
fn ask() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() }.unsigned_abs()
}

#[cfg(not(target_os = "linux"))]
fn ask() -> u32 {
    crate::sync::trusted::unique() as u32
}
