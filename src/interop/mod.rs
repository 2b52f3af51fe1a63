//! Aquifer's memory where another library takes memory.

mod cuda_slice;
#[cfg(feature = "nvrtc")]
pub(crate) mod cuda_source;
mod cudarc;

pub use cudarc::{CudaMut, CudaRef};
