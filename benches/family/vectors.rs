//! RMM's UVECTOR: vectors of each size made and dropped, and a small workflow on four streams.

use crate::kernels::square;
use crate::resources::ASYNC;
use crate::rows::{POOL, nanoseconds};
use crate::streams::timed;
use crate::subject::{Bench, must};
use crate::workloads::median3;
use aquifer::{DeviceResource, DeviceVec, Stream, mr::AsyncResource};
use std::sync::Arc;

pub(crate) fn vectors(bench: &Bench) {
    let pool: Arc<dyn DeviceResource> = Arc::new(bench.pool(2));
    construction(bench, &pool);
    workflow(bench, POOL, &pool);
    drop(pool);
    let driver: Arc<dyn DeviceResource> = Arc::new(must(AsyncResource::new(&bench.device)));
    workflow(bench, ASYNC, &driver);
}

fn uninit(stream: &Stream, length: usize, resource: &Arc<dyn DeviceResource>) -> DeviceVec<u32> {
    // SAFETY: nobody reads it, but the square that writes it first.
    must(unsafe { DeviceVec::uninit_in(stream, length, resource.clone()) })
}

/// BM_UvectorSizeConstruction: made on the default stream, the device waited for, dropped.
fn construction(bench: &Bench, resource: &Arc<dyn DeviceResource>) {
    let stream = bench.device.default_stream();
    let exponents = if bench.quick { 4..=6 } else { 4..=9 };
    for length in exponents.map(|exponent| 10_usize.pow(exponent)) {
        let run = || {
            let vector = uninit(&stream, length, resource);
            bench.synchronize();
            drop(vector);
        };
        let time = median3(|| timed(bench.count(1000, 3), run));
        nanoseconds(POOL, &format!("vector construction n={length}"), time);
    }
}

/// BM_VectorWorkflow: a zeroed input, squared by four streams into a vector of each one's own.
fn workflow(bench: &Bench, peer: &str, resource: &Arc<dyn DeviceResource>) {
    let input = bench.stream();
    let streams = [(); 4].map(|()| bench.stream());
    let exponents = if bench.quick { 5..=5 } else { 5..=8 };
    for length in exponents.map(|exponent| 10_usize.pow(exponent)) {
        let run = || {
            let from = DeviceVec::<u32>::zeroed_in(&input, length, resource.clone());
            let from = must(from);
            must(input.synchronize());
            for stream in &streams {
                square(stream, &from, &mut uninit(stream, length, resource));
            }
            for stream in &streams {
                must(stream.synchronize());
            }
        };
        // The first loads the kernel.
        run();
        let time = median3(|| timed(bench.count(20, 2), run));
        nanoseconds(peer, &format!("vector workflow n={length}"), time);
    }
}
