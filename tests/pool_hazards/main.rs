//! What a stream-ordered pool gets wrong when nobody looks: one test for each situation in which
//! memory could change hands too early, or get lost. They know the pool by its public face alone,
//! and run on small simulated devices, whose streams do not wait for the default one.

mod failures;
mod forked;
mod forked_anywhere;
#[path = "../support/kernels.rs"]
mod kernels;
mod lifetime;
mod limits;
#[path = "../support/log.rs"]
mod log;
mod merging;
mod rig;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod threads;
mod upstreams;
mod warm_frees;
mod wrong_frees;
