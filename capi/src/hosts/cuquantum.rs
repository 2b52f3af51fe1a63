//! cuQuantum: the device memory handler of cuStateVec and cuTensorNet.

use super::streams;
use crate::place::Place;
use crate::stack::Stack;
use crate::status::aquifer_status;
use crate::table::call;
use std::ffi::{c_char, c_int, c_void};

/// `custatevecDeviceMemHandler_t` and `cutensornetDeviceMemHandler_t`, which are alike.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aquifer_cuquantum_handler {
    /// The device's number.
    pub ctx: *mut c_void,
    /// Returns 0, or another number where there is no memory.
    pub device_alloc: unsafe extern "C" fn(
        ctx: *mut c_void,
        pointer: *mut *mut c_void,
        size: usize,
        stream: *mut c_void,
    ) -> c_int,
    /// Returns 0, or another number where the block is none.
    pub device_free: unsafe extern "C" fn(
        ctx: *mut c_void,
        pointer: *mut c_void,
        size: usize,
        stream: *mut c_void,
    ) -> c_int,
    /// The handler's name.
    pub name: [c_char; 64],
}

unsafe extern "C" fn device_alloc(
    ctx: *mut c_void,
    pointer: *mut *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    let done = call(|| {
        let device = ctx.addr() as c_int;
        // SAFETY: the library's contract: a place for a pointer.
        let place = unsafe { Place::new(pointer, "the pointer")? };
        // SAFETY: the host keeps its stream as long as it uses this library.
        let block = unsafe { streams::allocate(device, size, stream)? };
        place.set(block);
        Ok(())
    });
    done as c_int
}

unsafe extern "C" fn device_free(
    ctx: *mut c_void,
    pointer: *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    let (device, address) = (ctx.addr() as c_int, pointer.addr() as u64);
    // SAFETY: as in `device_alloc`.
    (unsafe { streams::deallocate(device, address, size, stream) }) as c_int
}

/// Fills a handler for `custatevecSetDeviceMemHandler` or `cutensornetSetDeviceMemHandler`: the process's stack of a
/// device. The streams that the host passes are not destroyed before the host's handle is.
///
/// # Safety
///
/// `handler` is null, or a place for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_cuquantum_device_handler(
    device: c_int,
    handler: *mut aquifer_cuquantum_handler,
) -> aquifer_status {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(handler, "the handler")? };
        Stack::default_of(device)?;
        let mut name = [0; 64];
        for (to, from) in name.iter_mut().zip(b"aquifer") {
            *to = *from as c_char;
        }
        let ctx = std::ptr::without_provenance_mut(device as usize);
        place.set(aquifer_cuquantum_handler { ctx, device_alloc, device_free, name });
        Ok(())
    })
}
