//! Whole small programs: RMM's multi-stream benchmark, and a workflow with a new buffer for each
//! operation.

use crate::kernels::{spin, square};
use crate::rows::{MIB, POOL, median, nanoseconds, number};
use crate::subject::{Bench, must};
use aquifer::{CudaResource, DeviceResource, DeviceVec};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// RMM's MULTI_STREAM_ALLOCATIONS: `streams` in turn for 4 kernels of a million ticks, each with a
/// vector of one element; the device is waited for. Nanoseconds an iteration.
pub(crate) fn multi_stream(bench: &Bench) {
    multi_stream_on(bench, POOL, &|| Arc::new(bench.pool(2)));
}

/// The same on another resource, made anew for each row.
pub(crate) fn multi_stream_on(
    bench: &Bench,
    peer: &str,
    make: &dyn Fn() -> Arc<dyn DeviceResource>,
) {
    const KERNELS: usize = 4;
    let ticks = 1_000_000;
    for streams in [1, 2, 4] {
        for prewarm in [false, true] {
            let resource = make();
            let streams: Vec<_> = (0..streams).map(|_| bench.stream()).collect();
            let vector = |stream| {
                // SAFETY: the kernel writes it, and nobody reads it.
                must(unsafe { DeviceVec::<u64>::uninit_in(stream, 1, resource.clone()) })
            };
            if prewarm {
                drop(streams.iter().map(vector).collect::<Vec<_>>());
            }
            bench.synchronize();
            let iterations = bench.count(200, 5);
            let start = Instant::now();
            for _ in 0..iterations {
                for kernel in 0..KERNELS {
                    let stream = &streams[kernel % streams.len()];
                    spin(stream, &mut vector(stream), ticks);
                }
                bench.synchronize();
            }
            let time = start.elapsed().as_secs_f64() * 1e9 / f64::from(iterations);
            let warm = if prewarm { " prewarmed" } else { "" };
            let workload = format!("multi stream {} streams 4 kernels{warm}", streams.len());
            nanoseconds(peer, &workload, time);
        }
    }
}

/// A chain of squares, each into a buffer of its own, made for it and dropped with the next: plain
/// driver memory against the pool. Nanoseconds an operation, and the share of them that the host
/// spends with making and dropping buffers.
pub(crate) fn workflow(bench: &Bench) {
    let operations = bench.count(1000, 20);
    for mib in [1, 64].iter().take(if bench.quick { 1 } else { 2 }) {
        let elements = mib * MIB as usize / 4;
        let plain: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&bench.device));
        let pool: Arc<dyn DeviceResource> = Arc::new(bench.pool(2));
        for (peer, resource) in [("aquifer plain", plain), (POOL, pool)] {
            let runs = (0..4).map(|_| chain(bench, &resource, elements, operations));
            // The first run loads the kernel.
            let (times, shares): (Vec<f64>, Vec<f64>) = runs.skip(1).unzip();
            nanoseconds(peer, &format!("workflow {mib}MiB"), median(times));
            number(peer, &format!("workflow {mib}MiB share allocating"), median(shares));
        }
    }
}

fn chain(
    bench: &Bench,
    resource: &Arc<dyn DeviceResource>,
    elements: usize,
    operations: u32,
) -> (f64, f64) {
    let stream = &bench.streams()[0];
    let mut current = must(DeviceVec::<u32>::zeroed_in(stream, elements, resource.clone()));
    bench.synchronize();
    let mut allocating = Duration::ZERO;
    let start = Instant::now();
    for _ in 0..operations {
        let making = Instant::now();
        // SAFETY: the kernel writes all of it before anyone reads it.
        let next = unsafe { DeviceVec::<u32>::uninit_in(stream, elements, resource.clone()) };
        allocating += making.elapsed();
        let mut next = must(next);
        square(stream, &current, &mut next);
        let dropping = Instant::now();
        current = next;
        allocating += dropping.elapsed();
    }
    bench.synchronize();
    let total = start.elapsed();
    (
        total.as_secs_f64() * 1e9 / f64::from(operations),
        allocating.as_secs_f64() / total.as_secs_f64(),
    )
}
