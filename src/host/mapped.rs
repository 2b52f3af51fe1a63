//! Host memory that kernels reach where it lies.

use super::allocator::implement_by_map;
use super::blocks::{self, Owner};
use super::current;
use super::lane::pointer_to;
use super::pinned::{cannot_map, mapped_base};
use super::source::HostSource;
use crate::backend::not_forked;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::resource::DeviceResource;
use std::alloc::Layout;
use std::ptr::NonNull;

/// The process's mapped memory: page-locked, and reached by kernels where it lies.
///
/// As [`PinnedAlloc`](crate::PinnedAlloc), from the current pinned resource, and an `AllocError`
/// where that resource or its device cannot map. [`device_address`](Self::device_address) gives
/// the device's address of anything that lives in such memory;
/// [`Scope::map`](crate::Scope::map) and [`Scope::map_mut`](crate::Scope::map_mut) make it a kernel
/// argument that the host cannot touch meanwhile.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::MappedAlloc;
///
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
    fn obtain(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        if layout.size() == 0 {
            return Ok(NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0));
        }
        not_forked("page-locked memory")?;
        let current = current::look()?;
        let resource = current.upstream();
        if !resource.device().properties().map_host_memory {
            return Err(cannot_map(resource.device()));
        }
        if !resource.is_mapped() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the current pinned resource is not mapped",
            )
            .advise("set one that was built with mapped(true)"));
        }
        current.obtain(layout)
    }

    #[inline(always)]
    fn warm(&self, layout: Layout) -> Option<NonNull<[u8]>> {
        current::warm(layout, true)
    }

    /// The device's address of the first byte of `data`, which lives in mapped memory: what a
    /// [`MappedAlloc`] `Vec`, `Box` or slice holds, or memory of a
    /// [`PinnedResource`](crate::PinnedResource) or [`PinnedPool`](crate::PinnedPool) that is mapped. The address is the resource's device's, valid while the block lives.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `data` is not in page-locked memory of this crate, or has
    /// no bytes; [`ErrorKind::Unsupported`] if that memory is not mapped.
    pub fn device_address<T>(data: &[T]) -> Result<u64> {
        if size_of_val(data) == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "an empty slice has no address"));
        }
        address_of(NonNull::from(data).cast())
    }
}

implement_by_map!(MappedAlloc);

/// The device's address of a byte in a mapped block.
pub(super) fn address_of(pointer: NonNull<u8>) -> Result<u64> {
    not_forked("page-locked memory")?;
    let block = blocks::find(pointer.addr().get()).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{pointer:p} is not in page-locked memory of this crate"),
        )
        .advise("use memory from MappedAlloc")
    })?;
    let offset = (pointer.addr().get() - block.base) as u64;
    let asked = |source: &HostSource| {
        let base = pointer_to(block.base).unwrap_or(pointer);
        mapped_base(source, base)
    };
    let base = match &block.owner {
        Owner::Source(source) => asked(source)?,
        Owner::Slab(slab) => match slab.device_address.get() {
            Some(base) => *base,
            // Two threads that ask at once get one answer.
            None => {
                let base = asked(&slab.core.source)?;
                *slab.device_address.get_or_init(|| base)
            }
        },
    };
    Ok(base + offset)
}

/// The layout on the host of a block that both sides reach.
pub(super) fn host_layout(layout: DeviceLayout) -> Result<Layout> {
    Layout::from_size_align(layout.bytes(), layout.alignment()).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, format!("{layout:?} is no layout of the host"))
    })
}

/// The device's address of mapped memory, and the device whose address it is.
pub(crate) fn device_address(pointer: NonNull<u8>) -> Result<(u64, Device)> {
    let address = address_of(pointer)?;
    let device = blocks::find(pointer.addr().get()).map(|block| match block.owner {
        Owner::Source(source) => source.device().clone(),
        Owner::Slab(slab) => slab.core.source.device().clone(),
    });
    device.map(|device| (address, device)).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, format!("{pointer:p} was freed meanwhile"))
    })
}
