//! RMM's REPLAY: a log read and replayed on each resource, the operations in the log's order. Rows of
//! `peer,workload,value`, in nanoseconds an operation.
//!
//!     cargo bench -p aquifer-replay --bench replay [-- LOG | -- --keep FOLDER]
//!
//! Without a log, RMM's random allocations are written as one, of one thread and of four: of
//! fewer allocations, or one round of them, where RMM's side or the driver takes long. `--keep` leaves
//! these logs in a folder, and `benches/peers/rmm_replay_peer.cpp` replays them on RMM's resources.
//!
//! RMM's own program times its condition variable with the allocator; here the two are a row each.
//! Both are this replay's engine's too: the first has its bookkeeping (a table of blocks, a lock that
//! nobody else wants and two readings of the clock for all that a thread does in a row), the second
//! also its threads' turns. `benches/peers/rmm_log.hpp` takes turns in the same way. Every round has a new resource, which grows as it goes.

#[path = "../../benches/family/generator.rs"]
mod generator;
#[path = "../../benches/pool/workloads.rs"]
mod workloads;

use anyhow::{Context as _, Result, bail, ensure};
use aquifer::{Device, device::BackendKind};
use aquifer_replay::engine::replay;
use aquifer_replay::plan::Plan;
use aquifer_replay::read::read;
use aquifer_replay::stack::{Backend, Options, Resource};
use aquifer_replay::words::place;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use workloads::Trace;

type Resources = [(&'static str, Resource)];

const POOLED: [(&str, Resource); 3] = [
    ("aquifer pool", Resource::Pool),
    ("aquifer binning", Resource::Binning),
    ("aquifer async", Resource::Async),
];

/// RMM's looks for a block among all that it has, which takes it long.
const ARENA: [(&str, Resource); 1] = [("aquifer arena", Resource::Arena)];

/// They ask the driver for every block, which takes long.
const UNPOOLED: [(&str, Resource); 2] =
    [("aquifer plain", Resource::Cuda), ("aquifer managed", Resource::Managed)];

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let mut arguments = std::env::args_os().skip(1).filter(|argument| argument != "--bench");
    let (log, keep) = match arguments.next() {
        Some(option) if option == "--keep" => {
            let folder = arguments.next().context("--keep FOLDER: there is no folder")?;
            (None, Some(PathBuf::from(folder)))
        }
        log => (log.map(PathBuf::from), None),
    };
    ensure!(arguments.next().is_none(), "replay [LOG | --keep FOLDER]");
    let device = Device::detect_or_simulate()?;
    let simulated = device.kind() == BackendKind::Simulated;
    let note = if simulated { ", SMALL COUNTS: no measurement" } else { "" };
    println!("# {device}, driver {}{note}", device.properties().driver_version);
    println!("peer,workload,ns");
    let bench = match simulated {
        true => Bench { backend: Backend::Simulated, capacity: Some(8 << 30), rounds: 1 },
        false => Bench { backend: Backend::Cuda(0), capacity: None, rounds: 3 },
    };
    if let Some(log) = log {
        let all = [&POOLED[..], &ARENA, &UNPOOLED];
        return all.into_iter().try_for_each(|resources| bench.run(&log, resources));
    }
    let temporary = std::env::temp_dir().join(format!("aquifer-replay-{}", std::process::id()));
    let folder = keep.as_deref().unwrap_or(&temporary);
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let ran = bench.made_up(folder, simulated);
    if keep.is_none() {
        // It is of no use to anyone.
        let _ = std::fs::remove_dir_all(folder);
    }
    ran
}

struct Bench {
    backend: Backend,
    capacity: Option<u64>,
    rounds: usize,
}

impl Bench {
    /// RMM's random allocations, as logs in a folder.
    fn made_up(&self, folder: &Path, simulated: bool) -> Result<()> {
        let most = if simulated { 1000 } else { 10_000 };
        for threads in [1, 4] {
            self.run(&random(folder, most, threads)?, &POOLED)?;
            self.run(&random(folder, 1000, threads)?, &ARENA)?;
        }
        Self { rounds: 1, ..*self }.run(&random(folder, 1000, 1)?, &UNPOOLED)
    }

    /// The rows have the log's name.
    fn run(&self, log: &Path, resources: &Resources) -> Result<()> {
        let name = log.file_stem().unwrap_or_default().to_string_lossy();
        ensure!(!name.contains([',', '"']), "{name}: no name for a row of a CSV");
        let plan = Plan::new(&read(log, None, None)?);
        if let Some(problem) = plan.problems.first() {
            let place = place(&log.display().to_string(), plan.line_word, problem.line());
            bail!("{place}: {}", problem.in_words(plan.line_word));
        }
        for &(peer, resource) in resources {
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

/// Writes `n` of RMM's random allocations as a log.
fn random(folder: &Path, n: u32, threads: u32) -> Result<PathBuf> {
    let suffix = if threads == 1 { String::new() } else { format!(" {threads} threads") };
    let log = folder.join(format!("rmm random n={n} max=1MiB{suffix}.csv"));
    let trace = generator::rmm_trace(n, 1).context("a trace that frees what it allocates")?;
    write(&log, &trace, threads)?;
    Ok(log)
}

/// Writes a log of RMM's columns. Each block is one thread's, on its own stream.
fn write(path: &Path, trace: &Trace, threads: u32) -> Result<()> {
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
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
