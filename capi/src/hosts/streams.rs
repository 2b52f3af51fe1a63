//! The streams of hosts, by the driver's handle, which they never destroy: PyTorch's come from a pool for good. So a
//! handle is looked up, and the driver not asked.
//!
//! A host counts as one user of each of its streams, so that others may open and close them by the table. One that is
//! closed all the same, by `stream_detach`, is opened again.

use crate::handles;
use crate::stack::device;
use crate::status::Result;
use aquifer_rs::Stream;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::LazyLock;

type Key = (i32, u64);

static STREAMS: LazyLock<Mutex<HashMap<Key, u32>>> = LazyLock::new(Mutex::default);

/// A stream, and the generation in which its number is open.
#[derive(Clone, Copy)]
struct Last {
    key: Key,
    number: u32,
    generation: u64,
}

thread_local! {
    /// What the thread asked for last.
    static LAST: Cell<Last> = const { Cell::new(Last { key: (0, 0), number: 0, generation: 0 }) };
}

/// The number of an open stream.
///
/// # Safety
///
/// The handle is of a stream of the device's primary context, which is not destroyed while the process uses this library.
#[inline]
pub(super) unsafe fn number_of(device_number: i32, handle: *mut c_void) -> Result<u32> {
    let key = (device_number, handle.addr() as u64);
    let generation = handles::generation();
    let last = LAST.get();
    if last.generation == generation && last.key == key {
        return Ok(last.number);
    }
    let known = STREAMS.lock().get(&key).copied();
    let number = match known.filter(|number| handles::is_open(*number)) {
        Some(number) => number,
        None => {
            let device = device(device_number)?;
            // SAFETY: the caller's promise.
            let number = handles::open_stream(unsafe { Stream::from_handle(&device, key.1)? });
            STREAMS.lock().insert(key, number);
            number
        }
    };
    // Read before the look at the stream: a close after it makes a new one.
    LAST.set(Last { key, number, generation });
    Ok(number)
}
