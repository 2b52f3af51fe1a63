//! PyTorch: `torch.cuda.memory.CUDAPluggableAllocator(path, "aquifer_torch_alloc", "aquifer_torch_free")`, and its hooks.
//!
//! | trap of the host | what is done |
//! |---|---|
//! | null is not looked at by `change_current_allocator` | `aquifer_torch_alloc` throws PyTorch's `OutOfMemoryError`, or `std::bad_alloc`; `aquifer_torch_alloc_nothrow`, for `torch.cuda.MemPool`, returns null |
//! | a size of 0 is forwarded | null, which `free` takes |
//! | blocks are freed on threads whose current device is another | each call says the device |
//! | `record_stream` does nothing without the hook | `aquifer_torch_record_stream` |
//! | a block that a graph uses would be handed out again | `begin_allocate_to_pool` and its two companions |
//! | the filter of those is an object of C++ | it is moved out of the argument (`function.rs`) |
//!
//! The hooks take addresses: `allocator.allocator().set_record_stream_fn(ctypes.cast(lib.aquifer_torch_record_stream,
//! ctypes.c_void_p).value)`, and so on.

use super::c10::Exception;
use super::cpp::throw_bad_alloc;
use super::streams;
use crate::handles;
use crate::place::Place;
use crate::scope::Scope;
use crate::stack::{self, Stack};
use crate::status::{Failure, Result, aquifer_status, remember};
use crate::table::call;
use crate::{host, memory, open_streams, page_map};
use aquifer_rs::DeviceResource;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::sync::LazyLock;

/// PyTorch's `MempoolId_t`, a `std::pair` of two numbers.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aquifer_torch_pool_id {
    /// The first number.
    pub first: u64,
    /// The second number.
    pub second: u64,
}

/// Memory of the process's stack of a device, in the order of a stream. Throws PyTorch's `c10::OutOfMemoryError` where there
/// is none, or `std::bad_alloc` where PyTorch's libraries do not have that.
///
/// # Safety
///
/// The caller is C++ code that an exception may pass; the stream is one of the device's primary context, and is never
/// destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn aquifer_torch_alloc(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    // SAFETY: PyTorch's streams are never destroyed.
    match unsafe { streams::allocate(device, size, stream) } {
        Ok(pointer) => pointer,
        Err(failure) => {
            let thrown = Exception::new(failure.message());
            remember(failure);
            // SAFETY: the caller's promise.
            unsafe {
                if let Some(exception) = thrown {
                    exception.throw();
                }
                throw_bad_alloc();
            }
            std::ptr::null_mut()
        }
    }
}

/// As `aquifer_torch_alloc`, for `torch.cuda.MemPool`: null where there is none.
///
/// # Safety
///
/// The stream is one of the device's primary context, and is never destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_torch_alloc_nothrow(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    // SAFETY: PyTorch's streams are never destroyed.
    unsafe { streams::allocate(device, size, stream) }.unwrap_or_else(|failure| {
        remember(failure);
        std::ptr::null_mut()
    })
}

/// Frees a block, in the order of a stream.
///
/// # Safety
///
/// As `aquifer_torch_alloc`; the stream was given all work that uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_torch_free(
    pointer: *mut c_void,
    size: usize,
    device: c_int,
    stream: *mut c_void,
) {
    // SAFETY: PyTorch's streams are never destroyed.
    unsafe { streams::deallocate(device, pointer.addr() as u64, size, stream) };
}

/// The stack of each capture, by device and pool: the process's own may be another one by its end.
static CAPTURES: LazyLock<Mutex<HashMap<Key, u32>>> = LazyLock::new(Mutex::default);

/// A device, and a pool of its.
type Key = (c_int, u64, u64);

/// `set_init_fn`: opens the stacks of the devices when they are used, so there is nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_torch_init(device_count: c_int) {
    let _ = device_count;
}

/// `set_reset_fn`, by `torch.cuda.empty_cache()`: gives free memory of all stacks back, and free page-locked memory.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_torch_reset() {
    call(|| {
        let mut first = Ok(());
        for stack in Stack::defaults() {
            let stack = stack::get(stack)?;
            // One that sleeps has given all of it back.
            if !stack.resources.is_asleep() {
                first = first.and(stack.resources.wait_and_trim(0).map(drop));
            }
        }
        let trimmed = host::made_pool().map_or(Ok(()), |pool| pool.trim().map(drop));
        Ok(first.and(trimmed)?)
    });
}

/// `set_memory_fraction_fn`: the pool of a device has at most this part of its memory. More than 1 is all of it.
///
/// A fraction of 0 or less, one of less than 256 bytes, and NaN leave the limit of the pool as it was. A stack without a
/// pool gets no limit. PyTorch asks for no error of this call: so besides `aquifer_torch_last_error`, a line on standard
/// error says that the call had no effect, and why.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_torch_memory_fraction(fraction: f64, device: c_int) {
    call(|| {
        limit(fraction, device).inspect_err(|failure| {
            let said = failure.message();
            // Where there is no standard error, there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "aquifer: aquifer_torch_memory_fraction: {said}");
        })
    });
}

fn limit(fraction: f64, device: c_int) -> Result<()> {
    if fraction.is_nan() {
        let message = "NaN is no part of a device's memory, so the limit of the pool stays as it was (give a number above 0, up to 1)";
        return Err(Failure::new(aquifer_status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
    }
    let stack = stack::get(Stack::default_of(device)?)?;
    let total = stack.resources.device().memory_info()?.total;
    let Some(pool) = stack.resources.pool() else {
        let message = format!(
            "the stack of device {device} has no pool, so nothing limits it to {fraction} of the device's memory (name a `pool` in AQUIFER_STACK)"
        );
        return Err(Failure::new(aquifer_status::AQUIFER_ERROR_UNSUPPORTED, message));
    };
    let most = (total as f64 * fraction.clamp(0.0, 1.0)) as usize;
    let most = most - most % page_map::UNIT as usize;
    if most == 0 {
        let message = format!(
            "{fraction} of the memory of device {device} is no memory, so the limit of the pool stays as it was (give a number above 0, up to 1)"
        );
        return Err(Failure::new(aquifer_status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
    }
    Ok(pool.set_maximum_size(Some(most))?)
}

/// `set_base_alloc_fn`: the block's own address and size, as each is a block of its own.
///
/// # Safety
///
/// `size` is null, or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_torch_base_alloc(
    pointer: *mut c_void,
    size: *mut usize,
) -> *mut c_void {
    let entry = page_map::entry(pointer.addr() as u64);
    let block = entry.filter(|entry| entry.is_live()).map(page_map::Entry::block);
    // SAFETY: the caller's promise.
    if let (Some(block), Ok(size)) = (block, unsafe { Place::new(size, "the size") }) {
        size.set(block.bytes as usize);
    }
    pointer
}

/// `set_record_stream_fn`: a block is used on another stream, for which its free waits.
///
/// # Safety
///
/// As `aquifer_torch_alloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_torch_record_stream(pointer: *mut c_void, stream: *mut c_void) {
    call(|| {
        let address = pointer.addr() as u64;
        let device = memory::device_of(address)?;
        // SAFETY: PyTorch's streams are never destroyed.
        let stream = unsafe { streams::of_host(device, stream)? }.stream;
        memory::record_stream(address, &open_streams::get(handles::stream_number(stream)?)?)
    });
}

/// `set_begin_allocate_to_pool`: allocations for which the filter says so come from a pool of their own from now on,
/// until the end. PyTorch's filter of a graph says whether the stream is in the graph's capture, that of `use_mem_pool`
/// whether the thread is the caller. It is asked for each allocation of the device's stack, on the thread that
/// allocates, and none of them is warm meanwhile. An empty one, and null, take the allocations of all streams.
///
/// A filter that throws ends the process. It calls nothing of this library but allocations and frees. PyTorch asks for
/// no error of this call: so besides `aquifer_torch_last_error`, a line on standard error says that the call had no
/// effect.
///
/// # Safety
///
/// `filter` is null, or a `std::function<bool(cudaStream_t)>` of libstdc++ that C++ passes by value. Threads may call
/// it at once until the end has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_torch_begin_allocate_to_pool(
    device: c_int,
    pool: aquifer_torch_pool_id,
    filter: *mut c_void,
) {
    call(|| {
        // SAFETY: the caller's promise.
        let scope = unsafe { scope_of(filter) };
        begin(device, pool, scope).inspect_err(|failure| {
            let said = failure.message();
            // As in `aquifer_torch_memory_fraction`.
            let _ = writeln!(
                std::io::stderr(),
                "aquifer: aquifer_torch_begin_allocate_to_pool: {said}"
            );
        })
    });
}

/// # Safety
///
/// As `aquifer_torch_begin_allocate_to_pool`.
#[cfg(target_os = "linux")]
unsafe fn scope_of(filter: *mut c_void) -> Scope {
    // SAFETY: the caller's promise; the argument is the call's own until it returns.
    let filter = unsafe { filter.cast::<super::function::Argument>().as_mut() };
    filter.and_then(|filter| filter.take()).map_or(Scope::AllStreams, Scope::filtered)
}

/// # Safety
///
/// None. Other systems pass it in another shape.
#[cfg(not(target_os = "linux"))]
unsafe fn scope_of(_filter: *mut c_void) -> Scope {
    Scope::AllStreams
}

fn begin(device: c_int, pool: aquifer_torch_pool_id, scope: Scope) -> Result<()> {
    let number = Stack::default_of(device)?;
    stack::get(number)?.begin_capture((pool.first, pool.second), scope)?;
    CAPTURES.lock().insert((device, pool.first, pool.second), number);
    Ok(())
}

/// `set_end_allocate_to_pool_fn`: on any thread. No filter of the capture is called after it, and its copy is
/// destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_torch_end_allocate_to_pool(device: c_int, pool: aquifer_torch_pool_id) {
    call(|| {
        let number = stack_of(device, pool)?;
        memory::end_capture(&*stack::get(number)?, (pool.first, pool.second))
    });
}

/// `set_release_pool`: the graphs of the pool are gone.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_torch_release_pool(device: c_int, pool: aquifer_torch_pool_id) {
    call(|| {
        let number = stack_of(device, pool)?;
        stack::get(number)?.release_capture((pool.first, pool.second))?;
        CAPTURES.lock().remove(&(device, pool.first, pool.second));
        Ok(())
    });
}

/// The stack that a capture began on.
fn stack_of(device: c_int, pool: aquifer_torch_pool_id) -> Result<u32> {
    let number = CAPTURES.lock().get(&(device, pool.first, pool.second)).copied();
    number.map_or_else(|| Stack::default_of(device), Ok)
}

/// What the thread's last call that failed says. It stays until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_torch_last_error() -> *const std::ffi::c_char {
    crate::status::last_error()
}
