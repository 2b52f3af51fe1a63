//! The [`VirtualCalls`] of a GPU.

use super::driver::CudaDriver;
use super::library::{AllocationProp, PoolAccess, out_param};
use super::peer::gpu;
use crate::driver::{DeviceAddress, DeviceRange, DriverResult, RawHandle, VirtualCalls};
use std::any::Any;

impl VirtualCalls for CudaDriver {
    fn granularity(&self) -> DriverResult<usize> {
        const RECOMMENDED: u32 = 1;
        let prop = AllocationProp::on_device(self.context().cu_device());
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

    fn handle_create(&self, bytes: usize) -> DriverResult<RawHandle> {
        let prop = AllocationProp::on_device(self.context().cu_device());
        // SAFETY: `handle` is writable and `prop` readable for the call.
        out_param(|handle| unsafe { self.relaxed()?.mem_create(handle, bytes, &raw const prop, 0) })
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
