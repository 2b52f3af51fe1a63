//! The table of functions.

use crate::handles::{self, aquifer_stack, aquifer_stream};
use crate::memory::{self, aquifer_misuse};
use crate::place::Place;
use crate::scope::Scope;
use crate::stack::{self, Stack, device};
use crate::status::{Failure, Result, aquifer_status, guard, guarded, last_error, remember};
use crate::{fork, host, ipc, open_streams, page_map, route};
use aquifer_rs::{
    Stream,
    mr::{Keep, LogFormat, ResourceStack},
    pinned::PinnedPool,
};
use std::ffi::{CStr, c_char, c_void};

/// What a stack holds and did. Fields after `struct_size`, which the caller sets, are of the outermost pool, and of the
/// outermost `statistics` where there is one; a number that the stack does not know is 0.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct aquifer_statistics {
    /// The size of this structure, which the caller sets: fields after it are left alone.
    pub struct_size: usize,
    /// Bytes of blocks that are in use.
    pub live_bytes: u64,
    /// The most that were in use at one time.
    pub peak_bytes: u64,
    /// Bytes that were allocated in all. Of `statistics`.
    pub total_bytes: u64,
    /// Blocks that are in use. Of `statistics`.
    pub live_blocks: u64,
    /// Bytes that the pool has of the resource below.
    pub reserved_bytes: u64,
    /// The most that it had.
    pub peak_reserved_bytes: u64,
    /// Bytes of the pool that are free.
    pub free_bytes: u64,
    /// The largest block that is free, in bytes.
    pub largest_free_bytes: u64,
}

/// What is known of a block.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct aquifer_block_info {
    /// The size of this structure, which the caller sets: fields after it are left alone.
    pub struct_size: usize,
    /// The size that was asked for.
    pub requested_bytes: u64,
    /// The size of the block.
    pub bytes: u64,
    /// The device's number.
    pub device: i32,
}

/// The functions of this library. The table only grows: a program that was built with a smaller one finds what it knows at
/// the places that it knows. `aquifer_get_api` returns it.
///
/// All functions may be called from any thread. In the child of a fork, after a device was opened, each but `misuse`
/// returns `AQUIFER_ERROR_FORKED` and does nothing.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aquifer_api {
    /// The size of this table in bytes.
    pub struct_size: usize,
    /// Of another major version, nothing else can be told.
    pub abi_major: u32,
    /// Grows with each function that comes to the table.
    pub abi_minor: u32,

    /// The library's version, such as "0.1.0".
    pub version: extern "C" fn() -> *const c_char,
    /// What the calling thread's last call that failed says. It stays until the thread's next failure.
    pub last_error: extern "C" fn() -> *const c_char,
    /// A code's name.
    pub status_name: extern "C" fn(status: i32) -> *const c_char,

    /// Builds a stack of resources on a device by a text, such as `pool(cuda, max=80%) | statistics`. Without a text
    /// (null), by the variable AQUIFER_STACK; without that, a pool. A pool over `cuda` has `handles=off` unless the
    /// text says otherwise, so that cuIpcGetMemHandle shares its memory.
    pub stack_create: unsafe extern "C" fn(
        text: *const c_char,
        device: i32,
        stack: *mut *mut aquifer_stack,
    ) -> aquifer_status,
    /// The process's own stack of a device, which it keeps: the caller does not release it, and cannot.
    pub stack_default:
        unsafe extern "C" fn(device: i32, stack: *mut *mut aquifer_stack) -> aquifer_status,
    /// Counts one more user of a stack.
    pub stack_retain: extern "C" fn(stack: *mut aquifer_stack) -> aquifer_status,
    /// Counts one user less. With the last one free memory goes back to the driver, and with the last block the rest: both
    /// wait for the streams that freed it. Blocks stay valid until they are freed.
    pub stack_release: extern "C" fn(stack: *mut aquifer_stack) -> aquifer_status,

    /// Opens a stream by the driver's handle (a `CUstream` or `cudaStream_t`; null is the legacy default stream), or counts
    /// one more user of it. Its owner closes it here before it destroys it.
    pub stream_open: unsafe extern "C" fn(
        device: i32,
        cuda_stream: *mut c_void,
        stream: *mut *mut aquifer_stream,
    ) -> aquifer_status,
    /// Makes a stream, and opens it. It is destroyed when it was closed and nothing needs it.
    pub stream_create:
        unsafe extern "C" fn(device: i32, stream: *mut *mut aquifer_stream) -> aquifer_status,
    /// The driver's handle of a stream.
    pub stream_handle: unsafe extern "C" fn(
        stream: *mut aquifer_stream,
        cuda_stream: *mut *mut c_void,
    ) -> aquifer_status,
    /// Counts one user less. With the last one the stream is let go: its owner may destroy it. Blocks that were allocated
    /// on it stay valid, and are freed after all that it was given. A stream in capture is not closed.
    pub stream_close: extern "C" fn(stream: *mut aquifer_stream) -> aquifer_status,
    /// Blocks until the stream has done all that it was given.
    pub stream_synchronize: extern "C" fn(stream: *mut aquifer_stream) -> aquifer_status,

    /// Memory for work on a stream, from this call on. An alignment of 0 is 256, the least. No bytes give null, and
    /// `AQUIFER_OK`.
    pub allocate: unsafe extern "C" fn(
        stack: *mut aquifer_stack,
        bytes: usize,
        alignment: usize,
        stream: *mut aquifer_stream,
        pointer: *mut *mut c_void,
    ) -> aquifer_status,
    /// Frees in the order of a stream: work that was given to it before may use the block. Without a stream (null), in the
    /// order of the one that it was allocated on. `bytes` may be 0 for unknown; a wrong size is counted, and the block is
    /// freed. Null is freed by doing nothing.
    pub deallocate: extern "C" fn(
        pointer: *mut c_void,
        bytes: usize,
        stream: *mut aquifer_stream,
    ) -> aquifer_status,
    /// As `allocate`, by the driver's handle of a stream, which this call opens for good. The driver is asked each time
    /// which stream has the handle, which takes two of its calls.
    pub allocate_on: unsafe extern "C" fn(
        stack: *mut aquifer_stack,
        bytes: usize,
        alignment: usize,
        cuda_stream: *mut c_void,
        pointer: *mut *mut c_void,
    ) -> aquifer_status,
    /// As `deallocate`, by the driver's handle of a stream.
    pub deallocate_on: unsafe extern "C" fn(
        pointer: *mut c_void,
        bytes: usize,
        device: i32,
        cuda_stream: *mut c_void,
    ) -> aquifer_status,
    /// Lets go of a stream that `allocate_on` opened, before its owner destroys it.
    pub stream_detach:
        unsafe extern "C" fn(device: i32, cuda_stream: *mut c_void) -> aquifer_status,
    /// Says that a block is used on another stream: its free waits for what that was given by then.
    pub record_stream:
        extern "C" fn(pointer: *mut c_void, stream: *mut aquifer_stream) -> aquifer_status,
    /// What is known of a block.
    pub block_info: unsafe extern "C" fn(
        pointer: *const c_void,
        info: *mut aquifer_block_info,
    ) -> aquifer_status,

    /// Page-locked host memory, which kernels reach where the device can map it. An alignment of 0 is 64.
    /// `flags` is 0, or `AQUIFER_HOST_WRITE_COMBINED`.
    pub host_allocate: unsafe extern "C" fn(
        bytes: usize,
        alignment: usize,
        flags: u32,
        pointer: *mut *mut c_void,
    ) -> aquifer_status,
    /// Frees page-locked memory. It is handed out again when the devices are past what they were given.
    pub host_deallocate: extern "C" fn(pointer: *mut c_void) -> aquifer_status,
    /// Page-locks memory of the program where it lies.
    pub host_pin: unsafe extern "C" fn(pointer: *mut c_void, bytes: usize) -> aquifer_status,
    /// Waits for the device, and unlocks memory that was pinned.
    pub host_unpin: extern "C" fn(pointer: *mut c_void) -> aquifer_status,
    /// The device's address of a byte of such memory.
    pub host_device_pointer: unsafe extern "C" fn(
        pointer: *const c_void,
        device_pointer: *mut *mut c_void,
    ) -> aquifer_status,

    /// What a stack holds and did.
    pub statistics: unsafe extern "C" fn(
        stack: *mut aquifer_stack,
        statistics: *mut aquifer_statistics,
    ) -> aquifer_status,
    /// The free and the total memory of a device, in bytes.
    pub memory_info: unsafe extern "C" fn(
        device: i32,
        free_bytes: *mut u64,
        total_bytes: *mut u64,
    ) -> aquifer_status,
    /// Gives free memory of the stack's pools back at once, as far as the device is past it, until each has `keep` bytes. It
    /// waits for no work of the device.
    pub trim: unsafe extern "C" fn(
        stack: *mut aquifer_stack,
        keep: usize,
        released: *mut usize,
    ) -> aquifer_status,
    /// Calls that none should make, counted for the process.
    pub misuse: unsafe extern "C" fn(misuse: *mut aquifer_misuse) -> aquifer_status,

    /// Writes a row of RMM's log for each allocation and free of the stack from now on, for aquifer-replay. Those of a
    /// capture are not in it.
    pub log_start:
        unsafe extern "C" fn(stack: *mut aquifer_stack, path: *const c_char) -> aquifer_status,
    /// Ends the log, and waits until it is written.
    pub log_stop: extern "C" fn(stack: *mut aquifer_stack) -> aquifer_status,

    /// From now on allocations on these streams come from the pool of a key, until `capture_end`: for the memory of a
    /// graph that another library captures. Call it before the capture begins, and name each stream of the graph that
    /// allocates, also one that joins later. Allocations on other streams come from the stack, as ever. Captures of
    /// other keys may be active at once, each on streams of its own. The streams stay open until the end.
    ///
    /// Null and 0 are for all streams: no other capture is active beside that.
    ///
    /// The key is two numbers of the caller's. A later graph of the same key has the same memory, so the caller orders their
    /// launches, and no block that one graph has left is in use while another one runs. The driver's calls for memory are
    /// made in relaxed mode, so the capture may have any.
    pub capture_begin: unsafe extern "C" fn(
        stack: *mut aquifer_stack,
        high: u64,
        low: u64,
        streams: *const *mut aquifer_stream,
        count: usize,
    ) -> aquifer_status,
    /// The capture of a key ends, after the driver has ended it, on any thread: allocations on its streams come from the stack again. What was
    /// allocated for the graph, and freed, stays the graph's.
    pub capture_end:
        extern "C" fn(stack: *mut aquifer_stack, high: u64, low: u64) -> aquifer_status,
    /// The graphs of a key are gone: their memory goes back to the stack, with the last block that is in use.
    pub capture_release:
        extern "C" fn(stack: *mut aquifer_stack, high: u64, low: u64) -> aquifer_status,

    /// Writes the handle of a block, for another process: `AQUIFER_IPC_HANDLE_BYTES` bytes. It blocks until the stream has
    /// done all that it was given. The block stays allocated for as long as another process has it open.
    pub ipc_export: unsafe extern "C" fn(
        pointer: *const c_void,
        stream: *mut aquifer_stream,
        handle: *mut u8,
    ) -> aquifer_status,
    /// Opens a block of another process, for work on a stream: its address here, and its size. Both processes order their
    /// work on it.
    pub ipc_open: unsafe extern "C" fn(
        handle: *const u8,
        stream: *mut aquifer_stream,
        pointer: *mut *mut c_void,
        bytes: *mut usize,
    ) -> aquifer_status,
    /// Closes a block that was opened, after all that its stream was given.
    pub ipc_close: extern "C" fn(pointer: *mut c_void) -> aquifer_status,

    /// Waits for the streams that freed memory, and gives free memory of the stack's pools back until each has `keep` bytes;
    /// page-locked memory, too.
    pub wait_and_trim: unsafe extern "C" fn(
        stack: *mut aquifer_stack,
        keep: usize,
        released: *mut usize,
    ) -> aquifer_status,

    /// Waits for all work of the devices, and gives free page-locked memory back, as long as the pool keeps `keep` bytes.
    pub host_trim: unsafe extern "C" fn(keep: usize, released: *mut usize) -> aquifer_status,
    /// What the pool of page-locked memory holds: live, reserved and free bytes.
    pub host_statistics:
        unsafe extern "C" fn(statistics: *mut aquifer_statistics) -> aquifer_status,
    /// The most bytes that the pool of page-locked memory takes, a multiple of 4096. `SIZE_MAX` is for no maximum. A pool
    /// that has more keeps it.
    pub host_set_maximum: extern "C" fn(bytes: usize) -> aquifer_status,
    /// The bytes that the pool of page-locked memory keeps when more is free. A free gives back what is above it, if the
    /// devices have nothing to do. `SIZE_MAX`, the default, keeps all.
    pub host_set_release_threshold: extern "C" fn(bytes: usize) -> aquifer_status,
    /// The threads that touch new page-locked memory of 16 MiB and more, before it is locked. It is there several times
    /// faster so. 0, the default, is for a process that forks: the kernel copies such memory for the child.
    pub host_set_touch_threads: extern "C" fn(threads: u32) -> aquifer_status,

    /// Waits for all work of the device, puts the contents of the stack's pool aside, and gives its memory back. Addresses
    /// stay, and `stack_wake` brings the memory back there. `keep` is `AQUIFER_KEEP_NOTHING`, after which all is zero,
    /// `AQUIFER_KEEP_PAGE_LOCKED`, or `AQUIFER_KEEP_FILE` for a file without a name in `folder`. The pool has to map its
    /// memory: `pool(virtual)` or `pool(cuda, handles=on)`.
    ///
    /// From this call until `stack_wake` has returned, no work that uses the memory is given to the device. An allocation is
    /// `AQUIFER_ERROR_ASLEEP`; blocks may be freed. After an error the stack is as it was. `bytes`, which may be null, is
    /// what went back.
    pub stack_sleep: unsafe extern "C" fn(
        stack: *mut aquifer_stack,
        keep: u32,
        folder: *const c_char,
        bytes: *mut usize,
    ) -> aquifer_status,
    /// Brings the memory of a stack back that sleeps. After an error, as of a device without room, it sleeps as before.
    pub stack_wake: extern "C" fn(stack: *mut aquifer_stack) -> aquifer_status,
}

/// A stack that sleeps keeps nothing: all of its memory is zero when it wakes.
pub const AQUIFER_KEEP_NOTHING: u32 = 0;
/// A stack that sleeps keeps its contents in page-locked memory.
pub const AQUIFER_KEEP_PAGE_LOCKED: u32 = 1;
/// A stack that sleeps keeps its contents in a file without a name.
pub const AQUIFER_KEEP_FILE: u32 = 2;

/// The version of the table: `aquifer_get_api` takes the major one.
pub const AQUIFER_ABI_MAJOR: u32 = 1;
/// Grows with each function that comes to the table.
pub const AQUIFER_ABI_MINOR: u32 = 0;

/// The table of a major version, for the life of the process. Null if this library does not have that version.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_get_api(abi_major: u32) -> *const aquifer_api {
    if abi_major == AQUIFER_ABI_MAJOR { &raw const TABLE } else { std::ptr::null() }
}

static TABLE: aquifer_api = aquifer_api {
    struct_size: size_of::<aquifer_api>(),
    abi_major: AQUIFER_ABI_MAJOR,
    abi_minor: AQUIFER_ABI_MINOR,
    version,
    last_error: thread_error,
    status_name,
    stack_create,
    stack_default,
    stack_retain,
    stack_release,
    stream_open,
    stream_create,
    stream_handle,
    stream_close,
    stream_synchronize,
    allocate,
    deallocate,
    allocate_on,
    deallocate_on,
    stream_detach,
    record_stream,
    block_info,
    host_allocate,
    host_deallocate,
    host_pin,
    host_unpin,
    host_device_pointer,
    statistics,
    memory_info,
    trim,
    misuse,
    log_start,
    log_stop,
    capture_begin,
    capture_end,
    capture_release,
    ipc_export,
    ipc_open,
    ipc_close,
    wait_and_trim,
    host_trim,
    host_statistics,
    host_set_maximum,
    host_set_release_threshold,
    host_set_touch_threads,
    stack_sleep,
    stack_wake,
};

/// The failure of a call in the child of a fork.
#[cold]
pub(crate) fn forked() -> Failure {
    let message = "a call was made in the child of a fork, whose parent had opened a device \
                   (start the child with exec, or open devices in the child alone)";
    Failure::new(aquifer_status::AQUIFER_ERROR_FORKED, message)
}

/// A call of the table.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<()>) -> aquifer_status {
    if fork::is_child() {
        return remember(forked());
    }
    guard(body)
}

/// A text of C.
///
/// # Safety
///
/// Null, or a text that ends in a zero.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| {
        let message = format!("a text is no UTF-8: {text:?}");
        Failure::new(aquifer_status::AQUIFER_ERROR_INVALID_ARGUMENT, message)
    })
}

/// Writes as much of a structure as the caller knows of it.
///
/// # Safety
///
/// `place` is null, or a structure that begins with its size.
unsafe fn fill<T: Copy>(place: *mut T, value: &T, size_of_known: usize, what: &str) -> Result<()> {
    if place.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise: its first field is its size.
    let size = unsafe { place.cast::<usize>().read() };
    if size < size_of::<usize>() * 2 {
        let message =
            format!("{what} says that it has {size} bytes (set struct_size to its sizeof)");
        return Err(Failure::new(aquifer_status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
    }
    let bytes = size.min(size_of_known);
    let (from, to) = (std::ptr::from_ref(value).cast::<u8>(), place.cast::<u8>());
    // SAFETY: the structure has `size` bytes, and the value as many as are copied; the size stays as the caller set it.
    unsafe {
        std::ptr::copy_nonoverlapping(
            from.add(size_of::<usize>()),
            to.add(size_of::<usize>()),
            bytes - size_of::<usize>(),
        );
    }
    Ok(())
}

extern "C" fn version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

extern "C" fn thread_error() -> *const c_char {
    last_error()
}

extern "C" fn status_name(status: i32) -> *const c_char {
    use aquifer_status as S;
    let all = [
        S::AQUIFER_OK,
        S::AQUIFER_ERROR_INVALID_ARGUMENT,
        S::AQUIFER_ERROR_OUT_OF_MEMORY,
        S::AQUIFER_ERROR_UNSUPPORTED,
        S::AQUIFER_ERROR_NO_DEVICE,
        S::AQUIFER_ERROR_WRONG_DEVICE,
        S::AQUIFER_ERROR_NOT_OURS,
        S::AQUIFER_ERROR_FREED_BEFORE,
        S::AQUIFER_ERROR_CLOSED,
        S::AQUIFER_ERROR_CAPTURE,
        S::AQUIFER_ERROR_CONTEXT_LOST,
        S::AQUIFER_ERROR_FORKED,
        S::AQUIFER_ERROR_SIMULATION,
        S::AQUIFER_ERROR_ENVIRONMENT,
        S::AQUIFER_ERROR_IO,
        S::AQUIFER_ERROR_DRIVER,
        S::AQUIFER_ERROR_PANIC,
        S::AQUIFER_ERROR_ASLEEP,
    ];
    let known = all.into_iter().find(|known| *known as i32 == status);
    known.map_or(c"no code of aquifer", S::name).as_ptr()
}

unsafe extern "C" fn stack_create(
    description: *const c_char,
    device_number: i32,
    stack: *mut *mut aquifer_stack,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract, of both.
        let (text, place) =
            unsafe { (text(description)?, Place::new(stack, "the place of the stack")?) };
        place.set(handles::stack_handle(Stack::create(text, &device(device_number)?)?));
        Ok(())
    })
}

unsafe extern "C" fn stack_default(
    device_number: i32,
    stack: *mut *mut aquifer_stack,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract.
        let place = unsafe { Place::new(stack, "the place of the stack")? };
        place.set(handles::stack_handle(Stack::default_of(device_number)?));
        Ok(())
    })
}

extern "C" fn stack_retain(stack: *mut aquifer_stack) -> aquifer_status {
    call(|| {
        stack::get(handles::stack_number(stack)?)?.retain();
        Ok(())
    })
}

extern "C" fn stack_release(stack: *mut aquifer_stack) -> aquifer_status {
    call(|| {
        if let Some(last) = stack::release(handles::stack_number(stack)?)? {
            last.close();
        }
        Ok(())
    })
}

unsafe extern "C" fn stream_open(
    device_number: i32,
    cuda_stream: *mut c_void,
    stream: *mut *mut aquifer_stream,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract.
        let place = unsafe { Place::new(stream, "the place of the stream")? };
        let device = device(device_number)?;
        // SAFETY: by the contract of `stream_open` the stream is closed before it is destroyed, which detaches it.
        let opened = unsafe { Stream::from_handle(&device, cuda_stream.addr() as u64)? };
        place.set(handles::stream_handle(open_streams::open(opened)));
        Ok(())
    })
}

unsafe extern "C" fn stream_create(
    device_number: i32,
    stream: *mut *mut aquifer_stream,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract.
        let place = unsafe { Place::new(stream, "the place of the stream")? };
        let made = device(device_number)?.new_stream()?;
        place.set(handles::stream_handle(open_streams::open(made)));
        Ok(())
    })
}

unsafe extern "C" fn stream_handle(
    stream: *mut aquifer_stream,
    cuda_stream: *mut *mut c_void,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract.
        let place = unsafe { Place::new(cuda_stream, "the place of the handle")? };
        let handle = open_streams::get(handles::stream_number(stream)?)?.handle();
        place.set(std::ptr::with_exposed_provenance_mut(handle as usize));
        Ok(())
    })
}

extern "C" fn stream_close(stream: *mut aquifer_stream) -> aquifer_status {
    call(|| memory::close_stream(handles::stream_number(stream)?))
}

extern "C" fn stream_synchronize(stream: *mut aquifer_stream) -> aquifer_status {
    call(|| Ok(open_streams::get(handles::stream_number(stream)?)?.synchronize()?))
}

/// Whether each block has this alignment.
#[inline(always)]
fn is_usual(alignment: usize) -> bool {
    alignment == 0 || alignment as u64 == page_map::UNIT
}

unsafe extern "C" fn allocate(
    stack: *mut aquifer_stack,
    bytes: usize,
    alignment: usize,
    stream: *mut aquifer_stream,
    pointer: *mut *mut c_void,
) -> aquifer_status {
    if is_usual(alignment)
        && !pointer.is_null()
        && let Some(allocated) = memory::allocate_fast(stack, bytes, stream)
    {
        let (address, status) = match allocated {
            Ok(address) => (address, aquifer_status::AQUIFER_OK),
            Err(failure) => (0, remember(failure)),
        };
        // SAFETY: the caller's contract: a place for a pointer.
        unsafe { pointer.write(std::ptr::with_exposed_provenance_mut(address as usize)) };
        return status;
    }
    // SAFETY: the caller's contract, unchanged.
    unsafe { allocate_cold(stack, bytes, alignment, stream, pointer) }
}

/// # Safety
///
/// As [`allocate`].
#[cold]
#[inline(never)]
unsafe fn allocate_cold(
    stack: *mut aquifer_stack,
    bytes: usize,
    alignment: usize,
    stream: *mut aquifer_stream,
    pointer: *mut *mut c_void,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract.
        let place = unsafe { Place::new(pointer, "the place of the pointer")? };
        place.set(std::ptr::null_mut());
        let (stack, stream) = (handles::stack_number(stack)?, handles::stream_number(stream)?);
        let address = memory::allocate(stack, bytes, alignment, stream)?;
        place.set(std::ptr::with_exposed_provenance_mut(address as usize));
        Ok(())
    })
}

extern "C" fn deallocate(
    pointer: *mut c_void,
    bytes: usize,
    stream: *mut aquifer_stream,
) -> aquifer_status {
    let address = pointer.addr() as u64;
    match memory::deallocate_fast(address, bytes, stream) {
        Some(status) => status,
        None => deallocate_cold(address, bytes, stream),
    }
}

#[cold]
#[inline(never)]
fn deallocate_cold(address: u64, bytes: usize, stream: *mut aquifer_stream) -> aquifer_status {
    free(|| {
        let stream = if stream.is_null() { None } else { Some(handles::stream_number(stream)?) };
        memory::deallocate(address, bytes, stream)
    })
}

/// A free, which the child of a fork counts.
pub(crate) fn free(body: impl FnOnce() -> Result<()>) -> aquifer_status {
    if fork::is_child() {
        memory::count_forked();
    }
    call(body)
}

unsafe extern "C" fn allocate_on(
    stack: *mut aquifer_stack,
    bytes: usize,
    alignment: usize,
    cuda_stream: *mut c_void,
    pointer: *mut *mut c_void,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract.
        let place = unsafe { Place::new(pointer, "the place of the pointer")? };
        place.set(std::ptr::null_mut());
        if is_usual(alignment)
            // SAFETY: as below.
            && let Some(allocated) = unsafe { memory::allocate_on_fast(stack, bytes, cuda_stream) }
        {
            place.set(std::ptr::with_exposed_provenance_mut(allocated? as usize));
            return Ok(());
        }
        let stack = handles::stack_number(stack)?;
        let ordinal = memory::ordinal(&*stack::get(stack)?);
        // SAFETY: by the contract of `allocate_on` the stream is detached before it is destroyed.
        let stream = unsafe { memory::stream_of(ordinal, cuda_stream)? };
        let address = memory::allocate(stack, bytes, alignment, stream)?;
        place.set(std::ptr::with_exposed_provenance_mut(address as usize));
        Ok(())
    })
}

unsafe extern "C" fn deallocate_on(
    pointer: *mut c_void,
    bytes: usize,
    device_number: i32,
    cuda_stream: *mut c_void,
) -> aquifer_status {
    let address = pointer.addr() as u64;
    // SAFETY: as in `allocate_on`.
    let fast =
        || Ok(unsafe { memory::deallocate_on_fast(address, bytes, device_number, cuda_stream) });
    if let Ok(Some(status)) = guarded(fast) {
        return status;
    }
    free(|| {
        // SAFETY: as in `allocate_on`.
        let stream = unsafe { memory::stream_of(device_number, cuda_stream)? };
        memory::deallocate(address, bytes, Some(stream))
    })
}

unsafe extern "C" fn stream_detach(device_number: i32, cuda_stream: *mut c_void) -> aquifer_status {
    call(|| {
        let device = device(device_number)?;
        // SAFETY: the caller's contract: the stream is alive.
        let stream = unsafe { Stream::from_handle(&device, cuda_stream.addr() as u64)? };
        match open_streams::opened(&stream) {
            Some(number) => memory::close_stream(number),
            None => Ok(stream.detach()?),
        }
    })
}

extern "C" fn record_stream(pointer: *mut c_void, stream: *mut aquifer_stream) -> aquifer_status {
    call(|| {
        let stream = open_streams::get(handles::stream_number(stream)?)?;
        memory::record_stream(pointer.addr() as u64, &stream)
    })
}

unsafe extern "C" fn block_info(
    pointer: *const c_void,
    info: *mut aquifer_block_info,
) -> aquifer_status {
    call(|| {
        let entry = page_map::entry(pointer.addr() as u64);
        let entry = entry.filter(|entry| entry.is_live()).ok_or_else(|| {
            let message = format!("{pointer:p} is no block of this library");
            Failure::new(aquifer_status::AQUIFER_ERROR_NOT_OURS, message)
        })?;
        let block = entry.block();
        let device = route::get(block.route).map(|route| route.resource().device().ordinal());
        let known = aquifer_block_info {
            struct_size: 0,
            requested_bytes: block.requested,
            bytes: block.bytes,
            device: device.map_or(-1, |ordinal| ordinal as i32),
        };
        // SAFETY: the caller's contract.
        unsafe { fill(info, &known, size_of_val(&known), "the place of the block's information") }
    })
}

unsafe extern "C" fn host_allocate(
    bytes: usize,
    alignment: usize,
    flags: u32,
    pointer: *mut *mut c_void,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract.
        let place = unsafe { Place::new(pointer, "the place of the pointer")? };
        place.set(std::ptr::null_mut());
        if let Some(memory) = host::allocate(bytes, alignment, flags)? {
            place.set(memory.as_ptr().cast());
        }
        Ok(())
    })
}

extern "C" fn host_deallocate(pointer: *mut c_void) -> aquifer_status {
    free(|| host::deallocate(pointer.addr()))
}

unsafe extern "C" fn host_pin(pointer: *mut c_void, bytes: usize) -> aquifer_status {
    // SAFETY: the caller's contract.
    call(|| unsafe { host::pin(pointer.cast(), bytes) })
}

extern "C" fn host_unpin(pointer: *mut c_void) -> aquifer_status {
    call(|| host::unpin(pointer.addr()))
}

unsafe extern "C" fn host_device_pointer(
    pointer: *const c_void,
    device_pointer: *mut *mut c_void,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract.
        let place = unsafe { Place::new(device_pointer, "the place of the pointer")? };
        let address = host::device_address(pointer.cast())?;
        place.set(std::ptr::with_exposed_provenance_mut(address as usize));
        Ok(())
    })
}

unsafe extern "C" fn stack_sleep(
    stack: *mut aquifer_stack,
    keep: u32,
    folder: *const c_char,
    bytes: *mut usize,
) -> aquifer_status {
    call(|| {
        let stack = stack::get(handles::stack_number(stack)?)?;
        let keep = match keep {
            AQUIFER_KEEP_NOTHING => Keep::Nothing,
            AQUIFER_KEEP_PAGE_LOCKED => {
                // The contents are of the pool that hosts trim and limit.
                host::pool()?;
                Keep::PageLocked
            }
            AQUIFER_KEEP_FILE => {
                // SAFETY: the caller's contract.
                let folder = unsafe { text(folder)? };
                Keep::File(folder.ok_or_else(|| Failure::null("the folder"))?.into())
            }
            _ => {
                let message = format!("{keep} is no way to keep contents (give 0, 1 or 2)");
                return Err(Failure::new(aquifer_status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
            }
        };
        // SAFETY: the caller's contract.
        let slept = unsafe { stack.resources.sleep(keep)? };
        // SAFETY: the caller's contract: null, or a place.
        if let Ok(place) = unsafe { Place::new(bytes, "the place of the bytes") } {
            place.set(slept.bytes);
        }
        Ok(())
    })
}

extern "C" fn stack_wake(stack: *mut aquifer_stack) -> aquifer_status {
    call(|| {
        let stack = stack::get(handles::stack_number(stack)?)?;
        stack.resources.wake()?;
        Ok(())
    })
}

unsafe extern "C" fn host_trim(keep: usize, released: *mut usize) -> aquifer_status {
    call(|| {
        let given = host::made_pool().map_or(Ok(0), |pool| pool.trim_to(keep))?;
        // SAFETY: the caller's contract: null, or a place.
        if let Ok(place) = unsafe { Place::new(released, "the place of the bytes") } {
            place.set(given);
        }
        Ok(())
    })
}

unsafe extern "C" fn host_statistics(statistics: *mut aquifer_statistics) -> aquifer_status {
    call(|| {
        let pool = host::made_pool().map(PinnedPool::statistics).unwrap_or_default();
        let known = aquifer_statistics {
            live_bytes: pool.live as u64,
            reserved_bytes: pool.reserved as u64,
            peak_reserved_bytes: pool.peak_reserved as u64,
            free_bytes: pool.reserved.saturating_sub(pool.live) as u64,
            largest_free_bytes: pool.largest_free as u64,
            ..aquifer_statistics::default()
        };
        // SAFETY: the caller's contract.
        unsafe { fill(statistics, &known, size_of_val(&known), "the place of the statistics") }
    })
}

/// A number of bytes, or the largest of all for none.
fn limit(bytes: usize) -> Option<usize> {
    Some(bytes).filter(|bytes| *bytes != usize::MAX)
}

extern "C" fn host_set_maximum(bytes: usize) -> aquifer_status {
    call(|| Ok(host::pool()?.set_maximum_size(limit(bytes))?))
}

extern "C" fn host_set_release_threshold(bytes: usize) -> aquifer_status {
    call(|| Ok(host::pool()?.set_release_threshold(limit(bytes))?))
}

extern "C" fn host_set_touch_threads(threads: u32) -> aquifer_status {
    call(|| {
        host::pool()?.upstream().set_touch_threads(threads as usize);
        Ok(())
    })
}

unsafe extern "C" fn statistics(
    stack: *mut aquifer_stack,
    statistics: *mut aquifer_statistics,
) -> aquifer_status {
    call(|| {
        let stack = stack::get(handles::stack_number(stack)?)?;
        let mut known = aquifer_statistics::default();
        if let Some(pool) = stack.resources.pool_statistics() {
            known.live_bytes = pool.live as u64;
            known.reserved_bytes = pool.reserved as u64;
            known.peak_reserved_bytes = pool.peak_reserved as u64;
            known.free_bytes = pool.free as u64;
            known.largest_free_bytes = pool.largest_free as u64;
        }
        if let Some(counters) = stack.resources.counters() {
            let count = |value: i64| u64::try_from(value).unwrap_or_default();
            known.live_bytes = count(counters.bytes.current);
            known.peak_bytes = count(counters.bytes.peak);
            known.total_bytes = count(counters.bytes.total);
            known.live_blocks = count(counters.allocations.current);
        }
        // SAFETY: the caller's contract.
        unsafe { fill(statistics, &known, size_of_val(&known), "the place of the statistics") }
    })
}

unsafe extern "C" fn memory_info(
    device_number: i32,
    free_bytes: *mut u64,
    total_bytes: *mut u64,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract, of both.
        let (free, total) = unsafe {
            (
                Place::new(free_bytes, "the place of the free bytes")?,
                Place::new(total_bytes, "that of all")?,
            )
        };
        let info = device(device_number)?.memory_info()?;
        free.set(info.free as u64);
        total.set(info.total as u64);
        Ok(())
    })
}

unsafe extern "C" fn trim(
    stack: *mut aquifer_stack,
    keep: usize,
    released: *mut usize,
) -> aquifer_status {
    // SAFETY: the caller's contract.
    unsafe { trim_by(stack, released, |resources| resources.trim(keep)) }
}

unsafe extern "C" fn wait_and_trim(
    stack: *mut aquifer_stack,
    keep: usize,
    released: *mut usize,
) -> aquifer_status {
    // SAFETY: the caller's contract.
    unsafe { trim_by(stack, released, |resources| resources.wait_and_trim(keep)) }
}

/// # Safety
///
/// `released` is null, or a place for a number.
unsafe fn trim_by(
    stack: *mut aquifer_stack,
    released: *mut usize,
    trim: impl FnOnce(&ResourceStack) -> aquifer_rs::Result<usize>,
) -> aquifer_status {
    call(|| {
        let stack = stack::get(handles::stack_number(stack)?)?;
        let given = trim(&stack.resources)?;
        // SAFETY: the caller's contract: null, or a place.
        if let Ok(place) = unsafe { Place::new(released, "the place of the bytes") } {
            place.set(given);
        }
        Ok(())
    })
}

unsafe extern "C" fn misuse(misuse: *mut aquifer_misuse) -> aquifer_status {
    let counted = memory::misuse();
    // Also in the child of a fork: it takes no lock.
    // SAFETY: the caller's contract.
    let filled = guarded(|| unsafe {
        fill(misuse, &counted, size_of_val(&counted), "the place of the counts")
    });
    filled.map_or_else(remember, |()| aquifer_status::AQUIFER_OK)
}

unsafe extern "C" fn log_start(stack: *mut aquifer_stack, path: *const c_char) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract.
        let path = unsafe { text(path)? }.ok_or_else(|| Failure::null("the path of the log"))?;
        stack::get(handles::stack_number(stack)?)?.start_log(path, LogFormat::Rmm)
    })
}

extern "C" fn log_stop(stack: *mut aquifer_stack) -> aquifer_status {
    call(|| stack::get(handles::stack_number(stack)?)?.stop_log())
}

unsafe extern "C" fn capture_begin(
    stack: *mut aquifer_stack,
    high: u64,
    low: u64,
    streams: *const *mut aquifer_stream,
    count: usize,
) -> aquifer_status {
    call(|| {
        let stack = stack::get(handles::stack_number(stack)?)?;
        let scope = match (streams.is_null(), count) {
            (true, 0) => Scope::AllStreams,
            (true, _) => return Err(Failure::null("the array of streams")),
            (false, 0) => {
                let message =
                    "a capture was to begin of no stream (name its streams, or give null for all)";
                return Err(Failure::new(aquifer_status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
            }
            (false, _) => {
                // SAFETY: the caller's contract: an array of so many handles.
                let streams = unsafe { handles_of(streams, count)? };
                let numbers: Result<Vec<_>> =
                    streams.iter().map(|stream| handles::stream_number(*stream)).collect();
                Scope::of_streams(&numbers?)?
            }
        };
        stack.begin_capture((high, low), scope)
    })
}

/// An array of C.
///
/// # Safety
///
/// An array of so many handles, which nobody changes while it is used.
unsafe fn handles_of<'a, T>(handles: *const *mut T, count: usize) -> Result<&'a [*mut T]> {
    if count > isize::MAX as usize / size_of::<*mut T>() {
        let message = format!("{count} streams were given (give the number of those in the array)");
        return Err(Failure::new(aquifer_status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
    }
    // SAFETY: the caller's promise; no array is larger than the address space.
    Ok(unsafe { std::slice::from_raw_parts(handles, count) })
}

extern "C" fn capture_end(stack: *mut aquifer_stack, high: u64, low: u64) -> aquifer_status {
    call(|| memory::end_capture(&*stack::get(handles::stack_number(stack)?)?, (high, low)))
}

extern "C" fn capture_release(stack: *mut aquifer_stack, high: u64, low: u64) -> aquifer_status {
    call(|| stack::get(handles::stack_number(stack)?)?.release_capture((high, low)))
}

unsafe extern "C" fn ipc_export(
    pointer: *const c_void,
    stream: *mut aquifer_stream,
    handle: *mut u8,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract: a place for so many bytes.
        let place = unsafe { Place::new(handle.cast::<IpcBytes>(), "the place of the handle")? };
        place.set(ipc::export(pointer.addr() as u64, handles::stream_number(stream)?)?);
        Ok(())
    })
}

unsafe extern "C" fn ipc_open(
    handle: *const u8,
    stream: *mut aquifer_stream,
    pointer: *mut *mut c_void,
    bytes: *mut usize,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's contract, of all three.
        let (handle, place, size) = unsafe {
            (
                handle.cast::<IpcBytes>().as_ref().ok_or_else(|| Failure::null("the handle"))?,
                Place::new(pointer, "the place of the pointer")?,
                Place::new(bytes, "the place of the size")?,
            )
        };
        place.set(std::ptr::null_mut());
        size.set(0);
        // SAFETY: the caller's contract: the owner keeps the block, and both order their work.
        let (address, length) = unsafe { ipc::open(handle, handles::stream_number(stream)?)? };
        place.set(std::ptr::with_exposed_provenance_mut(address as usize));
        size.set(length);
        Ok(())
    })
}

extern "C" fn ipc_close(pointer: *mut c_void) -> aquifer_status {
    call(|| ipc::close(pointer.addr() as u64))
}

type IpcBytes = [u8; ipc::AQUIFER_IPC_HANDLE_BYTES];
