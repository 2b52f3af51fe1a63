//! Page-locked memory as an allocator and as a resource.

use super::allocator::{deallocate, implement_by_map};
use super::current::{self, CurrentPinned};
use super::mapped::host_layout;
use super::pool::PinnedPool;
use super::source::HostSource;
use crate::backend::{HostFlags, Wanted, not_forked};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible, HostComplete, ResourceId};
use crate::stream::Stream;
use crate::sync::Arc;
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;

/// The process's page-locked memory, as [`std::alloc::Global`] is its heap.
///
/// New blocks come from the [current pinned resource](crate::current_pinned_resource); a block goes
/// back to where it came from, whatever is current then. The first use opens the
/// [detected device](Device::detect). A failure is an `AllocError`; its reason is in
/// [`last_error`](crate::last_error). As on the heap, a `Vec` that has to grow and cannot ends the
/// process: where there may be no driver or no room, use `try_reserve`.
///
/// A block that is freed waits until every device context is past the work that it had at that
/// time, so a `Vec` may be dropped while another library still copies from it. A copy *into* memory
/// that was freed, or a write by the host while a copy reads, is not covered: see
/// [`Transfer`](crate::Transfer) for copies that own their buffers.
///
/// Unless said otherwise that is a [`PinnedPool`](crate::PinnedPool) over memory of that device: an
/// allocation costs nanoseconds once the pool is warm, where the driver takes a millisecond for each
/// three megabytes.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::PinnedAlloc;
///
/// let mut vec: Vec<u8, PinnedAlloc> = Vec::with_capacity_in(4096, PinnedAlloc);
/// vec.extend_from_slice(b"in page-locked memory");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PinnedAlloc;

impl PinnedAlloc {
    fn obtain(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        if layout.size() == 0 {
            return Ok(NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0));
        }
        not_forked("page-locked memory")?;
        current::look()?.obtain(layout)
    }

    #[inline(always)]
    fn warm(&self, layout: Layout) -> Option<NonNull<[u8]>> {
        current::warm(layout, false)
    }
}

implement_by_map!(PinnedAlloc);

/// Page-locked host memory of one device: an allocator for the host's collections, and a
/// [`DeviceResource`] whose memory both sides reach. A handle: clones are the same resource.
///
/// RMM: `pinned_host_memory_resource`, with the options it lacks.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, PinnedResource};
///
/// let pinned = PinnedResource::new(&Device::detect()?)?;
/// let mut vec: Vec<f32, PinnedResource> = Vec::new_in(pinned.clone());
/// vec.extend([1.0, 2.0]);
/// drop(vec);
/// pinned.trim()?; // freed blocks wait for the device; now they are unpinned
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct PinnedResource {
    source: Arc<HostSource>,
}

/// How page-locked memory is made. From [`PinnedResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PinnedOptions {
    device: Device,
    flags: HostFlags,
}

impl PinnedOptions {
    /// Page-locked for every context, not for its own device's alone. On unless said otherwise.
    pub fn portable(mut self, portable: bool) -> Self {
        self.flags.portable = portable;
        self
    }

    /// Kernels of the device reach it by a device address. On where the device can, unless said
    /// otherwise.
    pub fn mapped(mut self, mapped: bool) -> Self {
        self.flags.mapped = mapped;
        self
    }

    /// Write-combined: the CPU's writes bypass its caches. Off unless said otherwise, and seldom
    /// right: reading such memory with the CPU was measured 70 times slower than reading ordinary
    /// page-locked memory (cudarc issue 580, 18.8 ms against 1,287 ms for 20 MiB), and a `Vec` or a
    /// map reads what it holds.
    pub fn write_combined(mut self, write_combined: bool) -> Self {
        self.flags.write_combined = write_combined;
        self
    }

    /// The resource.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if mapped memory was asked and the device cannot map;
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn build(self) -> Result<PinnedResource> {
        if self.flags.mapped && !self.device.properties().map_host_memory {
            return Err(cannot_map(&self.device));
        }
        not_forked("page-locked memory")?;
        Ok(PinnedResource { source: HostSource::new(&self.device, self.flags) })
    }
}

pub(super) fn cannot_map(device: &Device) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{device} cannot map host memory"))
        .advise("copy to the device instead")
}

impl PinnedResource {
    /// Page-locked memory of `device`: portable, mapped where the device can, not write-combined.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn new(device: &Device) -> Result<Self> {
        Self::builder(device).build()
    }

    /// The options, as [`new`](Self::new) sets them.
    pub fn builder(device: &Device) -> PinnedOptions {
        let mapped = device.properties().map_host_memory;
        PinnedOptions {
            device: device.clone(),
            flags: HostFlags { portable: true, mapped, write_combined: false },
        }
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.source.flags().mapped
    }

    /// Waits until the device is past all its work, and unpins every block that was freed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] while a stream is in capture, which waiting would invalidate;
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn trim(&self) -> Result<()> {
        self.source.trim()
    }

    pub(super) fn source(&self) -> &Arc<HostSource> {
        &self.source
    }

    /// Whether kernels reach it, or why not.
    pub(super) fn require_mapped(&self) -> Result<()> {
        if self.is_mapped() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            "this page-locked memory is not mapped, so no kernel reaches it",
        )
        .advise("build the resource with mapped(true)"))
    }

    pub(super) fn obtain(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        self.source.allocate(layout)
    }

    #[inline(always)]
    fn warm(&self, _layout: Layout) -> Option<NonNull<[u8]>> {
        None
    }
}

implement_by_map!(PinnedResource);

impl PartialEq for PinnedResource {
    fn eq(&self, other: &Self) -> bool {
        self.source.same(&other.source)
    }
}

impl Eq for PinnedResource {}

impl fmt::Debug for PinnedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = self.source.flags();
        f.debug_struct("PinnedResource")
            .field("device", self.source.device())
            .field("portable", &flags.portable)
            .field("mapped", &flags.mapped)
            .field("write_combined", &flags.write_combined)
            .finish()
    }
}

// SAFETY: the driver's blocks are disjoint; a freed one is not handed out again before a fence of
// the whole context has passed, which is later than any stream's order. The token is the host's
// address.
unsafe impl DeviceResource for PinnedResource {
    fn device(&self) -> &Device {
        self.source.device()
    }

    fn identity(&self) -> ResourceId {
        let flags = self.source.flags();
        let kind = [flags.portable, flags.mapped, flags.write_combined];
        let kind = kind.iter().fold(0, |bits, flag| bits << 1 | u64::from(*flag));
        ResourceId::of_device::<Self>(self.device(), kind)
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device().require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        self.require_mapped()?;
        let host_layout = host_layout(layout)?;
        let pointer = self.obtain(host_layout)?.cast::<u8>();
        match super::mapped::address_of(pointer) {
            Ok(address) => {
                let token = pointer.expose_provenance().get() as u64;
                Ok(DeviceBlock::new(address, layout.bytes(), token))
            }
            Err(error) => {
                // SAFETY: allocated above, and given to nobody.
                unsafe { deallocate(pointer, host_layout) };
                Err(error)
            }
        }
    }

    unsafe fn deallocate(&self, _stream: &Stream, block: DeviceBlock) {
        if !block.is_empty() {
            // SAFETY: the caller gives the block up; the fence comes after all work given so far,
            // on any stream.
            unsafe { deallocate(self.host_pointer(&block), Layout::new::<u8>()) }
        }
    }
}

// SAFETY: the token is the host's address of the block, valid until it is released.
unsafe impl HostAccessible for PinnedResource {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        host_pointer(block)
    }
}

/// The pointer behind a block whose token is its address on the host.
pub(super) fn host_pointer(block: &DeviceBlock) -> NonNull<u8> {
    let address = if block.is_empty() { block.address() } else { block.token() };
    let pointer = std::ptr::with_exposed_provenance_mut(address as usize);
    NonNull::new(pointer).unwrap_or(NonNull::dangling())
}

// SAFETY: released blocks wait for a fence of every context before they are handed out again, and
// a block's host address is all that `deallocate` needs.
unsafe impl HostComplete for PinnedResource {
    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock {
        let token = pointer.expose_provenance().get() as u64;
        DeviceBlock::new(token, layout.bytes(), token)
    }
}

/// The page-locked memory that [`PinnedAlloc`] uses when nothing else is current.
pub(crate) fn default_pinned() -> Result<CurrentPinned> {
    PinnedPool::new(PinnedResource::new(&Device::detect()?)?).map(CurrentPinned::Pool)
}

/// Asks the driver for the device's address of a mapped block.
pub(super) fn mapped_base(source: &HostSource, base: NonNull<u8>) -> Result<u64> {
    if !source.flags().mapped {
        return Err(Error::new(ErrorKind::Unsupported, "the block is page-locked and not mapped")
            .advise("use MappedAlloc, or a PinnedResource built with mapped(true)"));
    }
    source
        .device()
        .driver()
        .host_device_address(base)
        .wanted(|| "asking for the device's address of a mapped block")
}
