//! The storage of a cubecl runtime over a pool of aquifer, in place of one over the driver's.
//!
//!     cargo run --release -p aquifer-examples-beside --bin cubecl_storage
//!
//! Without a GPU it runs on the simulated device, and says so.

use aquifer::container::DeviceSliceMut;
use aquifer::{CudaResource, Device, DeviceVec, Error, ErrorKind, PoolResource, Stream};
use clap::Parser;
use cubecl_common::backtrace::BackTrace;
use cubecl_runtime::server::IoError;
use cubecl_runtime::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Runs a storage of cubecl's over a pool of aquifer: allocates, writes, frees, and shows that the pool serves it again.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {
    /// How many rounds
    #[arg(long, default_value_t = 100)]
    rounds: u32,
}

/// The memory of one server of cubecl's, which has one stream.
struct PoolStorage {
    stream: Stream,
    pool: PoolResource,
    blocks: HashMap<StorageId, DeviceVec<u8>>,
}

/// What cubecl hands to a kernel as its argument.
#[derive(Debug, PartialEq)]
struct Binding {
    address: u64,
    bytes: u64,
}

impl ComputeStorage for PoolStorage {
    type Resource = Binding;

    fn alignment(&self) -> usize {
        256
    }

    fn get(&mut self, handle: &StorageHandle) -> Binding {
        let start = self.blocks[&handle.id].as_device_ptr();
        Binding { address: start + handle.offset(), bytes: handle.size() }
    }

    /// A pool's block is free of a driver call; its zeros cost a fill, which an `unsafe` `DeviceVec::uninit_in` saves.
    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        let bytes = usize::try_from(size).map_err(|_| too_big(size))?;
        let block = DeviceVec::zeroed_in(&self.stream, bytes, self.pool.clone())
            .map_err(|error| refused(size, error))?;
        let id = StorageId::new();
        self.blocks.insert(id, block);
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    /// The pool orders the free behind the stream's work, so nothing is kept for `flush`.
    fn dealloc(&mut self, id: StorageId) {
        self.blocks.remove(&id);
    }

    fn flush(&mut self) {}
}

impl PoolStorage {
    fn new(device: &Device, limit: usize) -> aquifer::Result<Self> {
        let pool = PoolResource::builder(CudaResource::new(device)).maximum_size(limit).build()?;
        Ok(Self { stream: device.new_stream()?, pool, blocks: HashMap::new() })
    }

    /// What a handle stands for, to copy or to launch on.
    fn view(&mut self, handle: &StorageHandle) -> aquifer::Result<DeviceSliceMut<'_, u8>> {
        let block = self.blocks.get_mut(&handle.id);
        let freed = || Error::new(ErrorKind::InvalidArgument, format!("{} is freed", handle.id));
        let block = block.ok_or_else(freed)?;
        block.slice_mut(handle.offset() as usize..(handle.offset() + handle.size()) as usize)
    }
}

fn too_big(size: u64) -> IoError {
    IoError::BufferTooBig { size, backtrace: BackTrace::capture() }
}

fn refused(size: u64, error: Error) -> IoError {
    match error.kind() {
        ErrorKind::OutOfMemory => too_big(size),
        _ => IoError::Unknown { description: error.to_string(), backtrace: BackTrace::capture() },
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cubecl_storage: {error}");
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
    let mut storage = PoolStorage::new(&device, 64 << 20)?;
    for round in 0..arguments.rounds {
        let handle = storage.alloc(1 << 20)?;
        let part = handle.offset_start(1000).offset_end(24);
        if storage.get(&part).address != storage.get(&handle).address + 1000 {
            return Err("a part of a handle lies elsewhere".into());
        }
        storage.view(&part)?.fill(round as u8)?;
        let bytes = storage.view(&handle)?.to_vec()?;
        let (before, rest) = bytes.split_at(1000);
        let (inside, after) = rest.split_at((1 << 20) - 1024);
        let zeros = before.iter().chain(after).all(|byte| *byte == 0);
        if !zeros || !inside.iter().all(|byte| *byte == round as u8) {
            return Err("a part was written wrongly".into());
        }
        storage.dealloc(handle.id);
        storage.flush();
    }
    if !matches!(storage.alloc(1 << 30), Err(IoError::BufferTooBig { .. })) {
        return Err("1 GiB passed a limit of 64 MiB".into());
    }
    let statistics = storage.pool.statistics();
    say(format_args!(
        "{} rounds of 1 MiB were served from {} bytes, and {} are in use",
        arguments.rounds, statistics.reserved, statistics.live
    ))
}
