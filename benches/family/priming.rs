//! RMM's ASYNC_PRIMING: what it helps that a pool takes half of the memory when it is made. RMM's
//! blocks have 0.9 % of the device's memory each, and a hundred of them are live; here of six tenths
//! of what is free, since the device may be shared.

use crate::resources::ASYNC;
use crate::rows::{POOL, nanoseconds};
use crate::subject::{Bench, must};
use aquifer::{CudaResource, DeviceLayout, DeviceResource, PoolResource, mr::AsyncResource};
use std::time::Instant;

pub(crate) fn priming(bench: &Bench) {
    prime(bench, ASYNC, |initial| {
        must(AsyncResource::builder(&bench.device).initial_size(initial).build())
    });
    prime(bench, POOL, |initial| {
        let upstream = CudaResource::new(&bench.device);
        must(PoolResource::builder(upstream).initial_size(initial).build())
    });
}

fn since(start: Instant, count: f64) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / count
}

fn prime<R: DeviceResource>(bench: &Bench, peer: &str, make: impl Fn(usize) -> R) {
    let memory = bench.part(10) * 6;
    let layout = must(DeviceLayout::new(memory / 1000 * 9));
    let stream = &bench.streams()[0];
    for (name, initial) in [("primed", memory / 2), ("unprimed", 0)] {
        let row = |what: &str, time| nanoseconds(peer, &format!("priming {name} {what}"), time);
        bench.synchronize();
        let start = Instant::now();
        let resource = make(initial);
        row("construction", since(start, 1.0));
        let allocate = |count| {
            let start = Instant::now();
            let blocks: Vec<_> =
                (0..count).map(|_| must(resource.allocate(stream, layout))).collect();
            bench.synchronize();
            (blocks, since(start, f64::from(count)))
        };
        let free = |blocks: Vec<_>| {
            for block in blocks {
                // SAFETY: allocated on this stream, on which nothing ran.
                unsafe { resource.deallocate(stream, block) };
            }
            bench.synchronize();
        };
        let (mut blocks, first) = allocate(1);
        row("first", first);
        let (more, round) = allocate(99);
        row("first round", round);
        blocks.extend(more);
        free(blocks);
        let (blocks, round) = allocate(100);
        row("second round", round);
        free(blocks);
    }
}
