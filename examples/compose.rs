//! Resources made of others: a pool with bins, logged, limited and tracked; and managed memory
//! limited to 32 MiB. A vector is forgotten on purpose, and the report names the line that made it.
//!
//!     cargo run --release -p aquifer-examples --bin compose
//!
//! Without a GPU it runs on the simulated device, and says so.

use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, PoolResource, Stream,
    mr::{BinningResource, LimitingAdaptor, LoggingAdaptor, ManagedResource, TrackingAdaptor},
};
use clap::Parser;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const MIB: usize = 1 << 20;

/// Takes memory through a limit, a log and a pool with bins, leaks a block on purpose, and prints the
/// report that names the line.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compose: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `println!`, but that an output which cannot be written is an error, and no panic.
fn say(words: impl Display) -> Outcome {
    writeln!(io::stdout(), "{words}").map_err(|error| format!("standard output: {error}").into())
}

fn run() -> Outcome {
    match Arguments::try_parse() {
        Ok(Arguments {}) => {}
        // Asked for by `--help`. `parse` would pass over a full disk.
        Err(help) if !help.use_stderr() => return say(help.render().to_string().trim_end()),
        Err(wrong) => wrong.exit(),
    }
    let device = Device::detect_or_simulate()?;
    say(&device)?;
    let stream = device.new_stream()?;

    // From the inside out: plain memory, a pool of it, bins of 256 KiB to 4 MiB, a log of what they
    // hand out, a limit, and a list of what is outstanding.
    let path = std::env::temp_dir().join(format!("aquifer-compose-{}.csv", std::process::id()));
    let pool = PoolResource::builder(CudaResource::new(&device)).growth_step(64 * MIB).build()?;
    let bins = BinningResource::builder(pool.clone()).fixed_size_bins(18, 22).build()?;
    let logged = LoggingAdaptor::new(bins, &path)?;
    let limited = LimitingAdaptor::new(logged.clone(), 256 * MIB);
    let tracked = TrackingAdaptor::builder(limited.clone()).capture_backtraces(true).build();
    let resource: Arc<dyn DeviceResource> = Arc::new(tracked.clone());

    let used = DeviceVec::from_slice_in(&stream, &[1_u32; 1000], resource.clone())?;
    say(format_args!("in use: {} bytes, of the limit {}", limited.allocated(), limited.limit()))?;
    let refused = DeviceVec::<u8>::zeroed_in(&stream, 512 * MIB, resource.clone());
    match refused {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => {
            say(format_args!("refused: {error}"))?
        }
        other => return Err(format!("512 MiB of 256 should be refused: {other:?}").into()),
    }
    leak(&stream, resource)?;
    drop(used);

    say(format_args!("\n{}", tracked.report()))?;
    let left = tracked.outstanding();
    let named = left.first().and_then(aquifer::mr::Allocation::origin).unwrap_or_default();
    if left.len() != 1 || !named.contains("compose.rs:") {
        return Err(format!("{} blocks are left, and the line is `{named}`", left.len()).into());
    }

    // As the launch article does: managed memory, no more than 32 MiB of it.
    match ManagedResource::new(&device) {
        Ok(managed) => {
            let limited = Arc::new(LimitingAdaptor::new(managed, 32 * MIB));
            let half = DeviceVec::<u8>::zeroed_in(&stream, 16 * MIB, limited.clone())?;
            let more = DeviceVec::<u8>::zeroed_in(&stream, 17 * MIB, limited.clone());
            say(format_args!("managed: {} bytes left of 32 MiB", limited.remaining()))?;
            if more.is_ok() {
                return Err("33 MiB of managed memory passed a limit of 32".into());
            }
            drop(half);
        }
        Err(error) => say(format_args!("managed: {error}"))?,
    }

    logged.flush()?;
    let log = std::fs::read_to_string(&path)?;
    std::fs::remove_file(&path)?;
    say(format_args!("\nthe log, {} lines:\n{log}", log.lines().count()))
}

/// Forgets a vector: its memory and its resource stay for as long as the process.
#[inline(never)]
fn leak(stream: &Stream, resource: Arc<dyn DeviceResource>) -> Outcome {
    let vec = DeviceVec::<f32>::zeroed_in(stream, MIB, resource)?;
    std::mem::forget(vec);
    Ok(())
}
