//! The rows that are printed, and the options of the command line.

use clap::Parser;
use std::path::PathBuf;

/// Aquifer's benches. Prints rows of `peer,workload,value`; times are nanoseconds.
#[derive(Parser)]
pub(crate) struct Options {
    /// The groups to run, separated by commas; all unless given.
    #[arg(long, value_delimiter = ',', value_name = "GROUP")]
    pub(crate) only: Vec<String>,
    /// Small counts: a smoke test. The default on a simulated device.
    #[arg(long, alias = "test")]
    pub(crate) quick: bool,
    /// The counts of a GPU, on a simulated device too.
    #[arg(long, conflicts_with = "quick")]
    pub(crate) full: bool,
    /// Pools map handles.
    #[arg(long)]
    pub(crate) handles: bool,
    /// A folder for the footprint's programs, which the peers play.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) traces: Option<PathBuf>,
    /// What the group `card` has another process take.
    #[arg(long, hide = true, value_name = "BYTES")]
    pub(crate) take: Option<u64>,
    /// List the groups.
    #[arg(long)]
    pub(crate) list: bool,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

pub(crate) const MIB: u64 = 1 << 20;

/// The peer that the rows of the pool name.
pub(crate) const POOL: &str = "aquifer pool";

/// A row of nanoseconds.
pub(crate) fn nanoseconds(peer: &str, workload: &str, value: f64) {
    println!("{peer},{workload},{value:.1}");
}

/// A row of a ratio or a count, which wants more digits.
pub(crate) fn number(peer: &str, workload: &str, value: f64) {
    println!("{peer},{workload},{value:.4}");
}

/// The name that all peers give a random trace.
pub(crate) fn random(n: u32, mib: u64) -> String {
    format!("random n={n} max={mib}MiB")
}

/// The middle of the values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
