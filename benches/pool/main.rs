//! The pool, on the workloads of its peers and on some of its own.
//!
//!     cargo bench --bench pool [-- --only peers,calls] [-- --list]
//!
//! Prints rows of `peer,workload,value`, as the programs of `benches/peers` do; times are
//! nanoseconds. On the simulated device the counts are small and the times mean nothing:
//!
//!     AQUIFER_BACKEND=sim cargo bench --bench pool

mod bookkeeping;
mod calls;
mod card;
mod footprint;
mod groups;
mod growing;
mod handover;
mod kernels;
mod latency;
mod peers;
mod pinned;
mod programs;
mod rows;
mod stalls;
mod subject;
mod threads;
mod traffic;
mod warm;
mod workloads;

use groups::Group;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: bookkeeping::Counting = bookkeeping::Counting::new();

const GROUPS: [Group; 18] = [
    ("idle", pinned::beside_streams, "a pinned Vec with no stream alive, and with 64"),
    ("peers", peers::shared_rows, "what every peer runs: random, hot, cross, churn"),
    ("plain", peers::plain_rows, "the same on plain driver memory"),
    ("calls", calls::driver_calls, "driver calls of a warm pool"),
    ("latency", latency::latency, "p50, p99, p99.9 of single operations"),
    ("pingpong", handover::ping_pong, "one block, two streams in turn: the steal"),
    ("handover", handover::producer_consumer, "a producer and a consumer, a stream each"),
    ("warm", warm::warm, "pairs on streams whose memory came from elsewhere"),
    ("footprint", footprint::footprint, "peak reserved over peak live, of what programs do"),
    ("card", card::card, "95% of the card, then a block of 40%; two pools, two processes"),
    ("growing", growing::growing, "a vector from 1 MiB to 8 GiB, in place or by copies"),
    ("stalls", stalls::stalls, "what waits beside another thread's trim"),
    ("bookkeeping", bookkeeping::bookkeeping, "host memory for a million blocks of 1,024 streams"),
    ("scaling", threads::churn_scaling, "16 threads, one pool against a pool each"),
    ("vectors", threads::device_vec, "DeviceVec made and dropped, 1 and 16 threads"),
    ("pinned", pinned::pinned, "a pinned Vec made and dropped"),
    ("streams", programs::multi_stream, "RMM's multi-stream benchmark"),
    ("workflow", programs::workflow, "a new buffer for each operation"),
];

fn main() -> ExitCode {
    groups::main(&GROUPS)
}
