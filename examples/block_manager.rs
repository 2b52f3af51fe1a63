//! A block manager as of a paged cache: its blocks lie on the device, and idle ones in registered memory of the host.
//!
//!     cargo run --release -p aquifer-examples --bin block_manager
//!
//! Without a GPU it runs on the simulated device, and says so.

use aquifer::pinned::Registered;
use aquifer::{Device, DeviceVec, Error, ErrorKind, Stream};
use clap::Parser;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Swaps the blocks of sequences between a cache on the device and registered memory of the host, and checks them.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which.
#[derive(Parser)]
struct Arguments {
    /// The elements of a block
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..1 << 20))]
    block: u32,
    /// How many blocks the device has, and the host as many
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(8..))]
    blocks: u16,
}

/// Where the blocks of a sequence lie, in their order.
enum Place {
    Device(Vec<usize>),
    Host(Vec<usize>),
}

/// One cache on the device and one on the host, cut into blocks of equal size.
struct Manager {
    stream: Stream,
    block: usize,
    device: DeviceVec<u32>,
    /// Memory of the program's own, such as a huge page or shared memory, page-locked where it lies.
    host: Registered<Vec<u32>>,
    free: (Vec<usize>, Vec<usize>),
    sequences: BTreeMap<u32, Place>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("block_manager: {error}");
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
    let (block, blocks) = (arguments.block as usize, usize::from(arguments.blocks));
    let mut manager = Manager::new(device.new_stream()?, block, blocks)?;

    // Two sequences fill the device. A third needs room, so the first is swapped out, and comes back for the second.
    let text = |sequence: u32, blocks: usize| -> Vec<u32> {
        (0..(blocks * block) as u32).map(|index| index ^ (sequence << 24)).collect()
    };
    let half = blocks / 2;
    let (first, second, third) = (text(1, half), text(2, blocks - half), text(3, 3));
    manager.write(1, &first)?;
    manager.write(2, &second)?;
    let full = manager.write(3, &third);
    assert!(matches!(full, Err(error) if error.kind() == ErrorKind::OutOfMemory));
    manager.swap_out(1)?;
    manager.write(3, &third)?;
    manager.swap_out(2)?;
    manager.swap_in(1)?;
    for (sequence, expected) in [(1, first), (3, third)] {
        if manager.read(sequence)? != expected {
            return Err(format!("sequence {sequence} came back wrong").into());
        }
    }
    // The blocks of the second lie on the host, and are read there.
    if manager.read(2)? != second {
        return Err("sequence 2 is wrong on the host".into());
    }
    let memory = manager.end()?;
    say(format_args!(
        "3 sequences are whole after 3 swaps of blocks of {block}; the host's {} elements are the program's again",
        memory.len()
    ))
}

impl Manager {
    fn new(stream: Stream, block: usize, blocks: usize) -> Outcome<Self> {
        let device = DeviceVec::zeroed(&stream, block * blocks)?;
        let host = Registered::new(stream.device(), vec![0; block * blocks])?;
        let free = || (0..blocks).rev().collect();
        Ok(Self { stream, block, device, host, free: (free(), free()), sequences: BTreeMap::new() })
    }

    /// A new sequence in blocks of the device. `OutOfMemory` if there are too few.
    fn write(&mut self, sequence: u32, data: &[u32]) -> aquifer::Result<()> {
        let blocks = take(&mut self.free.0, data.len().div_ceil(self.block))?;
        for (&index, part) in blocks.iter().zip(data.chunks(self.block)) {
            let start = index * self.block;
            self.device.slice_mut(start..start + part.len())?.copy_from_slice(part)?;
        }
        self.sequences.insert(sequence, Place::Device(blocks));
        Ok(())
    }

    /// Moves a sequence's blocks to the host. All copies are given at once, and the scope waits for them.
    fn swap_out(&mut self, sequence: u32) -> aquifer::Result<()> {
        let Some(Place::Device(from)) = self.sequences.get(&sequence) else { return Ok(()) };
        let to = take(&mut self.free.1, from.len())?;
        let mut slots = slots(&mut self.host, self.block);
        self.stream.scope(|scope| {
            for (&from, &to) in from.iter().zip(&to) {
                let start = from * self.block;
                if let Some(slot) = slots.remove(&to) {
                    scope.download(&self.device.slice(start..start + self.block)?, slot)?;
                }
            }
            Ok(())
        })?;
        if let Some(Place::Device(from)) = self.sequences.insert(sequence, Place::Host(to)) {
            self.free.0.extend(from);
        }
        Ok(())
    }

    /// Moves a sequence's blocks to the device.
    fn swap_in(&mut self, sequence: u32) -> aquifer::Result<()> {
        let Some(Place::Host(from)) = self.sequences.get(&sequence) else { return Ok(()) };
        let to = take(&mut self.free.0, from.len())?;
        self.stream.scope(|scope| {
            for (&from, &to) in from.iter().zip(&to) {
                let (from, to) = (from * self.block, to * self.block);
                let mut target = self.device.slice_mut(to..to + self.block)?;
                scope.upload(&self.host[from..from + self.block], &mut target)?;
            }
            Ok(())
        })?;
        if let Some(Place::Host(from)) = self.sequences.insert(sequence, Place::Device(to)) {
            self.free.1.extend(from);
        }
        Ok(())
    }

    /// The elements of a sequence, wherever it lies.
    fn read(&self, sequence: u32) -> aquifer::Result<Vec<u32>> {
        let range = |index: &usize| index * self.block..(index + 1) * self.block;
        match self.sequences.get(&sequence) {
            Some(Place::Device(blocks)) => {
                let parts = blocks.iter().map(|block| self.device.slice(range(block))?.to_vec());
                Ok(parts.collect::<aquifer::Result<Vec<_>>>()?.concat())
            }
            Some(Place::Host(blocks)) => Ok(blocks
                .iter()
                .flat_map(|block| self.host[range(block)].iter().copied())
                .collect()),
            None => Ok(Vec::new()),
        }
    }

    /// The host's memory, no longer page-locked.
    fn end(self) -> Outcome<Vec<u32>> {
        Ok(self.host.into_inner()?)
    }
}

/// The host's blocks by their numbers, each borrowed apart from the others.
fn slots(host: &mut [u32], block: usize) -> BTreeMap<usize, &mut [u32]> {
    host.chunks_exact_mut(block).enumerate().collect()
}

/// `count` free blocks, or an error and none.
fn take(free: &mut Vec<usize>, count: usize) -> aquifer::Result<Vec<usize>> {
    let Some(left) = free.len().checked_sub(count) else {
        let what = format!("{count} blocks were asked, and {} are free", free.len());
        return Err(Error::new(ErrorKind::OutOfMemory, what).with_advice("swap a sequence out"));
    };
    Ok(free.split_off(left))
}
