//! A program on cudarc 0.16, beside aquifer, which has cudarc 0.19: their streams and slices by raw handles.
//!
//!     cargo run --release -p aquifer-examples-beside --bin former_cudarc
//!
//! Without a GPU there is no cudarc. A stream and memory of the simulator stand for its own then.

use aquifer::container::BorrowedVec;
use aquifer::device::BackendKind;
use aquifer::stream::BorrowedStream;
use aquifer::{Device, DeviceVec, HostArgs, Kernel, LaunchConfig, Result};
use clap::Parser;
use cudarc_016::driver::{CudaContext, DevicePtrMut};
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

/// Doubles a slice of cudarc 0.16's on a stream of aquifer's, by raw handles, and checks it by cudarc 0.16.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {
    /// The elements of the slice
    #[arg(long, default_value_t = 10_000)]
    length: u32,
}

/// Parameters: the elements, how many.
static DOUBLE: Kernel = Kernel::new(
    "double",
    include_str!("../../docs/kernels/double.ptx"),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let data = args.in_out::<u32>()?;
        let n = args.scalar::<u32>()? as usize;
        data[..n].iter_mut().for_each(|value| *value *= 2);
        Ok(())
    },
);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("former_cudarc: {error}");
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
    let values: Vec<u32> = (0..arguments.length).collect();
    let (doubled, whose) = match device.kind() {
        BackendKind::Simulated => (on_a_simulated_stream(&device, &values)?, "the simulator's"),
        _ => (on_a_stream_of_cudarc(&device, &values)?, "cudarc 0.16's"),
    };
    if doubled.iter().zip(&values).any(|(doubled, value)| *doubled != 2 * value) {
        return Err("wrong values".into());
    }
    say(format_args!("{} elements on {whose} stream were doubled where they lie", doubled.len()))
}

/// All of cudarc 0.16 is here. Its context is the device's primary one, as aquifer's is.
fn on_a_stream_of_cudarc(
    device: &Device,
    values: &[u32],
) -> std::result::Result<Vec<u32>, Box<dyn std::error::Error>> {
    let context = CudaContext::new(device.ordinal())?;
    let stream = context.new_stream()?;
    let mut slice = stream.memcpy_stod(values)?;
    // cudarc makes its stream wait for its own use, and records ours when the guard goes.
    let (address, used) = slice.device_ptr_mut(&stream);
    // SAFETY: stream and slice live on, and cudarc gives no work on either before this returns.
    unsafe { double(device, stream.cu_stream() as u64, address, values.len())? };
    drop(used);
    Ok(stream.memcpy_dtov(&slice)?)
}

/// The same with a stream of the simulator's, which aquifer did not make either.
fn on_a_simulated_stream(device: &Device, values: &[u32]) -> Result<Vec<u32>> {
    let Some(simulator) = device.simulator() else { return Ok(Vec::new()) };
    let theirs = simulator.create_foreign_stream()?;
    let memory = DeviceVec::from_slice(&device.new_stream()?, values)?;
    // SAFETY: the memory is written and outlives the call, which nothing else uses meanwhile, as the stream.
    unsafe { double(device, theirs, memory.as_device_ptr(), values.len())? };
    // What is given to the vector's own stream comes after that one.
    // SAFETY: as above, and it is destroyed after the guard is gone.
    let after = unsafe { BorrowedStream::new(device, theirs)? };
    memory.stream().wait_for(&after)?;
    drop(after);
    simulator.destroy_foreign_stream(theirs)?;
    memory.to_vec()
}

/// Doubles another library's elements on a stream of aquifer's. Their stream comes after that when this returns.
///
/// # Safety
///
/// `stream` is a stream of the device, in no capture, on which `length` elements at `address` are written and used. Neither
/// is freed or given other work before this returns.
unsafe fn double(device: &Device, stream: u64, address: u64, length: usize) -> Result<()> {
    // SAFETY: the caller keeps the stream until this returns, and it is in no capture.
    let theirs = unsafe { BorrowedStream::new(device, stream)? };
    // SAFETY: the caller keeps the elements, which are used on that stream alone.
    let mut lent = unsafe { BorrowedVec::<u32>::new(&theirs, address, length)? };
    let ours = device.new_stream()?;
    let launch = ours.launch(&DOUBLE).in_out(&mut lent)?.scalar(length as u32)?;
    // SAFETY: the kernel touches `length` elements.
    unsafe { launch.launch(LaunchConfig::for_elements(length))? };
    lent.end()
}
