//! RMM's REPLAY: a log read and replayed on each resource, the operations in the log's order. Rows of
//! `peer,workload,value`, in nanoseconds an operation.
//!
//!     cargo bench -p aquifer-replay --bench replay [-- LOG]
//!
//! Without a log, RMM's random allocations are written as one, of one thread and of four. RMM's own
//! program times its condition variable with the allocator where a log has threads; here the two are
//! a row each.

#[path = "../../benches/family/generator.rs"]
mod generator;
#[path = "../../benches/pool/workloads.rs"]
mod workloads;

use anyhow::{Context as _, Result, bail};
use aquifer::{BackendKind, Device};
use aquifer_replay::engine::replay;
use aquifer_replay::plan::Plan;
use aquifer_replay::read::read;
use aquifer_replay::stack::{Backend, Options, Resource};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use workloads::Trace;

const RESOURCES: [(&str, Resource); 4] = [
    ("aquifer pool", Resource::Pool),
    ("aquifer async", Resource::Async),
    ("aquifer plain", Resource::Cuda),
    ("aquifer managed", Resource::Managed),
];

fn main() -> Result<()> {
    let device = Device::detect()?;
    let simulated = device.kind() == BackendKind::Simulated;
    let note = if simulated { ", SMALL COUNTS: no measurement" } else { "" };
    println!("# {device}, driver {}{note}", device.properties().driver_version);
    println!("peer,workload,ns");
    let bench = match simulated {
        true => Bench { backend: Backend::Simulated, capacity: Some(8 << 30), rounds: 1 },
        false => Bench { backend: Backend::Cuda(0), capacity: None, rounds: 3 },
    };
    // Cargo adds `--bench`.
    if let Some(log) = std::env::args().skip(1).find(|argument| !argument.starts_with("--")) {
        return bench.run("log", Path::new(&log));
    }
    let n = if simulated { 1000 } else { 10_000 };
    for (threads, suffix) in [(1, ""), (4, " 4 threads")] {
        let trace = generator::rmm_trace(n, 1).context("a trace that frees what it allocates")?;
        let log = Written::new(&trace, threads)?;
        bench.run(&format!("rmm random n={n} max=1MiB{suffix}"), &log.0)?;
    }
    Ok(())
}

struct Bench {
    backend: Backend,
    capacity: Option<u64>,
    rounds: usize,
}

impl Bench {
    fn run(&self, name: &str, log: &Path) -> Result<()> {
        let plan = Plan::new(&read(log, None, None)?);
        if let Some(problem) = plan.problems.first() {
            bail!("{}: {problem}", log.display());
        }
        for (peer, resource) in RESOURCES {
            let Self { backend, capacity, rounds } = *self;
            let options = Options { resource, backend, capacity };
            let mut times = Vec::new();
            for _ in 0..rounds {
                let report = replay(&plan, &options, &|_| {})?.report;
                if let Some(failed) = report.failures.first() {
                    bail!("{peer}: line {}: {}", failed.line, failed.error);
                }
                let wall = report.wall_ns as f64 / report.operations.max(1) as f64;
                times.push((report.ns_per_operation, wall));
            }
            times.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (operation, wall) = times[times.len() / 2];
            println!("{peer},replay {name},{operation:.1}");
            println!("{peer},replay {name} with handing over,{wall:.1}");
        }
        Ok(())
    }
}

/// A log in RMM's form, gone with this.
struct Written(PathBuf);

impl Written {
    /// Each block is one thread's, on its own stream.
    fn new(trace: &Trace, threads: u32) -> Result<Self> {
        let mut text = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
        let mut sizes = vec![0; trace.ops().len()];
        for (number, op) in trace.ops().iter().enumerate() {
            let size = &mut sizes[op.slot as usize];
            let action = if op.size > 0 { "allocate" } else { "free" };
            *size = op.size.max(*size);
            let (thread, address) = (op.slot % threads, u64::from(op.slot + 1) << 33);
            let (minutes, seconds, micros) =
                (number / 60_000_000 % 60, number / 1_000_000 % 60, number % 1_000_000);
            writeln!(
                text,
                "{thread},00:{minutes:02}:{seconds:02}.{micros:06},{action},{address:#x},{size},{}",
                if thread == 0 { "0x0".to_owned() } else { format!("{:#x}", thread + 16) },
            )?;
        }
        let name = format!("aquifer-replay-bench-{}-{threads}.csv", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // It is of no use to anyone.
        let _ = std::fs::remove_file(&self.0);
    }
}
