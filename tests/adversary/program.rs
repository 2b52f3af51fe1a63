//! A program as a list of steps, and its text, which runs again.

use std::fmt;

/// What a step names of streams and threads, at most.
pub(crate) const STREAMS: usize = 8;
pub(crate) const THREADS: usize = 3;

/// Which blocks a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// Of 32 MiB and more.
    Large,
    All,
}

/// Blocks have numbers, and a step about a number that is not there does nothing: so a program stays one, whatever is
/// left out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Blocks from a number on, each larger than the last one by so many bytes.
    Allocate { first: usize, count: usize, bytes: usize, more: usize, by: Caller },
    /// Every so-manieth block from a number on.
    Free { first: usize, count: usize, every: usize, by: Caller },
    /// A block is replaced by a longer one, again and again.
    Grow { block: usize, times: usize, more: usize, by: Caller },
    /// A kernel that runs until so many steps later.
    Busy { stream: usize, steps: usize },
    /// A stream waits for another.
    Order { stream: usize, before: usize },
    /// The host waits for a stream.
    Wait { stream: usize },
    /// The host waits for a stream that has no work. Others may be held up.
    WaitIdle,
    /// The pool gives back what it can, down to so many bytes; behind a wait for the device, or without one.
    Trim { keep: usize, waits: bool },
    /// The pool's release threshold from now on.
    Threshold { bytes: usize },
    /// The pool sleeps and wakes. Its contents are kept, if they are few, or dropped.
    Sleep { keeps: bool },
}

/// On which stream a call is, and on which thread it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) stream: usize,
    pub(crate) thread: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
}

impl Step {
    /// Its streams.
    pub(crate) fn streams(&self) -> [usize; 2] {
        match *self {
            Self::Allocate { by, .. } | Self::Free { by, .. } | Self::Grow { by, .. } => {
                [by.stream; 2]
            }
            Self::Busy { stream, .. } | Self::Wait { stream } => [stream; 2],
            Self::Order { stream, before } => [stream, before],
            Self::WaitIdle | Self::Trim { .. } | Self::Threshold { .. } | Self::Sleep { .. } => {
                [0; 2]
            }
        }
    }

    /// As one that is in bounds, so that nothing that reads or changes programs can make a step that is not.
    fn bounded(self) -> Self {
        let caller =
            |by: Caller| Caller { stream: by.stream % STREAMS, thread: by.thread % THREADS };
        match self {
            Self::Allocate { first, count, bytes, more, by } => {
                Self::Allocate { first, count, bytes: bytes.max(1), more, by: caller(by) }
            }
            Self::Free { first, count, every, by } => {
                Self::Free { first, count, every: every.max(1), by: caller(by) }
            }
            Self::Grow { block, times, more, by } => {
                Self::Grow { block, times, more, by: caller(by) }
            }
            Self::Busy { stream, steps } => Self::Busy { stream: stream % STREAMS, steps },
            Self::Order { stream, before } => {
                Self::Order { stream: stream % STREAMS, before: before % STREAMS }
            }
            Self::Wait { stream } => Self::Wait { stream: stream % STREAMS },
            other @ (Self::WaitIdle
            | Self::Trim { .. }
            | Self::Threshold { .. }
            | Self::Sleep { .. }) => other,
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let verb = words.next()?;
        let numbers = words.map(str::parse).collect::<Result<Vec<usize>, _>>().ok()?;
        let step = match (verb, numbers.as_slice()) {
            ("allocate", &[first, count, bytes, more, stream, thread]) => {
                Self::Allocate { first, count, bytes, more, by: Caller { stream, thread } }
            }
            ("free", &[first, count, every, stream, thread]) => {
                Self::Free { first, count, every, by: Caller { stream, thread } }
            }
            ("grow", &[block, times, more, stream, thread]) => {
                Self::Grow { block, times, more, by: Caller { stream, thread } }
            }
            ("busy", &[stream, steps]) => Self::Busy { stream, steps },
            ("order", &[stream, before]) => Self::Order { stream, before },
            ("wait", &[stream]) => Self::Wait { stream },
            ("wait_idle", &[]) => Self::WaitIdle,
            ("trim", &[keep]) => Self::Trim { keep, waits: false },
            ("wait_and_trim", &[keep]) => Self::Trim { keep, waits: true },
            ("threshold", &[bytes]) => Self::Threshold { bytes },
            ("sleep", &[keeps]) => Self::Sleep { keeps: keeps != 0 },
            _ => return None,
        };
        Some(step.bounded())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Allocate { first, count, bytes, more, by: Caller { stream, thread } } => {
                write!(out, "allocate {first} {count} {bytes} {more} {stream} {thread}")
            }
            Self::Free { first, count, every, by: Caller { stream, thread } } => {
                write!(out, "free {first} {count} {every} {stream} {thread}")
            }
            Self::Grow { block, times, more, by: Caller { stream, thread } } => {
                write!(out, "grow {block} {times} {more} {stream} {thread}")
            }
            Self::Busy { stream, steps } => write!(out, "busy {stream} {steps}"),
            Self::Order { stream, before } => write!(out, "order {stream} {before}"),
            Self::Wait { stream } => write!(out, "wait {stream}"),
            Self::WaitIdle => out.write_str("wait_idle"),
            Self::Trim { keep, waits: false } => write!(out, "trim {keep}"),
            Self::Trim { keep, waits: true } => write!(out, "wait_and_trim {keep}"),
            Self::Threshold { bytes } => write!(out, "threshold {bytes}"),
            Self::Sleep { keeps } => write!(out, "sleep {}", u8::from(keeps)),
        }
    }
}

impl Program {
    /// Those up to the largest that a step names.
    pub(crate) fn streams(&self) -> usize {
        self.steps.iter().flat_map(Step::streams).max().map_or(1, |most| most + 1)
    }

    /// Reads its text: a step a line, or between semicolons. The error is a line that is none.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let lines = text.split(['\n', ';']).map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let steps = lines.map(|line| Step::parse(line).ok_or_else(|| format!("no step: {line:?}")));
        Ok(Self { steps: steps.collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(Step::to_string).collect();
        out.write_str(&steps.join("; "))
    }
}

#[test]
fn a_program_is_its_text() {
    let text = "allocate 0 4 33554432 256 1 2; free 0 2 2 0 0; grow 3 5 1048576 7 1; busy 1 6; order 0 1; \
                wait 1; trim 0; wait_and_trim 1; threshold 2; wait_idle; sleep 0; sleep 1";
    let program = Program::parse(text).unwrap();
    assert_eq!(program.to_string(), text);
    assert_eq!(program.streams(), 8);
    let lines = Program::parse("# two\n\nwait 9\n  busy 1 2\n").unwrap();
    assert_eq!(lines.to_string(), "wait 1; busy 1 2");
    for wrong in ["wait", "wait 1 2", "wait x", "stop 1", "wait_idle 1"] {
        assert!(Program::parse(wrong).is_err(), "{wrong}");
    }
}
