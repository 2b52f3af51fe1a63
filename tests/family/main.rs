//! Every resource, adaptor and stack of the crate is asked the same: RMM's matrix of resources and
//! tests, in one table. A case runs over all rows and says of each that fails its name and why.
//!
//! After each case of each row nothing may be left: what counts reads zero, and the simulated device
//! has all of its memory back and has seen nothing out of order.

mod adaptors;
mod basic;
mod blocks;
mod fixture;
#[path = "../support/kernels.rs"]
mod kernels;
mod last_handles;
mod limits;
mod makers;
mod mixes;
mod owners;
#[allow(dead_code, reason = "the soak uses more of it")]
#[path = "../soak/random.rs"]
mod random;
mod sizes;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod threads;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
