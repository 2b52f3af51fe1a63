//! Pairs of 4 KiB on streams whose memory came from elsewhere: what they cost once all is warm.

use crate::rows::{MIB, POOL, nanoseconds, number};
use crate::subject::{Bench, Calls, Plain, must};
use aquifer::{DeviceLayout, DeviceResource, Stream};
use std::sync::Barrier;
use std::time::Instant;

fn pair(pool: &Plain, stream: &Stream, bytes: u64) {
    let block = must(pool.allocate(stream, must(DeviceLayout::new(bytes as usize))));
    // SAFETY: of this pool, given back once, and used by no work.
    unsafe { pool.deallocate(stream, block) };
}

fn each(start: Instant, pairs: usize) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / pairs as f64
}

pub(crate) fn warm(bench: &Bench) {
    let streams: Vec<Stream> = (0..1024).map(|_| bench.stream()).collect();
    foreign(bench, &streams);
    for count in [2, 8, 64, 1024] {
        in_turn(bench, &streams[..count]);
    }
    let eight = threads(bench, &streams[..8]);
    let many = threads(bench, &streams);
    number(POOL, "8 threads 1024 streams over 8 streams", many / eight);
}

/// On a stream whose memory another one freed, and on one that lives on its own.
fn foreign(bench: &Bench, streams: &[Stream]) {
    let pairs = bench.count(200_000, 100);
    for (what, from) in [("own", 1), ("another's", 0)] {
        let pool = bench.pool_of(0);
        let layout = must(DeviceLayout::new(MIB as usize));
        let blocks: Vec<_> = (0..64).map(|_| must(pool.allocate(&streams[from], layout))).collect();
        for block in blocks {
            // SAFETY: of this pool, given back once, and used by no work.
            unsafe { pool.deallocate(&streams[from], block) };
        }
        (0..16).for_each(|_| pair(&pool, &streams[1], 4096));
        let calls = Calls::begin(bench, &pool);
        let start = Instant::now();
        (0..pairs).for_each(|_| pair(&pool, &streams[1], 4096));
        nanoseconds(POOL, &format!("pair 4KiB on {what} memory"), each(start, pairs as usize));
        let made: u64 = calls.made().iter().map(|(_, count)| count).sum();
        number(POOL, &format!("driver calls of pairs on {what} memory"), made as f64);
    }
}

/// One thread, all streams in turn. The first tenth warms up.
fn in_turn(bench: &Bench, streams: &[Stream]) {
    let pool = bench.pool_of(0);
    let rounds = (bench.count(400_000, 2000) as usize / streams.len()).max(10);
    let round = || streams.iter().for_each(|stream| pair(&pool, stream, 4096));
    (0..rounds / 10).for_each(|_| round());
    let calls = Calls::begin(bench, &pool);
    let start = Instant::now();
    let timed = rounds - rounds / 10;
    (0..timed).for_each(|_| round());
    let time = each(start, timed * streams.len());
    nanoseconds(POOL, &format!("pair 4KiB, {} streams in turn", streams.len()), time);
    let made: u64 = calls.made().iter().map(|(_, count)| count).sum();
    let workload = format!("driver calls of {} streams in turn", streams.len());
    number(POOL, &workload, made as f64);
}

/// Eight threads, each of which has all streams in turn, from another one on. Nanoseconds of the whole
/// program for a pair, which is a row: of threads that are warm. A row beside it has what the same pairs take
/// with a thread's first use of each stream, its start and its end.
fn threads(bench: &Bench, streams: &[Stream]) -> f64 {
    const THREADS: usize = 8;
    let pool = &bench.pool_of(0);
    let count = streams.len();
    let rounds = (bench.count(160_000, 16) as usize / count).max(1);
    // Warm ones have no start in their time, so they run long enough for a clock.
    let warm_rounds = rounds * bench.count(10, 1) as usize;
    let begin = &Barrier::new(THREADS);
    let run = |thread: usize, rounds: usize| {
        for number in 0..rounds * count {
            let stream = &streams[(number + thread * count / THREADS) % count];
            pair(pool, stream, 4096);
        }
    };
    let all = |body: &(dyn Fn(usize) -> f64 + Sync)| -> Vec<f64> {
        std::thread::scope(|scope| {
            let spawned: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || body(thread))).collect();
            spawned.into_iter().filter_map(|thread| thread.join().ok()).collect()
        })
    };
    let start = Instant::now();
    all(&|thread| {
        run(thread, rounds);
        0.0
    });
    let cold = each(start, rounds * count * THREADS);
    // More than the misses for which a flushed class backs off.
    const WARM_UP: usize = 64;
    let times = all(&|thread| {
        run(thread, WARM_UP);
        begin.wait();
        let start = Instant::now();
        run(thread, warm_rounds);
        each(start, warm_rounds * count * THREADS)
    });
    // The program is as long as its slowest thread.
    let warm = times.into_iter().fold(0.0, f64::max);
    nanoseconds(POOL, &format!("pair 4KiB, 8 threads {count} streams, with start and end"), cold);
    nanoseconds(POOL, &format!("pair 4KiB, 8 threads {count} streams"), warm);
    warm
}
