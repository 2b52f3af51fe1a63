//! Page-locked vectors, made and dropped. Each workload takes any allocator.

use crate::kernels::delay;
use crate::rows::{MIB, POOL, median, nanoseconds};
use crate::subject::{Bench, must};
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    PinnedAlloc,
    pinned::{PinnedPool, PinnedResource},
};
use std::hint::black_box;
use std::time::{Duration, Instant};

const BYTES: usize = MIB as usize;

/// Vectors that live at once where they are replaced in turn.
const IN_TURN: usize = 64;

type Bytes<A> = AllocVec<u8, A>;

/// The rows of page-locked memory. Pools are used by reference, as a collection's allocator may be,
/// and once by the handle, whose clone counts references.
pub(crate) fn pinned(bench: &Bench) {
    let options = || PinnedPool::builder(must(PinnedResource::new(&bench.device)));
    let fenced = &must(options().build());
    pair(bench, "pinned pair 1MiB fenced", &fenced);
    in_turn(bench, "pinned pair 1MiB fenced idle 64 in turn", &fenced);
    under_kernel(bench, "pinned pair 1MiB fenced under 10 ms kernel", &fenced);
    // SAFETY: no device work ever uses what this program takes from the pool.
    let unfenced = &must(unsafe { options().unfenced() }.build());
    pair(bench, "pinned pair 1MiB unfenced", &unfenced);
    pair(bench, "pinned pair 1MiB unfenced by handle", unfenced);
    in_turn(bench, "pinned pair 1MiB unfenced 64 in turn", &unfenced);
    pair(bench, "pinned pair 1MiB PinnedAlloc", &PinnedAlloc);
}

/// Fenced and unfenced, while no stream lives and while 64 do: the first group, since the others' streams
/// live on.
pub(crate) fn beside_streams(bench: &Bench) {
    let options = || PinnedPool::builder(must(PinnedResource::new(&bench.device)));
    let fenced = &must(options().build());
    // SAFETY: no device work ever uses what this program takes from the pool.
    let unfenced = &must(unsafe { options().unfenced() }.build());
    let mut streams = Vec::new();
    for count in [0, 64] {
        streams.resize_with(count, || bench.stream());
        in_turn(bench, &format!("pinned pair 1MiB fenced, {count} streams alive"), &fenced);
        pair(bench, &format!("pinned pair 1MiB unfenced, {count} streams alive"), &unfenced);
    }
}

/// How many calls of `once` take a while: a driver call may be behind each, or nothing.
fn calls(bench: &Bench, mut once: impl FnMut()) -> u32 {
    let start = Instant::now();
    let mut warm = 0_u32;
    while warm < 8 || (warm < 1000 && start.elapsed() < Duration::from_millis(20)) {
        once();
        warm += 1;
    }
    let each = start.elapsed().as_secs_f64() / f64::from(warm);
    let budget = if bench.quick { 0.02 } else { 0.2 };
    (budget / each).clamp(16.0, 200_000.0) as u32
}

fn made<A: Allocator + Clone>(allocator: &A) -> Bytes<A> {
    black_box(AllocVec::with_capacity_in(BYTES, allocator.clone()))
}

/// A vector made and dropped.
fn pair<A: Allocator + Clone>(bench: &Bench, workload: &str, allocator: &A) {
    // Counted twice, as in turn.
    calls(bench, || drop(made(allocator)));
    let pairs = calls(bench, || drop(made(allocator)));
    let time = || {
        let start = Instant::now();
        for _ in 0..pairs {
            drop(made(allocator));
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(pairs)
    };
    nanoseconds(POOL, workload, median(vec![time(), time(), time()]));
}

/// Of 64 vectors the oldest is dropped and a new one made, on a device that has nothing to do.
fn in_turn<A: Allocator + Clone>(bench: &Bench, workload: &str, allocator: &A) {
    bench.synchronize();
    let mut held: [Option<Bytes<A>>; IN_TURN] = std::array::from_fn(|_| Some(made(allocator)));
    let mut turn = 0;
    let mut next = || {
        let oldest = &mut held[turn % IN_TURN];
        *oldest = None;
        *oldest = Some(made(allocator));
        turn += 1;
    };
    // Counted twice: in the first count the pool may still grow.
    calls(bench, &mut next);
    let turns = calls(bench, &mut next);
    let mut time = || {
        let start = Instant::now();
        for _ in 0..turns {
            next();
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(turns)
    };
    nanoseconds(POOL, workload, median(vec![time(), time(), time()]));
}

/// Vectors made and dropped as long as a kernel runs: no fence passes, so what is freed waits.
fn under_kernel<A: Allocator + Clone>(bench: &Bench, workload: &str, allocator: &A) {
    const LONGEST: u32 = 1_000_000;
    let stream = bench.stream();
    let mut times = Vec::new();
    let mut pairs = Vec::new();
    for _ in 0..3 {
        drop(made(allocator));
        bench.synchronize();
        delay(&stream, 10_000_000);
        let end = must(stream.record());
        let start = Instant::now();
        let mut count = 0;
        loop {
            drop(made(allocator));
            count += 1;
            // Asked seldom, for the question costs as much as ten pairs.
            if count % 64 == 0 && (count >= LONGEST || must(end.is_complete())) {
                break;
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(count));
        pairs.push(f64::from(count));
        bench.synchronize();
    }
    nanoseconds(POOL, workload, median(times));
    nanoseconds(POOL, &format!("{workload}: pairs made"), median(pairs));
}
