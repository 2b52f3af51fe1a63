//! What a pool reserves over what is live, with work in flight. Each ratio is of one pool that starts
//! empty: its own peak over the peak of its own live bytes.

use crate::kernels::delay;
use crate::rows::{MIB, POOL, nanoseconds, number};
use crate::subject::{Bench, Calls, Plain, must};
use crate::traffic::{Step, Traffic, all};
use crate::workloads::{Pool, STREAMS, churn, median3};
use aquifer::{DeviceLayout, DeviceResource, Event, Stream};
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Instant;

/// What a step's work takes the device.
const WORK_NS: u64 = 10_000;

/// What one of these operations of `churn` gives its stream.
const CHURN_WORK_NS: u64 = 50_000;
const CHURN_WORK_EVERY: u64 = 8;

/// Counts the most bytes that are live at once. A block counts once it is there and until its free
/// begins, so that the peak is never overstated. Keeps the streams busy.
struct Peak<'a, P> {
    pool: &'a P,
    streams: &'a [Stream],
    live: AtomicU64,
    peak: AtomicU64,
    /// By stream, so that no two threads share one.
    made: [AtomicU64; STREAMS],
}

impl<P: Pool> Pool for Peak<'_, P> {
    type Block = (P::Block, u64);

    fn allocate(&self, bytes: u64, stream: usize) -> Self::Block {
        let block = self.pool.allocate(bytes, stream);
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(live, Relaxed);
        if self.made[stream].fetch_add(1, Relaxed).is_multiple_of(CHURN_WORK_EVERY) {
            delay(&self.streams[stream], CHURN_WORK_NS);
        }
        (block, bytes)
    }

    fn free(&self, (block, bytes): Self::Block, stream: usize) {
        self.live.fetch_sub(bytes, Relaxed);
        self.pool.free(block, stream);
    }
}

/// The rows of a pool whose live bytes had this peak.
fn rows(workload: &str, pool: &Plain, live: u64) {
    let reserved = pool.statistics().peak_reserved as f64;
    let live = live as f64;
    number(POOL, &format!("{workload} peak live MiB"), live / MIB as f64);
    number(POOL, &format!("{workload} peak reserved MiB"), reserved / MIB as f64);
    number(POOL, &format!("{workload} peak reserved over peak live"), reserved / live);
}

pub(crate) fn footprint(bench: &Bench) {
    churn_rows(bench);
    for traffic in all(bench.quick) {
        if let Some(folder) = &bench.traces
            && let Err(error) = traffic.write(folder)
        {
            println!("# {}: not written: {error}", traffic.name);
        }
        let pool = bench.pool_of(0);
        let calls = Calls::begin(bench, &pool);
        let time = play(bench, &traffic, Memory::Of(&pool));
        let (made, now) = (calls.made(), pool.statistics());
        nanoseconds(POOL, &format!("{} host time", traffic.name), time);
        println!(
            "# {}: {} misses, {} steals; calls: {made:?}",
            traffic.name, now.misses, now.steals
        );
        rows(traffic.name, &pool, traffic.peak);
        // What launches, orders and waits take.
        let time = play(bench, &traffic, Memory::None);
        nanoseconds("driver", &format!("{} host time without memory", traffic.name), time);
        if let Some(blocks) = traffic.in_turn {
            let time = play(bench, &traffic, Memory::Ring(blocks, VecDeque::new()));
            let workload = format!("{} host time with {blocks} blocks in turn", traffic.name);
            nanoseconds("driver", &workload, time);
        }
    }
    together(bench);
    workers(bench);
}

/// 16 threads, a stream each.
fn churn_rows(bench: &Bench) {
    let steps = bench.count(50_000, 50);
    let counted = bench.pool_of(0);
    let subject = bench.erased(counted.clone());
    let peak = Peak {
        pool: &subject,
        streams: bench.streams().as_slice(),
        live: AtomicU64::new(0),
        peak: AtomicU64::new(0),
        made: Default::default(),
    };
    churn(&peak, STREAMS, steps);
    rows("churn 16 threads", &counted, peak.peak.into_inner());
    bench.synchronize();
    let timed = bench.pool_of(0);
    let subject = bench.erased(timed);
    let time = median3(|| churn(&subject, STREAMS, steps));
    nanoseconds(POOL, "churn 16 threads from an empty pool", time);
}

/// What serves the steps of a program.
enum Memory<'a> {
    Of(&'a Plain),
    None,
    /// So many blocks in turn: each allocation waits for the free of so many before it, and no more. No allocator that
    /// holds as much is faster, where blocks are freed in the order in which they were allocated.
    Ring(usize, VecDeque<Event>),
}

/// Nanoseconds of the host for each call, of which some give work.
fn play(bench: &Bench, traffic: &Traffic, mut memory: Memory<'_>) -> f64 {
    let streams: Vec<Stream> = (0..traffic.streams).map(|_| bench.stream()).collect();
    let mut blocks: Vec<_> = (0..traffic.slots()).map(|_| None).collect();
    let start = Instant::now();
    for step in &traffic.steps {
        match *step {
            Step::Allocate { slot, stream, bytes } => {
                let layout = must(DeviceLayout::new(bytes as usize));
                match &mut memory {
                    Memory::Of(pool) => {
                        blocks[slot] = Some(must(pool.allocate(&streams[stream], layout)));
                    }
                    Memory::Ring(count, freed) if slot >= *count => {
                        freed
                            .pop_front()
                            .iter()
                            .for_each(|event| must(streams[stream].wait(event)));
                    }
                    Memory::Ring(..) | Memory::None => {}
                }
            }
            Step::Free { slot, stream } => {
                match &mut memory {
                    Memory::Of(pool) => {
                        if let Some(block) = blocks[slot].take() {
                            // SAFETY: of this pool, given back once. A program orders the stream after all
                            // that uses the block.
                            unsafe { pool.deallocate(&streams[stream], block) };
                        }
                    }
                    Memory::Ring(_, freed) => freed.push_back(must(streams[stream].record())),
                    Memory::None => {}
                }
            }
            Step::Order { stream, before } => must(streams[stream].wait_for(&streams[before])),
            Step::Work { stream } => delay(&streams[stream], WORK_NS),
            Step::Wait { stream } => must(streams[stream].synchronize()),
        }
    }
    let time = start.elapsed().as_secs_f64() * 1e9 / traffic.steps.len() as f64;
    bench.synchronize();
    time
}

/// Threads of one stream that miss at the same time, beside a block that makes the pool large.
fn together(bench: &Bench) {
    const BLOCK: usize = 4 << 20;
    for threads in [8, 16] {
        let pool = bench.pool_of(0);
        let large = bench.count(4096, 64) as usize * MIB as usize;
        let stream = &bench.streams()[0];
        let beside = must(pool.allocate(stream, must(DeviceLayout::new(large))));
        let barrier = Barrier::new(threads);
        let rounds = bench.count(100, 4);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let layout = must(DeviceLayout::new(BLOCK));
                    for _ in 0..rounds {
                        barrier.wait();
                        let block = must(pool.allocate(stream, layout));
                        delay(stream, WORK_NS);
                        // All have theirs at once.
                        barrier.wait();
                        // SAFETY: of this pool, given back once; its work is this stream's.
                        unsafe { pool.deallocate(stream, block) };
                    }
                });
            }
        });
        rows(&format!("{threads} threads miss together"), &pool, (large + threads * BLOCK) as u64);
        // SAFETY: of this pool, given back once; nothing uses it.
        unsafe { pool.deallocate(stream, beside) };
        bench.synchronize();
    }
}

/// Threads that work in turn on one stream, and stay there with what they have cached.
fn workers(bench: &Bench) {
    const BLOCK: usize = 4 << 20;
    const HELD: usize = 8;
    let pool = &bench.pool_of(0);
    std::thread::scope(|scope| {
        let mut asleep = Vec::new();
        for _ in 0..bench.count(64, 4) {
            let (done, is_done) = channel::<()>();
            let (end, sleeps) = channel::<()>();
            scope.spawn(move || {
                let stream = &bench.streams()[0];
                let layout = must(DeviceLayout::new(BLOCK));
                for _ in 0..5 {
                    let blocks: Vec<_> =
                        (0..HELD).map(|_| must(pool.allocate(stream, layout))).collect();
                    delay(stream, WORK_NS);
                    for block in blocks {
                        // SAFETY: of this pool, given back once; its work is this stream's.
                        unsafe { pool.deallocate(stream, block) };
                    }
                }
                drop(done);
                // Until the others are done, too.
                let _ = sleeps.recv();
            });
            let _ = is_done.recv();
            asleep.push(end);
        }
        rows("workers in turn", pool, (HELD * BLOCK) as u64);
    });
    bench.synchronize();
}
