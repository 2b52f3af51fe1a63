//! A prover with one static pool of page-locked memory, and a kernel behind a C function of a `.cu` file.
//!
//!     cargo run --release -p aquifer-examples-beside --bin static_pool
//!
//! On a GPU it wants the kernel, which `NVCC=/usr/local/cuda/bin/nvcc cargo build ...` compiles.

mod field;

use aquifer::allocator_api2::vec::Vec as AllocVec;
use aquifer::bytemuck::{self, TransparentWrapper};
use aquifer::device::BackendKind;
use aquifer::pinned::{PinnedPool, PinnedResource};
use aquifer::{Device, DeviceVec, HostArgs, Kernel, LaunchConfig, Stream};
use clap::Parser;
use field::{Scalar, challenge, witness};
use pasta_curves::Fp;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// All page-locked memory of the process, taken once. Every polynomial comes from it.
static POOL: OnceLock<PinnedPool> = OnceLock::new();

/// Proves a made-up statement several times over one static pool of page-locked memory, and checks each proof.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {
    /// The logarithm of a polynomial's length
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=24))]
    log_length: u32,
    /// How many proofs
    #[arg(long, default_value_t = 3)]
    proofs: u64,
}

mod ffi {
    use super::Scalar;
    use std::ffi::{c_int, c_void};

    #[cfg(has_fold)]
    unsafe extern "C" {
        /// Of fold.cu: reads `2 * n` elements of `input`, and writes `n` of `output`, on the stream.
        pub fn fold(
            stream: *mut c_void,
            n: u32,
            input: *const Scalar,
            output: *mut Scalar,
            r: *const Scalar,
        ) -> c_int;
    }

    /// Enqueues nothing: `cudaErrorNotSupported`.
    #[cfg(not(has_fold))]
    pub unsafe fn fold(
        _: *mut c_void,
        _: u32,
        _: *const Scalar,
        _: *mut Scalar,
        _: *const Scalar,
    ) -> c_int {
        801
    }
}

/// Parameters: the elements, half as many results, the challenge. The host form is what the simulated device runs.
static FOLD: Kernel = Kernel::from_function("fold", |_: &LaunchConfig, mut args: HostArgs<'_>| {
    let input = args.input_checked::<Scalar>()?;
    let output = args.output::<[u64; 4]>()?;
    let r = args.param::<Scalar>()?;
    for (output, pair) in output.iter_mut().zip(Scalar::peel_slice(input).chunks_exact(2)) {
        *output = bytemuck::cast(Scalar(field::fold(pair, r.0)));
    }
    Ok(())
});

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("static_pool: {error}");
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
    if device.kind() != BackendKind::Simulated && !cfg!(has_fold) {
        return Err(
            "built without a kernel for GPUs: build it with NVCC=/usr/local/cuda/bin/nvcc".into()
        );
    }
    let length = 1_usize << arguments.log_length;
    // One polynomial, and room for what is freed while the device may still read it. It never grows.
    let bytes = (4 * length * size_of::<Scalar>()).next_multiple_of(4 << 20);
    let upstream = PinnedResource::new(&device)?;
    let built = PinnedPool::builder(upstream).initial_size(bytes).maximum_size(bytes).build()?;
    let pool = POOL.get_or_init(|| built);

    let stream = device.new_stream()?;
    for seed in 0..arguments.proofs {
        let mut polynomial: AllocVec<Scalar, PinnedPool> =
            AllocVec::with_capacity_in(length, pool.clone());
        polynomial.extend(witness(seed, length).map(Scalar));
        let (polynomial, values) = stream.upload_new(polynomial)?.wait()?;
        // The bytes are checked, so that a wrong kernel is an error and no invalid `Fp`.
        let proof = prove(&stream, values)?.to_vec_checked()?;
        let expected = fold_all(Scalar::peel_slice(&polynomial).to_vec());
        if Scalar::peel_slice(&proof) != [expected] {
            return Err(format!("proof {seed} is {proof:?}, and not {expected:?}").into());
        }
    }
    let held = pool.statistics().reserved;
    say(format_args!(
        "{} proofs of {length} elements are the CPU's, over {held} bytes of page-locked memory, taken once",
        arguments.proofs
    ))?;
    if held == bytes {
        Ok(())
    } else {
        Err(format!("the pool has {held} bytes, not {bytes}").into())
    }
}

/// Folds until one element is left, without a wait.
fn prove(stream: &Stream, mut values: DeviceVec<Scalar>) -> aquifer::Result<DeviceVec<Scalar>> {
    for round in 0.. {
        if values.len() == 1 {
            break;
        }
        let mut folded = DeviceVec::new(stream)?;
        folded.resize(values.len() / 2, Scalar(0.into()))?;
        let launch = stream.launch(&FOLD).input(&values)?.output(&mut folded)?;
        let launch = launch.param(Scalar(challenge(round)))?;
        // SAFETY: `fold` enqueues on the stream that it is given, reads `2 * n` elements and writes `n`.
        unsafe {
            launch.launch_with(|mut args| {
                let (input, (output, n)) = (args.input()?.0, args.output()?);
                let r = args.param::<Scalar>()?;
                args.check(ffi::fold(args.stream(), n as u32, input, output, &r))
            })?;
        }
        values = folded; // the former ones are freed behind the kernel
    }
    Ok(values)
}

/// All steps on the CPU, to compare with.
fn fold_all(mut values: Vec<Fp>) -> Fp {
    for round in 0.. {
        if values.len() == 1 {
            break;
        }
        values = values.chunks_exact(2).map(|pair| field::fold(pair, challenge(round))).collect();
    }
    values[0]
}
