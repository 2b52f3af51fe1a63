//! RMM's programs of streams: MULTI_STREAM_ALLOCATIONS, on the pool as its own bench has it and on the
//! others, and CUDA_STREAM_POOL.

use crate::programs::{self, multi_stream_on};
use crate::resources::{ARENA, ASYNC, BINNING, arena, binning};
use crate::rows::nanoseconds;
use crate::subject::{Bench, must};
use crate::workloads::median3;
use aquifer::{mr::AsyncResource, stream::StreamPool};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

pub(crate) fn multi_stream(bench: &Bench) {
    programs::multi_stream(bench);
    multi_stream_on(bench, BINNING, &|| Arc::new(binning(bench)));
    multi_stream_on(bench, ARENA, &|| Arc::new(arena(bench)));
    multi_stream_on(bench, ASYNC, &|| Arc::new(must(AsyncResource::new(&bench.device))));
}

/// A stream of a pool of sixteen, against one made and destroyed. RMM's program asks each whether it
/// is idle as well, which no stream here answers; the C++ has both forms.
pub(crate) fn stream_pool(bench: &Bench) {
    let peer = "aquifer streams";
    let pool = must(StreamPool::new(&bench.device));
    let gets = bench.count(1_000_000, 100);
    let time = median3(|| timed(gets, || _ = black_box(pool.get_stream())));
    nanoseconds(peer, "stream pool get", time);
    let made = bench.count(1000, 10);
    let time = median3(|| timed(made, || drop(bench.stream())));
    nanoseconds(peer, "stream create and destroy", time);
}

/// Nanoseconds of one.
pub(crate) fn timed(count: u32, mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        run();
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
}
