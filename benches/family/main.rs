//! The resources beside the pool, what the adaptors cost on top of it, and RMM's own programs.
//!
//!     cargo bench --bench family [-- --only resources,adaptors] [-- --list]
//!
//! Prints rows of `peer,workload,value`, as `benches/peers/rmm_family_peer.cpp` does for RMM's of the
//! same names; times are nanoseconds. On the simulated device the counts are small and the times mean
//! nothing.

mod adaptors;
mod generator;
#[path = "../pool/groups.rs"]
mod groups;
#[allow(dead_code, reason = "the pool's bench uses all of it")]
#[path = "../pool/kernels.rs"]
mod kernels;
mod logs;
mod priming;
#[allow(dead_code, reason = "the pool's bench uses all of it")]
#[path = "../pool/programs.rs"]
mod programs;
mod random;
mod resources;
#[allow(dead_code, reason = "the pool's bench uses all of it")]
#[path = "../pool/rows.rs"]
mod rows;
mod streams;
#[allow(dead_code, reason = "the pool's bench uses all of it")]
#[path = "../pool/subject.rs"]
mod subject;
mod vectors;
#[path = "../pool/workloads.rs"]
mod workloads;

use groups::Group;
use std::process::ExitCode;

const GROUPS: [Group; 9] = [
    ("resources", resources::resources, "each resource: hot pairs, random, churn"),
    ("async", resources::driver_pools, "the same of driver pools"),
    ("adaptors", adaptors::adaptors, "what each adaptor takes on top of the pool"),
    ("logging", logs::logging, "what a log takes on top, in bursts and sustained"),
    ("random", random::random_allocations, "RMM's RANDOM_ALLOCATIONS, with its generator"),
    ("multi", streams::multi_stream, "RMM's MULTI_STREAM_ALLOCATIONS, off the pool too"),
    ("vectors", vectors::vectors, "RMM's UVECTOR"),
    ("streams", streams::stream_pool, "RMM's CUDA_STREAM_POOL"),
    ("priming", priming::priming, "RMM's ASYNC_PRIMING, of the pool too"),
];

fn main() -> ExitCode {
    groups::main(&GROUPS)
}
