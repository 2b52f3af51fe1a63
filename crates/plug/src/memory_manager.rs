//! NBEP 7's interface of a memory manager.

use super::ipc::IpcHandle;
use super::pending::DeferCleanup;
use super::pointers::{MemoryPointer, PinnedMemory};
use crate::driver::{HostFlags, MemoryInfo};
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::stream::Stream;
use std::fmt;
use std::ptr::NonNull;

/// The version of the interface that [`MemoryManager`] is, the first of NBEP 7.
pub const INTERFACE_VERSION: u32 = 1;

/// The properties of page-locked memory that a manager is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostAllocFlags {
    pub(super) flags: HostFlags,
}

impl HostAllocFlags {
    /// Memory that is page-locked for the device's own context alone, and not mapped.
    pub const fn new() -> Self {
        Self {
            flags: HostFlags {
                portable: false,
                mapped: false,
                write_combined: false,
                read_only: false,
            },
        }
    }

    /// Whether the device can address it.
    #[must_use]
    pub const fn mapped(mut self, mapped: bool) -> Self {
        self.flags.mapped = mapped;
        self
    }

    /// Whether it is page-locked for every context.
    #[must_use]
    pub const fn portable(mut self, portable: bool) -> Self {
        self.flags.portable = portable;
        self
    }

    /// Whether the host's writes bypass its caches. Such memory is faster to copy from,
    /// and slow for the host to read.
    #[must_use]
    pub const fn write_combined(mut self, write_combined: bool) -> Self {
        self.flags.write_combined = write_combined;
        self
    }

    /// Whether the device can address it.
    pub const fn is_mapped(self) -> bool {
        self.flags.mapped
    }

    /// Whether it is page-locked for every context.
    pub const fn is_portable(self) -> bool {
        self.flags.portable
    }

    /// Whether the host's writes bypass its caches.
    pub const fn is_write_combined(self) -> bool {
        self.flags.write_combined
    }
}

/// The memory of one device, for a process that uses it in place of Aquifer's own. NBEP 7
/// calls it `BaseCUDAMemoryManager`.
///
/// [`set_memory_manager`](crate::nbep7::set_memory_manager) and
/// [`register_memory_manager`](crate::nbep7::register_memory_manager) choose one. Each device that is used has an instance
/// of its own. A manager of device memory alone implements [`DeviceMemoryManager`](crate::nbep7::DeviceMemoryManager), and
/// [`HostOnly`](crate::nbep7::HostOnly) does the rest.
///
/// | NBEP 7 | here |
/// |---|---|
/// | `initialize` | [`initialize`](Self::initialize) |
/// | `memalloc(size)` | [`memalloc`](Self::memalloc), with the stream and the alignment |
/// | `memhostalloc(size, mapped, portable, wc)` | [`memhostalloc`](Self::memhostalloc) |
/// | `mempin(owner, pointer, size, mapped)` | [`mempin`](Self::mempin); the caller keeps the owner |
/// | `get_memory_info()` | [`memory_info`](Self::memory_info) |
/// | `get_ipc_handle(memory)` | [`ipc_handle`](Self::ipc_handle) |
/// | `reset()` | [`reset`](Self::reset) |
/// | `defer_cleanup()` | [`defer_cleanup`](Self::defer_cleanup), a guard |
/// | `interface_version` | [`interface_version`](Self::interface_version) |
/// | finalizers without arguments | [`MemoryPointer`]'s has the stream in whose order it frees |
///
/// Streams, events and modules stay Aquifer's and cudarc's.
///
/// **Inside of a manager's calls** and finalizers, containers need a resource by name. Without one they
/// would ask the manager itself, which is [`ErrorKind::Reentered`](crate::ErrorKind::Reentered). So would
/// [`PinnedAlloc`](crate::PinnedAlloc) where no resource was set for it. [`PinnedResource`](crate::pinned::PinnedResource) and pools of it have the driver's memory there.
///
/// A panic in a call is an error ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)).
///
/// # Safety
///
/// Memory that a manager hands out is of its device (or of the host, page-locked). It
/// has at least the bytes and the alignment asked, and overlaps no other memory that
/// is live. It stays valid until its finalizer has run, even after
/// [`reset`](Self::reset). Device memory may be handed out again on another stream only in an order after the stream
/// that the finalizer was called with.
pub unsafe trait MemoryManager: fmt::Debug + Send + Sync {
    /// The version of the interface that it implements. Another one than [`INTERFACE_VERSION`] is refused at the first
    /// use.
    fn interface_version(&self) -> u32 {
        INTERFACE_VERSION
    }

    /// Makes the manager ready. It is called before memory is asked for. It may be called again,
    /// which changes and resets nothing.
    ///
    /// # Errors
    ///
    /// The manager's own errors. It hands out nothing then.
    fn initialize(&self) -> Result<()> {
        Ok(())
    }

    /// Device memory for work on `stream` from now on. The layout has at least one byte.
    ///
    /// The call may wait for whatever a [resource](crate::DeviceResource#what-a-method-may-wait-for)
    /// may wait for. The crate calls a manager under no lock of its own. A pool of the program over
    /// the manager's memory does as over any upstream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) where there is none, and the
    /// manager's own errors.
    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer>;

    /// `bytes` bytes of page-locked host memory, at least one.
    ///
    /// # Errors
    ///
    /// The errors of [`memalloc`](Self::memalloc).
    fn memhostalloc(&self, bytes: usize, flags: HostAllocFlags) -> Result<PinnedMemory>;

    /// Page-locks host memory where it lies, for every context. The finalizer unlocks it at once,
    /// since the owner may free it right after.
    ///
    /// # Errors
    ///
    /// The manager's own errors.
    ///
    /// # Safety
    ///
    /// The memory is this process's, and stays so until the finalizer has run.
    unsafe fn mempin(&self, memory: NonNull<[u8]>, mapped: bool) -> Result<PinnedMemory>;

    /// Free and total memory of the device, in bytes.
    ///
    /// # Errors
    ///
    /// The errors of the driver, or
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where it does not know.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// A handle by which another process opens the memory. It blocks until the memory's stream has done all that it was
    /// given.
    ///
    /// The default is the driver's handle of the allocation that the memory lies in, with the offset
    /// of the memory. A vector's own `ipc_handle` is that, too.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for memory that cannot be shared,
    /// and the errors of the driver.
    fn ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle> {
        memory.ipc_handle()
    }

    /// Does the work that it has deferred, and gives back the memory that it caches. The call may come before
    /// [`initialize`](Self::initialize). Memory that is in use stays valid, and its finalizers run later.
    ///
    /// # Errors
    ///
    /// The manager's own errors.
    fn reset(&self) -> Result<()>;

    /// Defers cleanup until the guard is dropped. The meaning of that is up to each manager.
    fn defer_cleanup(&self) -> DeferCleanup;
}
