//! What the slow operations cost: each one timed by itself.

use crate::peers::trace;
use crate::rows::{POOL, median, nanoseconds, random};
use crate::subject::Bench;
use crate::workloads::{LIVE, Pool, STREAMS, churn, replay};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Times each single operation. A stream's samples are one thread's.
struct Stopwatch<'a, P> {
    pool: &'a P,
    samples: Vec<Mutex<Vec<u64>>>,
}

impl<'a, P: Pool> Stopwatch<'a, P> {
    fn new(pool: &'a P, operations: usize) -> Self {
        let samples = (0..STREAMS).map(|_| Mutex::new(Vec::with_capacity(operations))).collect();
        Self { pool, samples }
    }

    /// The lock is the thread's own and taken outside of what is timed.
    fn keep(&self, stream: usize, ticks: u64) {
        if let Ok(mut samples) = self.samples[stream].lock() {
            samples.push(ticks);
        }
    }
}

impl<P: Pool> Pool for Stopwatch<'_, P> {
    type Block = P::Block;

    fn allocate(&self, bytes: u64, stream: usize) -> P::Block {
        let start = ticks();
        let block = self.pool.allocate(bytes, stream);
        let end = ticks();
        self.keep(stream, end.wrapping_sub(start));
        block
    }

    fn free(&self, block: P::Block, stream: usize) {
        let start = ticks();
        self.pool.free(block, stream);
        let end = ticks();
        self.keep(stream, end.wrapping_sub(start));
    }
}

/// The processor's counter, behind all loads before it; elsewhere the system's clock.
#[inline(always)]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has both instructions; they touch no memory.
    return unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    };
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        START.elapsed().as_nanos() as u64
    }
}

/// Nanoseconds of a tick.
fn tick_length() -> f64 {
    let lengths = (0..5).map(|_| {
        let (start, first) = (Instant::now(), ticks());
        std::thread::sleep(Duration::from_millis(20));
        let last = ticks();
        start.elapsed().as_secs_f64() * 1e9 / last.wrapping_sub(first) as f64
    });
    median(lengths.collect())
}

/// p50, p99 and p99.9 of single operations. The clock's own cost is in each of them, and is a row.
pub(crate) fn latency(bench: &Bench) {
    let length = tick_length();
    let empty: Vec<u64> = (0..10_000)
        .map(|_| {
            let start = ticks();
            ticks().wrapping_sub(start)
        })
        .collect();
    percentiles("clock itself", empty, length);
    let subject = bench.erased(bench.pool(2));
    let traced = trace(1000, 1);
    let rounds = bench.count(50, 2) as usize;
    replay(&subject, &traced, 0);
    let stopwatch = Stopwatch::new(&subject, rounds * traced.ops().len());
    for _ in 0..rounds {
        replay(&stopwatch, &traced, 0);
    }
    percentiles(&random(1000, 1), stopwatch.take(), length);
    let steps = bench.count(50_000, 50);
    for threads in [1, STREAMS] {
        churn(&subject, threads, steps);
        let stopwatch = Stopwatch::new(&subject, 2 * (steps as usize + LIVE));
        churn(&stopwatch, threads, steps);
        percentiles(&format!("churn {threads} threads"), stopwatch.take(), length);
    }
}

impl<P> Stopwatch<'_, P> {
    fn take(self) -> Vec<u64> {
        self.samples.into_iter().flat_map(|one| one.into_inner().unwrap_or_default()).collect()
    }
}

fn percentiles(workload: &str, mut ticks: Vec<u64>, length: f64) {
    ticks.sort_unstable();
    for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
        let index = ((ticks.len() as f64 * part) as usize).min(ticks.len() - 1);
        nanoseconds(POOL, &format!("{workload} {name}"), ticks[index] as f64 * length);
    }
}
