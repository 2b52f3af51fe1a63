//! Kernels of CUDA C++, which NVRTC compiles when the program runs.
#![cfg(feature = "cuda")]
#![deny(missing_docs, missing_debug_implementations)]

mod compile;
mod library;

// The names that the documentation links to are those of `aquifer`.
#[cfg(doc)]
use aquifer_driver::error::ErrorKind;

pub use compile::{CompileOptions, compile_cuda};
