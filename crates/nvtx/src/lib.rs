//! NVTX: what NVIDIA's header does in a C program, in as much of it as ranges and the memory extension
//! need.

mod injection;
mod memory;
mod ranges;
mod registrations;

pub use memory::{HeapHandle, MemoryExtension, memory_extension};
pub use ranges::range;
pub use registrations::{REGISTRATIONS, Registrations};
