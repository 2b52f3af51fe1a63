//! A log made ready: every free knows its allocation.

use crate::event::{Action, Log, LogStream};
use crate::warning::{Part, Tally, Warning};
use crate::words::{count, line};
use std::collections::BTreeMap;
use std::ops::Bound;

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
    /// The line or record of the log, as an [`Event`](crate::event::Event) has it.
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
    /// Bytes were handed out at no address.
    AllocatedAtNull {
        /// Where.
        line: u64,
        /// Bytes.
        size: u64,
    },
    /// Memory was handed out of which a part was not free.
    Overlapping {
        /// Where.
        line: u64,
        /// The address.
        address: u64,
        /// Bytes.
        size: u64,
        /// Where the other had been handed out.
        before: u64,
        /// The other's address.
        other: u64,
        /// The other's bytes.
        other_size: u64,
    },
    /// Memory was handed out that goes past the last address of 64 bits.
    PastLastAddress {
        /// Where.
        line: u64,
        /// The address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// Memory was freed with another size than it was allocated with.
    FreedOtherSize {
        /// Where.
        line: u64,
        /// The address.
        address: u64,
        /// Bytes that the free says.
        size: u64,
        /// Where it had been handed out.
        before: u64,
        /// Bytes that the allocation says.
        allocated: u64,
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
            | Self::AllocatedAtNull { line, .. }
            | Self::Overlapping { line, .. }
            | Self::PastLastAddress { line, .. }
            | Self::FreedOtherSize { line, .. }
            | Self::Cut { line } => line,
        }
    }

    /// What is wrong there. `line_word` is the plan's.
    pub fn in_words(&self, line_word: &str) -> String {
        match self {
            Self::AllocatedTwice { address, before, .. } => {
                let before = line(line_word, *before);
                format!("{address:#x} is allocated again, without a free since {before}")
            }
            Self::FreedUnknown { address, .. } => {
                format!("{address:#x} is freed while it is not allocated")
            }
            Self::AllocatedAtNull { size, .. } => {
                let bytes = count(*size, "byte");
                let are = if *size == 1 { "is" } else { "are" };
                format!("{bytes} {are} allocated at 0x0, where there is no memory")
            }
            Self::Overlapping { address, size, before, other, other_size, .. } => {
                format!(
                    "{} at {address:#x} are allocated, and {} has {} at {other:#x}, which were \
                     not freed",
                    count(*size, "byte"),
                    line(line_word, *before),
                    count(*other_size, "byte")
                )
            }
            Self::PastLastAddress { address, size, .. } => {
                format!(
                    "{} at {address:#x} are allocated, and go past the last address of 64 bits",
                    count(*size, "byte")
                )
            }
            Self::FreedOtherSize { address, size, before, allocated, .. } => {
                format!(
                    "{address:#x} is freed with {}, and was allocated with {} in {}",
                    count(*size, "byte"),
                    count(*allocated, "byte"),
                    line(line_word, *before)
                )
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
    /// Their bytes.
    pub failed_bytes: u64,
    /// Allocations of no bytes and frees of no address. They are not replayed.
    pub empty: usize,
    /// What cannot have happened, and how it was taken: memory that is allocated twice was freed
    /// just before; memory at null, a free of the unknown and a line that is cut off are left out; memory that overlaps
    /// or goes past the last address is allocated all the same; a free has its allocation's size.
    pub problems: Vec<Problem>,
    /// What is not replayed, or not as it stands: the log's warnings, and behind them those of what is left
    /// out or taken otherwise here.
    pub warnings: Vec<Warning>,
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
            warnings: log.warnings.clone(),
            line_word: log.line_word,
            ..Self::default()
        };
        let mut live = Live::new();
        // Sizes are anybody's, and their sum may pass 64 bits.
        let mut bytes = 0_u128;
        let mut failed = Tally::default();
        let [mut frees, mut at_null, mut empty] = [Tally::default(); 3];
        let [mut twice, mut other_size] = [Tally::default(); 2];
        for event in &log.events {
            let step = |what| Step {
                line: event.line,
                thread: event.thread,
                stream: event.stream,
                time: event.time,
                what,
            };
            let asked = event.size.unwrap_or(0);
            match event.action {
                Action::Failure => failed.add(asked),
                // RMM's pools give no address for no bytes.
                Action::Allocate if asked == 0 => empty.add(0),
                Action::Allocate if event.address == 0 => {
                    at_null.add(asked);
                    plan.problems.push(Problem::AllocatedAtNull { line: event.line, size: asked });
                }
                Action::Free if event.address == 0 => empty.add(asked),
                Action::Free => match live.remove(&event.address) {
                    Some((slot, before, allocated)) => {
                        bytes -= u128::from(allocated);
                        if let Some(size) = event.size.filter(|size| *size != allocated) {
                            other_size.add(size.abs_diff(allocated));
                            let (line, address) = (event.line, event.address);
                            let other =
                                Problem::FreedOtherSize { line, address, size, before, allocated };
                            plan.problems.push(other);
                        }
                        plan.steps.push(step(What::Free { slot }));
                    }
                    // The address that a zero-size allocation got.
                    None if event.size == Some(0) => empty.add(0),
                    None => {
                        frees.add(asked);
                        let (line, address) = (event.line, event.address);
                        plan.problems.push(Problem::FreedUnknown { line, address });
                    }
                },
                Action::Allocate => {
                    let (address, line) = (event.address, event.line);
                    // The last byte's address. A size of 0 has its own.
                    if address.checked_add(asked.saturating_sub(1)).is_none() {
                        plan.problems.push(Problem::PastLastAddress { line, address, size: asked });
                    }
                    let slot = plan.slots;
                    plan.slots += 1;
                    let entry = (slot, event.line, asked);
                    if let Some((slot, before, size)) = live.insert(event.address, entry) {
                        bytes -= u128::from(size);
                        twice.add(size);
                        plan.problems.push(Problem::AllocatedTwice {
                            line: event.line,
                            address: event.address,
                            before,
                        });
                        plan.steps.push(step(What::Free { slot }));
                    } else if let Some((other, (_, before, other_size))) =
                        neighbour(&live, event.address, asked)
                    {
                        plan.problems.push(Problem::Overlapping {
                            line: event.line,
                            address: event.address,
                            size: asked,
                            before,
                            other,
                            other_size,
                        });
                    }
                    bytes += u128::from(asked);
                    let now = u64::try_from(bytes).unwrap_or(u64::MAX);
                    plan.peak_live = plan.peak_live.max(now);
                    let size = usize::try_from(asked).unwrap_or(usize::MAX);
                    plan.steps.push(step(What::Allocate { slot, size }));
                }
            }
        }
        plan.problems.extend(log.cut.map(|line| Problem::Cut { line }));
        plan.leaks = live.len();
        (plan.failures, plan.failed_bytes) = (failed.number as usize, failed.bytes());
        plan.empty = empty.number as usize;
        let tallies = [
            (frees, Part::FreesAlone),
            (twice, Part::AllocatedTwice),
            (other_size, Part::FreedOtherSize),
            (at_null, Part::AtNull),
            (empty, Part::Empty),
        ];
        plan.warnings.extend(tallies.into_iter().filter_map(|(tally, part)| tally.of(part)));
        plan
    }
}

/// By address: the allocation, its line, its bytes.
type Live = BTreeMap<u64, (usize, u64, u64)>;

/// What is live below or above the allocation at `address`, if the two have bytes in common.
fn neighbour(live: &Live, address: u64, size: u64) -> Option<(u64, (usize, u64, u64))> {
    let below = live.range(..address).next_back();
    let below = below.filter(|(start, (_, _, size))| start.saturating_add(*size) > address);
    let above = live.range((Bound::Excluded(address), Bound::Unbounded)).next();
    let above = above.filter(|(start, _)| address.saturating_add(size) > **start);
    below.or(above).map(|(start, entry)| (*start, *entry))
}
