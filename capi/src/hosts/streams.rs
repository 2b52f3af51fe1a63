//! The streams of hosts, by the driver's handle, which they never destroy: PyTorch's come from a pool for good. So a
//! handle is looked up, and the driver not asked.

use crate::memory;
use crate::status::Result;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::LazyLock;

type Key = (i32, u64);

static STREAMS: LazyLock<Mutex<HashMap<Key, u32>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// What the thread asked for last.
    static LAST: Cell<(i32, u64, u32)> = const { Cell::new((0, 0, 0)) };
}

/// The number of an open stream.
///
/// # Safety
///
/// The handle is of a stream of the device's primary context, which is not destroyed while the process uses this library.
#[inline]
pub(super) unsafe fn number_of(device: i32, handle: *mut c_void) -> Result<u32> {
    let handle_number = handle.addr() as u64;
    let last = LAST.get();
    if last.2 != 0 && (last.0, last.1) == (device, handle_number) {
        return Ok(last.2);
    }
    let known = STREAMS.lock().get(&(device, handle_number)).copied();
    let number = match known {
        Some(number) => number,
        None => {
            // SAFETY: the caller's promise.
            let number = unsafe { memory::stream_of(device, handle)? };
            STREAMS.lock().insert((device, handle_number), number);
            number
        }
    };
    LAST.set((device, handle_number, number));
    Ok(number)
}
