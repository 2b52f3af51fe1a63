//! Data-parallel training: a thread and a pool for each device, gradients that are summed over all ranks by NCCL,
//! and the weights checked against the CPU's.
//!
//!     cargo run --release -p aquifer-examples-devices --bin data_parallel
//!     torchrun --no-python --nproc-per-node 2 target/release/data_parallel
//!     mpirun -n 2 target/release/data_parallel
//!     srun --ntasks-per-node 2 target/release/data_parallel
//!
//! Without a GPU it runs on two simulated devices, and says so.

#[path = "parts/devices.rs"]
mod devices;
#[path = "data_parallel/launcher.rs"]
mod launcher;
#[path = "parts/output.rs"]
mod output;
#[path = "data_parallel/regression.rs"]
mod regression;

use aquifer::{
    Communicator, CudaResource, Device, DeviceVec, PoolResource, Result,
    collective::{CommunicatorId, ReduceOp, RegisteringAdaptor},
};
use clap::Parser;
use launcher::World;
use output::{Outcome, say};
use regression::{FEATURES, Model, SAMPLES, Samples};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Duration;

/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);
/// How far weights may be from the CPU's, or from another rank's, relative to the largest weight. The ranks sum in
/// `f32`, in an order that changes from run to run.
const TOLERANCE: f64 = 1e-4;

/// Trains a linear model on several devices, each with its share of the samples, and checks the weights of
/// all ranks against the CPU's.
///
/// Takes all GPUs, or two simulated devices where there is none; AQUIFER_BACKEND=cuda or sim says which.
/// Started by torchrun, mpirun of Open MPI or SLURM, it is one rank of that world, on the GPU with its local
/// rank. The ranks meet at the address in NCCL_COMM_ID, in --address, or that the launcher tells of rank 0.
#[derive(Parser)]
struct Arguments {
    /// How many devices this process trains on, with a thread for each, whatever launched it
    #[arg(long, value_name = "N")]
    devices: Option<NonZeroUsize>,
    /// Steps of gradient descent
    #[arg(long, value_name = "N", default_value_t = 50)]
    steps: u32,
    /// Where rank 0 listens, if several processes were launched and nothing else says it
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("data_parallel: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<bool> {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Asked for by `--help`. `parse` would pass over a full disk.
        Err(help) if !help.use_stderr() => {
            return say(help.render().to_string().trim_end()).map(|()| true);
        }
        Err(wrong) => wrong.exit(),
    };
    let world = match arguments.devices {
        Some(_) => None,
        None => launcher::find(&|name| std::env::var(name).ok())?,
    };
    let ranks = match &world {
        Some(world) => {
            if let Some(address) = meeting_place(world, arguments.address.as_deref())? {
                // SAFETY: nothing has made a thread yet, which could read the environment meanwhile.
                unsafe { std::env::set_var(NCCL_COMM_ID, address) };
            }
            Ranks { first: world.rank, all: world.ranks, devices: vec![device_of(world)?] }
        }
        None => {
            let devices = devices::open(arguments.devices)?;
            Ranks { first: 0, all: devices.len(), devices }
        }
    };
    let trained = ranks.train(arguments.steps)?;
    ranks.check(arguments.steps, world.as_ref(), &trained)
}

/// Where NCCL's bootstrap looks for rank 0, and where rank 0 listens: then each process makes the same id.
const NCCL_COMM_ID: &str = "NCCL_COMM_ID";

/// What `NCCL_COMM_ID` has to be, unless it is set already.
fn meeting_place(world: &World, told: Option<&str>) -> Outcome<Option<String>> {
    if std::env::var_os(NCCL_COMM_ID).is_some_and(|address| !address.is_empty()) {
        return Ok(None);
    }
    let Some(address) = told.or(world.address.as_deref()) else {
        let launcher = world.launcher;
        let what = format!("{launcher} does not say where rank 0 is: give its --address HOST:PORT");
        return Err(what.into());
    };
    Ok(Some(launcher::resolved(address)?))
}

/// The GPU of this process. Where there are fewer than ranks of this machine, two ranks get the same, and NCCL refuses.
fn device_of(world: &World) -> Outcome<Device> {
    match devices::gpus()? {
        Some(count) => Ok(Device::open(world.local_rank % count)?),
        None => {
            let what =
                "simulated devices are ranks of one process alone: start it with --devices N";
            Err(what.into())
        }
    }
}

/// The ranks of this process: one for each device, numbered from `first` on.
struct Ranks {
    first: usize,
    all: usize,
    devices: Vec<Device>,
}

impl Ranks {
    /// Trains on all devices at once. For each, the weights of all ranks as it got them.
    fn train(&self, steps: u32) -> Result<Vec<Vec<f32>>> {
        let id = match self.devices.first() {
            Some(device) => CommunicatorId::new(device)?,
            None => return Ok(Vec::new()),
        };
        std::thread::scope(|threads| {
            let ranks: Vec<_> = self
                .devices
                .iter()
                .zip(self.first..)
                .map(|(device, rank)| {
                    threads.spawn(move || train(device, &id, rank, self.all, steps))
                })
                .collect();
            let joined = ranks.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect()
        })
    }

    /// Compares what each device of this process got with the CPU's weights, and prints both.
    fn check(&self, steps: u32, world: Option<&World>, trained: &[Vec<f32>]) -> Outcome<bool> {
        let samples = Samples::of(0..SAMPLES);
        let expected = regression::on_cpu(&samples, steps);
        let of_ranks = || trained.iter().flat_map(|weights| weights.chunks_exact(FEATURES));
        let from_cpu = of_ranks().map(|weights| distance(weights, &expected)).fold(0.0, f64::max);
        let first: Vec<f64> = of_ranks().next().into_iter().flatten().map(|&w| w.into()).collect();
        let apart = of_ranks().map(|weights| distance(weights, &first)).fold(0.0, f64::max);
        let verdict = match (from_cpu <= TOLERANCE, apart <= TOLERANCE) {
            (true, true) => "the weights of all ranks are the CPU's",
            (false, true) => "WRONG WEIGHTS",
            (_, false) => "THE RANKS HAVE DIFFERENT WEIGHTS",
        };
        let right = from_cpu <= TOLERANCE && apart <= TOLERANCE;
        if self.first > 0 {
            // Rank 0 prints for all processes.
            return match right {
                true => Ok(true),
                false => Err(format!("rank {}: {verdict}", self.first).into()),
            };
        }
        let Some(device) = self.devices.first() else { return Ok(false) };
        let names: Vec<_> = self.devices.iter().map(Device::to_string).collect();
        let ranks = match world {
            Some(world) => format!("{}, a process for each, by {}", self.all, world.launcher),
            None => format!("{}, a thread for each", self.all),
        };
        let (before, after) = (samples.loss(&[0.0; FEATURES]), samples.loss(&first));
        for (name, value) in [
            ("devices", names.join(", ")),
            ("backend", devices::backend(device)),
            ("ranks", ranks),
            ("memory of peers", devices::reach(&self.devices)?),
            ("samples, features", format!("{SAMPLES}, {FEATURES}")),
            ("steps", steps.to_string()),
            ("mean square error", format!("{before:.4} at first, {after:.4} at the end")),
            ("farthest from the CPU's", format!("{from_cpu:.1e} of the largest weight")),
            ("farthest of two ranks", format!("{apart:.1e} of the largest weight")),
            ("verdict", verdict.to_owned()),
        ] {
            say(format_args!("{name:<26}{value}"))?;
        }
        Ok(right)
    }
}

/// One rank, on a thread of its own. Gives the weights of all ranks, rank 0's first.
fn train(
    device: &Device,
    id: &CommunicatorId,
    rank: usize,
    ranks: usize,
    steps: u32,
) -> Result<Vec<f32>> {
    let stream = device.new_stream()?;
    let registering = RegisteringAdaptor::new(CudaResource::new(device));
    let pool = PoolResource::new(registering.clone())?;
    // After the pool, so that it goes before: where a rank is lost, its end frees the stream, for which the pool waits.
    let options = Communicator::builder(&stream).timeout(PATIENCE);
    // SAFETY: all ranks, of whatever process, run this very function with as many steps.
    let communicator = unsafe { options.join(id, rank, ranks)? };
    registering.register_with(&communicator)?;

    let samples = Samples::of(Samples::share(rank, ranks));
    let mut model = Model::new(&stream, &samples, pool.clone())?;
    for _ in 0..steps {
        model.add_gradient(&stream)?;
        communicator.all_reduce_in_place(&mut model.gradient, ReduceOp::Sum)?;
        model.descend(&stream)?;
    }
    let mut all = DeviceVec::<f32>::zeroed_in(&stream, FEATURES * ranks, pool.clone())?;
    communicator.all_gather(&model.weights, &mut all)?;
    // Nothing above has waited for the devices. A download would wait for a lost rank without an end.
    communicator.synchronize(PATIENCE)?;
    all.to_vec()
}

/// The largest difference of two weights, relative to the largest weight. Infinite for what is no number.
fn distance(weights: &[f32], expected: &[f64]) -> f64 {
    let largest = expected.iter().map(|weight| weight.abs()).fold(f64::MIN_POSITIVE, f64::max);
    let differences =
        weights.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).abs() / largest);
    // `max` would pass over what is no number.
    differences.fold(0.0, |one, other| if other.is_nan() { f64::INFINITY } else { one.max(other) })
}
