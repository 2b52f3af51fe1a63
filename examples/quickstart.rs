//! A file travels to the device and back: read into page-locked memory, sent in chunks over several
//! streams, its bytes counted by a kernel, the counts checked against the CPU's.
//!
//!     cargo run --release -p aquifer-examples --bin quickstart [-- FILE]
//!
//! Without a GPU it runs on the simulated device, and says so.

use aquifer::allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    Device, DeviceVec, Error, HostArgs, Kernel, LaunchConfig, PinnedAlloc, Result, Stream,
    device::BackendKind, pinned::last_error,
};
use clap::Parser;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const STREAMS: usize = 4;
const CHUNK: usize = 4 << 20;
const BINS: usize = 256;

/// Parameters: the bytes, how many, the 256 counts to add to.
static HISTOGRAM: Kernel =
    Kernel::new("histogram", include_str!("../docs/kernels/histogram.ptx"), histogram_on_host);

fn histogram_on_host(_config: &LaunchConfig, mut args: HostArgs<'_>) -> Result<()> {
    let data = args.input::<u8>()?;
    let length = args.scalar::<u64>()? as usize;
    let bins = args.in_out::<u32>()?;
    for &byte in &data[..length] {
        bins[usize::from(byte)] += 1;
    }
    Ok(())
}

/// Sends a file to the device in chunks, counts its bytes there, checks the counts against the CPU's and
/// prints how long it took.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {
    /// The file whose bytes are counted [default: the README of aquifer]
    file: Option<PathBuf>,
}

/// What the program can fail with: a file that is not what it should be, or the device.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("quickstart: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The README in the folder above this package's.
fn readme() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).join("README.md")
}

/// `println!`, but that an output which cannot be written is an error, and no panic.
fn say(words: impl Display) -> Result<(), Failure> {
    writeln!(io::stdout(), "{words}").map_err(|error| format!("standard output: {error}").into())
}

fn run() -> Result<bool, Failure> {
    let path = &match Arguments::try_parse() {
        Ok(arguments) => arguments.file.unwrap_or_else(readme),
        // Asked for by `--help`. `parse` would pass over a full disk.
        Err(help) if !help.use_stderr() => {
            return say(help.render().to_string().trim_end()).map(|()| true);
        }
        Err(wrong) => wrong.exit(),
    };
    let device = Device::detect_or_simulate()?;
    let file = read(path, &device)?;
    let expected = count_on_cpu(&file);

    let start = Instant::now();
    let found = count_on_device(&device, &file)?;
    let elapsed = start.elapsed();

    let pinned = copy_time(&device, &file)?;
    let in_ordinary_memory: Vec<u8> = file.to_vec();
    let ordinary = copy_time(&device, &in_ordinary_memory)?;
    let right = found == expected;
    print(&device, path, file.len(), elapsed, pinned, ordinary, right)?;
    Ok(right)
}

/// The file in page-locked memory. Refuses what cannot work before it takes memory.
fn read(path: &Path, device: &Device) -> Result<AllocVec<u8, PinnedAlloc>, Failure> {
    let mut file =
        File::open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(format!("{} is not a file", path.display()).into());
    }
    let bytes = metadata.len();
    if bytes == 0 {
        return Err(format!("{} is empty: there is nothing to count", path.display()).into());
    }
    let free = device.memory_info()?.free;
    if bytes > free as u64 {
        let path = path.display();
        return Err(format!("{path} has {bytes} bytes, {device} has {free} free").into());
    }
    let mut contents = AllocVec::new_in(PinnedAlloc);
    contents.try_reserve_exact(bytes as usize).map_err(|_| {
        let reason = last_error().map(|error| error.to_string()).unwrap_or_default();
        format!("{bytes} bytes of page-locked memory were not to be had: {reason}")
    })?;
    contents.resize(bytes as usize, 0);
    file.read_exact(&mut contents)?;
    Ok(contents)
}

fn count_on_cpu(bytes: &[u8]) -> Vec<u64> {
    let mut counts = vec![0; BINS];
    for &byte in bytes {
        counts[usize::from(byte)] += 1;
    }
    counts
}

/// Chunks go round the streams; a thread feeds each stream, and each has its own counts.
fn count_on_device(device: &Device, bytes: &[u8]) -> Result<Vec<u64>, Error> {
    let streams: Vec<Stream> =
        (0..STREAMS).map(|_| device.new_stream()).collect::<Result<_, Error>>()?;
    let mut counts = vec![[0_u32; BINS]; STREAMS];
    std::thread::scope(|threads| {
        let mut feeding = Vec::new();
        for (index, (stream, counts)) in streams.iter().zip(&mut counts).enumerate() {
            let chunks = bytes.chunks(CHUNK).skip(index).step_by(STREAMS);
            feeding.push(threads.spawn(move || count_on_stream(stream, chunks, counts)));
        }
        feeding.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    let sum = |bin: usize| counts.iter().map(|counts| u64::from(counts[bin])).sum();
    Ok((0..BINS).map(sum).collect())
}

/// The scope lends the borrowed chunks to the stream's copies, and waits at its end.
fn count_on_stream<'a>(
    stream: &Stream,
    chunks: impl Iterator<Item = &'a [u8]>,
    counts: &mut [u32],
) -> Result<(), Error> {
    let mut bins = DeviceVec::<u32>::zeroed(stream, BINS)?;
    stream.scope(|scope| {
        for chunk in chunks {
            // SAFETY: written whole by the upload before the kernel reads it.
            let mut data = unsafe { DeviceVec::<u8>::uninit(stream, chunk.len())? };
            scope.upload(chunk, &mut data)?;
            let launch = stream
                .launch(&HISTOGRAM)
                .input(&data)?
                .scalar(chunk.len() as u64)?
                .in_out(&mut bins)?;
            let blocks = chunk.len().div_ceil(256 * 16).clamp(1, 1024) as u32;
            let config = LaunchConfig { grid: (blocks, 1, 1), block: (256, 1, 1), shared_bytes: 0 };
            // SAFETY: the kernel reads `data` up to its length and adds to 256 counts.
            unsafe { launch.launch(config)? };
            // `data` is freed here, in the stream's order: after the kernel has read it.
        }
        scope.download(&bins, counts)
    })
}

/// The median time of copying `bytes` to the device.
fn copy_time(device: &Device, bytes: &[u8]) -> Result<Duration, Error> {
    let stream = device.new_stream()?;
    // SAFETY: only written here.
    let mut target = unsafe { DeviceVec::<u8>::uninit(&stream, bytes.len())? };
    target.copy_from_slice(bytes)?;
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        target.copy_from_slice(bytes)?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

fn print(
    device: &Device,
    path: &Path,
    bytes: usize,
    elapsed: Duration,
    pinned: Duration,
    ordinary: Duration,
    right: bool,
) -> Result<(), Failure> {
    let rate = |time: Duration| {
        let rate = bytes as f64 / time.as_secs_f64() / 1e9;
        format!("{rate:.2} GB/s ({:.1} us)", time.as_secs_f64() * 1e6)
    };
    let backend = match device.kind() {
        BackendKind::Simulated => {
            "SIMULATED: no GPU took part, and its speeds mean nothing".to_owned()
        }
        kind => format!("{kind}, driver {}", device.properties().driver_version),
    };
    let rows = [
        ("device", device.name().to_owned()),
        ("backend", backend),
        ("file", path.display().to_string()),
        ("bytes", bytes.to_string()),
        ("chunks, streams", format!("{}, {STREAMS}", bytes.div_ceil(CHUNK))),
        ("count on device", format!("{:.3} ms", elapsed.as_secs_f64() * 1e3)),
        ("copy from pinned Vec", rate(pinned)),
        ("copy from ordinary Vec", rate(ordinary)),
        (
            "verdict",
            (if right { "the device's counts are the CPU's" } else { "WRONG COUNTS" }).to_owned(),
        ),
    ];
    for (name, value) in rows {
        say(format_args!("{name:<24}{value}"))?;
    }
    Ok(())
}
