//! What happened in all programs: a soak in which nothing happens proves nothing.

use std::fmt;

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Vec<(&'static str, usize)>);

/// What has to happen at least once in so many programs. Far below what does happen: a floor is for a
/// soak that has gone blind.
const FLOORS: [(&str, usize); 40] = [
    ("captures declared", 2),
    ("captures inside of others", 10),
    ("captures refused", 20),
    ("captures that failed", 20),
    ("captures that unwound", 20),
    ("captures undeclared", 10),
    ("captures undeclared that stayed valid", 10),
    ("captures with a stream unjoined", 500),
    ("contexts lost", 100),
    ("contexts lost under a form", 200),
    ("copies of host memory tried in captures", 10),
    ("copies of the device", 10),
    ("copies of the device in captures", 20),
    ("events of other threads", 20),
    ("events waited for", 100),
    ("fills in captures", 2),
    ("forms on lent memory", 500),
    ("graphs launched", 2),
    ("guards", 5),
    ("guards at home", 5),
    ("guards for a thread's own stream", 50),
    ("guards used after a capture", 50),
    ("kernels after undeclared captures", 10),
    ("kernels away from home", 5),
    ("kernels in captures", 20),
    ("kernels on streams that join", 20),
    ("reads to page-locked memory", 5),
    ("reads to pageable memory", 5),
    ("refused in a capture, as they must be", 2),
    ("refused with Capture", 5),
    ("scopes with mapped memory", 50),
    ("scopes with page-locked memory", 50),
    ("scopes with pageable memory", 20),
    ("streams joined", 10),
    ("streams joined back", 10),
    ("transfers awaited", 20),
    ("transfers dropped early", 20),
    ("vectors dropped by another thread", 20),
    ("vectors used beside a capture", 10),
    ("wakers that panicked in a poll", 100),
];

/// Those that need the simulated device.
const SIMULATED: [&str; 6] = [
    "captures undeclared",
    "captures undeclared that stayed valid",
    "contexts lost",
    "contexts lost under a form",
    "forms on lent memory",
    "kernels after undeclared captures",
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

    fn count(&self, name: &str) -> usize {
        self.0.iter().find(|(known, _)| *known == name).map_or(0, |&(_, count)| count)
    }

    /// What happened less often than it has to in `programs`.
    pub(crate) fn too_few(&self, programs: usize, on_gpu: bool) -> Vec<String> {
        let wanted = FLOORS.iter().filter(|(name, _)| !on_gpu || !SIMULATED.contains(name));
        wanted
            .filter(|(name, each)| self.count(name) < programs / each)
            .map(|(name, each)| format!("{name}: {} of {}", self.count(name), programs / each))
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort();
        for (name, count) in sorted {
            write!(f, "\n  {name:40} {count:>10}")?;
        }
        Ok(())
    }
}
