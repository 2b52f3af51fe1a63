//! What a stream-ordered pool gets wrong when nobody looks: one test for each situation in which
//! memory could change hands too early, or get lost. They know the pool by its public face alone,
//! and run on small simulated devices, whose streams do not wait for the default one.

mod failures;
mod fixture;
mod forked;
mod forked_anywhere;
mod lifetime;
mod limits;
mod merging;
mod streams;
mod threads;
mod upstreams;
mod warm_frees;
mod wrong_frees;

use crate::{kernels, log, support};
