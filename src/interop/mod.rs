//! Aquifer's memory where another library takes memory.

mod cuda_slice;
#[cfg(feature = "nvrtc")]
mod cuda_source;
mod cudarc;

#[cfg(feature = "nvrtc")]
pub use cuda_source::CompileOptions;
pub use cudarc::{CudaMut, CudaRef};
