//! GPUs, with one [`CudaDriver`] for each context of cudarc.
//!
//! Contexts and streams are cudarc's own, so that they can be shared with the rest of a program. All other calls go to
//! the driver library directly, for three reasons.
//!
//! - cudarc's `CUresult` is a Rust enum, for which a code that its bindings do not know is undefined behaviour.
//! - Its bindings panic on a missing symbol.
//! - They cannot tell that a library is too old before it is used.

mod calls;
mod context;
mod context_id;
mod conversions;
mod driver;
mod ipc;
mod launch;
mod library;
mod open;
mod peer;
mod properties;
mod stream_numbers;
mod virtual_memory;

#[cfg(all(test, target_os = "linux"))]
mod tests;

pub use driver::CudaDriver;
pub use library::candidates;
pub use open::{device_count, restoring};
