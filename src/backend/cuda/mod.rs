//! The CUDA backend: one [`Driver`](super::Driver) for each context of cudarc.
//!
//! Contexts and streams are cudarc's own, so that they can be shared with the rest of a program.
//! All else goes to the driver library directly, for three reasons. cudarc's `CUresult` is a Rust
//! enum without a place for numbers that its bindings do not know; its bindings panic where a
//! symbol is missing; and they cannot say that a library is too old before it is used.

mod context;
mod driver;
mod graph;
mod key;
mod launch;
mod lease;
mod library;
mod open;
mod properties;
mod seam;

#[cfg(all(test, target_os = "linux"))]
mod tests;

pub(crate) use driver::CudaDriver;
pub(crate) use open::device_count;
