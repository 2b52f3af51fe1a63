//! A thread's own default stream, sent to another thread.

use aquifer::{Device, Result};

fn misuse(device: &Device) -> Result<()> {
    let mine = device.per_thread_stream()?;
    std::thread::spawn(move || mine.synchronize());
    Ok(())
}

fn main() {}
