//! The [`IpcCalls`] of a GPU.

use super::driver::CudaDriver;
#[cfg(unix)]
use super::library::POSIX_FILE_DESCRIPTOR;
use super::library::{IpcMemHandle, out_param};
use crate::{
    AllocationKind, DeviceAddress, DeviceRange, DriverResult, IpcBytes, IpcCalls, MemoryCalls,
    RawPool,
};
#[cfg(unix)]
use std::os::fd::{AsRawFd, BorrowedFd};

/// The attributes of a pointer that tell how its memory was allocated. They are `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`,
/// `_IS_MANAGED`, `_IS_LEGACY_CUDA_IPC_CAPABLE` and `_MEMPOOL_HANDLE`.
const ATTRIBUTES: [u32; 4] = [2, 8, 10, 17];

/// `CU_MEMORYTYPE_HOST`.
const HOST: u64 = 1;

impl IpcCalls for CudaDriver {
    fn uuid(&self) -> DriverResult<[u8; 16]> {
        // SAFETY: `uuid` is writable for the call.
        out_param(|uuid| unsafe {
            self.current()?.device_get_uuid(uuid, self.context().cu_device())
        })
    }

    fn allocation_kind(&self, address: DeviceAddress) -> DriverResult<AllocationKind> {
        let library = self.relaxed()?;
        // The driver writes a `bool`, an `unsigned int` or a pointer: on the machines that CUDA runs on, the
        // low bytes of a number that is zero before.
        let mut values = [0_u64; ATTRIBUTES.len()];
        let places = values.each_mut().map(|value| std::ptr::from_mut(value).cast());
        // SAFETY: each place is writable for its attribute, which has 8 bytes at most; all arrays live over the
        // call. The address is looked up, not followed: what the driver does not know has zeros.
        unsafe {
            let count = ATTRIBUTES.len() as u32;
            library.pointer_get_attributes(count, ATTRIBUTES.as_ptr(), places.as_ptr(), address)
        }?;
        let [memory_type, managed, legacy, pool] = values;
        Ok(match (managed, memory_type, legacy, pool) {
            (1.., ..) => AllocationKind::Managed,
            (_, HOST, ..) => AllocationKind::Host,
            (_, _, 1.., _) => AllocationKind::Plain,
            (_, _, _, 1..) => AllocationKind::Pool(RawPool(pool)),
            _ => AllocationKind::Other,
        })
    }

    fn allocation_range(&self, address: DeviceAddress) -> DriverResult<DeviceRange> {
        let (mut base, mut bytes) = (0_u64, 0_usize);
        // SAFETY: both are writable for the call; the address is looked up, not followed.
        unsafe {
            let library = self.relaxed()?;
            library.mem_get_address_range(&raw mut base, &raw mut bytes, address)
        }?;
        Ok(DeviceRange { address: base, bytes })
    }

    fn ipc_export(&self, base: DeviceAddress) -> DriverResult<IpcBytes> {
        let mut handle = IpcMemHandle([0; 64]);
        // SAFETY: `handle` is writable for the call; the address is looked up, not followed.
        unsafe { self.relaxed()?.ipc_get_mem_handle(&raw mut handle, base) }?;
        Ok(handle.0)
    }

    fn ipc_open(&self, exported: &IpcBytes) -> DriverResult<DeviceAddress> {
        // `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag that the manual has.
        const LAZY_PEER_ACCESS: u32 = 1;
        let handle = IpcMemHandle(*exported);
        // SAFETY: `address` is writable for the call; a wrong handle is an error of the driver.
        out_param(|address| unsafe {
            self.relaxed()?.ipc_open_mem_handle(address, handle, LAZY_PEER_ACCESS)
        })
    }

    unsafe fn ipc_close(&self, base: DeviceAddress) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.ipc_close_mem_handle(base) }
    }

    fn pool_export_pointer(&self, base: DeviceAddress) -> DriverResult<IpcBytes> {
        let mut exported: IpcBytes = [0; 64];
        // SAFETY: `exported` is writable for the call; the address is looked up, not followed.
        unsafe { self.relaxed()?.mem_pool_export_pointer(&raw mut exported, base) }?;
        Ok(exported)
    }

    #[cfg(unix)]
    fn pool_import(&self, descriptor: BorrowedFd<'_>) -> DriverResult<RawPool> {
        // The number itself stands for the pointer.
        let handle = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        // SAFETY: `pool` is writable for the call; a descriptor of no pool is an error of the driver.
        out_param(|pool| unsafe {
            self.relaxed()?.mem_pool_import(pool, handle, POSIX_FILE_DESCRIPTOR, 0)
        })
        .map(RawPool)
    }

    fn pool_import_pointer(
        &self,
        pool: RawPool,
        exported: &IpcBytes,
    ) -> DriverResult<DeviceAddress> {
        let mut exported = *exported;
        // SAFETY: `address` is writable and `exported` readable for the call; a wrong one is an error of the
        // driver.
        out_param(|address| unsafe {
            self.relaxed()?.mem_pool_import_pointer(address, pool.0, &raw mut exported)
        })
    }

    unsafe fn pool_close_pointer(&self, base: DeviceAddress) -> DriverResult<()> {
        // By the manual, one of the two calls that free such a pointer in this process.
        // SAFETY: the caller's contract.
        unsafe { self.mem_free(base) }
    }
}
