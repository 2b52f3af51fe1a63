//! RMM's RANDOM_ALLOCATIONS, with the operations made before they are timed.

use crate::generator::rmm_trace;
use crate::resources::{ARENA, ASYNC, BINNING, arena, binning};
use crate::rows::{POOL, nanoseconds};
use crate::subject::{Bench, Erased, must};
use crate::workloads::{Trace, median3, replay};
use aquifer::{CudaResource, mr::AsyncResource};

/// The first run warms up; then the median of three. A smoke test runs once.
pub(crate) fn trace_row(
    bench: &Bench,
    peer: &str,
    workload: &str,
    subject: &Erased,
    trace: &Trace,
) {
    let mut time = replay(subject, trace, 0);
    if !bench.quick {
        time = median3(|| replay(subject, trace, 0));
    }
    nanoseconds(peer, workload, time);
}

/// The counts and maximum sizes (MiB) of RMM's program; `dear` calls of the driver get fewer.
fn rows(bench: &Bench, peer: &str, subject: &Erased, dear: bool) {
    for n in [1000, 10_000, 100_000] {
        for mib in [1, 4, 64, 256, 1024, 4096] {
            let wanted = !bench.quick || (n, mib) == (1000, 1);
            if !wanted || (dear && (n > 1000 || mib > 64)) {
                continue;
            }
            let Some(trace) = rmm_trace(n, mib) else { continue };
            trace_row(bench, peer, &format!("rmm random n={n} max={mib}MiB"), subject, &trace);
        }
    }
}

pub(crate) fn random_allocations(bench: &Bench) {
    rows(bench, POOL, &bench.erased(bench.pool(2)), false);
    rows(bench, BINNING, &bench.erased(binning(bench)), false);
    rows(bench, ARENA, &bench.erased(arena(bench)), false);
    rows(bench, ASYNC, &bench.erased(must(AsyncResource::new(&bench.device))), true);
    bench.synchronize();
    rows(bench, "aquifer plain", &bench.erased(CudaResource::new(&bench.device)), true);
}
