//! Ordinary host memory that the device reads where it lies.

use super::cuda::{leaked, lost, passed_all};
use super::{DeviceBlock, DeviceResource, HostAccessible, ResourceId};
use crate::backend::{PreferredHome, Wanted, is_forked_child, not_forked};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::stream::{Stream, graveyard};
use crate::sync::Arc;
use std::alloc::Layout;
use std::ptr::NonNull;

/// The largest page of any system whose GPUs read its memory: advice is given for whole ones.
const PAGE: usize = 1 << 16;

/// Times that freed blocks are looked for before an allocation fails.
const LOOKS: usize = 64;

/// Ordinary memory of the host, from its own allocator, which the GPU reads where it lies: on
/// systems where both share an address space, as Grace Hopper, or where Linux moves the pages (HMM).
///
/// Nothing waits: a block that is freed is kept until the device has passed what its stream was
/// given, and goes back to the host's allocator in a later call of this crate. In a capture that is
/// after its end. So a program that runs far ahead of the device holds what it freed meanwhile; where
/// the host's allocator has no more, an allocation waits for its stream and tries again. Every instance
/// on one device is equal.
///
/// RMM: `system_memory_resource`, which waits for the stream in each free, and
/// `sam_headroom_memory_resource`, whose advice stays on the pages when they are the host's again.
///
/// ```
/// use aquifer::{Device, DeviceVec, ErrorKind, SystemResource};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// match SystemResource::new(&device) {
///     Ok(system) => {
///         let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, Arc::new(system))?;
///         assert_eq!(vec.to_vec()?, [0; 100]);
///     }
///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
/// }
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SystemResource {
    device: Device,
    headroom: Option<u64>,
}

/// How ordinary memory is asked for. From [`SystemResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SystemOptions {
    device: Device,
    headroom: Option<u64>,
}

impl SystemOptions {
    /// Bytes of the device that each new block is to leave free: as much of it as fits in the rest is
    /// best on the device, and what does not is best on the host. It is what the device has free when
    /// the block is made that counts: blocks that nobody has touched yet are in no place, and several
    /// may be promised the same room. It is advice, which the driver need not take. Blocks are whole
    /// pages of 64 KiB then. Without it, nothing is said of where memory is best. RMM's looks at the same
    /// figure.
    ///
    /// ```
    /// use aquifer::{Device, SystemResource};
    ///
    /// let device = Device::detect()?;
    /// let system = SystemResource::builder(&device).headroom(1 << 30).build();
    /// assert_eq!(system.is_ok(), device.properties().pageable_memory_access);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn headroom(mut self, bytes: u64) -> Self {
        self.headroom = Some(bytes);
        self
    }

    /// The resource.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where kernels do not reach ordinary memory
    /// ([`pageable_memory_access`](crate::DeviceProperties::pageable_memory_access)).
    pub fn build(self) -> Result<SystemResource> {
        let Self { device, headroom } = self;
        if !device.properties().pageable_memory_access {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("kernels of {device} do not reach ordinary host memory"),
            )
            .advise("use ManagedResource, or PinnedResource"));
        }
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

    /// A new block. What was freed on the stream is waited for if there is none without it.
    fn obtain(&self, stream: &Stream, layout: Layout) -> Result<Memory> {
        match Memory::new(&self.device, layout) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && !stream.is_capturing()? => {
                let waited = self.device.driver().stream_synchronize(stream.raw());
                waited.wanted(|| format!("waiting for {stream}"))?;
                // A look frees a few blocks at a time, and others may be freeing too.
                for _ in 0..LOOKS {
                    graveyard::reap_blocks();
                    if let Ok(memory) = Memory::new(&self.device, layout) {
                        return Ok(memory);
                    }
                }
                Err(error)
            }
            made => made,
        }
    }

    /// Says where a new block is best.
    fn advise(&self, memory: &mut Memory, headroom: u64) -> Result<()> {
        let free = self.device.memory_info()?.free.saturating_sub(headroom);
        let bytes = memory.layout.size();
        let near = usize::try_from(free).unwrap_or(usize::MAX).min(bytes) / PAGE * PAGE;
        memory.advised = true;
        for (start, bytes, home) in
            [(0, near, PreferredHome::Device), (near, bytes - near, PreferredHome::Host)]
        {
            if bytes > 0 {
                let address = memory.address() + start as u64;
                // SAFETY: inside the block, which is live.
                unsafe { self.device.driver().advise(address, bytes, home) }
                    .wanted(|| format!("saying where {bytes} bytes are best on {}", self.device))?;
            }
        }
        Ok(())
    }
}

/// They take back each other's blocks.
impl PartialEq for SystemResource {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device
    }
}

impl Eq for SystemResource {}

/// A block of the host's allocator, known to the device. Its drop frees it.
struct Memory {
    device: Device,
    pointer: NonNull<u8>,
    layout: Layout,
    advised: bool,
}

// SAFETY: the only handle on a block that nobody else frees.
unsafe impl Send for Memory {}

impl Memory {
    fn new(device: &Device, layout: Layout) -> Result<Self> {
        // SAFETY: the caller asks for a byte at least.
        let pointer = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(|| {
            let bytes = layout.size();
            Error::new(
                ErrorKind::OutOfMemory,
                format!("allocating {bytes} bytes of ordinary memory for {device}"),
            )
            .advise("ask for less: the host has no room for it")
        })?;
        // SAFETY: allocated above, and detached before it is freed.
        if let Err(error) = unsafe { device.driver().pageable_attach(pointer, layout.size()) } {
            // SAFETY: allocated above with this layout, and given to nobody.
            unsafe { std::alloc::dealloc(pointer.as_ptr(), layout) };
            return Err(error).wanted(|| format!("giving {device} a block of the host's memory"));
        }
        Ok(Self { device: device.clone(), pointer, layout, advised: false })
    }

    fn address(&self) -> u64 {
        self.pointer.expose_provenance().get() as u64
    }

    /// The block, which owns the memory from here on. Its token is the alignment, a power of two
    /// above one, and in the lowest bit whether advice was given.
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
        lost(&self.device, self.layout.size(), error);
        std::mem::forget(self);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if is_forked_child() {
            return;
        }
        let (driver, bytes) = (self.device.driver(), self.layout.size());
        if self.advised {
            // The host's next block here is nobody's to advise. A failure costs speed alone.
            // SAFETY: the block is live until it is freed below.
            let _ = unsafe { driver.advise(self.address(), bytes, PreferredHome::Any) };
        }
        // SAFETY: attached when it was made; whoever drops it knows that no work uses it.
        match unsafe { driver.pageable_detach(self.pointer) } {
            // SAFETY: allocated with this layout, and freed once.
            Ok(()) => unsafe { std::alloc::dealloc(self.pointer.as_ptr(), self.layout) },
            Err(error) => leaked(&self.device, bytes, &error),
        }
    }
}

/// Memory that the device may still use. Dropped, it looks for an event to wait for.
struct Freed {
    memory: Option<Memory>,
    stream: Stream,
}

impl Drop for Freed {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let stream = self.stream.clone();
        match passed_all(&stream) {
            // A later call of the crate tries again.
            Ok(None) => {
                let again = Self { memory: Some(memory), stream };
                graveyard::bury_block(None, Box::new(again));
            }
            Ok(passed) => graveyard::bury_block(passed.map(Arc::new), Box::new(memory)),
            Err(error) => memory.leak(&error),
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

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device.require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        not_forked("ordinary memory")?;
        graveyard::reap_blocks();
        let least = if self.headroom.is_some() { PAGE } else { DEFAULT_ALIGNMENT };
        let alignment = layout.alignment().max(least);
        let wanted = Layout::from_size_align(layout.bytes(), alignment).map_err(|_| {
            Error::new(ErrorKind::InvalidArgument, format!("{layout:?} is no layout of the host"))
        })?;
        let Some(headroom) = self.headroom else {
            return self.obtain(stream, wanted).map(Memory::into_block);
        };
        let mut memory = self.obtain(stream, wanted.pad_to_align())?;
        self.advise(&mut memory, headroom)?;
        Ok(memory.into_block())
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if block.is_empty() || is_forked_child() {
            return;
        }
        // SAFETY: the caller vouches for the block.
        let memory = unsafe { Memory::from_block(&self.device, &block) };
        drop(Freed { memory, stream: stream.clone() });
    }
}

// SAFETY: the address is the host's own.
unsafe impl HostAccessible for SystemResource {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        let pointer = std::ptr::with_exposed_provenance_mut(block.address() as usize);
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }
}
