//! A replay as a trace for Perfetto and chrome://tracing.

use crate::engine::Replayed;
use crate::event::{AFTER, BEFORE};
use crate::plan::{Plan, Step};
use crate::report::Report;
use crate::words;
use serde_json::{Value, json};
use std::io::{self, Write};

/// The one process of the trace.
const PROCESS: u32 = 1;

/// Writes the trace in Chrome's JSON format: counters of the live and the reserved bytes, for each
/// stream a track with one slice an allocation, and an instant for each refusal. Times are the log's, or one microsecond a step
/// where it tells none. The report is the trace's `otherData`.
///
/// # Errors
///
/// Those of `out`.
pub fn write(plan: &Plan, replayed: &Replayed, out: impl Write) -> io::Result<()> {
    let Replayed { report, observation } = replayed;
    let mut events = Events { out, first: true };
    let clock = Clock::new(&plan.steps);
    events.start()?;
    let process = report.title();
    events.put(json!({
        "ph": "M", "name": "process_name", "pid": PROCESS, "args": {"name": process},
    }))?;
    for (number, stream) in plan.streams.iter().enumerate() {
        events.put(json!({
            "ph": "M", "name": "thread_name", "pid": PROCESS, "tid": number + 1,
            "args": {"name": track(&stream.name)},
        }))?;
    }
    let mut before = None;
    for (at, now) in observation.live.iter().zip(&observation.reserved).enumerate() {
        // A counter keeps its value until the next.
        if before.replace(now) == Some(now) {
            continue;
        }
        for (name, bytes) in [("live", now.0), ("reserved", now.1)] {
            events.put(json!({
                "ph": "C", "name": name, "pid": PROCESS, "ts": clock.at(at),
                "args": {"bytes": bytes},
            }))?;
        }
    }
    for failed in &report.failures {
        events.put(json!({
            "ph": "i", "s": "p", "cat": "refused", "name": format!("refused {} B", failed.bytes),
            "pid": PROCESS, "tid": plan.steps[failed.step].stream + 1,
            "ts": clock.at(failed.step),
            "args": {
                "bytes": failed.bytes, plan.line_word: line(plan, failed.line), "error": failed.error,
            },
        }))?;
    }
    let names: Vec<String> = plan.streams.iter().map(|stream| track(&stream.name)).collect();
    for (number, placed) in observation.placed.iter().enumerate() {
        // Slices of one track overlap without nesting, so they are begun and ended by number.
        let slice = |phase: &str, at: usize| {
            json!({
                "ph": phase, "cat": "allocation", "name": names[placed.stream],
                "id": number + 1, "pid": PROCESS, "tid": placed.stream + 1, "ts": clock.at(at),
            })
        };
        let mut begin = slice("b", placed.from);
        begin["args"] = json!({
            "bytes": placed.asked,
            "address": format!("{:#x}", placed.address),
            plan.line_word: line(plan, plan.steps[placed.from].line),
        });
        events.put(begin)?;
        events.put(slice("e", placed.to.min(plan.steps.len())))?;
    }
    events.finish(report)
}

/// A line's number, or in words that it is none.
fn line(plan: &Plan, line: u64) -> Value {
    match line {
        BEFORE | AFTER => words::line(plan.line_word, line).into(),
        _ => line.into(),
    }
}

fn track(stream: &str) -> String {
    format!("stream {stream}")
}

/// When each step was: in nanoseconds that never go back, though threads write their lines a little
/// out of order, since nothing may end before it begins. `None` if the log does not tell.
struct Clock(Option<Vec<u64>>);

impl Clock {
    fn new(steps: &[Step]) -> Self {
        let mut last = 0;
        let times = steps.iter().map(|step| {
            last = last.max(step.time?);
            Some(last)
        });
        Self(times.collect())
    }

    /// Of a step, or of the number behind the last one: the end. In microseconds.
    fn at(&self, step: usize) -> f64 {
        match &self.0 {
            None => step as f64,
            Some(times) => times.get(step).or(times.last()).copied().unwrap_or(0) as f64 / 1000.0,
        }
    }
}

struct Events<W> {
    out: W,
    first: bool,
}

impl<W: Write> Events<W> {
    fn start(&mut self) -> io::Result<()> {
        self.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")
    }

    fn put(&mut self, event: Value) -> io::Result<()> {
        let between: &[u8] = if self.first { b"\n" } else { b",\n" };
        self.first = false;
        self.out.write_all(between)?;
        Ok(serde_json::to_writer(&mut self.out, &event)?)
    }

    fn finish(mut self, report: &Report) -> io::Result<()> {
        self.out.write_all(b"\n],\"otherData\":")?;
        serde_json::to_writer(&mut self.out, report)?;
        self.out.write_all(b"}\n")?;
        self.out.flush()
    }
}
