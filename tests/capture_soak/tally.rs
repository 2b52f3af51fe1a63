//! What has to happen in the programs of this soak.

use crate::counts::{Floor, Tally};

/// What has to happen at least once in so many programs. Far below what does happen: a floor is for a
/// soak that has gone blind.
const FLOORS: [Floor; 45] = [
    ("captures declared", 2),
    ("captures in turns", 20),
    ("captures inside of others", 10),
    ("captures refused", 100),
    ("captures that failed", 20),
    ("captures that unwound", 20),
    ("captures undeclared", 10),
    ("captures undeclared that stayed valid", 10),
    ("captures with a stream unjoined", 500),
    ("contexts lost", 100),
    ("contexts lost under a form", 200),
    ("copies of host memory tried in captures", 10),
    ("copies of the device", 10),
    ("copies in turns", 20),
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
    ("kernels on what is outside of a capture", 50),
    ("launches that would write over a vector", 1000),
    ("reads to page-locked memory", 5),
    ("reads to pageable memory", 5),
    ("refused in a capture, as they must be", 2),
    ("refused with Capture", 5),
    ("scopes with mapped memory", 50),
    ("scopes with page-locked memory", 50),
    ("scopes with pageable memory", 20),
    ("streams joined", 10),
    ("streams detached", 10),
    ("streams joined back", 10),
    ("transfers awaited", 20),
    ("transfers dropped early", 20),
    ("vectors dropped by another thread", 20),
    ("vectors used beside a capture", 10),
    ("wakers that panicked in a poll", 100),
];

/// Those that need the simulated device, or threads that share few cores with it.
const SIMULATED: [&str; 7] = [
    "captures refused",
    "captures undeclared",
    "captures undeclared that stayed valid",
    "contexts lost",
    "contexts lost under a form",
    "forms on lent memory",
    "kernels after undeclared captures",
];

/// What happened less often than it has to in `programs`.
pub(crate) fn too_few(tally: &Tally, programs: usize, on_gpu: bool) -> Vec<String> {
    let wanted = FLOORS.iter().filter(|(name, _)| !on_gpu || !SIMULATED.contains(name));
    tally.below(wanted, programs)
}
