//! A kernel works on a `Vec` where it lies: mapped host memory, without a copy.
//!
//!     cargo run --release -p aquifer-examples --bin zero_copy

use aquifer::allocator_api2::vec::Vec;
use aquifer::{Device, Error, HostArgs, Kernel, LaunchConfig, MappedAlloc, Result};
use clap::Parser;
use std::process::ExitCode;

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
    let Arguments {} = Arguments::parse();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zero_copy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    let device = Device::detect()?;
    let stream = device.new_stream()?;

    let mut values: Vec<u32, MappedAlloc> = Vec::with_capacity_in(1000, MappedAlloc);
    values.extend(0..1000);
    println!("{device}");
    println!("first values before: {:?}", &values[..5]);

    stream.scope(|scope| {
        // Until the scope ends the host cannot touch `values`, and the kernel can.
        let length = values.len();
        let mut argument = scope.map_mut(&mut values)?;
        let launch = stream.launch(&DOUBLE).mapped_in_out(&mut argument)?.scalar(length as u32)?;
        // SAFETY: the kernel touches the first `length` elements alone.
        unsafe { launch.launch(LaunchConfig::for_elements(length)) }
    })?;

    println!("first values after:  {:?}", &values[..5]);
    assert!((0..1000).zip(&values).all(|(before, &after)| after == 2 * before));
    println!("all 1000 values were doubled in place");
    Ok(())
}
