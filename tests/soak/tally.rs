//! What has to happen in the programs of this soak.

use crate::counts::{Floor, Tally};
use aquifer::mr::PoolStatistics;

/// What has to happen at least once in so many programs. Far below what does happen: a floor is for
/// a soak that has gone blind.
const FLOORS: [Floor; 52] = [
    ("blocks kept by a thread", 60),
    ("vectors made", 1),
    ("reads that agreed", 1),
    ("kernels", 2),
    ("copies", 2),
    ("guards", 2),
    ("homes moved", 4),
    ("handed to a thread", 8),
    ("dropped by a thread's end", 8),
    ("streams replaced", 2),
    ("pools dropped first", 40),
    ("most of a pool at once", 8),
    ("pool misses", 1),
    ("pool steals", 4),
    ("pool records", 2),
    ("pool waits", 2),
    ("pool growths", 1),
    ("pool returns", 2),
    ("out of memory", 2),
    ("trims", 4),
    ("captures", 8),
    ("captures left valid", 10),
    ("allocations in captures", 20),
    ("frees in captures", 20),
    ("failures of driver calls", 20),
    ("failed records", 100),
    ("failed waits", 200),
    ("failed allocations", 200),
    ("pools over pools", 8),
    ("pools that map", 100),
    ("streams detached", 10),
    ("streams detached at the end", 20),
    ("streams destroyed at the end", 20),
    ("streams not detached in captures", 3000),
    ("streams not detached by a failure", 500),
    ("handles opened", 4),
    ("handles refused", 4),
    ("copies by a handle", 20),
    ("parts by a handle", 20),
    ("handles closed after their memory", 20),
    ("sleeps of upstream", 80),
    ("waits of upstream for a stream", 40),
    ("waits of upstream for the device", 80),
    ("waits of upstream for a thread", 300),
    ("long waits of upstream for a thread", 20_000),
    ("buffers left to the device", 20),
    ("threads that upstream left behind", 1000),
    ("programs with a memory manager", 12),
    ("scopes of deferred cleanup", 20),
    ("cleanups at a scope's end", 300),
    ("managers reset", 40),
    ("forks", 200),
];

/// The same in so many programs of a pattern, of which one in six has each.
const PATTERN_FLOORS: [Floor; 13] = [
    ("pool steals", 4),
    ("pool waits", 2),
    ("freed on another thread and stream", 2),
    ("phases", 6),
    ("slept on blocks in caches", 12),
    ("rounds over many streams", 4),
    ("programs of a thousand streams", 300),
    ("callbacks that allocate", 6),
    ("callbacks that free", 12),
    ("callbacks that trim", 12),
    ("streams dropped with memory elsewhere", 6),
    ("pools held to their bound", 6),
    ("dropped by a thread's end", 8),
];

/// Those that need the simulated device.
const SIMULATED: [&str; 17] = [
    "captures",
    "captures left valid",
    "allocations in captures",
    "frees in captures",
    "failures of driver calls",
    "failed records",
    "failed waits",
    "failed allocations",
    "streams not detached in captures",
    "streams not detached by a failure",
    "handles opened",
    "handles refused",
    "copies by a handle",
    "parts by a handle",
    "handles closed after their memory",
    "forks",
    "threads that upstream left behind",
];

pub(crate) fn add_statistics(tally: &mut Tally, pool: &PoolStatistics) {
    tally.add("pool misses", pool.misses);
    tally.add("pool steals", pool.steals);
    tally.add("pool records", pool.records);
    tally.add("pool waits", pool.waits);
    tally.add("pool growths", pool.growths);
    tally.add("pool returns", pool.returns);
}

/// What happened less often than it has to in `programs`.
pub(crate) fn too_few(tally: &Tally, programs: usize, patterns: bool, on_gpu: bool) -> Vec<String> {
    let floors = if patterns { &PATTERN_FLOORS[..] } else { &FLOORS };
    let wanted = floors.iter().filter(|(name, _)| !on_gpu || !SIMULATED.contains(name));
    tally.below(wanted, programs)
}
