//! What the simulated device finds in memory that pools cut: use after the free, overruns, reads of
//! recycled bytes. Each fault is planted by a second vector over the first one's memory, as by the raw
//! pointer of a program's own kernel, and has a twin that is right.

mod classes;
mod default_pool;
pub(crate) mod fixture;
mod graphs;
mod orders;

use crate::{kernels, support};
