//! The queue between those who allocate and the one thread that writes.

use super::record::{Action, Record};
use super::ring::Ring;
use crate::backend::is_forked_child;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::trusted::{AtomicBool, AtomicU64, Backoff, Condvar, Mutex, Ordering};
use crate::sync::{Arc, CachePadded, OnceLock, Weak};
use std::fmt;
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long the end of the process waits for one log: a pipe that nobody reads must not keep it.
const AT_EXIT: Duration = Duration::from_secs(10);

/// How long a producer that finds no room sleeps, once spinning and yielding did not help.
const NO_ROOM: Duration = Duration::from_micros(50);

/// Looks at a queue that is too full after which a producer takes what room there is.
const PATIENCE: u32 = 64;

/// Why nothing more is written.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) text: String,
    pub(super) discarded: u64,
}

/// How far the writer has come.
#[derive(Debug, Default)]
struct Progress {
    /// The highest number of [`Log::asked`] whose records are all written.
    done: u64,
    ended: bool,
    trouble: Option<Trouble>,
}

/// A bounded queue of records. They are written in the order in which they were pushed.
pub(super) struct Log {
    ring: Ring,
    half: usize,
    /// As many records as there are to be at most when a producer that found no room goes on.
    roomy: usize,
    /// The writer is about to park, or parked.
    asleep: CachePadded<AtomicBool>,
    closing: AtomicBool,
    /// The process is ending: the driver is not to be asked for anything.
    exiting: AtomicBool,
    /// How often a flush was asked for.
    asked: AtomicU64,
    /// Rows of the writing thread itself that found no room.
    refused: AtomicU64,
    progress: Mutex<Progress>,
    moved: Condvar,
    writer: OnceLock<Thread>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("capacity", &self.ring.capacity()).finish_non_exhaustive()
    }
}

impl Log {
    /// `capacity` is at least 1.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            ring: Ring::new(capacity),
            half: capacity.div_ceil(2),
            roomy: capacity - capacity / 8,
            asleep: CachePadded::new(AtomicBool::new(false)),
            closing: AtomicBool::new(false),
            exiting: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            progress: Mutex::default(),
            moved: Condvar::new(),
            writer: OnceLock::new(),
        })
    }

    /// Names the thread that writes, and has the end of the process wait for it.
    pub(super) fn begin(self: &Arc<Self>, writer: Thread) {
        let _ = self.writer.set(writer);
        let mut live = LIVE.lock();
        live.retain(|log| log.strong_count() > 0);
        live.push(Arc::downgrade(self));
        drop(live);
        flush_at_exit();
    }

    /// Puts a record at the end; waits while there is no room.
    #[inline]
    pub(super) fn push(&self, record: Record) {
        match self.ring.push(record) {
            // Relaxed: a writer that is thought awake looks again by itself soon.
            Ok(()) if !self.asleep.load(Ordering::Relaxed) => {}
            Ok(()) => {
                if self.ring.len() >= self.half {
                    self.wake();
                }
            }
            Err(record) => self.push_later(record),
        }
    }

    #[cold]
    fn push_later(&self, mut record: Record) {
        // What the log goes to, or a subscriber, allocates through it: nobody would make room.
        if self.is_writer() {
            // The return of a free is no row.
            let rows = u64::from(record.action != Action::Freed);
            self.refused.fetch_add(rows, Ordering::Relaxed);
            return;
        }
        let backoff = Backoff::new();
        let mut looks = 0;
        loop {
            looks += 1;
            self.wake();
            if backoff.is_completed() {
                std::thread::sleep(NO_ROOM);
            } else {
                backoff.snooze();
            }
            // Room for one would be gone at once: this thread and the writer would take turns, and
            // pass each cache line to and fro. Others may fill what it waits for, so not for ever.
            if looks <= PATIENCE && self.ring.len() > self.roomy {
                continue;
            }
            match self.ring.push(record) {
                Ok(()) => return,
                Err(back) => record = back,
            }
        }
    }

    fn wake(&self) {
        // One of many producers wakes it.
        if self.asleep.swap(false, Ordering::AcqRel) {
            self.unpark();
        }
    }

    fn unpark(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    pub(super) fn is_writer(&self) -> bool {
        self.writer.get().is_some_and(|writer| writer.id() == std::thread::current().id())
    }

    /// Waits until everything that was pushed before is written.
    pub(super) fn flush(&self) -> Result<()> {
        if is_forked_child() {
            return Err(Error::new(
                ErrorKind::Forked,
                "flushing a log of the process that this one was forked from",
            ));
        }
        self.flush_within(None);
        match &self.progress.lock().trouble {
            None => Ok(()),
            Some(Trouble { text, discarded }) => Err(Error::new(
                ErrorKind::Io,
                format!("the allocation log ended early: {text}; {discarded} rows are not in it"),
            )),
        }
    }

    fn flush_within(&self, limit: Option<Duration>) {
        if self.is_writer() {
            return;
        }
        // Release: the records pushed before it are in the ring for the writer who reads it.
        let ticket = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.unpark();
        let until = limit.map(|limit| Instant::now() + limit);
        let mut progress = self.progress.lock();
        while progress.done < ticket && !progress.ended {
            match until {
                None => self.moved.wait(&mut progress),
                Some(until) => {
                    if self.moved.wait_until(&mut progress, until).timed_out() {
                        return;
                    }
                }
            }
        }
    }

    /// Has the writer write what is left and end.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.unpark();
    }

    // What follows is the writer's side.

    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(super) fn is_exiting(&self) -> bool {
        self.exiting.load(Ordering::Relaxed)
    }

    pub(super) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Gives what is in the queue to `take`, as many records as it has room for at most; how many
    /// those were.
    pub(super) fn drain(&self, take: impl FnMut(Record)) -> usize {
        self.ring.drain(self.ring.capacity(), take)
    }

    pub(super) fn take_refused(&self) -> u64 {
        self.refused.swap(0, Ordering::Relaxed)
    }

    /// Sleeps until the queue is half full, somebody asks, or the time is over.
    pub(super) fn sleep(&self, nap: Duration) {
        self.asleep.store(true, Ordering::Release);
        // Whoever pushed before the store saw nobody to wake.
        if self.ring.len() < self.half {
            std::thread::park_timeout(nap);
        }
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Everything asked for up to `done` is written, or lost for the reason given.
    pub(super) fn report(&self, done: u64, trouble: Option<Trouble>, ended: bool) {
        let mut progress = self.progress.lock();
        progress.done = done;
        progress.ended |= ended;
        progress.trouble = trouble;
        drop(progress);
        self.moved.notify_all();
    }
}

/// The logs that the end of the process has to wait for.
static LIVE: Mutex<Vec<Weak<Log>>> = Mutex::new(Vec::new());

#[cfg(unix)]
extern "C" fn at_exit() {
    // The child of a fork has none of the threads, and the files are the parent's to write.
    if is_forked_child() {
        return;
    }
    let live: Vec<_> = LIVE.lock().iter().filter_map(Weak::upgrade).collect();
    for log in live {
        log.exiting.store(true, Ordering::Relaxed);
        log.flush_within(Some(AT_EXIT));
    }
}

/// Statics are never dropped, so the system calls us back.
fn flush_at_exit() {
    #[cfg(unix)]
    {
        static REGISTERED: OnceLock<i32> = OnceLock::new();
        REGISTERED.get_or_init(|| {
            // SAFETY: `at_exit` is a function of this program that does not unwind: it calls no
            // code of others.
            unsafe { libc::atexit(at_exit) }
        });
    }
}
