//! Conversions of cudarc's errors and launches to ours. Other functions with cudarc's types in their signatures are in
//! `interop` of `aquifer-core`. These two are here, where their types are.

use crate::error::{DriverError, Error};
use crate::kernel::LaunchConfig;

impl From<cudarc::driver::DriverError> for Error {
    fn from(error: cudarc::driver::DriverError) -> Self {
        // Its number alone: to format it would ask the driver for its name.
        Self::driver_call("a call of cudarc failed", DriverError::new("cudarc", error.0 as u32))
    }
}

impl From<cudarc::driver::LaunchConfig> for LaunchConfig {
    fn from(config: cudarc::driver::LaunchConfig) -> Self {
        let cudarc::driver::LaunchConfig { grid_dim, block_dim, shared_mem_bytes } = config;
        Self { grid: grid_dim, block: block_dim, shared_bytes: shared_mem_bytes }
    }
}

impl From<LaunchConfig> for cudarc::driver::LaunchConfig {
    fn from(LaunchConfig { grid, block, shared_bytes }: LaunchConfig) -> Self {
        Self { grid_dim: grid, block_dim: block, shared_mem_bytes: shared_bytes }
    }
}
