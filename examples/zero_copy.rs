//! A kernel works on a `Vec` where it lies: mapped host memory, without a copy.
//!
//!     cargo run --release -p aquifer-examples --bin zero_copy

use aquifer::allocator_api2::vec::Vec;
use aquifer::{Device, HostArgs, Kernel, LaunchConfig, MappedAlloc, Result};
use clap::Parser;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Parameters: the elements, how many.
static DOUBLE: Kernel =
    Kernel::new("double", include_str!("../docs/kernels/double.ptx"), double_on_host);

fn double_on_host(_config: &LaunchConfig, mut args: HostArgs<'_>) -> Result<()> {
    let data = args.in_out::<u32>()?;
    let length = args.scalar::<u32>()? as usize;
    data[..length].iter_mut().for_each(|value| *value *= 2);
    Ok(())
}

/// Lets a kernel double the elements of a `Vec` in mapped host memory, and checks them.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zero_copy: {error}");
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
    let stream = device.new_stream()?;

    let mut values: Vec<u32, MappedAlloc> = Vec::with_capacity_in(1000, MappedAlloc);
    values.extend(0..1000);
    say(&device)?;
    say(format_args!("first values before: {:?}", &values[..5]))?;

    stream.scope(|scope| {
        // Until the scope ends the host cannot touch `values`, and the kernel can.
        let length = values.len();
        let mut argument = scope.map_mut(&mut values)?;
        let launch = stream.launch(&DOUBLE).mapped_in_out(&mut argument)?.scalar(length as u32)?;
        // SAFETY: the kernel touches the first `length` elements alone.
        unsafe { launch.launch(LaunchConfig::for_elements(length)) }
    })?;

    say(format_args!("first values after:  {:?}", &values[..5]))?;
    assert!((0..1000).zip(&values).all(|(before, &after)| after == 2 * before));
    say("all 1000 values were doubled in place")?;
    Ok(())
}
