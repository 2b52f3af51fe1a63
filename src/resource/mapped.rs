//! Memory of a device that is apart from its addresses: CUDA's virtual memory management, call by call.

use crate::device::Device;
use crate::driver::{DeviceAddress, DeviceRange, Driver, DriverResult, ErrorContext, RawHandle};
use crate::error::{Result, ensure};
use crate::impls::Count;
use std::fmt::Display;

/// A device that has virtual memory management.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualMemory {
    device: Device,
    granularity: usize,
}

impl VirtualMemory {
    pub(super) fn new(device: &Device) -> Result<Self> {
        ensure!(
            device.properties().virtual_memory,
            Unsupported,
            "use CudaResource",
            "{device} has no virtual memory management"
        );
        let granularity = device.driver().granularity();
        let granularity =
            granularity.with_context(|| format!("asking {device} for its granularity"))?;
        Ok(Self { device: device.clone(), granularity })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn driver(&self) -> &dyn Driver {
        self.device.driver()
    }

    pub(super) fn granularity(&self) -> usize {
        self.granularity
    }

    /// A range of whole granules.
    pub(super) fn range(&self, address: DeviceAddress, bytes: usize) -> DeviceRange {
        // A size is at most `isize::MAX`: the next multiple is a number.
        DeviceRange { address, bytes: bytes.next_multiple_of(self.granularity) }
    }

    /// What a call for this memory has returned.
    pub(super) fn in_context<T>(&self, what: impl Display, made: DriverResult<T>) -> Result<T> {
        made.with_context(|| match self.device.memory_info() {
            Ok(info) => format!(
                "mapping {what} on {}, which has {} free of its {}",
                self.device,
                Count(info.free, "byte"),
                Count(info.total, "byte")
            ),
            Err(_) => format!("mapping {what} on {}", self.device),
        })
    }

    /// Has a range be the memory of a handle, which the device reaches there. If that fails, nothing is mapped.
    ///
    /// # Safety
    ///
    /// The range is reserved, of the handle's size, and nothing is mapped there.
    pub(super) unsafe fn map(&self, range: DeviceRange, handle: RawHandle) -> DriverResult<()> {
        let driver = self.driver();
        // SAFETY: the caller's promise.
        unsafe { driver.map(range, handle) }?;
        // SAFETY: mapped above.
        let reached = unsafe { driver.set_access(range) };
        if reached.is_err() {
            // SAFETY: as above; nothing has used it.
            let _ = unsafe { driver.unmap(range) };
        }
        reached
    }
}
