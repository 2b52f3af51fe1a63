//! Page-locked memory of one device, each block from the driver.

use super::address_map::{self, device_address_and_range};
use super::allocator::{HostAllocator, implement_allocators};
use super::numa::require_placement;
use super::source::{HostSource, not_mapped};
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{BackendKind, HostFlags, not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{DeviceLayout, impossible};
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible, ResourceId, setters};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicUsize, Ordering};
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;

/// Page-locked host memory of one device. It is an allocator for the host's collections, and a [`DeviceResource`] whose
/// memory both sides reach. It is also a handle, whose clones are the same resource.
///
/// RMM has `pinned_host_memory_resource`, which lacks the options.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, pinned::PinnedResource};
///
/// let pinned = PinnedResource::new(&Device::detect_or_simulate()?)?;
/// let mut vec: Vec<f32, PinnedResource> = Vec::new_in(pinned.clone());
/// vec.extend([1.0, 2.0]);
/// drop(vec);
/// pinned.trim()?; // freed blocks wait for the device; now they are unpinned
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PinnedResource {
    source: Arc<HostSource>,
}

/// The options of a [`PinnedResource`], from [`PinnedResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PinnedOptions {
    device: Device,
    portable: bool,
    mapped: bool,
    write_combined: bool,
    touch_threads: usize,
    numa_node: Option<u32>,
    is_of_process: bool,
}

impl PinnedOptions {
    setters! {
        /// Whether the memory is page-locked for every context, not for its own device's alone. The default is on.
        portable: bool;

        /// Whether kernels of the device reach it by a device address. The default is on where the device can.
        mapped: bool;

        /// Whether the memory is write-combined, so that the CPU's writes bypass its caches. The default is off, and on
        /// is seldom right. Reading such memory with the CPU was measured 70 times slower than reading ordinary
        /// page-locked memory, and a `Vec` or a map reads its elements. (In cudarc's issue 580, 20 MiB took 1,287 ms in
        /// place of 18.8 ms.)
        write_combined: bool;

        /// The threads that touch fresh blocks of 16 MiB and more, before the driver locks them. The default is the
        /// number of cores, and 8 at most. With 0, the default on a simulated device, the driver makes all memory, on
        /// one thread.
        ///
        /// Such a block is huge pages on the NUMA node of the device. On an H200 machine with driver 580, 4 GiB took
        /// 0.3 s by 8 threads and 1.7 s by the driver. A fork copies them for the child, which took 0.8 s for 1 GiB. The
        /// child shares the driver's memory with its parent instead. So take 0 for a process that forks workers.
        ///
        /// The driver makes the memory where the system lacks a step, which an event at `debug` names. Blocks on a
        /// [named node](Self::numa_node) are touched by one thread at least, and are never the driver's.
        touch_threads: usize;

        /// The NUMA node of all blocks, of any size. A pool over the resource has its memory there, too. By default, blocks of
        /// 16 MiB and more are on the device's node, and smaller ones where the driver makes them. Pages of another node
        /// serve where it has none left. A memory manager of the process places its blocks itself.
        ///
        /// ```
        /// use allocator_api2::vec::Vec;
        /// use aquifer::{Device, ErrorKind, pinned::{PinnedPool, PinnedResource}};
        ///
        /// let device = Device::detect_or_simulate()?;
        /// # if cfg!(target_os = "linux") {
        /// // A container may refuse to place memory: ErrorKind::Unsupported.
        /// if let Ok(on_node) = PinnedResource::builder(&device).numa_node(0).build() {
        ///     let pool = PinnedPool::new(on_node)?;
        ///     let mut vec: Vec<u8, PinnedPool> = Vec::with_capacity_in(4096, pool);
        ///     vec.push(1);
        /// }
        /// let none = PinnedResource::builder(&device).numa_node(1000).build();
        /// assert!(matches!(none.unwrap_err().kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported));
        /// # }
        /// # Ok::<(), aquifer::Error>(())
        /// ```
        numa_node: u32 => Some;
    }

    /// Builds the resource.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unsupported`] if mapped memory was asked and the device cannot map, or a NUMA node where the system or
    ///   the driver places no memory.
    /// - [`ErrorKind::InvalidArgument`] for a NUMA node that the machine does not have.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    pub fn build(self) -> Result<PinnedResource> {
        let Self { device, portable, mapped, write_combined, .. } = self;
        if mapped && !device.properties().map_host_memory {
            return Err(cannot_map(&device));
        }
        not_forked("page-locked memory")?;
        let flags = HostFlags { portable, mapped, write_combined, read_only: false };
        if let Some(node) = self.numa_node {
            require_placement(&device, flags, node)?;
        }
        let mut source = HostSource::new(&device, flags);
        source.touch_threads = AtomicUsize::new(self.touch_threads);
        source.numa_node = self.numa_node;
        source.is_of_process = self.is_of_process;
        Ok(PinnedResource { source: Arc::new(source) })
    }
}

#[cfg(target_os = "linux")]
fn default_touch_threads() -> usize {
    super::huge_pages::default_threads()
}

#[cfg(not(target_os = "linux"))]
fn default_touch_threads() -> usize {
    0
}

pub(super) fn cannot_map(device: &Device) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{device} cannot map host memory"))
        .with_advice("copy to the device instead")
}

impl PinnedResource {
    /// Page-locked memory of `device`, which is portable, mapped where the device can, and not write-combined.
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
            portable: true,
            mapped,
            write_combined: false,
            touch_threads: match device.kind() {
                BackendKind::Simulated => 0,
                _ => default_touch_threads(),
            },
            numa_node: None,
            is_of_process: false,
        }
    }

    /// Like [`new`](Self::new), under the default pool of the process.
    pub(super) fn of_process(device: &Device) -> Result<Self> {
        PinnedOptions { is_of_process: true, ..Self::builder(device) }.build()
    }

    /// Changes the threads that touch fresh blocks ([`PinnedOptions::touch_threads`]), from the next block on.
    pub fn set_touch_threads(&self, threads: usize) {
        // Relaxed: a choice, which orders nothing.
        self.source.touch_threads.store(threads, Ordering::Relaxed);
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.source.flags.mapped
    }

    /// Waits until the device is past all its work, and unpins every block that was freed.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Capture`] while a stream is in capture, which waiting would invalidate.
    /// - [`ErrorKind::ContextLost`] while freed blocks wait for a device that is lost, which leaks them.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    pub fn trim(&self) -> Result<()> {
        self.source.trim()
    }

    pub(super) fn source(&self) -> &Arc<HostSource> {
        &self.source
    }
}

// SAFETY: the driver's blocks are disjoint and as large as asked; the address map keeps each with its
// source until it is freed.
unsafe impl HostAllocator for PinnedResource {
    fn allocate_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        let memory = address_map::allocate(&self.source, layout, None)?;
        Ok(NonNull::slice_from_raw_parts(memory.start, layout.size()))
    }
}

implement_allocators!([] PinnedResource);

impl fmt::Debug for PinnedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = self.source.flags;
        f.debug_struct("PinnedResource")
            .field("device", &self.source.device)
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
        &self.source.device
    }

    fn identity(&self) -> ResourceId {
        let flags = self.source.flags;
        let kind = [flags.portable, flags.mapped, flags.write_combined];
        let kind = kind.iter().fold(0, |bits, flag| bits << 1 | u64::from(*flag));
        ResourceId::of_device::<Self>(self.device(), kind)
    }

    #[track_caller]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let _site = CallSite::enter();
        allocate_device_block(self, self, stream, layout)
    }

    #[track_caller]
    unsafe fn deallocate(&self, _stream: &Stream, block: DeviceBlock) {
        let _site = CallSite::enter();
        if !block.is_empty() {
            // SAFETY: the caller gives the block up; the fence comes after all work given so far,
            // on any stream.
            unsafe { self.free_slow(self.host_pointer(&block), Layout::new::<u8>()) }
        }
    }
}

/// Allocates a block that both sides reach, of an allocator over `resource`. Its token is the host's
/// address.
pub(super) fn allocate_device_block(
    allocator: &impl HostAllocator,
    resource: &PinnedResource,
    stream: &Stream,
    layout: DeviceLayout,
) -> Result<DeviceBlock> {
    resource.device().require(stream.device(), "the stream")?;
    if layout.bytes() == 0 {
        return Ok(DeviceBlock::empty(layout));
    }
    if !resource.is_mapped() {
        return Err(not_mapped());
    }
    let host_layout = Layout::from_size_align(layout.bytes(), layout.alignment())
        .map_err(|_| impossible(layout.bytes(), layout.alignment()))?;
    let block = match allocator.allocate_fast(host_layout) {
        Some(block) => block,
        None => allocator.allocate_slow(host_layout)?,
    };
    let pointer = block.cast::<u8>();
    match device_address_and_range(pointer) {
        Ok((address, _)) => {
            resource.device().note_host_address_given();
            Ok(DeviceBlock::new(address, layout.bytes(), token(pointer)))
        }
        Err(error) => {
            // SAFETY: allocated above, and nothing else has the pointer.
            unsafe { allocator.free_slow_or_empty(pointer, host_layout) };
            Err(error)
        }
    }
}

/// The token of a block at this address of the host.
pub(super) fn token(pointer: NonNull<u8>) -> u64 {
    pointer.expose_provenance().get() as u64
}

/// The pointer behind a block whose token is its address on the host.
pub(super) fn host_pointer(block: &DeviceBlock) -> NonNull<u8> {
    let address = if block.is_empty() { block.address() } else { block.token() };
    let pointer = std::ptr::with_exposed_provenance_mut(address as usize);
    NonNull::new(pointer).unwrap_or(NonNull::dangling())
}

// SAFETY: a freed block waits for a fence of every context; its host address, the token, is all of it.
unsafe impl HostAccessible for PinnedResource {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        host_pointer(block)
    }

    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock {
        DeviceBlock::new(token(pointer), layout.bytes(), token(pointer))
    }
}
