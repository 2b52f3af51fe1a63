//! The calls on communicators, and their implementation by NCCL.
//!
//! `aquifer-sim` has another implementation, for simulated devices. But for [`ReduceOp`], all is for the crates above.
#![deny(missing_debug_implementations)]

mod calls;
#[cfg(feature = "cuda")]
mod nccl;

pub use calls::{
    CollectiveCalls, CollectiveError, CollectiveResult, CollectiveWork, ElementType, RawCollective,
    RawCommunicator, ReduceOp, Reduction, UniqueId,
};
