//! Aquifer's memory where another library takes memory.

mod cuda_slice;
mod cudarc;
mod lend;

pub use cudarc::{CudaMut, CudaRef};
pub use lend::{CudaMemory, CudaMemoryMut, lend, lend_mut};
