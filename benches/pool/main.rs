//! The pool, on the workloads of its peers and on some of its own.
//!
//!     cargo bench --bench pool [-- --only peers,calls] [-- --list]
//!
//! Prints rows of `peer,workload,value`, as the programs of `benches/peers` do; times are
//! nanoseconds. On the simulated device the counts are small and the times mean nothing:
//!
//!     AQUIFER_BACKEND=sim cargo bench --bench pool

mod calls;
mod footprint;
mod handover;
mod kernels;
mod latency;
mod peers;
mod pinned;
mod programs;
mod rows;
mod subject;
mod threads;
mod workloads;

use aquifer::sim::SimConfig;
use aquifer::{BackendKind, Device, Result};
use clap::Parser;
use rows::Options;
use std::process::ExitCode;
use subject::Bench;

type Group = (&'static str, fn(&Bench), &'static str);

const GROUPS: [Group; 12] = [
    ("peers", peers::shared_rows, "what every peer runs: random, hot, cross, churn"),
    ("plain", peers::plain_rows, "the same on plain driver memory"),
    ("calls", calls::driver_calls, "driver calls of a warm pool"),
    ("latency", latency::latency, "p50, p99, p99.9 of single operations"),
    ("pingpong", handover::ping_pong, "one block, two streams in turn: the steal"),
    ("handover", handover::producer_consumer, "a producer and a consumer, a stream each"),
    ("footprint", footprint::footprint, "peak reserved over peak live, 16 threads"),
    ("scaling", threads::churn_scaling, "16 threads, one pool against a pool each"),
    ("vectors", threads::device_vec, "DeviceVec made and dropped, 1 and 16 threads"),
    ("pinned", pinned::pinned, "a pinned Vec made and dropped"),
    ("streams", programs::multi_stream, "RMM's multi-stream benchmark"),
    ("workflow", programs::workflow, "a new buffer for each operation"),
];

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        for (name, _, about) in GROUPS {
            println!("{name:12}{about}");
        }
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) = options.only.iter().find(|name| GROUPS.iter().all(|one| one.0 != *name))
    {
        eprintln!("error: there is no group `{unknown}`; --list names them");
        return ExitCode::FAILURE;
    }
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let found = Device::detect()?;
    let simulated = found.kind() == BackendKind::Simulated;
    let device = match simulated {
        // The largest traces have 16000 MiB live. Memory that nobody writes takes none of the host.
        true => Device::simulated(SimConfig::default().capacity(64 << 30)),
        false => found,
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let quick = options.quick || (simulated && !options.full);
    let note = if quick { ", SMALL COUNTS: no measurement" } else { "" };
    println!("# {device}, driver {}, {cores} cores{note}", device.properties().driver_version);
    println!("peer,workload,ns");
    let bench = Bench::new(device, quick);
    for (name, group, _) in GROUPS {
        if options.only.is_empty() || options.only.iter().any(|only| only == name) {
            println!("# {name}");
            group(&bench);
            bench.device.synchronize()?;
        }
    }
    Ok(())
}
