//! The queue between the threads that allocate and the one that writes the log.
//!
//! # State table
//!
//! | word | writer | reader |
//! |---|---|---|
//! | `ring` | producers | the writing thread (INV-3 of the ring) |
//! | `writer_asleep` | the writing thread as it parks; a producer that wakes it | producers |
//! | `flush_requests` | callers of `flush` | the writing thread |
//! | `closing` | the drop of the last handle | the writing thread |
//! | `exiting` | the end of the process | the writing thread |
//! | `refused` | the writing thread, for its own records | the writing thread |
//! | `progress`, a lock | the writing thread | callers of `flush`, which wait on `progressed` |

use super::record::{Action, Record};
use super::ring::Ring;
use crate::driver::is_forked_child;
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::{Count, debug_struct};
use crate::sync::trusted::{AtomicBool, AtomicU64, Backoff, Condvar, Mutex, Ordering, WaitMutex};
use crate::sync::{Arc, CachePadded, OnceLock, Weak};
use std::thread::Thread;
use std::time::Duration;

/// How long the end of the process waits for one log, whose pipe may have no reader.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The sleep of a producer without room, after it spun and yielded.
const FULL_SLEEP: Duration = Duration::from_micros(50);

/// Checks of a full queue after which a producer takes any room that there is.
const MAX_CHECKS: u32 = 64;

/// The reason why a log ended early.
#[derive(Clone, Debug)]
pub(super) struct LogFailure {
    pub(super) text: String,
    pub(super) advice: &'static str,
    pub(super) discarded: u64,
}

/// The progress of the writing thread.
#[derive(Debug, Default)]
struct LogProgress {
    /// The flush requests that are served.
    served: u64,
    ended: bool,
    failure: Option<LogFailure>,
}

/// A bounded queue of records, which are written in the order of the pushes.
pub(super) struct LogQueue {
    ring: Ring,
    /// The length at which a producer wakes the writing thread.
    wake_length: usize,
    /// The length to which the queue falls before a producer that found it full goes on.
    resume_length: usize,
    /// The writing thread is about to park, or parked.
    writer_asleep: CachePadded<AtomicBool>,
    closing: AtomicBool,
    /// The process is ending, so calls of the driver may fail.
    exiting: AtomicBool,
    flush_requests: AtomicU64,
    /// Rows of the writing thread's own calls that found no room.
    refused: AtomicU64,
    progress: WaitMutex<LogProgress>,
    progressed: Condvar,
    writer: OnceLock<Thread>,
}

debug_struct!(LogQueue { capacity(), .. });

impl LogQueue {
    /// `capacity` is at least 1.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            ring: Ring::new(capacity),
            wake_length: capacity.div_ceil(2),
            resume_length: capacity - capacity / 8,
            writer_asleep: CachePadded::new(AtomicBool::new(false)),
            closing: AtomicBool::new(false),
            exiting: AtomicBool::new(false),
            flush_requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            progress: WaitMutex::default(),
            progressed: Condvar::new(),
            writer: OnceLock::new(),
        })
    }

    /// Sets the writing thread, for which the end of the process waits from now on.
    pub(super) fn start(self: &Arc<Self>, writer: Thread) {
        let _ = self.writer.set(writer);
        let mut live = LIVE_LOGS.lock();
        live.retain(|log| log.strong_count() > 0);
        live.push(Arc::downgrade(self));
        drop(live);
        flush_at_exit();
    }

    /// Appends a record. Waits while there is no room.
    #[inline]
    pub(super) fn push(&self, record: Record) {
        match self.ring.push(record) {
            // Relaxed: a writing thread that falls asleep unnoticed wakes after its nap.
            Ok(()) if !self.writer_asleep.load(Ordering::Relaxed) => {}
            Ok(()) => {
                if self.ring.len() >= self.wake_length {
                    self.wake();
                }
            }
            Err(record) => self.push_full(record),
        }
    }

    #[cold]
    fn push_full(&self, mut record: Record) {
        // The log's own `Write`, or a subscriber, allocates through the log: to wait would deadlock.
        if self.is_writer() {
            let rows = u64::from(record.action != Action::FreeReturned);
            self.refused.fetch_add(rows, Ordering::Relaxed);
            return;
        }
        let backoff = Backoff::new();
        let mut checks = 0;
        loop {
            checks += 1;
            self.wake();
            if backoff.is_completed() {
                std::thread::sleep(FULL_SLEEP);
            } else {
                backoff.snooze();
            }
            // Waits for more room than one record: else this thread and the writing thread would
            // alternate, and pass each cache line to and fro. Not for ever, as others may fill it.
            if checks <= MAX_CHECKS && self.ring.len() > self.resume_length {
                continue;
            }
            match self.ring.push(record) {
                Ok(()) => return,
                Err(back) => record = back,
            }
        }
    }

    fn wake(&self) {
        // The exchange lets one of many producers wake it.
        if self.writer_asleep.swap(false, Ordering::AcqRel) {
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

    /// Waits until all records that were pushed before are written.
    pub(super) fn flush(&self) -> Result<()> {
        let what = "flushing a log of the process that this one was forked from";
        ensure!(!is_forked_child(), Forked, "flush it in the parent", "{what}");
        self.flush_within(None);
        match &self.progress.lock().failure {
            None => Ok(()),
            Some(LogFailure { text, advice, discarded }) => {
                let lacks = match discarded {
                    0 => String::new(),
                    rows => format!("; it lacks {}", Count(*rows, "row")),
                };
                let what = format!("the allocation log ended early: {text}{lacks}");
                Err(Error::new(ErrorKind::Io, what).with_advice(*advice))
            }
        }
    }

    fn flush_within(&self, limit: Option<Duration>) {
        if self.is_writer() {
            return;
        }
        // Release: a writing thread that reads the request finds the records pushed before.
        let request = self.flush_requests.fetch_add(1, Ordering::AcqRel) + 1;
        self.unpark();
        let is_unserved = |progress: &mut LogProgress| progress.served < request && !progress.ended;
        let mut progress = self.progress.lock();
        match limit {
            None => self.progressed.wait_while(&mut progress, is_unserved),
            Some(limit) => {
                self.progressed.wait_while_for(&mut progress, is_unserved, limit);
            }
        }
    }

    /// Ends the writing thread, after all records are written.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.unpark();
    }

    // The side of the writing thread.

    pub(super) fn flush_requests(&self) -> u64 {
        self.flush_requests.load(Ordering::Acquire)
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

    /// Passes up to `capacity` records to `take`, and gives their number.
    pub(super) fn drain(&self, take: impl FnMut(Record)) -> usize {
        self.ring.drain(self.ring.capacity(), take)
    }

    pub(super) fn take_refused(&self) -> u64 {
        self.refused.swap(0, Ordering::Relaxed)
    }

    /// Sleeps until the queue is half full, a flush is requested, or the nap is over.
    pub(super) fn sleep(&self, nap: Duration) {
        self.writer_asleep.store(true, Ordering::Release);
        // A producer that pushed before the store did not wake this thread.
        if self.ring.len() < self.wake_length {
            std::thread::park_timeout(nap);
        }
        self.writer_asleep.store(false, Ordering::Relaxed);
    }

    /// Publishes that the first `served` flush requests are served, or lost to `failure`.
    pub(super) fn publish(&self, served: u64, failure: Option<LogFailure>, ended: bool) {
        let mut progress = self.progress.lock();
        progress.served = served;
        progress.ended |= ended;
        progress.failure = failure;
        drop(progress);
        self.progressed.notify_all();
    }
}

/// The logs that the end of the process waits for.
static LIVE_LOGS: Mutex<Vec<Weak<LogQueue>>> = Mutex::new(Vec::new());

/// The logs that have a writing thread. In the child of a fork the threads do not run, and the files are the parent's.
fn live_logs() -> Vec<Arc<LogQueue>> {
    if is_forked_child() {
        return Vec::new();
    }
    LIVE_LOGS.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Waits until the rows of all logs are written, at most 10 s for each: what `exit` does on Unix, for a process that ends
/// by `_exit`. A log's own error is left to [`LoggingAdaptor::flush`](crate::mr::LoggingAdaptor::flush). It does nothing
/// in the child of a fork whose parent had a device.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, mr::{LoggingAdaptor, flush_logs}};
///
/// # let folder = std::env::temp_dir().join(format!("aquifer-flush-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("memory.csv");
/// let device = Device::detect_or_simulate()?;
/// let logged = LoggingAdaptor::new(CudaResource::new(&device), &path)?;
/// let kept = DeviceVec::<u8>::zeroed_in(&device.new_stream()?, 10, logged)?;
/// flush_logs();
/// assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
/// # drop(kept);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn flush_logs() {
    for log in live_logs() {
        log.flush_within(Some(EXIT_TIMEOUT));
    }
}

#[cfg(unix)]
extern "C" fn at_exit() {
    for log in live_logs() {
        log.exiting.store(true, Ordering::Relaxed);
        log.flush_within(Some(EXIT_TIMEOUT));
    }
}

/// Registers [`at_exit`], as statics are never dropped.
fn flush_at_exit() {
    #[cfg(unix)]
    {
        static REGISTERED: OnceLock<i32> = OnceLock::new();
        REGISTERED.get_or_init(|| {
            // SAFETY: `at_exit` calls no code of the program's, and does not unwind.
            unsafe { libc::atexit(at_exit) }
        });
    }
}
