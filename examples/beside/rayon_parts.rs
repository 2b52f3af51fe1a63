//! A prover whose rayon threads fill parts of one page-locked buffer, and send each part as soon as it is full.
//!
//!     cargo run --release -p aquifer-examples-beside --bin rayon_parts

mod field;

use aquifer::allocator_api2::vec::Vec as AllocVec;
use aquifer::bytemuck::allocation::TransparentWrapperAlloc;
use aquifer::bytemuck::{self, TransparentWrapper};
use aquifer::pinned::HostChunk;
use aquifer::{Device, DeviceVec, HostArgs, Kernel, LaunchConfig, PinnedAlloc, Result, Stream};
use clap::Parser;
use field::{Scalar, challenge, witness};
use pasta_curves::Fp;
use rayon::prelude::*;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

type Outcome<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
/// A column of the trace: a part of one buffer, which a transfer can own.
type Column = HostChunk<AllocVec<Scalar, PinnedAlloc>>;

/// Fills the columns of a trace by rayon, sends each while others are filled, folds them on the device, and checks all.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {
    /// How many columns
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    columns: u16,
    /// The elements of a column, an even number
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(2..1 << 24))]
    rows: u32,
}

/// Parameters: the elements, half as many results, the challenge, how many results. From fold.cu.
static FOLD: Kernel = Kernel::new(
    "fold_pairs",
    include_str!("../../docs/kernels/fold.ptx"),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let input = args.input_checked::<Scalar>()?;
        let output = args.output::<[u64; 4]>()?;
        let r = args.param::<Scalar>()?;
        let n = args.scalar::<u32>()? as usize;
        let pairs = Scalar::peel_slice(input).chunks_exact(2);
        for (output, pair) in output[..n].iter_mut().zip(pairs) {
            *output = bytemuck::cast(Scalar(field::fold(pair, r.0)));
        }
        Ok(())
    },
);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rayon_parts: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `println!`, but that an output which cannot be written is an error, and no panic.
fn say(words: impl Display) -> Outcome {
    writeln!(io::stdout(), "{words}").map_err(|error| format!("standard output: {error}").into())
}

fn run() -> Outcome {
    let Arguments { columns, rows } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Asked for by `--help`. `parse` would pass over a full disk.
        Err(help) if !help.use_stderr() => return say(help.render().to_string().trim_end()),
        Err(wrong) => wrong.exit(),
    };
    let (columns, rows) = (usize::from(columns), rows as usize & !1);
    let device = Device::detect_or_simulate()?;
    say(&device)?;

    // One buffer for the trace. Its columns are owners of their parts, so threads and copies share nothing.
    let mut trace: AllocVec<Scalar, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    trace.resize(columns * rows, Scalar(Fp::zero()));
    let parts = HostChunk::new(trace).into_chunks(rows)?;

    let r = challenge(0);
    let done = parts
        .into_par_iter()
        .enumerate()
        .map_init(
            || device.new_stream(),
            |stream, (index, column)| -> OneColumn {
                let stream = stream.as_ref().map_err(|error| error.to_string())?;
                one_column(stream, index, column, r)
                    .map_err(|error| format!("column {index}: {error}"))
            },
        )
        .collect::<std::result::Result<Vec<_>, String>>()?;

    // The columns are one buffer again, and each was folded as on the CPU.
    let (parts, folded): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    let trace = HostChunk::from_chunks(parts)?.into_inner()?;
    let expected: Vec<Fp> =
        Scalar::peel_slice(&trace).par_chunks_exact(2).map(|pair| field::fold(pair, r)).collect();
    let found = Scalar::peel_vec(folded.concat());
    let right = expected.iter().zip(&found).filter(|(expected, found)| expected == found).count();
    say(format_args!(
        "{right} of {} results are the CPU's, of {columns} columns",
        trace.len() / 2
    ))?;
    if right == trace.len() / 2 { Ok(()) } else { Err("wrong results".into()) }
}

/// A thread's part, back, with what the device made of it. rayon wants errors that are `Send`.
type OneColumn = std::result::Result<(Column, Vec<Scalar>), String>;

/// Fills the column, sends it, and folds it on the device. Other threads fill theirs meanwhile.
fn one_column(
    stream: &Stream,
    index: usize,
    mut column: Column,
    r: Fp,
) -> Result<(Column, Vec<Scalar>)> {
    let rows = column.len();
    for (element, value) in column.iter_mut().zip(witness(index as u64, rows)) {
        *element = Scalar(value);
    }
    let (column, values) = stream.upload_new(column)?.wait()?;
    let mut folded = DeviceVec::new(stream)?;
    folded.resize(rows / 2, Scalar(Fp::zero()))?;
    let launch = stream.launch(&FOLD).input(&values)?.output(&mut folded)?;
    let launch = launch.param(Scalar(r))?.scalar(rows as u32 / 2)?;
    // SAFETY: the kernel reads `rows` elements and writes half as many.
    unsafe { launch.launch(LaunchConfig::for_elements(rows / 2))? };
    Ok((column, folded.to_vec_checked()?))
}
