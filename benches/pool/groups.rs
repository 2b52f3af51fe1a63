//! The groups of a bench: which are asked for, on which device.

use crate::rows::Options;
use crate::subject::Bench;
use aquifer::sim::SimConfig;
use aquifer::{Device, Result, device::BackendKind};
use clap::Parser;
use std::process::ExitCode;

/// A name, what runs, and a line about it.
pub(crate) type Group = (&'static str, fn(&Bench), &'static str);

/// The whole program.
pub(crate) fn main(groups: &[Group]) -> ExitCode {
    let options = Options::parse();
    if options.list {
        for (name, _, about) in groups {
            println!("{name:12}{about}");
        }
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) = options.only.iter().find(|name| groups.iter().all(|one| one.0 != *name))
    {
        eprintln!("error: there is no group `{unknown}`; --list names them");
        return ExitCode::FAILURE;
    }
    match run(groups, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A simulated device with so many bytes, and without what slows it down.
pub(crate) fn simulated_device(capacity: usize) -> Device {
    Device::simulated(
        SimConfig::default().capacity(capacity).without_pool_checks().without_poison(),
    )
}

fn run(groups: &[Group], options: &Options) -> Result<()> {
    let found = Device::detect_or_simulate()?;
    let simulated = found.kind() == BackendKind::Simulated;
    let device = match simulated {
        // The largest traces have 16000 MiB live. Memory that nobody writes takes none of the host.
        true => simulated_device(64 << 30),
        false => found,
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let quick = options.quick || (simulated && !options.full);
    let note = if quick { ", SMALL COUNTS: no measurement" } else { "" };
    println!("# {device}, driver {}, {cores} cores{note}", device.properties().driver_version);
    println!("peer,workload,ns");
    let bench = Bench::new(device, quick, options)?;
    for (name, group, _) in groups {
        if options.only.is_empty() || options.only.iter().any(|only| only == *name) {
            println!("# {name}");
            group(&bench);
            bench.device.synchronize()?;
        }
    }
    Ok(())
}
