//! The figures of a replay.

use crate::engine::{Observation, Pass};
use crate::plan::Plan;
use crate::stack::{Backend, Options, Resource};
use crate::warning::Warning;
use crate::words::{count, line};
use bytesize::ByteSize;
use serde::Serialize;
use std::fmt;

/// An allocation that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// The operation, from 0.
    pub step: usize,
    /// Its line or record in the log; [`BEFORE`](crate::event::BEFORE) and [`AFTER`](crate::event::AFTER) for
    /// one that has none.
    pub line: u64,
    /// Bytes that were asked.
    pub bytes: u64,
    /// What the resource said.
    pub error: String,
}

/// Where a capacity comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CapacityIs {
    /// It was asked for.
    Given,
    /// A bisection found it.
    Bisected,
    /// It is what a replay without one took at most, on a simulated device.
    Needed,
    /// It is the GPU's.
    Device,
}

/// The part of the reserved bytes that was not live, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fragmentation {
    /// When the most was live.
    pub at_peak: f64,
    /// The mean of all steps with something reserved.
    pub mean: f64,
    /// The most at any step. Near 1 for every log that starts small or frees all.
    pub max: f64,
    /// After the last step.
    pub at_end: f64,
}

/// What a replay came to. Sizes in bytes, times in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The log's name.
    pub log: String,
    /// The resource.
    pub resource: String,
    /// The device.
    pub device: String,
    /// What could be taken from the device at once; `None` if that is what a GPU has.
    pub capacity: Option<u64>,
    /// Where the capacity comes from.
    pub capacity_is: CapacityIs,
    /// Allocations and frees that were made.
    pub operations: usize,
    /// Threads of the log.
    pub threads: usize,
    /// Streams of the log.
    pub streams: usize,
    /// Their names, as the log has them.
    pub stream_names: Vec<String>,
    /// Allocations that were served.
    pub served: usize,
    /// Frees on another stream than the allocation's. That stream is made to wait for the other
    /// first: an event and a wait more.
    pub crossings: usize,
    /// From the first operation to the last, with what threads take to hand over.
    pub wall_ns: u64,
    /// The mean of one operation, without the handing over.
    pub ns_per_operation: f64,
    /// Allocations and frees that reached the memory below the resource.
    pub upstream_calls: u64,
    /// Calls of the driver, where the device counts them: the simulated one.
    pub driver_calls: Option<u64>,
    /// The most bytes that the log has live at once.
    pub peak_live_of_log: u64,
    /// The most bytes that were live at once: less than the log's if allocations failed.
    pub peak_live: u64,
    /// The most bytes that were taken from the device at once.
    pub peak_reserved: u64,
    /// Of a pool: the largest free block after the last step.
    pub largest_free_at_end: Option<u64>,
    /// Reserved, and not live.
    pub fragmentation: Fragmentation,
    /// Allocations that the log does not free. They were freed after the last step.
    pub leaks: usize,
    /// Their bytes.
    pub leaked_bytes: u64,
    /// Allocations that failed when the log was written, and were not replayed.
    pub failures_of_log: usize,
    /// Their bytes.
    pub failed_bytes_of_log: u64,
    /// Lines of the log that cannot have happened.
    pub problems: usize,
    /// What of the log is not replayed, or not as it stands.
    pub warnings: Vec<Warning>,
    /// What was refused.
    pub failures: Vec<Failed>,
    /// `line` or `record`: what the failures' lines are.
    pub line_word: &'static str,
}

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        options: &Options,
        pass: &Pass,
        observation: &Observation,
    ) -> Self {
        let capacity_is = match (options.capacity, options.backend) {
            (Some(_), _) => CapacityIs::Given,
            (None, Backend::Simulated) => CapacityIs::Needed,
            (None, Backend::Cuda(_)) => CapacityIs::Device,
        };
        Self {
            log: plan.name.clone(),
            resource: options.resource.name(),
            device: pass.device.clone(),
            capacity: match capacity_is {
                CapacityIs::Needed => Some(pass.peak_reserved),
                _ => options.capacity,
            },
            capacity_is,
            operations: pass.steps,
            threads: plan.threads.len(),
            streams: plan.streams.len(),
            stream_names: plan.streams.iter().map(|stream| stream.name.clone()).collect(),
            served: pass.served,
            crossings: pass.crossings,
            wall_ns: pass.wall.as_nanos() as u64,
            ns_per_operation: pass.busy.as_nanos() as f64 / pass.steps.max(1) as f64,
            upstream_calls: pass.upstream_calls,
            driver_calls: pass.driver_calls,
            peak_live_of_log: plan.peak_live,
            peak_live: observation.live.iter().copied().max().unwrap_or(0),
            peak_reserved: pass.peak_reserved,
            largest_free_at_end: pass.largest_free_at_end,
            fragmentation: fragmentation(observation),
            leaks: pass.leaked,
            leaked_bytes: observation.live.last().copied().unwrap_or(0),
            failures_of_log: plan.failures,
            failed_bytes_of_log: plan.failed_bytes,
            problems: plan.problems.len(),
            warnings: plan.warnings.clone(),
            failures: pass.failures.clone(),
            line_word: plan.line_word,
        }
    }
}

fn fragmentation(observation: &Observation) -> Fragmentation {
    let mut found = Fragmentation::default();
    let (mut sum, mut steps, mut peak) = (0.0, 0_u64, 0);
    for (&live, &reserved) in observation.live.iter().zip(&observation.reserved) {
        found.at_end = 0.0;
        if reserved == 0 {
            continue;
        }
        let now = 1.0 - live as f64 / reserved as f64;
        sum += now;
        steps += 1;
        found.max = found.max.max(now);
        found.at_end = now;
        if live > peak {
            peak = live;
            found.at_peak = now;
        }
    }
    found.mean = sum / steps.max(1) as f64;
    found
}

/// Bytes for people: rounded, and exact.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        _ => format!("{} ({bytes} B)", ByteSize::b(bytes)),
    }
}

impl Report {
    /// What was replayed on what, for titles.
    pub(crate) fn title(&self) -> String {
        match self.log.as_str() {
            "" => format!("{} on {}", self.resource, self.device),
            log => format!("{log}: {} on {}", self.resource, self.device),
        }
    }

    fn capacity_words(&self) -> String {
        let Some(capacity) = self.capacity else { return String::from("the device's") };
        let is = match self.capacity_is {
            CapacityIs::Needed if !self.failures.is_empty() => {
                ", as much as was taken without a limit"
            }
            CapacityIs::Needed if self.resource == Resource::Arena.name() => {
                ", the first double of the log's peak that serves it"
            }
            CapacityIs::Needed => ", as much as the log took without a limit",
            _ => "",
        };
        format!("{}{is}", bytes(capacity))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<20}{value}");
        if !self.log.is_empty() {
            row("log", self.log.clone())?;
        }
        row("resource", format!("{} on {}", self.resource, self.device))?;
        row("capacity", self.capacity_words())?;
        row(
            "operations",
            format!(
                "{} of {} on {}; {} served, {} freed on another stream",
                count(self.operations, "operation"),
                count(self.threads, "thread"),
                count(self.streams, "stream"),
                count(self.served, "allocation"),
                if self.crossings == 0 { String::from("none") } else { self.crossings.to_string() },
            ),
        )?;
        row("wall time", format!("{:.3} ms", self.wall_ns as f64 / 1e6))?;
        row("per operation", format!("{:.0} ns", self.ns_per_operation))?;
        row("upstream calls", self.upstream_calls.to_string())?;
        if let Some(calls) = self.driver_calls {
            row("driver calls", calls.to_string())?;
        }
        row("peak live", bytes(self.peak_live))?;
        row("peak reserved", bytes(self.peak_reserved))?;
        let Fragmentation { at_peak, mean, max, at_end } = self.fragmentation;
        row(
            "fragmentation",
            format!(
                "{at_peak:.3} at peak live, {mean:.3} mean, {max:.3} most, {at_end:.3} at the end"
            ),
        )?;
        if let Some(largest) = self.largest_free_at_end {
            row("largest free", format!("{} at the end", bytes(largest)))?;
        }
        row(
            "leaks",
            match self.leaks {
                0 => String::from("none"),
                leaks => format!("{}, {}", count(leaks, "allocation"), bytes(self.leaked_bytes)),
            },
        )?;
        if self.failures_of_log > 0 {
            let failed = bytes(self.failed_bytes_of_log);
            row(
                "failures of the log",
                format!("{} of {failed}, not replayed", self.failures_of_log),
            )?;
        }
        if self.problems > 0 {
            row(&format!("impossible {}s", self.line_word), self.problems.to_string())?;
        }
        for warning in &self.warnings {
            let name = if warning.is_note() { "passed over" } else { "warning" };
            let at = warning.line.map(|at| line(self.line_word, at) + ": ").unwrap_or_default();
            row(name, at + &warning.in_words(self.line_word))?;
        }
        row("failures", self.failures.len().to_string())?;
        for failed in self.failures.iter().take(SHOWN) {
            writeln!(f, "  {}: {}", line(self.line_word, failed.line), failed.error)?;
        }
        if self.failures.len() > SHOWN {
            writeln!(f, "  and {} more", self.failures.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// Failures that are shown to people.
const SHOWN: usize = 10;
