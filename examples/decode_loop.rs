//! A decode loop of graphs: one for each size of a batch, all with one scratch memory, replayed for each token.
//!
//!     cargo run --release -p aquifer-examples --bin decode_loop
//!
//! Without a GPU it runs on the simulated device, and says so.

use aquifer::mr::GraphPool;
use aquifer::stream::Graph;
use aquifer::{
    CudaResource, Device, DeviceVec, HostArgs, Kernel, LaunchConfig, PoolResource, Result, Stream,
};
use clap::Parser;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

/// The sizes of a batch that have a graph. A smaller batch takes the next one, as serving programs do.
const SIZES: [usize; 4] = [1, 2, 4, 8];
/// The elements of the hidden state of a sequence.
const WIDTH: usize = 256;

/// Parameters: the elements, how many. The stand-in of a model's layer.
static DOUBLE: Kernel = Kernel::new(
    "double",
    include_str!("../docs/kernels/double.ptx"),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let data = args.in_out::<u32>()?;
        let n = args.scalar::<u32>()? as usize;
        data[..n].iter_mut().for_each(|value| *value = value.wrapping_mul(2));
        Ok(())
    },
);

/// Captures a graph for each size of a batch over one graph pool, and decodes tokens with them.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {
    /// How many tokens each sequence decodes
    #[arg(long, default_value_t = 5)]
    tokens: u32,
}

/// What the graphs read and write. It outlives them.
struct Model {
    graphs: BTreeMap<usize, Graph>,
    state: DeviceVec<u32>,
    stream: Stream,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("decode_loop: {error}");
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
    let pool = PoolResource::new(CudaResource::new(&device))?;
    let graph_pool = pool.graph_pool()?;
    let mut model = Model::new(device.new_stream()?, &pool, &graph_pool)?;
    say(format_args!(
        "{} graphs share {} bytes of scratch memory; apart they would hold {}",
        model.graphs.len(),
        graph_pool.held(),
        model.graphs.values().map(Graph::held).sum::<usize>(),
    ))?;

    // Batches shrink as sequences end.
    for batch in [8, 5, 3, 1] {
        let mut state: Vec<u32> = (0..batch * WIDTH).map(|index| index as u32 + 1).collect();
        model.write(&state)?;
        for _ in 0..arguments.tokens {
            model.decode(batch)?;
            state.iter_mut().for_each(|value| *value = value.wrapping_mul(2).wrapping_add(*value));
        }
        if model.state.slice(..batch * WIDTH)?.to_vec()? != state {
            return Err(format!("a batch of {batch} was decoded wrongly").into());
        }
    }
    say(format_args!("{} tokens of 4 batches are what the CPU decodes", arguments.tokens))
}

impl Model {
    fn new(stream: Stream, pool: &PoolResource, scratch: &GraphPool) -> Result<Self> {
        let largest = SIZES[SIZES.len() - 1];
        let mut state = DeviceVec::zeroed_in(&stream, largest * WIDTH, pool.clone())?;
        let mut graphs = BTreeMap::new();
        // The largest first: the smaller ones fit into its memory.
        for size in SIZES.into_iter().rev() {
            let (graph, ()) =
                stream.capture_in(scratch, |stream| step(stream, &mut state, pool, size))?;
            graphs.insert(size, graph);
        }
        Ok(Self { graphs, state, stream })
    }

    /// The states of the sequences, one after the other.
    fn write(&mut self, state: &[u32]) -> Result<()> {
        self.state.slice_mut(..state.len())?.copy_from_slice(state)
    }

    /// One token of each of `batch` sequences, by the graph of the next larger size.
    fn decode(&mut self, batch: usize) -> Result<()> {
        let Some((_, graph)) = self.graphs.range(batch..).next() else { return Ok(()) };
        // SAFETY: `state` is this model's, at home on this stream, and all other use of it is given on that stream.
        unsafe { graph.launch(&self.stream) }
    }
}

/// The work of a token: `state` becomes three times itself, by scratch memory that only this step uses.
fn step(
    stream: &Stream,
    state: &mut DeviceVec<u32>,
    pool: &PoolResource,
    batch: usize,
) -> Result<()> {
    let length = batch * WIDTH;
    let mut doubled = DeviceVec::zeroed_in(stream, length, pool.clone())?;
    doubled.copy_from(&state.slice(..length)?)?;
    let launch = stream.launch(&DOUBLE).in_out(&mut doubled)?.scalar(length as u32)?;
    // SAFETY: the kernel touches the first `length` elements of `doubled` alone.
    unsafe { launch.launch(LaunchConfig::for_elements(length))? };
    let mut sum = state.slice_mut(..length)?;
    let launch = stream.launch(&ADD).in_out(&mut sum)?.input(&doubled)?.scalar(length as u32)?;
    // SAFETY: the kernel touches the first `length` elements of both alone.
    unsafe { launch.launch(LaunchConfig::for_elements(length)) }
}

/// Parameters: the sums, what is added, how many.
static ADD: Kernel = Kernel::new(
    "add",
    include_str!("../docs/kernels/add.ptx"),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let (sums, terms) = (args.in_out::<u32>()?, args.input::<u32>()?);
        let n = args.scalar::<u32>()? as usize;
        sums[..n].iter_mut().zip(terms).for_each(|(sum, term)| *sum = sum.wrapping_add(*term));
        Ok(())
    },
);
