//! What happened in all programs: a soak in which nothing happens proves nothing.

use aquifer::PoolStatistics;
use std::fmt;

/// Counts by name, in the order of their first use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Vec<(&'static str, usize)>);

/// What has to happen at least once in so many programs. Far below what does happen: a floor is for
/// a soak that has gone blind.
const FLOORS: [(&str, usize); 29] = [
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
    ("pools dropped first", 20),
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
];

/// The same in so many programs of a pattern, of which one in six has each.
const PATTERN_FLOORS: [(&str, usize); 13] = [
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
const SIMULATED: [&str; 7] = [
    "captures",
    "captures left valid",
    "allocations in captures",
    "frees in captures",
    "failures of driver calls",
    "failed records",
    "failed waits",
];

impl Tally {
    pub(crate) fn add(&mut self, name: &'static str, count: usize) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, so_far)) => *so_far += count,
            None => self.0.push((name, count)),
        }
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for &(name, count) in &other.0 {
            self.add(name, count);
        }
    }

    pub(crate) fn statistics(&mut self, pool: &PoolStatistics) {
        self.add("pool misses", pool.misses);
        self.add("pool steals", pool.steals);
        self.add("pool records", pool.records);
        self.add("pool waits", pool.waits);
        self.add("pool growths", pool.growths);
        self.add("pool returns", pool.returns);
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.0.iter().find(|(known, _)| *known == name).map_or(0, |&(_, count)| count)
    }

    /// What happened less often than it has to in `programs`.
    pub(crate) fn too_few(&self, programs: usize, patterns: bool, on_gpu: bool) -> Vec<String> {
        let floors = if patterns { &PATTERN_FLOORS[..] } else { &FLOORS };
        let wanted = floors.iter().filter(|(name, _)| {
            !on_gpu || !(SIMULATED.contains(name) || *name == "failed allocations")
        });
        wanted
            .filter(|(name, programs_each)| self.count(name) < programs / programs_each)
            .map(|(name, each)| format!("{name}: {} of {}", self.count(name), programs / each))
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort();
        for (name, count) in sorted {
            write!(f, "\n  {name:28} {count:>10}")?;
        }
        Ok(())
    }
}
