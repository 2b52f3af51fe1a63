//! The calls of a driver on addresses apart from memory, which are CUDA's virtual memory management.

use super::raw::{DeviceAddress, DeviceRange, DriverResult, RawHandle};
use std::any::Any;
#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};

/// The uses of a handle's memory, which are fixed when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandleSpec {
    /// Other processes can have the memory, by a file descriptor.
    pub shareable: bool,
    /// Network cards and disks can read and write the memory (GPUDirect RDMA).
    pub rdma: bool,
}

/// The calls of a [`Driver`](super::Driver) on reserved addresses, handles of memory, and mappings of one to the other.
/// None waits for work of the device, and each may be made beside a capture. Sizes and addresses are multiples of
/// [`granularity`](Self::granularity).
///
/// # State table
///
/// | a handle is | its memory | next |
/// | --- | --- | --- |
/// | created, retained or imported | has no address | mapped; gone, by as many `handle_release` |
/// | mapped | is reached at the range, once `set_access` was called | created, by `unmap`; released, by `handle_release` |
/// | released | as mapped | gone, by `unmap` |
pub trait VirtualCalls {
    /// The granularity of handles of `spec` in bytes, which is a power of two.
    fn granularity(&self, spec: HandleSpec) -> DriverResult<usize>;

    /// Addresses that nothing else gets, without memory. `alignment` is a power of two.
    fn address_reserve(&self, bytes: usize, alignment: usize) -> DriverResult<DeviceAddress>;

    /// # Safety
    /// The range is one of [`address_reserve`](Self::address_reserve), as a whole, and nothing is mapped there.
    unsafe fn address_free(&self, range: DeviceRange) -> DriverResult<()>;

    /// Memory of the device, without an address.
    fn handle_create(&self, bytes: usize, spec: HandleSpec) -> DriverResult<RawHandle>;

    /// The handle that is mapped at an address, which has to be released once more. The address may be
    /// any.
    fn handle_retain(&self, address: DeviceAddress) -> DriverResult<RawHandle>;

    /// A descriptor of a shareable handle, which keeps its memory as long as it is open.
    #[cfg(unix)]
    fn handle_export(&self, handle: RawHandle) -> DriverResult<OwnedFd>;

    /// The handle of a descriptor of another process. The descriptor stays the caller's.
    #[cfg(unix)]
    fn handle_import(&self, descriptor: BorrowedFd<'_>) -> DriverResult<RawHandle>;

    /// Gives a handle up. Memory that is mapped stays until it is unmapped.
    ///
    /// # Safety
    /// The handle is not used after this.
    unsafe fn handle_release(&self, handle: RawHandle) -> DriverResult<()>;

    /// Maps a handle of the range's size to the range. The range may not be used before
    /// [`set_access`](Self::set_access).
    ///
    /// # Safety
    /// The range is reserved, and nothing is mapped there.
    unsafe fn map(&self, range: DeviceRange, handle: RawHandle) -> DriverResult<()>;

    /// Lets this device read and write what is mapped in the range.
    ///
    /// # Safety
    /// The range is mapped by the caller.
    unsafe fn set_access(&self, range: DeviceRange) -> DriverResult<()>;

    /// Lets another device, given by its [`as_any`](super::Driver::as_any), read and write the range,
    /// too.
    ///
    /// # Safety
    /// As [`set_access`](Self::set_access).
    unsafe fn set_peer_access(&self, range: DeviceRange, peer: &dyn Any) -> DriverResult<()>;

    /// # Safety
    /// The range is one mapping, and no work that uses it is pending. The driver does not check that.
    unsafe fn unmap(&self, range: DeviceRange) -> DriverResult<()>;
}
