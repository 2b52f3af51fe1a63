//! Buffers of theirs that go when a home has done what it was given.
//!
//! A home in capture tells no such point: what waits for it would join the capture. So the buffer waits here until a later
//! free finds the home out of it.

use crate::order::Between;
use aquifer::Stream;
use cuda_core::{RawDeviceBuffer, completion};
use std::sync::{Mutex, PoisonError};

/// Buffers whose home was in capture.
static LATER: Mutex<Vec<(Stream, RawDeviceBuffer)>> = Mutex::new(Vec::new());

/// Drops the buffer on their worker, when `home` has done all that it was given. It is leaked where nothing tells when that is.
pub(crate) fn drop_after(home: &Stream, buffer: RawDeviceBuffer) {
    let mut waiting = {
        let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *later)
    };
    waiting.push((home.clone(), buffer));
    // Not under the lock: these are calls of the driver.
    for (home, buffer) in waiting {
        match home.is_capturing() {
            Ok(true) => {
                let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
                later.push((home, buffer));
            }
            Ok(false) => retire(&home, buffer),
            Err(_) => std::mem::forget(buffer),
        }
    }
}

fn retire(home: &Stream, buffer: RawDeviceBuffer) {
    match Between::take(home.device()) {
        Ok(between) if between.wait_for(home).is_ok() => {
            // An error leaks it.
            let _ = completion::retain_until_complete(buffer, between.theirs());
            between.give_back();
        }
        // Their free would not wait for the home.
        _ => std::mem::forget(buffer),
    }
}
