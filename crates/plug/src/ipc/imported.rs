//! Mapped memory of a device in more than one process.

use crate::device::Device;
use crate::driver::{DeviceRange, DriverResult, RawHandle, is_in_host_function};
use crate::error::{DriverError, Result};
use crate::impls::Count;
use crate::inside::DeviceInside;
use crate::inside::deferred;
use crate::resource::VirtualResource;
use crate::resource::cuda::report_failed_free;
use crate::resource::mapped::VirtualMemory;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The mappings that a range of addresses lies in, in their order. An error if one of them is no mapping of a handle.
pub(super) fn mappings_of(device: &Device, range: DeviceRange) -> DriverResult<Vec<DeviceRange>> {
    let driver = device.driver();
    let (mut at, end) = (range.address, range.address + range.bytes as u64);
    let mut found = Vec::new();
    while at < end {
        // Of other memory there is a range, too, and no handle.
        let handle = driver.handle_retain(at)?;
        // SAFETY: retained above, and used no more.
        unsafe { driver.handle_release(handle) }?;
        let mapping = driver.allocation_range(at)?;
        let next = mapping.address.saturating_add(mapping.bytes as u64);
        if mapping.address > at || next <= at {
            return Err(DriverError::new("cuMemGetAddressRange", DriverError::INVALID_VALUE));
        }
        at = next;
        found.push(mapping);
    }
    Ok(found)
}

/// A descriptor by which another process has the memory at an address, for as long as it is open.
pub(super) fn export_mapping(device: &Device, mapping: DeviceRange) -> DriverResult<OwnedFd> {
    let driver = device.driver();
    let handle = driver.handle_retain(mapping.address)?;
    let exported = driver.handle_export(handle);
    // SAFETY: retained above, and used no more.
    let released = unsafe { driver.handle_release(handle) };
    released.and(exported)
}

/// Handles of another process, which are released when this is dropped.
pub(super) struct ImportedHandles {
    memory: VirtualMemory,
    /// The handles with their sizes.
    handles: Vec<(RawHandle, usize)>,
    bytes: usize,
}

impl ImportedHandles {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let memory = VirtualResource::new(device)?.into_memory();
        Ok(Self { memory, handles: Vec::new(), bytes: 0 })
    }

    /// The size of all of them together, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a handle of this size can be one more.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        let all = usize::try_from(bytes).ok().and_then(|bytes| self.bytes.checked_add(bytes));
        bytes > 0
            && bytes.is_multiple_of(self.memory.granularity() as u64)
            && all.is_some_and(|all| isize::try_from(all).is_ok())
    }

    /// Takes one more handle. There is [room](Self::has_room_for) for it.
    pub(super) fn import(&mut self, descriptor: BorrowedFd<'_>, bytes: usize) -> DriverResult<()> {
        let handle = self.memory.device().driver().handle_import(descriptor)?;
        self.handles.push((handle, bytes));
        self.bytes += bytes;
        Ok(())
    }

    /// Maps them beside each other, in their order, from a multiple of `alignment` on, which is a power of two.
    pub(super) fn map(self, alignment: usize) -> Result<ImportedMemory> {
        let what = format!("{} of another process", Count(self.bytes, "byte"));
        self.memory.in_context(what, self.try_map(alignment))
    }

    fn try_map(&self, alignment: usize) -> DriverResult<ImportedMemory> {
        let memory = &self.memory;
        let alignment = alignment.max(memory.granularity());
        let address = memory.device().driver().address_reserve(self.bytes, alignment)?;
        let range = DeviceRange { address, bytes: self.bytes };
        let mut mapped = ImportedMemory { memory: memory.clone(), range, sizes: Vec::new() };
        let mut at = address;
        for &(handle, bytes) in &self.handles {
            // SAFETY: reserved above, and nothing is mapped there. Of a size that the handle has not the driver makes an error.
            match unsafe { memory.map(DeviceRange { address: at, bytes }, handle) } {
                Ok(()) => mapped.sizes.push(bytes),
                Err(failure) => {
                    if failure.is_mapped {
                        // It is tried once more below.
                        mapped.sizes.push(bytes);
                    }
                    // SAFETY: nothing has used it.
                    if let Err(error) = unsafe { mapped.close() } {
                        report_failed_free(memory.device(), self.bytes, &error);
                    }
                    return Err(failure.error);
                }
            }
            at += bytes as u64;
        }
        Ok(mapped)
    }
}

impl Drop for ImportedHandles {
    fn drop(&mut self) {
        let (device, handles) = (self.memory.device().clone(), std::mem::take(&mut self.handles));
        let release = move || {
            for (handle, _) in handles {
                // What is mapped keeps its memory.
                // SAFETY: imported by the value that is gone, and used no more.
                let _ = unsafe { device.driver().handle_release(handle) };
            }
        };
        if is_in_host_function() { deferred::defer_to_program(release) } else { release() }
    }
}

/// Memory of another process, mapped in this one, to be given to [`close`](Self::close). One that is dropped stays mapped.
pub(super) struct ImportedMemory {
    memory: VirtualMemory,
    range: DeviceRange,
    /// The sizes of the mappings, in their order from the begin of the range on.
    sizes: Vec<usize>,
}

impl ImportedMemory {
    pub(super) fn address(&self) -> u64 {
        self.range.address
    }

    /// Gives up the memory, which its own process keeps. A mapping that cannot be unmapped stays.
    ///
    /// # Safety
    ///
    /// No work that uses it is pending.
    pub(super) unsafe fn close(self) -> DriverResult<()> {
        let (mut address, mut closed) = (self.range.address, Ok(()));
        for bytes in self.sizes {
            // SAFETY: one mapping of this; the caller vouches for the work.
            let unmapped = unsafe { self.memory.unmap(DeviceRange { address, bytes }) };
            closed = closed.and(unmapped);
            address += bytes as u64;
        }
        closed?;
        // SAFETY: reserved for this, and nothing is mapped there any more.
        unsafe { self.memory.device().driver().address_free(self.range) }
    }
}
