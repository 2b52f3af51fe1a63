//! Arrow batches to the GPU: the buffers of a column go up without a copy on the host, the mask of its nulls as well.
//!
//!     cargo run --release -p aquifer-examples-beside --bin arrow_batches
//!
//! Without a GPU it runs on the simulated device, and says so.

use aquifer::{Device, DeviceVec, HostArgs, Kernel, LaunchConfig, Result, Stream};
use arrow_array::{Array, UInt32Array};
use clap::Parser;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

/// Sends columns of Arrow with nulls to the device, sums what is no null there, and checks the sums.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {
    /// How many batches
    #[arg(long, default_value_t = 4)]
    batches: u32,
    /// The rows of a batch
    #[arg(long, default_value_t = 10_000)]
    rows: u32,
}

/// Parameters: the values, the mask with a bit for each, its first bit, how many, the sum to add to.
static MASKED_SUM: Kernel = Kernel::new(
    "masked_sum",
    include_str!("../../docs/kernels/masked_sum.ptx"),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let (values, mask) = (args.input::<u32>()?, args.input::<u8>()?);
        let (first, n) = (args.scalar::<u32>()? as usize, args.scalar::<u32>()? as usize);
        let sum = args.in_out::<u64>()?;
        let is_valid = |row: &usize| mask[(first + row) / 8] >> ((first + row) % 8) & 1 == 1;
        sum[0] += (0..n).filter(is_valid).map(|row| u64::from(values[row])).sum::<u64>();
        Ok(())
    },
);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("arrow_batches: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `println!`, but that an output which cannot be written is an error, and no panic.
fn say(words: impl Display) -> Outcome {
    writeln!(io::stdout(), "{words}").map_err(|error| format!("standard output: {error}").into())
}

fn run() -> Outcome {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Asked for by `--help`. `parse` would pass over a full disk.
        Err(help) if !help.use_stderr() => return say(help.render().to_string().trim_end()),
        Err(wrong) => wrong.exit(),
    };
    let device = Device::detect_or_simulate()?;
    say(&device)?;
    let stream = device.new_stream()?;
    for batch in 0..arguments.batches {
        // Every seventh row is null. A slice of a batch has an offset, and its mask does not begin at a byte.
        let rows = (0..arguments.rows + batch).map(|row| (row % 7 != 0).then_some(row * 3 + batch));
        let column: UInt32Array = rows.collect();
        let column = column.slice(batch as usize, arguments.rows as usize);
        let (found, expected) =
            (sum(&stream, &column)?, column.iter().flatten().map(u64::from).sum());
        if found != expected {
            return Err(format!("batch {batch} has the sum {found}, and not {expected}").into());
        }
    }
    say(format_args!(
        "{} batches of {} rows have the CPU's sums",
        arguments.batches, arguments.rows
    ))
}

/// The sum of what is no null.
fn sum(stream: &Stream, column: &UInt32Array) -> Result<u64> {
    let n = column.len() as u32;
    // Handles of arrow's memory: the transfers own them, and nothing is copied on the host.
    let values = stream.upload_new(column.values().clone())?;
    let (mask, first) = match column.nulls() {
        Some(nulls) => (nulls.buffer().clone(), nulls.offset() as u32),
        None => (vec![0xff_u8; n.div_ceil(8) as usize].into(), 0),
    };
    let mask = stream.upload_new(mask)?;
    let ((_, values), (_, mask)) = (values.wait()?, mask.wait()?);
    let mut sum = DeviceVec::<u64>::zeroed(stream, 1)?;
    let launch = stream.launch(&MASKED_SUM).input(&values)?.input(&mask)?;
    let launch = launch.scalar(first)?.scalar(n)?.in_out(&mut sum)?;
    // SAFETY: the kernel reads `n` values and their bits of the mask, and adds to one sum.
    unsafe { launch.launch(LaunchConfig::for_elements(n as usize))? };
    sum.get(0)
}
