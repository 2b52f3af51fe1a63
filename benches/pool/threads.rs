//! What sixteen threads cost beside one: on a shared pool, and each with a pool of its own.

use crate::rows::{MIB, POOL, median, nanoseconds, number};
use crate::subject::{Bench, must};
use crate::workloads::{STREAMS, churn, gang};
use aquifer::{
    DeviceResource, DeviceVec,
    mr::{reset_current_device_resource, set_current_device_resource},
};
use std::sync::Arc;

/// The part of sixteen threads' speed that is left: the time of one thread over each thread's time
/// among sixteen. `times` are the whole program's nanoseconds an operation.
fn scaling(one: &[f64], sixteen: &[f64]) -> f64 {
    median(one.to_vec()) / (median(sixteen.to_vec()) * STREAMS as f64)
}

/// Runs the four in turn, since machines drift; prints what each took and how each scales.
fn compare(bench: &Bench, what: &str, runs: [&dyn Fn(usize) -> f64; 2]) {
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    for round in 0..=bench.count(7, 1) {
        for (run, times) in runs.iter().zip(&mut times) {
            for (threads, times) in [1, STREAMS].into_iter().zip(times) {
                let time = run(threads);
                // The first round warms up.
                if round > 0 {
                    times.push(time);
                }
            }
        }
    }
    let mut scalings = [0.0; 2];
    for ((name, times), scaled) in ["", " private"].iter().zip(times).zip(&mut scalings) {
        let [one, sixteen] = times;
        *scaled = scaling(&one, &sixteen);
        nanoseconds(POOL, &format!("{what} 1 threads{name}"), median(one));
        nanoseconds(POOL, &format!("{what} 16 threads{name}"), median(sixteen));
        number(POOL, &format!("scaling {what} 16 threads{name}"), *scaled);
    }
    let workload = format!("scaling {what} 16 threads over private");
    number(POOL, &workload, scalings[0] / scalings[1]);
}

/// The churn of `workloads.rs`, ten times as long so that starting threads does not count.
pub(crate) fn churn_scaling(bench: &Bench) {
    let shared = bench.erased(bench.pool(4));
    let private = bench.private();
    let steps = bench.count(500_000, 50);
    compare(
        bench,
        "long churn",
        [&|threads| churn(&shared, threads, steps), &|threads| churn(&private, threads, steps)],
    );
}

/// Nanoseconds of the whole program to make and drop one vector of 1 MiB, on a stream a thread.
fn vectors(
    bench: &Bench,
    threads: usize,
    pairs: u32,
    resource: impl Fn(usize) -> Option<Arc<dyn DeviceResource>> + Sync,
) -> f64 {
    let bytes = MIB as usize;
    let elapsed = gang(
        threads,
        |thread| (resource(thread), bench.streams()[thread].clone()),
        |_, (resource, stream)| {
            for _ in 0..pairs {
                // SAFETY: nobody reads it.
                let made = unsafe {
                    match resource {
                        Some(resource) => {
                            DeviceVec::<u8>::uninit_in(stream, bytes, resource.clone())
                        }
                        None => DeviceVec::<u8>::uninit(stream, bytes),
                    }
                };
                drop(must(made));
            }
        },
        |_, _| {},
    );
    elapsed / (f64::from(pairs) * threads as f64)
}

/// Vectors through the current resource, which all threads share, and through one's own.
pub(crate) fn device_vec(bench: &Bench) {
    let before = set_current_device_resource(Arc::new(bench.pool(4)));
    let private = bench.private();
    let pairs = bench.count(200_000, 100);
    compare(
        bench,
        "vector 1MiB",
        [&|threads| vectors(bench, threads, pairs, |_| None), &|threads| {
            // Made on the thread itself: two threads' counts in one cache line would slow both.
            vectors(bench, threads, pairs, |thread| {
                Some(Arc::new(private.pools[thread].clone()) as Arc<_>)
            })
        }],
    );
    match before {
        Some(before) => set_current_device_resource(before),
        None => reset_current_device_resource(&bench.device),
    };
}
