//! A guard on a thread's own default stream, sent to another thread.

use aquifer::{Device, DeviceVec, Result};

fn misuse(device: &Device, vec: &mut DeviceVec<u32>) -> Result<()> {
    let mine = device.per_thread_stream()?;
    let guard = vec.on_mut(&mine)?;
    std::thread::scope(|threads| {
        threads.spawn(move || guard.as_device_ptr());
    });
    Ok(())
}

fn main() {}
