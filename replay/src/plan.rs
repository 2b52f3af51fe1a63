//! A log made ready: every free knows its allocation.

use crate::event::{Action, Log, LogStream};
use std::collections::HashMap;

/// What to do at one step, and with which allocation of the log, numbered from 0 in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Allocate this many bytes.
    Allocate {
        /// The allocation's number.
        slot: usize,
        /// Bytes.
        size: usize,
    },
    /// Free what the allocation gave, if it was served.
    Free {
        /// The allocation's number.
        slot: usize,
    },
}

/// One call to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The line or record of the log.
    pub line: u64,
    /// The thread that makes the call, from 0.
    pub thread: usize,
    /// The stream that it is made on, from 0.
    pub stream: usize,
    /// Nanoseconds since the log's first event, where it tells times.
    pub time: Option<u64>,
    /// The call.
    pub what: What,
}

/// Something in a log that cannot have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Memory was handed out that was not free.
    AllocatedTwice {
        /// Where.
        line: u64,
        /// The address.
        address: u64,
        /// Where it had been handed out before.
        before: u64,
    },
    /// Memory was freed that was not allocated.
    FreedUnknown {
        /// Where.
        line: u64,
        /// The address.
        address: u64,
    },
    /// The last line is no whole line: whoever wrote the log was killed.
    Cut {
        /// Where.
        line: u64,
    },
}

impl Problem {
    /// Its line or record.
    pub fn line(&self) -> u64 {
        match *self {
            Self::AllocatedTwice { line, .. }
            | Self::FreedUnknown { line, .. }
            | Self::Cut { line } => line,
        }
    }

    /// What is wrong there. `line_word` is the plan's.
    pub fn in_words(&self, line_word: &str) -> String {
        match self {
            Self::AllocatedTwice { address, before, .. } => {
                format!(
                    "{address:#x} is allocated again, without a free since {line_word} {before}"
                )
            }
            Self::FreedUnknown { address, .. } => {
                format!("{address:#x} is freed, and was not allocated")
            }
            Self::Cut { .. } => {
                String::from("the last line is cut off: the program that wrote it was killed")
            }
        }
    }
}

/// What a log asks of a resource, in its order.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The log's name.
    pub name: String,
    /// The calls.
    pub steps: Vec<Step>,
    /// How many allocations there are.
    pub slots: usize,
    /// The names of the threads that make calls.
    pub threads: Vec<String>,
    /// The streams.
    pub streams: Vec<LogStream>,
    /// The most bytes that were live at once: what a perfect allocator needs.
    pub peak_live: u64,
    /// Allocations that are never freed.
    pub leaks: usize,
    /// Allocations that failed when the log was written. They are not replayed.
    pub failures: usize,
    /// Allocations of no bytes and frees of no address. They are not replayed.
    pub empty: usize,
    /// What cannot have happened, and how it was taken: memory that is allocated twice was freed
    /// just before; a free of the unknown and a line that is cut off are left out.
    pub problems: Vec<Problem>,
    /// What a line is called: `line` of a text, `record` of a snapshot.
    pub line_word: &'static str,
}

impl Plan {
    /// Makes a log ready.
    pub fn new(log: &Log) -> Self {
        let mut plan = Self {
            name: log.name.clone(),
            threads: log.threads.clone(),
            streams: log.streams.clone(),
            steps: Vec::with_capacity(log.events.len()),
            line_word: log.line_word,
            ..Self::default()
        };
        // By address: the allocation, its line, its bytes.
        let mut live: HashMap<u64, (usize, u64, u64)> = HashMap::new();
        // Sizes are anybody's, and their sum may pass 64 bits.
        let mut bytes = 0_u128;
        for event in &log.events {
            let step = |what| Step {
                line: event.line,
                thread: event.thread,
                stream: event.stream,
                time: event.time,
                what,
            };
            match event.action {
                Action::Failure => plan.failures += 1,
                // RMM's pools give no address for no bytes.
                Action::Allocate if event.size == 0 => plan.empty += 1,
                Action::Free if event.address == 0 => plan.empty += 1,
                Action::Free => match live.remove(&event.address) {
                    Some((slot, _, size)) => {
                        bytes -= u128::from(size);
                        plan.steps.push(step(What::Free { slot }));
                    }
                    // The address that a zero-size allocation got.
                    None if event.size == 0 => plan.empty += 1,
                    None => plan
                        .problems
                        .push(Problem::FreedUnknown { line: event.line, address: event.address }),
                },
                Action::Allocate => {
                    let slot = plan.slots;
                    plan.slots += 1;
                    let entry = (slot, event.line, event.size);
                    if let Some((slot, before, size)) = live.insert(event.address, entry) {
                        bytes -= u128::from(size);
                        plan.problems.push(Problem::AllocatedTwice {
                            line: event.line,
                            address: event.address,
                            before,
                        });
                        plan.steps.push(step(What::Free { slot }));
                    }
                    bytes += u128::from(event.size);
                    let now = u64::try_from(bytes).unwrap_or(u64::MAX);
                    plan.peak_live = plan.peak_live.max(now);
                    let size = usize::try_from(event.size).unwrap_or(usize::MAX);
                    plan.steps.push(step(What::Allocate { slot, size }));
                }
            }
        }
        plan.problems.extend(log.cut.map(|line| Problem::Cut { line }));
        plan.leaks = live.len();
        plan
    }
}
