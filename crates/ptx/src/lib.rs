//! Readers of the two forms of a kernel for GPUs. They tell what a launch needs of an entry.
//!
//! [`text`] reads PTX, [`cubin`] machine code.
#![deny(missing_docs, missing_debug_implementations)]

pub mod cubin;
pub mod text;

pub use cubin::CubinError;
pub use text::{PtxEntry, PtxError};
