//! Each resource on those of the pool's workloads that it serves.

use crate::random::trace_row;
use crate::rows::{MIB, nanoseconds, random};
use crate::subject::{Bench, Erased, must};
use crate::workloads::{SEED, STREAMS, churn, hot, median3, random_trace};
use aquifer::{
    CudaResource, DeviceResource, Result,
    mr::{
        ArenaResource, AsyncResource, BinningResource, FixedSizeResource, ManagedResource,
        SystemResource,
    },
};

pub(crate) const FIXED: &str = "aquifer fixed-size";
pub(crate) const BINNING: &str = "aquifer binning";
pub(crate) const ARENA: &str = "aquifer arena";
pub(crate) const ASYNC: &str = "aquifer async";

const HOT: [(&str, u64); 2] = [("256B", 256), ("1MiB", MIB)];

pub(crate) fn resources(bench: &Bench) {
    let plain = || CudaResource::new(&bench.device);
    {
        let fixed = must(FixedSizeResource::new(plain()));
        hot_inlined(bench, FIXED, &fixed);
        let fixed = bench.erased(fixed);
        hot_pairs(bench, FIXED, &fixed, 200_000);
        random_1000(bench, FIXED, &fixed);
        // The blocks of churn have up to 4 MiB, which is the size of each here.
        let large = must(FixedSizeResource::builder(plain()).block_size(4 << 20).build());
        churns(bench, FIXED, &bench.erased(large), 50_000);
    }
    {
        let binning = binning(bench);
        hot_inlined(bench, BINNING, &binning);
        all(bench, BINNING, &bench.erased(binning), [200_000, 50_000]);
    }
    {
        let arena = arena(bench);
        hot_inlined(bench, ARENA, &arena);
        all(bench, ARENA, &bench.erased(arena), [200_000, 50_000]);
    }
    // The others make a driver call each time, or more.
    where_there_is("aquifer managed", ManagedResource::new(&bench.device), |peer, managed| {
        hot_pairs(bench, peer, &bench.erased(managed), 300);
    });
    where_there_is("aquifer system", SystemResource::new(&bench.device), |peer, system| {
        hot_pairs(bench, peer, &bench.erased(system), 300);
    });
}

/// The driver's own pool. A group by itself: what other resources leave behind in the process, on the
/// host's heap and on the streams, is not to count.
pub(crate) fn driver_pools(bench: &Bench) {
    let driver = must(AsyncResource::new(&bench.device));
    // The simulated pool maps memory at each call: its full counts would take an hour.
    let counts = if bench.simulated() { [20, 20] } else { [50_000, 5000] };
    all(bench, ASYNC, &bench.erased(driver), counts);
}

/// RMM's default bins over a pool of half of the free memory.
pub(crate) fn binning(bench: &Bench) -> BinningResource<crate::subject::Plain> {
    must(BinningResource::new(bench.pool(2)))
}

/// An arena of half of the free memory.
pub(crate) fn arena(bench: &Bench) -> ArenaResource {
    let builder = ArenaResource::builder(CudaResource::new(&bench.device));
    must(builder.arena_size(bench.part(2)).build())
}

/// A device need not have each kind of memory: a comment says so in the rows' place.
fn where_there_is<R>(peer: &str, made: Result<R>, run: impl FnOnce(&str, R)) {
    match made {
        Ok(resource) => run(peer, resource),
        Err(error) => println!("# no {peer}: {error}"),
    }
}

fn all(bench: &Bench, peer: &str, subject: &Erased, [pairs, steps]: [u32; 2]) {
    hot_pairs(bench, peer, subject, pairs);
    random_1000(bench, peer, subject);
    churns(bench, peer, subject, steps);
}

fn hot_pairs(bench: &Bench, peer: &str, subject: &Erased, pairs: u32) {
    let pairs = bench.count(pairs, 20);
    for (size, bytes) in HOT {
        nanoseconds(peer, &format!("hot {size}"), median3(|| hot(subject, bytes, pairs)));
    }
}

/// Through the concrete type.
fn hot_inlined<R: DeviceResource + Clone>(bench: &Bench, peer: &str, resource: &R) {
    let subject = bench.subject(resource.clone());
    let pairs = bench.count(200_000, 100);
    for (size, bytes) in HOT {
        let workload = format!("hot {size} inlined");
        nanoseconds(peer, &workload, median3(|| hot(&subject, bytes, pairs)));
    }
}

fn random_1000(bench: &Bench, peer: &str, subject: &Erased) {
    trace_row(bench, peer, &random(1000, 1), subject, &random_trace(1000, MIB, SEED));
}

fn churns(bench: &Bench, peer: &str, subject: &Erased, steps: u32) {
    let steps = bench.count(steps, 20);
    for threads in [1, STREAMS] {
        let workload = format!("churn {threads} threads");
        nanoseconds(peer, &workload, median3(|| churn(subject, threads, steps)));
    }
}
