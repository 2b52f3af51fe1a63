//! The calls of a device on communicators.

use crate::device::Device;
use crate::inside::DeviceInside;
use aquifer_collective::{CollectiveCalls, CollectiveError, CollectiveResult};

/// NCCL's calls for a GPU, the exchange within the process for a simulated device.
pub(crate) fn calls_of(device: &Device) -> CollectiveResult<&dyn CollectiveCalls> {
    let driver = device.driver().as_any();
    #[cfg(feature = "cuda")]
    if let Some(gpu) = driver.downcast_ref::<aquifer_driver::cuda::CudaDriver>() {
        return Ok(gpu);
    }
    #[cfg(feature = "sim")]
    if let Some(simulated) = driver.downcast_ref::<aquifer_sim::SimDriver>() {
        return Ok(simulated);
    }
    let _ = driver;
    Err(CollectiveError::NoLibrary)
}
