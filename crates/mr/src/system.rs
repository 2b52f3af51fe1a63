//! Ordinary host memory that the device reads where it lies.

use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{DeviceRange, ErrorContext, PreferredLocation, is_forked_child, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::inside::deferred;
use crate::inside::{DeviceInside, StreamInside};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout, impossible};
use crate::resource::block::DeviceBlock;
use crate::resource::cuda::{report_failed_free, report_leak};
use crate::resource::device_resource::DeviceResource;
use crate::resource::identity::ResourceId;
use crate::resource::impls::{equal_by_identity, setters};
use crate::stream::Stream;
use std::alloc::Layout;
use std::ptr::NonNull;

/// The largest page of any system whose GPUs read its memory. Advice is for whole pages.
const PAGE: usize = 1 << 16;

/// Collections of deferred frees before an allocation fails. Each frees a few blocks.
const COLLECTIONS: usize = 64;

/// Ordinary memory of the host, from its own allocator, which the GPU reads where it lies. It needs a
/// system where both share an address space, such as Grace Hopper, or where Linux moves the pages (HMM).
///
/// A later call of this crate returns a freed block to the host's allocator, so no call waits. It does so when the
/// device has passed the work that the block's stream was given, and after its capture. So a program that runs far
/// ahead of the device holds what it freed meanwhile. Where the host's allocator has no more, an
/// allocation waits for its stream and tries again. All instances on one device are equal.
///
/// RMM calls it `system_memory_resource`, which waits for the stream in each free. RMM also has
/// `sam_headroom_memory_resource`, whose advice stays on the pages when they are the host's again.
///
/// ```
/// use aquifer::{Device, DeviceVec, ErrorKind, mr::SystemResource};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// match SystemResource::new(&device) {
///     Ok(system) => {
///         let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, system)?;
///         assert_eq!(vec.to_vec()?, [0; 100]);
///     }
///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
/// }
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SystemResource {
    device: Device,
    headroom: Option<usize>,
}

/// The options of a [`SystemResource`], from [`SystemResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SystemOptions {
    device: Device,
    headroom: Option<usize>,
}

impl SystemOptions {
    setters! {
        /// Bytes of the device that each new block is to leave free. The resource advises the driver
        /// to place as much of the block on the device as fits beside them, and the rest on the
        /// host. It counts the memory that the device has free when the block is made, as RMM does.
        /// Blocks without a touched page have no place yet, so several may count on the same room.
        /// The driver need not take the advice. With this option blocks are whole pages of 64 KiB.
        /// By default there is no advice.
        ///
        /// ```
        /// use aquifer::{Device, mr::SystemResource};
        ///
        /// let device = Device::detect_or_simulate()?;
        /// let system = SystemResource::builder(&device).headroom(1 << 30).build();
        /// assert_eq!(system.is_ok(), device.properties().pageable_memory_access);
        /// # Ok::<(), aquifer::Error>(())
        /// ```
        headroom: usize => Some;
    }

    /// The resource.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where kernels do not reach ordinary memory
    /// ([`pageable_memory_access`](crate::device::DeviceProperties::pageable_memory_access)).
    pub fn build(self) -> Result<SystemResource> {
        let Self { device, headroom } = self;
        ensure!(
            device.properties().pageable_memory_access,
            Unsupported,
            "use ManagedResource, or PinnedResource",
            "kernels of {device} do not reach ordinary host memory"
        );
        Ok(SystemResource { device, headroom })
    }
}

impl SystemResource {
    /// The host's ordinary memory, for kernels of `device`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where they do not reach it.
    pub fn new(device: &Device) -> Result<Self> {
        Self::builder(device).build()
    }

    /// The options, as [`new`](Self::new) sets them.
    pub fn builder(device: &Device) -> SystemOptions {
        SystemOptions { device: device.clone(), headroom: None }
    }

    /// The host's address of a block's first byte. Dangling, and aligned, for an empty block.
    ///
    /// The pointer is valid for the block's bytes until the block is deallocated. The host may read what the device
    /// has written when that work is complete, and write what no work in flight uses. So synchronize with each stream
    /// that uses the block first. A new block has no such work.
    pub fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        block.host_pointer()
    }

    /// A new block. If there is none, waits for the stream and collects what was freed on it.
    fn obtain(&self, stream: &Stream, layout: Layout) -> Result<SystemMemory> {
        match SystemMemory::new(&self.device, layout) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && !stream.is_capturing()? => {
                stream.synchronize_uncaptured()?;
                for _ in 0..COLLECTIONS {
                    deferred::collect_blocks();
                    if let Ok(memory) = SystemMemory::new(&self.device, layout) {
                        return Ok(memory);
                    }
                }
                Err(error)
            }
            made => made,
        }
    }

    /// Advises the driver where to place a new block.
    fn advise(&self, memory: &mut SystemMemory, headroom: usize) -> Result<()> {
        let free = self.device.memory_info()?.free.saturating_sub(headroom);
        let bytes = memory.layout.size();
        let on_device = free.min(bytes) / PAGE * PAGE;
        memory.advised = true;
        for (start, bytes, location) in [
            (0, on_device, PreferredLocation::Device),
            (on_device, bytes - on_device, PreferredLocation::Host),
        ] {
            if bytes > 0 {
                let range = DeviceRange { address: memory.address() + start as u64, bytes };
                // SAFETY: inside the block, which is live.
                unsafe { self.device.driver().advise(range, location) }.with_context(|| {
                    format!(
                        "advising the driver where {} lie best on {}",
                        Count(bytes, "byte"),
                        self.device
                    )
                })?;
            }
        }
        Ok(())
    }
}

equal_by_identity!(SystemResource);

/// Owns a block of the host's allocator that is attached to the device.
struct SystemMemory {
    device: Device,
    pointer: NonNull<u8>,
    layout: Layout,
    advised: bool,
}

// SAFETY: the only owner of its block.
unsafe impl Send for SystemMemory {}

impl SystemMemory {
    fn new(device: &Device, layout: Layout) -> Result<Self> {
        // SAFETY: the caller asks for a byte at least.
        let pointer = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(|| {
            let bytes = layout.size();
            Error::new(
                ErrorKind::OutOfMemory,
                format!("allocating {} of ordinary memory for {device}", Count(bytes, "byte")),
            )
            .with_advice("ask for less: the host has no room for it")
        })?;
        // SAFETY: allocated above, and detached before it is freed.
        if let Err(error) = unsafe { device.driver().pageable_attach(pointer, layout.size()) } {
            // SAFETY: allocated above with this layout, and not used.
            unsafe { std::alloc::dealloc(pointer.as_ptr(), layout) };
            return Err(error)
                .with_context(|| format!("giving {device} a block of the host's memory"));
        }
        Ok(Self { device: device.clone(), pointer, layout, advised: false })
    }

    fn address(&self) -> u64 {
        self.pointer.expose_provenance().get() as u64
    }

    /// Gives up ownership. The token is the alignment, a power of two above one, and in the lowest bit
    /// whether the driver was advised.
    fn into_block(self) -> DeviceBlock {
        let token = self.layout.align() as u64 | u64::from(self.advised);
        let block = DeviceBlock::new(self.address(), self.layout.size(), token);
        std::mem::forget(self);
        block
    }

    /// # Safety
    ///
    /// `block` came from [`into_block`](Self::into_block), and is given back once.
    unsafe fn from_block(device: &Device, block: &DeviceBlock) -> Option<Self> {
        let (align, advised) = ((block.token() & !1) as usize, block.token() & 1 == 1);
        let layout = Layout::from_size_align(block.bytes(), align).ok()?;
        let pointer = std::ptr::with_exposed_provenance_mut(block.address() as usize);
        Some(Self { device: device.clone(), pointer: NonNull::new(pointer)?, layout, advised })
    }

    fn leak(self, error: &Error) {
        report_leak(&self.device, self.layout.size(), error);
        std::mem::forget(self);
    }
}

impl Drop for SystemMemory {
    fn drop(&mut self) {
        if is_forked_child() {
            return;
        }
        let (driver, bytes) = (self.device.driver(), self.layout.size());
        if self.advised {
            let range = DeviceRange { address: self.address(), bytes };
            // The pages' next owner gives no advice. A failure costs speed alone.
            // SAFETY: the block is live until it is freed below.
            let _ = unsafe { driver.advise(range, PreferredLocation::Any) };
        }
        // SAFETY: attached by `new`; `deallocate` defers the drop until no work uses the block.
        match unsafe { driver.pageable_detach(self.pointer) } {
            // SAFETY: allocated with this layout, and freed once.
            Ok(()) => unsafe { std::alloc::dealloc(self.pointer.as_ptr(), self.layout) },
            Err(error) => report_failed_free(&self.device, bytes, &error),
        }
    }
}

// SAFETY: the host's allocator hands out disjoint blocks; one goes back to it when the device has
// passed an event after all its work, so it is handed out again later than any order asks.
unsafe impl DeviceResource for SystemResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, 0)
    }

    #[track_caller]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let _site = CallSite::enter();
        self.device.require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        not_forked("ordinary memory")?;
        deferred::collect_blocks();
        let minimum = if self.headroom.is_some() { PAGE } else { DEFAULT_ALIGNMENT };
        let alignment = layout.alignment().max(minimum);
        let wanted = Layout::from_size_align(layout.bytes(), alignment)
            .map_err(|_| impossible(layout.bytes(), layout.alignment()))?;
        let Some(headroom) = self.headroom else {
            return self.obtain(stream, wanted).map(SystemMemory::into_block);
        };
        let mut memory = self.obtain(stream, wanted.pad_to_align())?;
        self.advise(&mut memory, headroom)?;
        Ok(memory.into_block())
    }

    #[track_caller]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let _site = CallSite::enter();
        if block.is_empty() || is_forked_child() {
            return;
        }
        // SAFETY: the caller vouches for the block.
        let Some(memory) = (unsafe { SystemMemory::from_block(&self.device, &block) }) else {
            return;
        };
        stream.free_block_later(move |passed| match passed {
            Ok(()) => drop(memory),
            Err(error) => memory.leak(&error),
        });
    }
}
