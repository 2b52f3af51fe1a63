//! The process's stack of a device, and the streams of hosts by the driver's handle, which they never destroy: PyTorch's
//! come from a pool for good. So a handle is looked up, and the driver not asked.
//!
//! A host counts as one user of each of its streams, so that others may open and close them by the table. One that is
//! closed all the same, by `stream_detach`, is opened again.

use crate::handles::{self, aquifer_stack, aquifer_stream};
use crate::memory;
use crate::open_streams;
use crate::stack::{Stack, device};
use crate::status::{Result, aquifer_status, guarded};
use crate::table::{forked, free};
use crate::{cache, fork};
use aquifer_rs::Stream;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::LazyLock;

/// A device's stack and a stream, as handles.
#[derive(Clone, Copy)]
pub(super) struct OfHost {
    pub(super) stack: *mut aquifer_stack,
    pub(super) stream: *mut aquifer_stream,
}

type Key = (i32, u64);

/// The number of the stream, by device and handle.
static KNOWN: LazyLock<Mutex<HashMap<Key, u32>>> = LazyLock::new(Mutex::default);

#[derive(Clone, Copy)]
struct Last {
    key: Key,
    /// In which the stream's number is open.
    generation: u64,
    of_host: Option<OfHost>,
}

thread_local! {
    /// What the thread asked for last.
    static LAST: Cell<Last> = const { Cell::new(Last { key: (0, 0), generation: 0, of_host: None }) };
}

/// What the thread asked for last, if it is this and the stream's number is open still.
#[inline(always)]
fn last(key: Key) -> Option<OfHost> {
    let last = LAST.get();
    if last.key == key && last.generation == cache::generation() { last.of_host } else { None }
}

/// The stack of a device, and an open stream.
///
/// # Safety
///
/// The handle is of a stream of the device's primary context, which is not destroyed while the process uses this library.
pub(super) unsafe fn of_host(device: i32, cuda_stream: *mut c_void) -> Result<OfHost> {
    let key = (device, cuda_stream.addr() as u64);
    match last(key) {
        Some(of_host) => Ok(of_host),
        // SAFETY: the caller's promise.
        None => unsafe { find(key) },
    }
}

/// # Safety
///
/// As [`of_host`].
#[cold]
unsafe fn find(key: Key) -> Result<OfHost> {
    // Read before the look at the stream: a close after it makes a new one.
    let generation = cache::generation();
    let stack = Stack::default_of(key.0)?;
    let known = KNOWN.lock().get(&key).copied();
    let stream = match known.filter(|stream| open_streams::is_open(*stream)) {
        Some(known) => known,
        None => {
            // SAFETY: the caller's promise.
            let stream = unsafe { Stream::from_handle(&device(key.0)?, key.1)? };
            let stream = open_streams::open(stream);
            KNOWN.lock().insert(key, stream);
            stream
        }
    };
    let (stack, stream) = (handles::stack_handle(stack), handles::stream_handle(stream));
    let of_host = OfHost { stack, stream };
    LAST.set(Last { key, generation, of_host: Some(of_host) });
    Ok(of_host)
}

/// Memory of the device's stack, for work on a stream.
///
/// # Safety
///
/// As [`of_host`].
#[inline(always)]
pub(super) unsafe fn allocate(
    device: i32,
    bytes: usize,
    cuda_stream: *mut c_void,
) -> Result<*mut c_void> {
    let address = match last((device, cuda_stream.addr() as u64)) {
        Some(OfHost { stack, stream }) => memory::allocate_fast(stack, bytes, stream),
        None => None,
    };
    let address = match address {
        Some(allocated) => allocated?,
        // SAFETY: the caller's promise.
        None => unsafe { allocate_cold(device, bytes, cuda_stream)? },
    };
    Ok(std::ptr::with_exposed_provenance_mut(address as usize))
}

/// # Safety
///
/// As [`of_host`].
#[cold]
#[inline(never)]
unsafe fn allocate_cold(device: i32, bytes: usize, cuda_stream: *mut c_void) -> Result<u64> {
    if fork::is_child() {
        return Err(forked());
    }
    guarded(|| {
        // SAFETY: the caller's promise.
        let OfHost { stack, stream } = unsafe { of_host(device, cuda_stream)? };
        let (stack, stream) = (handles::stack_number(stack)?, handles::stream_number(stream)?);
        memory::allocate(stack, bytes, 0, stream)
    })
}

/// Frees a block in the order of a stream.
///
/// # Safety
///
/// As [`of_host`].
#[inline(always)]
pub(super) unsafe fn deallocate(
    device: i32,
    address: u64,
    bytes: usize,
    cuda_stream: *mut c_void,
) -> aquifer_status {
    let freed = match last((device, cuda_stream.addr() as u64)) {
        Some(OfHost { stream, .. }) => memory::deallocate_fast(address, bytes, stream),
        None => None,
    };
    match freed {
        Some(status) => status,
        // SAFETY: the caller's promise.
        None => unsafe { deallocate_cold(device, address, bytes, cuda_stream) },
    }
}

/// # Safety
///
/// As [`of_host`].
#[cold]
#[inline(never)]
unsafe fn deallocate_cold(
    device: i32,
    address: u64,
    bytes: usize,
    cuda_stream: *mut c_void,
) -> aquifer_status {
    free(|| {
        // SAFETY: the caller's promise.
        let OfHost { stream, .. } = unsafe { of_host(device, cuda_stream)? };
        memory::deallocate(address, bytes, Some(handles::stream_number(stream)?))
    })
}
