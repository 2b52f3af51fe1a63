//! Page-locked host memory, and memory that is pinned where it lies.

use crate::stack::device;
use crate::status::{Failure, Result, aquifer_status as Status};
use aquifer_rs::allocator_api2::alloc::Allocator;
use aquifer_rs::{
    MappedAlloc,
    pinned::{
        CurrentPinned, HostBuffer, HostRead, PinnedPool, PinnedResource, Registered, last_error,
        set_current_pinned_resource,
    },
};
use parking_lot::Mutex;
use std::alloc::Layout;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{LazyLock, OnceLock};

/// The alignment of page-locked memory unless another is asked: a cache line's.
const ALIGNMENT: usize = 64;

struct HostBlock {
    layout: Layout,
    allocator: CurrentPinned,
}

static BLOCKS: LazyLock<Mutex<HashMap<usize, HostBlock>>> = LazyLock::new(Mutex::default);
static PINNED: LazyLock<Mutex<HashMap<usize, Registered<RawBuffer>>>> =
    LazyLock::new(Mutex::default);

/// The bytes that a thread's freed blocks have before the device is asked for them: few enough that new ones find their
/// memory in the processor's caches, as those of `malloc` do. With 64 MiB a sum of two arrays of 1 MiB took twice as long.
const WAITING: usize = 4 << 20;

/// Where all page-locked memory of hosts comes from, once the first was asked for.
static POOL: OnceLock<PinnedPool> = OnceLock::new();

/// The pool of page-locked memory, which is the process's current one from its first use on.
///
/// Its memory is the driver's, unless hosts ask for threads: they fork workers, for which the kernel would copy the
/// other.
pub(crate) fn pool() -> Result<&'static PinnedPool> {
    if let Some(pool) = POOL.get() {
        return Ok(pool);
    }
    let pinned = PinnedResource::builder(&device(0)?).touch_threads(0).build()?;
    let made = PinnedPool::builder(pinned).magazine_bytes(WAITING).build()?;
    // Of two that are made at once the first stays.
    let pool = POOL.get_or_init(|| made);
    set_current_pinned_resource(pool.clone());
    Ok(pool)
}

/// The pool, if any memory was asked for.
pub(crate) fn made_pool() -> Option<&'static PinnedPool> {
    POOL.get()
}

/// A flag of `host_allocate`: the host's writes bypass its caches.
pub const AQUIFER_HOST_WRITE_COMBINED: u32 = 1;

pub(crate) fn allocate(bytes: usize, alignment: usize, flags: u32) -> Result<Option<NonNull<u8>>> {
    if bytes == 0 {
        return Ok(None);
    }
    let alignment = if alignment == 0 { ALIGNMENT } else { alignment };
    let layout = Layout::from_size_align(bytes, alignment).map_err(|_| {
        let message =
            format!("{bytes} bytes aligned to {alignment} are no layout (give a power of two)");
        Failure::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message)
    })?;
    let allocator: CurrentPinned = match flags {
        0 => pool()?.clone().into(),
        AQUIFER_HOST_WRITE_COMBINED => {
            PinnedResource::builder(&device(0)?).write_combined(true).build()?.into()
        }
        _ => {
            let message = format!("{flags:#x} are no flags of page-locked memory");
            return Err(Failure::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
        }
    };
    let block = allocator.allocate(layout).map_err(|_| {
        let unknown = || Failure::new(Status::AQUIFER_ERROR_OUT_OF_MEMORY, "no page-locked memory");
        last_error().map_or_else(unknown, Failure::from)
    })?;
    let pointer = block.cast::<u8>();
    BLOCKS.lock().insert(pointer.addr().get(), HostBlock { layout, allocator });
    Ok(Some(pointer))
}

pub(crate) fn deallocate(address: usize) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    let Some(block) = BLOCKS.lock().remove(&address) else {
        crate::memory::count_unknown();
        let message = format!("{address:#x} is no page-locked memory of this library");
        return Err(Failure::new(Status::AQUIFER_ERROR_NOT_OURS, message));
    };
    if let Some(pointer) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
        // SAFETY: the table had the block, and has it no more: it is freed once, by its own allocator.
        unsafe { block.allocator.deallocate(pointer, block.layout) };
    }
    Ok(())
}

/// Memory of a C program.
struct RawBuffer(NonNull<u8>, usize);

// SAFETY: `pin`'s caller keeps the memory in place until it is unpinned.
unsafe impl HostRead for RawBuffer {
    type Item = u8;

    fn parts(&mut self) -> (NonNull<u8>, usize) {
        (self.0, self.1)
    }
}

// SAFETY: and writable.
unsafe impl HostBuffer for RawBuffer {}

// SAFETY: a number here: nothing reads or writes through it.
unsafe impl Send for RawBuffer {}

/// # Safety
///
/// The range is memory of this process, and stays so until it is unpinned.
pub(crate) unsafe fn pin(pointer: *mut u8, bytes: usize) -> Result<()> {
    let Some(pointer) = NonNull::new(pointer) else {
        return Err(Failure::null("the memory to pin"));
    };
    let registered = Registered::new(&device(0)?, RawBuffer(pointer, bytes));
    let registered = registered.map_err(|failed| Failure::from(failed.error))?;
    PINNED.lock().insert(pointer.addr().get(), registered);
    Ok(())
}

/// Waits for the device, and unlocks the memory.
pub(crate) fn unpin(address: usize) -> Result<()> {
    let Some(registered) = PINNED.lock().remove(&address) else {
        let message = format!("{address:#x} was not pinned by this library");
        return Err(Failure::new(Status::AQUIFER_ERROR_NOT_OURS, message));
    };
    registered.into_inner().map(drop).map_err(|failed| failed.error.into())
}

/// The device's address of mapped memory.
pub(crate) fn device_address(pointer: *const u8) -> Result<u64> {
    if pointer.is_null() {
        return Err(Failure::null("the host memory"));
    }
    // SAFETY: only the address is looked at, not the byte behind it: a byte of uninitialised memory is a value of its type.
    let byte = unsafe { &*pointer.cast::<std::mem::MaybeUninit<u8>>() };
    Ok(MappedAlloc::device_address(std::slice::from_ref(byte))?)
}
