//! The allocation workloads that every peer runs: `benches/peers/workloads.hpp`, bit for bit.
//!
//! Two programs in two languages replay the same operations in the same order, so that their times
//! compare. `tests/it/bench_workloads.rs` holds hashes that the C++ printed.

#![allow(dead_code, reason = "the bench and the test each use a part of it")]

#[path = "split_mix.rs"]
mod split_mix;

pub(crate) use split_mix::SplitMix64;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, yield_now};
use std::time::Instant;

/// Streams that a pool under test has at least, and threads that `churn` runs at most.
pub(crate) const STREAMS: usize = 16;

/// Blocks that each thread of `churn` holds.
pub(crate) const LIVE: usize = 128;

/// The first seed of the random traces, and how many there are: a processor learns one trace by heart.
pub(crate) const SEED: u64 = 42;
pub(crate) const SEEDS: u32 = 5;

/// Operations that one sample of a random trace has, unless it takes longer than this.
const SAMPLE: usize = 50_000;
const SAMPLE_NS: f64 = 2e7;

/// What the workloads run on. A block knows its size, and is given back once, with the stream that
/// it was asked with.
pub(crate) trait Pool: Sync {
    type Block: Send;

    fn allocate(&self, bytes: u64, stream: usize) -> Self::Block;

    fn free(&self, block: Self::Block, stream: usize);
}

/// One step of a trace. Size 0 frees the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) slot: u32,
    pub(crate) size: u64,
}

/// Operations in which each slot is below [`slots`](Self::slots), allocated once, and freed once
/// after that. [`random_trace`] makes one, and [`checked`](Self::checked): `replay` relies on it.
pub(crate) struct Trace {
    ops: Vec<Op>,
    slots: u32,
}

impl Trace {
    /// None unless each slot up to the highest is allocated once, and freed once after that.
    pub(crate) fn checked(ops: Vec<Op>) -> Option<Self> {
        let slots = ops.iter().map(|op| op.slot + 1).max().unwrap_or(0);
        let mut uses = vec![0; slots as usize];
        for op in &ops {
            let used = &mut uses[op.slot as usize];
            if *used != u8::from(op.size == 0) {
                return None;
            }
            *used += 1;
        }
        uses.iter().all(|used| *used == 2).then_some(Self { ops, slots })
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The most bytes that are live at once.
    pub(crate) fn peak(&self) -> u64 {
        let mut sizes = vec![0; self.slots as usize];
        let (mut live, mut peak) = (0, 0);
        for op in &self.ops {
            if op.size > 0 {
                sizes[op.slot as usize] = op.size;
                live += op.size;
            } else {
                live -= sizes[op.slot as usize];
            }
            peak = peak.max(live);
        }
        peak
    }
}

/// RMM's RANDOM_ALLOCATIONS: `n` allocations of 1 to `max_size` bytes; 73 in 100 steps allocate while
/// fewer than 16000 MiB are live, the others free a random block.
pub(crate) fn random_trace(n: u32, max_size: u64, seed: u64) -> Trace {
    const MAX_USAGE: u64 = 16000 << 20;
    let mut random = SplitMix64(seed);
    let mut ops = Vec::new();
    let mut live: Vec<(u32, u64)> = Vec::new();
    let (mut used, mut count) = (0, 0);
    for _ in 0..2 * n {
        let size = 1 + random.below(max_size);
        let allocates =
            live.is_empty() || (random.below(100) < 73 && count < n && used + size < MAX_USAGE);
        if allocates {
            ops.push(Op { slot: count, size });
            live.push((count, size));
            count += 1;
            used += size;
        } else {
            let (slot, size) = live.swap_remove(random.below(live.len() as u64) as usize);
            ops.push(Op { slot, size: 0 });
            used -= size;
        }
    }
    ops.extend(live.iter().map(|&(slot, _)| Op { slot, size: 0 }));
    // One block more than `n` where all were freed early.
    Trace { ops, slots: count.max(n) }
}

impl SplitMix64 {
    #[inline]
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Log-uniform, 256 B to 4 MiB.
#[inline]
pub(crate) fn log_size(random: &mut SplitMix64) -> u64 {
    let unit = (random.next() >> 11) as f64;
    (256.0 * (14.0 * unit / 9_007_199_254_740_992.0).exp2()) as u64
}

fn nanoseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e9
}

/// Nanoseconds an operation of the trace on one stream.
#[inline(never)]
pub(crate) fn replay<P: Pool>(pool: &P, trace: &Trace, stream: usize) -> f64 {
    let mut slots: Vec<MaybeUninit<P::Block>> = Vec::new();
    slots.resize_with(trace.slots as usize, MaybeUninit::uninit);
    let start = Instant::now();
    for op in &trace.ops {
        // SAFETY: a trace names slots below `slots` alone.
        let slot = unsafe { slots.get_unchecked_mut(op.slot as usize) };
        if op.size > 0 {
            slot.write(pool.allocate(op.size, stream));
        } else {
            // SAFETY: a trace frees a slot once, after it has filled it.
            pool.free(unsafe { slot.assume_init_read() }, stream);
        }
    }
    nanoseconds(start) / trace.ops.len() as f64
}

/// A pool that hands out nothing: what a workload takes without one.
pub(crate) struct Nothing;

impl Pool for Nothing {
    type Block = u64;

    #[inline(never)]
    fn allocate(&self, bytes: u64, _stream: usize) -> u64 {
        std::hint::black_box(bytes)
    }

    #[inline(never)]
    fn free(&self, block: u64, _stream: usize) {
        std::hint::black_box(block);
    }
}

/// Nanoseconds an operation of random traces, the median over the seeds. A pool that takes over a
/// second for one replay has that of the first seed alone.
pub(crate) fn random_time<P: Pool>(pool: &P, n: u32, max_size: u64, seeds: u64) -> f64 {
    let mut times = Vec::new();
    for seed in SEED..SEED + seeds {
        let trace = random_trace(n, max_size, seed);
        let operations = trace.ops.len();
        let first = replay(pool, &trace, 0) * operations as f64;
        if first > 1e9 {
            return replay(pool, &trace, 0);
        }
        let rounds = SAMPLE.div_ceil(operations).min((SAMPLE_NS / first) as usize).max(1);
        times.push(median3(|| {
            (0..rounds).map(|_| replay(pool, &trace, 0)).sum::<f64>() / rounds as f64
        }));
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// `T` threads get ready, start together, run, and clean up when all have run. Returns the
/// nanoseconds from the start to the last one's end.
///
/// Waiting spins with a yield, as the C++ does. Each load that ends a wait acquires what the thread
/// did that released: its setup before the start, its run before the end.
pub(crate) fn gang<S>(
    threads: usize,
    enter: impl Fn(usize) -> S + Sync,
    run: impl Fn(usize, &mut S) + Sync,
    leave: impl Fn(usize, S) + Sync,
) -> f64 {
    let (ready, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let go = AtomicBool::new(false);
    let reach = |counter: &AtomicUsize| {
        while counter.load(Ordering::Acquire) < threads {
            yield_now();
        }
    };
    thread::scope(|scope| {
        for thread in 0..threads {
            let (enter, run, leave, ready, done, go, reach) =
                (&enter, &run, &leave, &ready, &done, &go, &reach);
            scope.spawn(move || {
                let mut state = enter(thread);
                ready.fetch_add(1, Ordering::AcqRel);
                while !go.load(Ordering::Acquire) {
                    yield_now();
                }
                run(thread, &mut state);
                done.fetch_add(1, Ordering::AcqRel);
                reach(done);
                leave(thread, state);
            });
        }
        reach(&ready);
        let start = Instant::now();
        go.store(true, Ordering::Release);
        reach(&done);
        nanoseconds(start)
    })
}

/// Each thread has one stream and [`LIVE`] blocks: a step frees one and allocates one. Returns the
/// nanoseconds of one operation of the whole program.
#[inline(never)]
pub(crate) fn churn<P: Pool>(pool: &P, threads: usize, steps: u32) -> f64 {
    struct Held<B> {
        random: SplitMix64,
        blocks: [MaybeUninit<B>; LIVE],
    }
    let elapsed = gang(
        threads,
        |thread| {
            let mut random = SplitMix64(1234 + thread as u64);
            let blocks = std::array::from_fn(|_| {
                MaybeUninit::new(pool.allocate(log_size(&mut random), thread))
            });
            Held { random, blocks }
        },
        |thread, held| {
            for _ in 0..steps {
                let k = held.random.below(LIVE as u64) as usize;
                let block = &mut held.blocks[k];
                // SAFETY: each entry holds a block, and gets another one below.
                pool.free(unsafe { block.assume_init_read() }, thread);
                block.write(pool.allocate(log_size(&mut held.random), thread));
            }
        },
        |thread, held| {
            for block in held.blocks {
                // SAFETY: each entry holds a block.
                pool.free(unsafe { block.assume_init() }, thread);
            }
        },
    );
    elapsed / (2.0 * f64::from(steps) * threads as f64)
}

/// Nanoseconds of one allocation and its free, of one size on one stream.
#[inline(never)]
pub(crate) fn hot<P: Pool>(pool: &P, bytes: u64, pairs: u32) -> f64 {
    pool.free(pool.allocate(bytes, 0), 0);
    let start = Instant::now();
    for _ in 0..pairs {
        let block = pool.allocate(bytes, 0);
        pool.free(block, 0);
    }
    nanoseconds(start) / f64::from(pairs)
}

/// Each block is allocated on one stream and freed on it, the next one on the other stream.
#[inline(never)]
pub(crate) fn cross<P: Pool>(pool: &P, bytes: u64, pairs: u32, streams: usize) -> f64 {
    for stream in 0..streams {
        pool.free(pool.allocate(bytes, stream), stream);
    }
    let start = Instant::now();
    for pair in 0..pairs as usize {
        let stream = pair % streams;
        let block = pool.allocate(bytes, stream);
        pool.free(block, stream);
    }
    nanoseconds(start) / f64::from(pairs)
}

/// The median of three runs.
pub(crate) fn median3(mut run: impl FnMut() -> f64) -> f64 {
    let mut times = [run(), run(), run()];
    times.sort_by(f64::total_cmp);
    times[1]
}
