//! The [`VirtualCalls`] of a GPU.

use super::driver::CudaDriver;
#[cfg(unix)]
use super::library::POSIX_FILE_DESCRIPTOR;
use super::library::{AllocationProp, PoolAccess, out_param};
use super::peer::gpu;
use crate::error::DriverError;
use crate::{DeviceAddress, DeviceRange, DriverResult, HandleSpec, RawHandle, VirtualCalls};
use std::any::Any;
#[cfg(unix)]
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

impl VirtualCalls for CudaDriver {
    fn granularity(&self, spec: HandleSpec) -> DriverResult<usize> {
        const RECOMMENDED: u32 = 1;
        let prop = AllocationProp::on_device(self.context().cu_device(), spec);
        // SAFETY: `bytes` is writable and `prop` readable for the call.
        out_param(|bytes| unsafe {
            self.relaxed()?.mem_get_granularity(bytes, &raw const prop, RECOMMENDED)
        })
    }

    fn address_reserve(&self, bytes: usize, alignment: usize) -> DriverResult<DeviceAddress> {
        // SAFETY: `address` is writable for the call.
        out_param(|address| unsafe {
            self.relaxed()?.mem_address_reserve(address, bytes, alignment, 0, 0)
        })
    }

    unsafe fn address_free(&self, range: DeviceRange) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.mem_address_free(range.address, range.bytes) }
    }

    fn handle_create(&self, bytes: usize, spec: HandleSpec) -> DriverResult<RawHandle> {
        let prop = AllocationProp::on_device(self.context().cu_device(), spec);
        // SAFETY: `handle` is writable and `prop` readable for the call.
        out_param(|handle| unsafe { self.relaxed()?.mem_create(handle, bytes, &raw const prop, 0) })
            .map(RawHandle)
    }

    fn handle_retain(&self, address: DeviceAddress) -> DriverResult<RawHandle> {
        let place = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: `handle` is writable for the call; the address is looked up, not followed.
        out_param(|handle| unsafe { self.relaxed()?.mem_retain(handle, place) }).map(RawHandle)
    }

    #[cfg(unix)]
    fn handle_export(&self, handle: RawHandle) -> DriverResult<OwnedFd> {
        // SAFETY: the driver writes a descriptor, an `int`; a handle that is not shareable is an error of the driver.
        let descriptor: i32 = out_param(|descriptor: *mut i32| unsafe {
            self.relaxed()?.mem_export(descriptor.cast(), handle.0, POSIX_FILE_DESCRIPTOR, 0)
        })?;
        if descriptor < 0 {
            let call = "cuMemExportToShareableHandle";
            return Err(DriverError::new(call, DriverError::NOT_SUPPORTED));
        }
        // SAFETY: a new descriptor, which the driver has given to the caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // A program that is started meanwhile would keep the memory. CUDA's manual promises nothing.
        let _ = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC);
        Ok(descriptor)
    }

    #[cfg(unix)]
    fn handle_import(&self, descriptor: BorrowedFd<'_>) -> DriverResult<RawHandle> {
        // The number itself stands for the pointer.
        let shareable = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        // SAFETY: `handle` is writable for the call; a descriptor of no handle is an error of the driver.
        out_param(|handle| unsafe {
            self.relaxed()?.mem_import(handle, shareable, POSIX_FILE_DESCRIPTOR)
        })
        .map(RawHandle)
    }

    unsafe fn handle_release(&self, handle: RawHandle) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.mem_release(handle.0) }
    }

    unsafe fn map(&self, range: DeviceRange, handle: RawHandle) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.mem_map(range.address, range.bytes, 0, handle.0, 0) }
    }

    unsafe fn set_access(&self, range: DeviceRange) -> DriverResult<()> {
        let access = PoolAccess::by_device(self.context().cu_device());
        // SAFETY: one description, readable for the call; the caller's contract.
        unsafe { self.relaxed()?.mem_set_access(range.address, range.bytes, &raw const access, 1) }
    }

    unsafe fn set_peer_access(&self, range: DeviceRange, peer: &dyn Any) -> DriverResult<()> {
        let access = PoolAccess::by_device(gpu(peer, "cuMemSetAccess")?.context().cu_device());
        // SAFETY: one description, readable for the call; the caller's contract.
        unsafe { self.relaxed()?.mem_set_access(range.address, range.bytes, &raw const access, 1) }
    }

    unsafe fn unmap(&self, range: DeviceRange) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.mem_unmap(range.address, range.bytes) }
    }
}
