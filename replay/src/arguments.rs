//! What the program is told.

use crate::output::are_one;
use aquifer_replay::read::{self, Format};
use aquifer_replay::stack::{BEYOND_ANY_DEVICE, Backend, LEAST_ARENA, Options, Resource};
use aquifer_replay::words::count;
use bytesize::ByteSize;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use std::path::PathBuf;

/// Replays a log of device memory against aquifer's resources.
///
/// The log says when which memory was allocated and freed, on which thread and stream. The replay
/// makes the same calls in the same order, each thread's on a thread of its own and each stream's
/// on a stream of its own, and tells what they cost and how much memory they took. Without a GPU it
/// runs on a simulated device, where the same log gives the same figures, times excepted.
#[derive(Debug, Parser)]
#[command(version, after_help = SHORT, after_long_help = LONG)]
pub(crate) struct Arguments {
    /// The log: a CSV of RMM or NBEP 7, or a memory snapshot of PyTorch; - is standard input
    pub(crate) log: PathBuf,

    /// What serves the allocations: a pool by default
    #[arg(long, value_enum)]
    resource: Option<ResourceName>,

    /// Where the memory comes from: the simulated device by default
    #[arg(long, value_enum)]
    backend: Option<BackendName>,

    /// The GPU's number, with --backend cuda: 0 by default
    #[arg(long, value_name = "N", value_parser = gpu, allow_negative_numbers = true)]
    gpu: Option<usize>,

    /// Bytes that may be taken from the device at once: 4GiB, 512MiB, 1000000
    ///
    /// A simulated device has so much memory, and a pool has it as its maximum size. By default a
    /// simulated device is as large as the log needs, and the report says how large that was; a GPU
    /// has what it has.
    #[arg(long, value_name = "BYTES", value_parser = bytes, allow_hyphen_values = true)]
    capacity: Option<u64>,

    /// Find the smallest capacity that serves the whole log, and replay with that
    ///
    /// Tries capacities on the simulated device: from the log's peak, doubled until all is served,
    /// and then between the two. The ratio to the log's peak is what the resource adds to it.
    #[arg(long, conflicts_with = "capacity")]
    pub(crate) bisect: bool,

    /// What capacities are multiples of, with --bisect: a multiple of 256
    #[arg(long, value_name = "BYTES", value_parser = step, allow_hyphen_values = true, default_value = "256")]
    #[arg(requires = "bisect")]
    pub(crate) step: u64,

    /// Write a trace for https://ui.perfetto.dev and chrome://tracing
    #[arg(long, value_name = "OUT.json")]
    pub(crate) trace: Option<PathBuf>,

    /// Write a picture of the address space over the log
    #[arg(long, value_name = "OUT.svg")]
    pub(crate) picture: Option<PathBuf>,

    /// The log's format
    #[arg(long, value_enum, default_value_t = FormatName::Auto)]
    format: FormatName,

    /// Whose events to replay, of a log with several devices: the first that has any by default
    ///
    /// What the others have is told, with its bytes.
    #[arg(long, value_name = "N", value_parser = log_device, allow_negative_numbers = true)]
    pub(crate) log_device: Option<i64>,

    /// Go on where the log cannot have happened
    ///
    /// It permits that, and changes nothing for a log without such lines.
    /// An address that is allocated again is taken as freed before; a free of memory that was not
    /// allocated is left out, and so are an allocation at 0x0 and a last line that is cut off. Allocations that overlap are both
    /// made, as is one that goes past the last address; a free of another size than its allocation's frees that. A
    /// log that began in the middle of a program has such frees; their bytes are told.
    #[arg(long)]
    pub(crate) lenient: bool,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const SHORT: &str = "See --help for examples, and for how to write a log.";

const LONG: &str = "\
Examples:
  What does the log cost with aquifer's pool, and what does it reserve?
      aquifer-replay rmm_log.csv

  The same with one driver call an allocation, or with the driver's own pool:
      aquifer-replay rmm_log.csv --resource cuda
      aquifer-replay rmm_log.csv --resource async

  Does it fit in 6 GiB? The exit status is 3 if anything was refused, and the report names the first
  ten lines that were:
      aquifer-replay rmm_log.csv --capacity 6GiB

  How small a GPU would do?
      aquifer-replay rmm_log.csv --bisect --step 1MiB

  Where does the memory go? Look at it in a browser, or at https://ui.perfetto.dev:
      aquifer-replay rmm_log.csv --picture memory.svg --trace memory.json

  The log of a program that was killed, whose last line is cut off:
      aquifer-replay rmm_log.csv --lenient

  A snapshot of PyTorch, of the second GPU of its machine:
      aquifer-replay snapshot.pickle --log-device 1

  Times that count: a release build, on a GPU.
      cargo run --release -p aquifer-replay -- rmm_log.csv --backend cuda

What is counted:
  All that a log says was allocated, in the bytes that were asked. Of a snapshot of PyTorch that is also
  what was live before its history: blocks of its segments that no record allocates, and what its records
  free without having allocated it. They are replayed before the first record.
  What is left out, or replayed otherwise than it stands, is a warning on standard error and in the report,
  with its number and bytes: a history that overflowed, records of an unknown action, page-locked memory
  (host_traces), other devices, private pools, columns that are not read, allocations before a log of NBEP 7.
  What was live before a CSV, and is not freed in it, no line tells.

How to write a log:
  Aquifer wraps a resource in LoggingAdaptor::new(resource, \"rmm_log.csv\").
  RMM in C++ wraps a resource in rmm::mr::logging_resource_adaptor; in Python it is
  rmm.reinitialize(logging=True, log_file_name=\"rmm_log.csv\").
  PyTorch calls torch.cuda.memory._record_memory_history(), and at the end
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\").

Exit status: 0 all was served, 1 an error, 2 wrong arguments, 3 allocations were refused.";

fn bytes(text: &str) -> Result<u64, String> {
    let size = match text.parse::<ByteSize>() {
        Ok(size) => size.as_u64(),
        // A number behind which no unit is has to be one of 64 bits.
        Err(_) if !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit()) => u64::MAX,
        Err(_) => return Err(String::from("no number of bytes; try 4GiB, 512MiB or 1000000")),
    };
    let part_of_a_byte = || {
        text.trim_end_matches(['b', 'B']).trim_end().ends_with(|last: char| last.is_ascii_digit())
    };
    match size {
        _ if text.contains('.') && part_of_a_byte() => {
            Err(String::from("no whole number of bytes; try 4GiB, 512MiB or 1000000"))
        }
        0..256 => Err(String::from("less than 256 bytes serve nothing")),
        // What is larger than any number of bytes is read as the largest.
        bytes if bytes > 1 << 60 => Err(String::from("more than 1 EiB; try 4GiB or 512MiB")),
        bytes => Ok(bytes),
    }
}

fn gpu(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| String::from("no number of a GPU, which are 0, 1 and so on"))
}

fn log_device(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| String::from("no number of a device, as the log has them; try 0"))
}

fn step(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        step if step.is_multiple_of(256) => Ok(step),
        _ => Err(String::from("no multiple of 256")),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ResourceName {
    /// Aquifer's pool over plain memory
    Pool,
    /// Aquifer's pool that maps handles of memory
    Virtual,
    /// Plain memory: a driver call for each allocation and each free
    Cuda,
    /// A memory pool of the driver
    Async,
    /// Managed memory, which the driver moves
    Managed,
    /// RMM's bins, 256 KiB to 4 MiB, over a pool
    Binning,
    /// An arena, which takes the whole capacity at once
    Arena,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BackendName {
    /// A simulated device: no GPU is needed, and every run is the same
    Sim,
    /// A GPU
    Cuda,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    /// By the file's first bytes: a pickle's, or a header with the names below in any order
    Auto,
    /// RMM: Thread,Time,Action,Pointer,Size,Stream
    Rmm,
    /// NBEP 7: Event Type,Device ID,Address,...
    Events,
    /// PyTorch's memory snapshot, a pickle (nothing in it is run)
    Torch,
}

impl Arguments {
    /// Those of the process.
    ///
    /// # Errors
    ///
    /// The help or the version, if that was asked; what is wrong with the arguments.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let arguments = Self::try_parse()?;
        match arguments.conflict() {
            Some(wrong) => Err(Self::command().error(ErrorKind::ArgumentConflict, wrong)),
            None => Ok(arguments),
        }
    }

    /// What does not go together.
    fn conflict(&self) -> Option<String> {
        let on_gpu = matches!(self.backend, Some(BackendName::Cuda));
        let arena = self.capacity.filter(|_| matches!(self.resource, Some(ResourceName::Arena)));
        let wrong = if self.gpu.is_some() && !on_gpu {
            "--gpu is the number of a GPU: it does nothing without --backend cuda"
        } else if self.bisect && on_gpu {
            "--bisect needs the simulated device, and not --backend cuda: a GPU's memory is not for \
             trying out"
        } else if [&self.trace, &self.picture].contains(&&Some(PathBuf::from("-"))) {
            "- is no file to write: for standard output say /dev/stdout, for a file of that name ./-"
        } else if let (Some(trace), Some(picture)) = (&self.trace, &self.picture)
            && are_one(trace, picture)
        {
            "--trace and --picture are one file: give each its own"
        } else if let Some(bytes) = arena.filter(|bytes| *bytes < LEAST_ARENA) {
            return Some(format!(
                "--capacity is {}, and an arena takes 1 MiB at least: give it more, or leave \
                 --capacity out",
                count(bytes, "byte")
            ));
        } else if let Some(bytes) = arena.filter(|bytes| !on_gpu && *bytes >= BEYOND_ANY_DEVICE) {
            return Some(format!(
                "--capacity is {}, which an arena takes as one block, and each block of a simulated \
                 device has less than 4 TiB: give it less, or leave --capacity out",
                count(bytes, "byte")
            ));
        } else {
            return None;
        };
        Some(String::from(wrong))
    }

    /// The log's name in messages.
    pub(crate) fn log_name(&self) -> String {
        read::name(&self.log).display().to_string()
    }

    /// An option that was given, and that does nothing for a log without allocations.
    pub(crate) fn idle_for_an_empty_log(&self) -> Option<&'static str> {
        let given = [
            ("--picture", self.picture.is_some()),
            ("--trace", self.trace.is_some()),
            ("--bisect", self.bisect),
            ("--capacity", self.capacity.is_some()),
            ("--resource", self.resource.is_some()),
            ("--backend", self.backend.is_some()),
            ("--log-device", self.log_device.is_some()),
        ];
        given.iter().find(|(_, given)| *given).map(|(name, _)| *name)
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            resource: match self.resource.unwrap_or(ResourceName::Pool) {
                ResourceName::Pool => Resource::Pool,
                ResourceName::Virtual => Resource::Virtual,
                ResourceName::Cuda => Resource::Cuda,
                ResourceName::Async => Resource::Async,
                ResourceName::Managed => Resource::Managed,
                ResourceName::Binning => Resource::Binning,
                ResourceName::Arena => Resource::Arena,
            },
            backend: match self.backend {
                None | Some(BackendName::Sim) => Backend::Simulated,
                Some(BackendName::Cuda) => Backend::Cuda(self.gpu.unwrap_or(0)),
            },
            capacity: self.capacity,
        }
    }

    pub(crate) fn format(&self) -> Option<Format> {
        match self.format {
            FormatName::Auto => None,
            FormatName::Rmm => Some(Format::Rmm),
            FormatName::Events => Some(Format::Events),
            FormatName::Torch => Some(Format::Torch),
        }
    }
}
