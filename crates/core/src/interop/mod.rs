//! Aquifer's memory where another library takes memory.

mod cuda_slice;
mod cudarc;

pub use cudarc::{CudaMut, CudaRef};
