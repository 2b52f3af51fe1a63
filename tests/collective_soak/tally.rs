//! What has to happen in the programs of this soak.

use crate::counts::{Floor, Tally};

/// What has to happen at least once in so many programs. Far below what does happen: a floor is for a
/// soak that has gone blind.
const FLOORS: [Floor; 29] = [
    ("blocks refused", 20),
    ("calls alone", 2),
    ("calls far ahead", 100),
    ("calls in groups", 2),
    ("calls of NCCL that fail", 100),
    ("communicators of those that are left", 50),
    ("devices lost", 100),
    ("fills", 2),
    ("groups longer than the limit", 400),
    ("items made", 2),
    ("items used after a loss", 5),
    ("kernels", 2),
    ("memory refused as a whole", 20),
    ("memory registered", 10),
    ("memory used in passing", 5),
    ("moves to another home", 5),
    ("pools trimmed", 5),
    ("ranks aborted", 100),
    ("ranks that a panic unwinds", 150),
    ("ranks that end early", 150),
    ("ranks that stop", 400),
    ("ranks told beside other calls", 400),
    ("ranks told of a lost one", 10),
    ("ranks told why a group failed", 50),
    ("reads", 1),
    ("reads of what a lost rank left", 50),
    ("registrations all taken back", 5),
    ("waits for collectives", 5),
    ("writes from the host", 5),
];

/// What happened less often than it has to in `programs`.
pub(crate) fn too_few(tally: &Tally, programs: usize) -> Vec<String> {
    tally.below(&FLOORS, programs)
}
