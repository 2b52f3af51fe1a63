//! How long an all-reduce takes in five kinds of memory, by cudarc's calls of NCCL and by Aquifer.
//!
//!     cargo run --release -p aquifer-examples-devices --bin allreduce_bench
//!
//! Without a GPU it runs on two simulated devices, whose times mean nothing, and says so.

#[path = "allreduce_bench/baseline.rs"]
mod baseline;
#[path = "parts/devices.rs"]
mod devices;
#[path = "parts/output.rs"]
mod output;
#[path = "allreduce_bench/ranks.rs"]
mod ranks;
#[path = "allreduce_bench/table.rs"]
mod table;

use aquifer::{Device, device::BackendKind};
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use output::{Outcome, say};
use ranks::Kind;
use std::collections::BTreeSet;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use table::Table;

pub(crate) const MIB: usize = 1 << 20;
/// The size that large all-reduces are judged by.
const LARGE: usize = 256 * MIB;
/// Two numbers: less is seldom reduced.
const SMALLEST: usize = 8;
/// Bytes that one timing reduces, where that is neither too few calls nor too many.
const WORK: usize = 8 << 30;

/// Times all-reduces of f32 in five kinds of memory, from 8 bytes to 1 GiB, with a thread for each device.
///
/// (a) plain memory, by cudarc's own calls of NCCL: what the others are compared with. (r) The same,
/// registered. (b) Plain memory, by Aquifer's communicator. (c) A pool of plain memory that is registered with the communicator. (d) A pool of
/// memory of NCCL's own allocator, registered too. The kinds take turns, and the medians over the rounds are
/// given, of the slowest rank. Bus bandwidth is as nccl-tests has it: bytes / time * 2 (n - 1) / n.
///
/// Takes all GPUs, or two simulated devices where there is none, whose times mean nothing: those get few and
/// small all-reduces, and no (a). AQUIFER_BACKEND=cuda or sim says which. A GPU needs
/// memory of ten times --max.
#[derive(Parser)]
struct Arguments {
    /// How many devices take part
    #[arg(long, value_name = "N")]
    devices: Option<NonZeroUsize>,
    /// The largest size in bytes [default: 1 GiB, and 64 KiB on simulated devices]
    #[arg(long, value_name = "BYTES", value_parser = RangedU64ValueParser::<usize>::new().range(8..=1 << 40))]
    max: Option<usize>,
    /// How much larger each size is than the one before; 256 MiB is always among them
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(2..))]
    factor: usize,
    /// How often each kind has its turn, and 20 times as often up to 64 KiB
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    rounds: usize,
    /// A file for the table as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// What is timed.
pub(crate) struct Plan {
    /// In bytes, ascending.
    pub(crate) sizes: Vec<usize>,
    rounds: usize,
    is_simulated: bool,
}

impl Plan {
    fn new(arguments: &Arguments, is_simulated: bool) -> Self {
        let max = arguments.max.unwrap_or(if is_simulated { 64 << 10 } else { 1 << 30 });
        let grown = |size: &usize| size.checked_mul(arguments.factor);
        let mut sizes: BTreeSet<usize> =
            std::iter::successors(Some(SMALLEST), grown).take_while(|&size| size <= max).collect();
        if max >= LARGE {
            sizes.insert(LARGE);
        }
        Self { sizes: sizes.into_iter().collect(), rounds: arguments.rounds, is_simulated }
    }

    /// How many all-reduces one timing has.
    pub(crate) fn iterations(&self, bytes: usize) -> usize {
        if self.is_simulated { 2 } else { (WORK / bytes).clamp(20, 200) }
    }

    /// How often each kind has its turn: more often where a turn is short.
    pub(crate) fn rounds(&self, bytes: usize) -> usize {
        const SHORT: usize = 64 << 10;
        let times = if bytes <= SHORT && !self.is_simulated { 20 } else { 1 };
        self.rounds.saturating_mul(times)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("allreduce_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Asked for by `--help`. `parse` would pass over a full disk.
        Err(help) if !help.use_stderr() => return say(help.render().to_string().trim_end()),
        Err(wrong) => wrong.exit(),
    };
    let devices = devices::open(arguments.devices)?;
    let Some(first) = devices.first() else { return Err("no device was found".into()) };
    let plan = Plan::new(&arguments, first.kind() == BackendKind::Simulated);
    // Before the work, which would be lost.
    let csv = arguments.csv.map(|path| {
        File::create(&path).map_err(|error| format!("cannot write {}: {error}", path.display()))
    });
    let csv = csv.transpose()?;

    let names: Vec<_> = devices.iter().map(Device::to_string).collect();
    say(format_args!("devices: {}", names.join(", ")))?;
    say(format_args!("backend: {}", devices::backend(first)))?;
    say(format_args!("memory of peers: {}", devices::reach(&devices)?))?;
    let (times, missing) = ranks::time(&devices, &plan)?;
    if let Some(why) = missing {
        say(format_args!("without ({}): {why}", Kind::Baseline.name()))?;
    }
    let table = Table::new(&times, devices.len(), &plan);
    table.print()?;
    if let Some(file) = csv {
        table.write_csv(file)?;
    }
    table.print_closing()
}
