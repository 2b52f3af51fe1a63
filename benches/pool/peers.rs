//! The rows that every peer prints.

use crate::rows::{MIB, POOL, nanoseconds, random};
use crate::subject::{Bench, Plain};
use crate::workloads::{
    Nothing, Pool, SEED, SEEDS, Trace, churn, cross, hot, median3, random_time, random_trace,
    replay,
};
use aquifer::CudaResource;

/// The counts and the maximum sizes (MiB) of the random traces.
pub(crate) fn traces(bench: &Bench, slow: bool) -> Vec<(u32, u64)> {
    if bench.quick {
        return vec![(1000, 1), (20, 64), (20, 1024), (8, 4096)];
    }
    let mut traces = Vec::new();
    for mib in [1, 64, 1024, 4096] {
        traces.push((1000, mib));
        // The others take minutes where each allocation is a driver call.
        if !slow || mib <= 64 {
            traces.push((100_000, mib));
        }
    }
    traces
}

pub(crate) fn trace(n: u32, mib: u64) -> Trace {
    random_trace(n, mib << 20, SEED)
}

/// What `run_all` of `workloads.hpp` prints, in its order. `slow` is for plain driver memory.
fn run_all<P: Pool>(bench: &Bench, peer: &str, pool: &P, slow: bool) {
    let seeds = bench.count(SEEDS, 1).into();
    for (n, mib) in traces(bench, slow) {
        let time = match slow && n > 1000 {
            true => replay(pool, &trace(n, mib), 0),
            false => random_time(pool, n, mib << 20, seeds),
        };
        nanoseconds(peer, &random(n, mib), time);
    }
    let pairs = bench.count(if slow { 1000 } else { 200_000 }, 200);
    nanoseconds(peer, "hot 256B", median3(|| hot(pool, 256, pairs)));
    nanoseconds(peer, "hot 1MiB", median3(|| hot(pool, MIB, pairs)));
    nanoseconds(peer, "cross 2 streams 1MiB", median3(|| cross(pool, MIB, pairs / 2, 2)));
    let steps = bench.count(if slow { 500 } else { 50_000 }, 50);
    for threads in [1, 2, 4, 8, 16] {
        let workload = format!("churn {threads} threads");
        nanoseconds(peer, &workload, median3(|| churn(pool, threads, steps)));
    }
}

/// The peers' rows, on a pool that holds half of the free memory.
pub(crate) fn shared_rows(bench: &Bench) {
    let pool = bench.pool(2);
    run_all(bench, POOL, &bench.erased(pool.clone()), false);
    inlined(bench, pool);
    generator(bench);
}

/// What drawing the sizes takes of each row, and the loops.
fn generator(bench: &Bench) {
    const PEER: &str = "generator Rust";
    let seeds = bench.count(SEEDS, 1).into();
    for (n, mib) in traces(bench, false) {
        nanoseconds(PEER, &random(n, mib), random_time(&Nothing, n, mib << 20, seeds));
    }
    let steps = bench.count(50_000, 50);
    for threads in [1, 16] {
        let time = median3(|| churn(&Nothing, threads, steps));
        nanoseconds(PEER, &format!("churn {threads} threads"), time);
    }
}

/// Through the concrete type.
fn inlined(bench: &Bench, pool: Plain) {
    let subject = bench.subject(pool);
    let pairs = bench.count(200_000, 200);
    nanoseconds(POOL, "hot 256B inlined", median3(|| hot(&subject, 256, pairs)));
    nanoseconds(POOL, "hot 1MiB inlined", median3(|| hot(&subject, MIB, pairs)));
}

/// The peers' rows without a pool.
pub(crate) fn plain_rows(bench: &Bench) {
    run_all(bench, "aquifer plain", &bench.erased(CudaResource::new(&bench.device)), true);
}
