//! The calls of a driver that share memory with other processes.

use super::raw::{DeviceAddress, DeviceRange, DriverResult, RawPool};
#[cfg(unix)]
use std::os::fd::BorrowedFd;

/// The bytes by which a driver describes memory to another process, as `CUipcMemHandle` and `CUmemPoolPtrExportData`.
/// They are plain, and a driver checks all bytes that it is given.
pub type IpcBytes = [u8; 64];

/// How memory at an address was allocated, as far as that says whether other processes can open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    /// By `cuMemAlloc`, so that [`ipc_export`](IpcCalls::ipc_export) serves it.
    Plain,
    /// From a pool of the driver.
    Pool(RawPool),
    Managed,
    /// Of the host.
    Host,
    /// By none of these, as virtual memory, memory of another process, or no memory.
    Other,
}

/// The first bytes of a simulated device's UUID, before the process and the context.
pub const SIMULATED_UUID: [u8; 4] = *b"sim\0";

/// The process of a simulated device, by its UUID. `None` for that of a GPU.
pub fn process_of(uuid: &[u8; 16]) -> Option<u32> {
    let [first @ .., p0, p1, p2, p3, _, _, _, _, _, _, _, _] = *uuid;
    (first == SIMULATED_UUID).then(|| u32::from_le_bytes([p0, p1, p2, p3]))
}

/// The calls of a [`Driver`](super::Driver) that share memory with other processes.
///
/// The simulated device serves them within its own process alone.
pub trait IpcCalls {
    /// The number by which every process knows the device.
    fn uuid(&self) -> DriverResult<[u8; 16]>;

    /// How the memory at an address was allocated. The address may be any.
    fn allocation_kind(&self, address: DeviceAddress) -> DriverResult<AllocationKind>;

    /// The whole allocation around an address, or the whole of what was opened.
    fn allocation_range(&self, address: DeviceAddress) -> DriverResult<DeviceRange>;

    /// The bytes by which another process opens the allocation that begins at `base`. The allocation is
    /// of [`Plain`](AllocationKind::Plain) memory.
    fn ipc_export(&self, base: DeviceAddress) -> DriverResult<IpcBytes>;

    /// The address of another process's allocation in this one.
    fn ipc_open(&self, exported: &IpcBytes) -> DriverResult<DeviceAddress>;

    /// # Safety
    /// `base` came from [`ipc_open`](Self::ipc_open), is closed once, and no work that uses it is pending.
    unsafe fn ipc_close(&self, base: DeviceAddress) -> DriverResult<()>;

    /// The bytes by which another process finds the allocation that begins at `base` in the pool that it is of.
    fn pool_export_pointer(&self, base: DeviceAddress) -> DriverResult<IpcBytes>;

    /// A pool of another process, from which nothing can be allocated. The descriptor stays the caller's.
    /// [`pool_destroy`](super::PoolCalls::pool_destroy) frees the pool.
    #[cfg(unix)]
    fn pool_import(&self, descriptor: BorrowedFd<'_>) -> DriverResult<RawPool>;

    /// The address of an allocation of an imported pool in this process.
    fn pool_import_pointer(
        &self,
        pool: RawPool,
        exported: &IpcBytes,
    ) -> DriverResult<DeviceAddress>;

    /// # Safety
    /// `base` came from [`pool_import_pointer`](Self::pool_import_pointer), is closed once, and no work that uses
    /// it is pending.
    unsafe fn pool_close_pointer(&self, base: DeviceAddress) -> DriverResult<()>;
}
