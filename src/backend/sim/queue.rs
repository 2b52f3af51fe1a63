//! Streams, events, and the operations that wait in queues.

use super::backing::Backing;
use super::capture::Point;
use super::clock::{Clock, Stamp};
use super::report::OpName;
use crate::backend::kernel::HostArg;
use crate::backend::{FillWord, HostForm, LaunchConfig};
use crate::sync::Arc;
use crate::sync::trusted::{AtomicUsize, Ordering};
use std::collections::VecDeque;

/// A point that queues can wait for: one record of one event.
#[derive(Debug)]
pub(super) struct Mark {
    /// Queues that have not passed it.
    remaining: AtomicUsize,
    /// The device whose queues pass it.
    pub(super) device: u64,
}

impl Mark {
    pub(super) fn new(device: u64, queues: usize) -> Self {
        Self { remaining: AtomicUsize::new(queues), device }
    }

    /// One queue has passed. Relaxed, here and below: read and written under the world's lock.
    pub(super) fn pass(&self) {
        self.remaining.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn is_passed(&self) -> bool {
        self.remaining.load(Ordering::Relaxed) == 0
    }
}

/// What an operation does when its turn comes.
#[derive(Debug)]
pub(super) enum Work {
    /// It was refused, but keeps its place in the queue.
    Nothing,
    Copy {
        target: *mut u8,
        source: *const u8,
        bytes: usize,
    },
    /// A copy from pageable memory, staged when it was enqueued.
    Unload {
        target: *mut u8,
        staged: Vec<u8>,
    },
    Fill {
        target: *mut u8,
        stride: usize,
        word: FillWord,
        count: usize,
    },
    /// In place of a refused copy to the host, whose target must not stay unwritten.
    Poison {
        target: *mut u8,
        bytes: usize,
    },
    Kernel {
        host: HostForm,
        config: LaunchConfig,
        arguments: Vec<HostArg>,
    },
    Record(Arc<Mark>),
    Wait(Arc<Mark>),
    /// Gives the bytes of a block back to its pool and the device.
    Free {
        bytes: u64,
        pool: u64,
    },
}

/// A range of a block that an operation touches; keeps the memory alive until it has run.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) backing: Arc<Backing>,
    pub(super) start: usize,
    pub(super) bytes: usize,
    pub(super) writes: bool,
    pub(super) host_visible: bool,
}

impl Hold {
    /// Names the block among those alive.
    pub(super) fn block(&self) -> usize {
        Arc::as_ptr(&self.backing) as usize
    }
}

/// A watch over the host's side of a copy.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) backing: Arc<Backing>,
    pub(super) id: u64,
    pub(super) range: (u64, u64),
}

/// An operation in a queue.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) name: OpName,
    pub(super) tick: u64,
    pub(super) work: Work,
    pub(super) holds: Vec<Hold>,
    pub(super) watched: Option<Watched>,
}

// SAFETY: its pointers lead into blocks that `holds` keeps alive, or into memory that the unsafe
// call that made it promises to keep until the stream has passed; one thread runs it, once.
unsafe impl Send for Op {}

/// One stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) device: u64,
    pub(super) queue: VecDeque<Op>,
    /// An operation of it is being run, outside of the lock.
    pub(super) busy: bool,
    /// The last operation enqueued.
    pub(super) tick: u64,
    /// The last operation that has run, or was given up.
    pub(super) passed: u64,
    /// The last operation that the host has seen complete.
    pub(super) seen: u64,
    /// What is ordered before the next operation, on other streams.
    pub(super) clock: Clock,
    pub(super) destroyed: bool,
    /// The capture that it takes part in.
    pub(super) capture: Option<u64>,
}

impl Stream {
    pub(super) fn new(device: u64) -> Self {
        Self {
            device,
            queue: VecDeque::new(),
            busy: false,
            tick: 0,
            passed: 0,
            seen: 0,
            clock: Clock::default(),
            destroyed: false,
            capture: None,
        }
    }

    /// Nothing is queued and nothing runs.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.busy
    }

    /// Whether a former access is ordered before the next operation of this stream, `own`.
    pub(super) fn follows(&self, own: u64, former: &Stamp) -> bool {
        former.stream == own || self.clock.get(former.stream) >= former.tick
    }
}

/// The last record of an event.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) mark: Arc<Mark>,
    /// Everything that is ordered before it.
    pub(super) clock: Arc<Clock>,
}

/// One event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) device: u64,
    pub(super) record: Option<Record>,
    /// Its last record is this point of a graph.
    pub(super) captured: Option<Point>,
}
