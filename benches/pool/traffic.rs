//! What real programs ask of a pool, as lists of steps. `--traces FOLDER` writes them as files, which
//! `benches/peers/traffic.hpp` plays on the peers: both sides make the same calls in the same order.
//!
//! A line is a step: `a SLOT STREAM BYTES` allocates, `f SLOT STREAM` frees, `o STREAM BEFORE` orders a
//! stream after all that another was given, `k STREAM` gives a stream work, `w STREAM` has the host wait.

use crate::rows::MIB;
use crate::workloads::SplitMix64;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::Path;

#[derive(Clone, Copy)]
pub(crate) enum Step {
    Allocate { slot: usize, stream: usize, bytes: u64 },
    Free { slot: usize, stream: usize },
    Order { stream: usize, before: usize },
    Work { stream: usize },
    Wait { stream: usize },
}

/// A program of one thread. Each block's first use is right behind its allocation.
pub(crate) struct Traffic {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
    /// By slot, the bytes and the stream of a live block.
    blocks: Vec<(u64, usize)>,
    live: u64,
    pub(crate) peak: u64,
    pub(crate) streams: usize,
    /// Where blocks are freed in the order of their allocations: how many of them the target of 1.2 times the peak allows.
    pub(crate) in_turn: Option<usize>,
}

impl Traffic {
    fn new(name: &'static str, streams: usize) -> Self {
        let (steps, blocks) = (Vec::new(), Vec::new());
        Self { name, steps, blocks, live: 0, peak: 0, streams, in_turn: None }
    }

    pub(crate) fn slots(&self) -> usize {
        self.blocks.len()
    }

    fn allocate(&mut self, bytes: u64, stream: usize) -> usize {
        let slot = self.blocks.len();
        self.blocks.push((bytes, stream));
        self.live += bytes;
        self.peak = self.peak.max(self.live);
        self.steps.push(Step::Allocate { slot, stream, bytes });
        self.steps.push(Step::Work { stream });
        slot
    }

    /// Frees on the stream that it was allocated on.
    fn free(&mut self, slot: usize) {
        self.free_on(slot, self.blocks[slot].1);
    }

    fn free_on(&mut self, slot: usize, stream: usize) {
        self.live -= self.blocks[slot].0;
        self.steps.push(Step::Free { slot, stream });
    }

    /// `stream` uses what `before` made.
    fn use_on(&mut self, stream: usize, before: usize) {
        self.steps.push(Step::Order { stream, before });
        self.steps.push(Step::Work { stream });
    }

    /// Writes it to the folder, by its name.
    pub(crate) fn write(&self, folder: &Path) -> std::io::Result<()> {
        let mut text = String::new();
        for step in &self.steps {
            // A string takes whatever is written.
            let _ = match *step {
                Step::Allocate { slot, stream, bytes } => {
                    writeln!(text, "a {slot} {stream} {bytes}")
                }
                Step::Free { slot, stream } => writeln!(text, "f {slot} {stream}"),
                Step::Order { stream, before } => writeln!(text, "o {stream} {before}"),
                Step::Work { stream } => writeln!(text, "k {stream}"),
                Step::Wait { stream } => writeln!(text, "w {stream}"),
            };
        }
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join(format!("{}.txt", self.name)), text)
    }
}

/// All of them, or a few steps of each.
pub(crate) fn all(quick: bool) -> Vec<Traffic> {
    let count = |full, short| if quick { short } else { full };
    vec![
        key_value_cache("kv cache 1 stream", 1, count(1024, 516)),
        key_value_cache("kv cache 4 streams", 4, count(768, 514)),
        joins(count(2000, 40)),
        phases(count(128, 4) as usize),
        hand_over("hand-over 1MiB, 1 ahead", MIB, 1, count(8000, 40)),
        hand_over("hand-over 4MiB, 1 ahead", 4 * MIB, 1, count(8000, 40)),
        hand_over("hand-over 1MiB, 16 ahead", MIB, 16, count(8000, 40)),
        hand_over("hand-over 4MiB, 16 ahead", 4 * MIB, 16, count(8000, 40)),
        fsdp(count(40, 1)),
        training(count(40, 1)),
        growing("growing buffer", 1, count(512, 8)),
        growing("8 growing buffers", 8, count(512, 8)),
    ]
}

/// Buffers that are longer by a little each time: a new block, then the old one goes.
fn growing(name: &'static str, buffers: usize, steps: u64) -> Traffic {
    let mut traffic = Traffic::new(name, 1);
    let mut held = vec![None; buffers];
    for step in 1..=steps {
        for block in &mut held {
            let longer = traffic.allocate(step * MIB / 4, 0);
            if let Some(old) = block.replace(longer) {
                traffic.free(old);
            }
        }
    }
    held.into_iter().flatten().for_each(|block| traffic.free(block));
    traffic
}

/// Keys and values of 32 layers, which grow by a token a step: a new block, then the old one goes. Each
/// stream has two requests, one after the other.
fn key_value_cache(name: &'static str, streams: usize, tokens: u64) -> Traffic {
    const TOKEN: u64 = 8192;
    const PROMPT: u64 = 512;
    let mut traffic = Traffic::new(name, streams);
    for _ in 0..2 {
        let mut held: Vec<Vec<usize>> = (0..streams)
            .map(|stream| (0..64).map(|_| traffic.allocate(PROMPT * TOKEN, stream)).collect())
            .collect();
        for token in PROMPT + 1..tokens {
            for (stream, held) in held.iter_mut().enumerate() {
                for block in held {
                    let longer = traffic.allocate(token * TOKEN, stream);
                    traffic.free(std::mem::replace(block, longer));
                    let scratch = traffic.allocate(MIB, stream);
                    traffic.free(scratch);
                }
            }
        }
        held.into_iter().flatten().for_each(|block| traffic.free(block));
    }
    traffic
}

/// Tables that are joined on four streams; of the results up to 24 stay.
fn joins(joins: u64) -> Traffic {
    let mut traffic = Traffic::new("joins 4 streams", 4);
    let mut random = SplitMix64(7);
    let mut tables: Vec<Vec<usize>> = Vec::new();
    for _ in 0..joins {
        let stream = random.below(4) as usize;
        let rows = 100_000 + random.below(4_000_000);
        let inputs = [16, 4, 4].map(|width| traffic.allocate(rows * width, stream));
        let matches = rows * (10 + random.below(90)) / 100 + 1;
        let columns = 2 + random.below(8);
        let mut table: Vec<_> = (0..columns)
            .map(|_| {
                let width = [4, 8, 8, 1][random.below(4) as usize];
                traffic.allocate(matches * width, stream)
            })
            .collect();
        table.push(traffic.allocate(matches / 8 + 64, stream));
        inputs.into_iter().for_each(|input| traffic.free(input));
        tables.push(table);
        if tables.len() > 24 {
            let done = tables.swap_remove(random.below(24) as usize);
            done.into_iter().for_each(|column| traffic.free(column));
        }
    }
    tables.into_iter().flatten().for_each(|column| traffic.free(column));
    traffic
}

/// 180 MiB that are made anew on the next of 32 streams.
fn phases(phases: usize) -> Traffic {
    let mut traffic = Traffic::new("phases 32 streams", 32);
    let mut random = SplitMix64(5);
    for phase in 0..phases {
        let (mut held, mut bytes) = (Vec::new(), 0);
        while bytes < 180 * MIB {
            let size = (1 << 16) + random.below(8 * MIB);
            bytes += size;
            held.push(traffic.allocate(size, phase % 32));
        }
        held.into_iter().for_each(|block| traffic.free(block));
    }
    traffic
}

/// A producer's blocks, which a consumer frees on its own stream. The producer is some blocks ahead; the
/// host waits for each eighth.
fn hand_over(name: &'static str, size: u64, ahead: usize, blocks: u64) -> Traffic {
    let (consumer, producer) = (0, 1);
    let mut traffic = Traffic::new(name, 2);
    traffic.in_turn = Some(ahead * 6 / 5);
    let mut made = VecDeque::new();
    for number in 0..blocks {
        made.push_back(traffic.allocate(size + number % 7 * 4096, producer));
        if made.len() < ahead {
            continue;
        }
        traffic.use_on(consumer, producer);
        if let Some(block) = made.pop_front() {
            traffic.free_on(block, consumer);
        }
        if number % 8 == 0 {
            traffic.steps.push(Step::Wait { stream: consumer });
        }
    }
    traffic.use_on(consumer, producer);
    made.into_iter().for_each(|block| traffic.free_on(block, consumer));
    traffic
}

/// Training with sharded weights: a layer's weights are gathered on one stream, used and freed on
/// another; its gradients are made there and freed on the first.
fn fsdp(steps: u64) -> Traffic {
    const LAYERS: u64 = 32;
    let (gathering, computing) = (0, 1);
    let mut traffic = Traffic::new("fsdp 2 streams", 2);
    let weights = |layer: u64| (24 + 4 * (layer % 4)) * MIB;
    let mut random = SplitMix64(11);
    let shards: Vec<_> =
        (0..LAYERS).map(|layer| traffic.allocate(weights(layer) / 8, gathering)).collect();
    for _ in 0..steps {
        let tokens = 1024 + random.below(1024);
        let mut activations = Vec::new();
        // Forward, then backward; the next layer's weights are gathered while one is used.
        for backward in [false, true] {
            let order = |n: u64| if backward { LAYERS - 1 - n } else { n };
            let mut ahead = Some(traffic.allocate(weights(order(0)), gathering));
            for n in 0..LAYERS {
                let Some(gathered) = ahead.take() else { break };
                if n + 1 < LAYERS {
                    ahead = Some(traffic.allocate(weights(order(n + 1)), gathering));
                }
                traffic.use_on(computing, gathering);
                if backward {
                    let gradient = traffic.allocate(weights(order(n)), computing);
                    activations.pop().into_iter().for_each(|block| traffic.free(block));
                    let scattered = traffic.allocate(weights(order(n)) / 8, gathering);
                    traffic.use_on(gathering, computing);
                    traffic.free_on(gradient, gathering);
                    traffic.free(scattered);
                } else {
                    let scratch = traffic.allocate(tokens * 16 * 1024, computing);
                    activations.push(traffic.allocate(tokens * 8 * 1024, computing));
                    traffic.free(scratch);
                }
                traffic.free_on(gathered, computing);
            }
        }
    }
    // All streams are done with them.
    traffic.use_on(gathering, computing);
    shards.into_iter().for_each(|shard| traffic.free(shard));
    traffic
}

/// Training on one stream, of another length each step.
fn training(steps: u64) -> Traffic {
    let mut traffic = Traffic::new("training varied lengths", 1);
    let mut random = SplitMix64(7);
    let weights: Vec<_> = (0..200).map(|n| traffic.allocate((n % 5 + 1) * 4 * MIB, 0)).collect();
    for _ in 0..steps {
        let length = 256 + random.below(1792);
        let mut activations = Vec::new();
        for layer in 0..48 {
            for width in [4, 4, 12, 1, 16, 4] {
                let bytes = length * 4096 * width / 2;
                activations.push((traffic.allocate(bytes, 0), bytes));
            }
            let scores = traffic.allocate(length * length * 8, 0);
            let mask = traffic.allocate(length * 1000 + layer, 0);
            traffic.free(scores);
            traffic.free(mask);
        }
        while let Some((activation, bytes)) = activations.pop() {
            let gradient = traffic.allocate(bytes, 0);
            traffic.free(activation);
            traffic.free(gradient);
        }
    }
    weights.into_iter().for_each(|weight| traffic.free(weight));
    traffic
}
