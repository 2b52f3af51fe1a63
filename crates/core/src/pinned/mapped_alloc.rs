//! Host memory that kernels reach where it lies.

use super::address_map::device_address;
use super::allocator::{HostAllocator, implement_allocators};
use super::pinned_resource::cannot_map;
use super::registry;
use crate::driver::not_forked;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::DeviceResource;
use std::alloc::Layout;
use std::ptr::NonNull;

/// The process's mapped memory, which is page-locked and reached by kernels where it lies.
///
/// It is like [`PinnedAlloc`](crate::PinnedAlloc), from the current pinned resource. The error is an `AllocError` if
/// that resource or its device cannot map. [`device_address`](Self::device_address) gives the device's address of any
/// value in such memory. [`Scope::map`](crate::transfer::Scope::map) and
/// [`Scope::map_mut`](crate::transfer::Scope::map_mut) make it a kernel argument that the host cannot touch meanwhile.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, MappedAlloc};
///
/// // Without a GPU it is of the simulated device, for which the program asks.
/// let device = Device::detect_or_simulate()?;
/// println!("mapped for {device}");
/// let mut vec: Vec<u32, MappedAlloc> = Vec::with_capacity_in(100, MappedAlloc);
/// vec.resize(100, 7);
/// let address = MappedAlloc::device_address(&vec)?;
/// assert_eq!(MappedAlloc::device_address(&vec[25..])?, address + 100);
/// assert!(MappedAlloc::device_address(&[1, 2, 3]).is_err(), "not in mapped memory");
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MappedAlloc;

impl MappedAlloc {
    /// The device's address of the first byte of `data`, which lives in mapped memory. Such is the memory of a
    /// [`MappedAlloc`] `Vec`, `Box` or slice, of a [`PinnedResource`](crate::pinned::PinnedResource) or
    /// [`PinnedPool`](crate::pinned::PinnedPool) that is mapped, and of a [`Registered`](crate::pinned::Registered)
    /// buffer. It is an address of the resource's device, valid while the block lives.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `data` is not in page-locked memory of this crate, or has no bytes, and
    /// [`ErrorKind::Unsupported`] if that memory is not mapped.
    pub fn device_address<T>(data: &[T]) -> Result<u64> {
        if size_of_val(data) == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a slice of no bytes has no address on a device",
            )
            .with_advice("ask for the address of a slice that has bytes"));
        }
        let (address, device) = device_address(NonNull::from(data).cast())?;
        device.note_host_address_given();
        Ok(address)
    }
}

// SAFETY: the current pinned resource keeps the contract for its blocks.
unsafe impl HostAllocator for MappedAlloc {
    #[inline(always)]
    fn allocate_fast(&self, layout: Layout) -> Option<NonNull<[u8]>> {
        registry::allocate_fast(layout, true)
    }

    fn allocate_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        not_forked("page-locked memory")?;
        let current = registry::load()?;
        let resource = current.upstream();
        if !resource.device().properties().map_host_memory {
            return Err(cannot_map(resource.device()));
        }
        if !resource.is_mapped() {
            let message = "the current pinned resource is not mapped";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_advice("set one that was built with mapped(true)"));
        }
        current.allocate_slow(layout)
    }
}

implement_allocators!([] MappedAlloc);
