//! Aquifer's memory where another library takes memory.

#[cfg(feature = "cuda")]
mod cuda_slice;
#[cfg(feature = "cuda")]
mod cudarc;
#[cfg(feature = "cuda")]
mod driver_error;

#[cfg(feature = "cuda")]
pub use cudarc::{CudaMut, CudaRef};
