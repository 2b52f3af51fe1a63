//! The calls of a driver on addresses apart from memory: CUDA's virtual memory management.

use super::raw::{DeviceAddress, DeviceRange, DriverResult, RawHandle};
use std::any::Any;

/// The calls of a [`Driver`](super::Driver) on reserved addresses, handles of memory, and mappings of one to the other.
/// None waits for work of the device, and each may be made beside a capture. Sizes and addresses are multiples of
/// [`granularity`](Self::granularity).
///
/// # State table
///
/// | a handle is | its memory | next |
/// | --- | --- | --- |
/// | created | has no address | mapped; gone, by `handle_release` |
/// | mapped | is reached at the range, once `set_access` was called | created, by `unmap`; released, by `handle_release` |
/// | released | as mapped | gone, by `unmap` |
pub(crate) trait VirtualCalls {
    /// In bytes; a power of two.
    fn granularity(&self) -> DriverResult<usize>;

    /// Addresses that nothing else gets, without memory. `alignment` is a power of two.
    fn address_reserve(&self, bytes: usize, alignment: usize) -> DriverResult<DeviceAddress>;

    /// # Safety
    /// The range is one of [`address_reserve`](Self::address_reserve), as a whole, and nothing is mapped there.
    unsafe fn address_free(&self, range: DeviceRange) -> DriverResult<()>;

    /// Memory of the device, without an address.
    fn handle_create(&self, bytes: usize) -> DriverResult<RawHandle>;

    /// Gives a handle up. Memory that is mapped stays until it is unmapped.
    ///
    /// # Safety
    /// The handle is not used after this.
    unsafe fn handle_release(&self, handle: RawHandle) -> DriverResult<()>;

    /// Has the range be the memory of a handle of its size. Nothing may use it before
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

    /// Lets another device, by its [`as_any`](super::Driver::as_any), read and write it, too.
    ///
    /// # Safety
    /// As [`set_access`](Self::set_access).
    unsafe fn set_peer_access(&self, range: DeviceRange, peer: &dyn Any) -> DriverResult<()>;

    /// # Safety
    /// The range is one mapping, and no work that uses it is pending: the driver does not look.
    unsafe fn unmap(&self, range: DeviceRange) -> DriverResult<()>;
}
