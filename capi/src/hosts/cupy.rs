//! CuPy: `cupy.cuda.CFunctionAllocator(0, malloc, free, owner)` with the addresses of these two.
//!
//! | trap of the host | what is done |
//! |---|---|
//! | null is not looked at | `aquifer_cupy_malloc` throws `std::bad_alloc`, which CuPy takes for its `MemoryError` |
//! | there is no stream | memory is allocated on the legacy default stream, and freed after all work of the device |
//! | a size of 0 is not forwarded | null all the same |

use super::cpp::throw_bad_alloc;
use super::streams;
use crate::stack::device as open_device;
use crate::status::{aquifer_status, remember};
use crate::table::free;
use std::ffi::{c_int, c_void};

/// Memory of the process's stack of a device. Throws `std::bad_alloc` where there is none.
///
/// # Safety
///
/// The caller is C++ code that an exception may pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn aquifer_cupy_malloc(
    param: *mut c_void,
    size: usize,
    device: c_int,
) -> *mut c_void {
    let _ = param;
    // SAFETY: the legacy default stream is never destroyed.
    match unsafe { streams::allocate(device, size, std::ptr::null_mut()) } {
        Ok(pointer) => pointer,
        Err(failure) => {
            remember(failure);
            // SAFETY: the caller's promise.
            unsafe { throw_bad_alloc() };
            std::ptr::null_mut()
        }
    }
}

/// Frees memory after all work that the device was given so far, on any stream.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_cupy_free(param: *mut c_void, pointer: *mut c_void, device: c_int) {
    let _ = param;
    let mut number = device;
    let ordered = free(|| {
        let device = open_device(device)?;
        // In a capture the event would cost the graph. The legacy stream waits for all streams but non-blocking ones.
        if let Ok(event) = device.record() {
            device.default_stream().wait(&event)?;
        }
        number = device.ordinal() as c_int;
        Ok(())
    });
    if ordered == aquifer_status::AQUIFER_OK {
        // SAFETY: the legacy default stream is never destroyed.
        unsafe { streams::deallocate(number, pointer.addr() as u64, 0, std::ptr::null_mut()) };
    }
}
