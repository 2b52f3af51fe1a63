//! A resource made of others finds a leak: a tracking adaptor over the current pool, a vector that is
//! forgotten on purpose, and a report that names the line which allocated it (in a debug build).
//!
//!     cargo run --example compose
//!
//! Without a GPU it runs on the simulated device, and says so.

use aquifer::{
    Device, DeviceResource, DeviceVec, Result, Stream, TrackingAdaptor, current_device_resource,
};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("compose: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the leak is listed, and nothing else. Its line is named where the build has full debug
/// information.
fn run() -> Result<bool> {
    let device = Device::detect()?;
    let stream = device.new_stream()?;
    let pool = current_device_resource(&device)?;
    let tracking = TrackingAdaptor::builder(pool).capture_backtraces(true).build();
    let resource: Arc<dyn DeviceResource> = Arc::new(tracking.clone());

    let used = DeviceVec::from_slice_in(&stream, &[1_u32; 1000], resource.clone())?;
    println!("in use: {} bytes", tracking.allocated_bytes());
    leak(&stream, resource)?;
    drop(used);

    println!("{}", tracking.report());
    let left = tracking.outstanding();
    Ok(left.len() == 1 && left[0].bytes() >= 4 << 20)
}

/// Forgets a vector: its memory and its resource stay for as long as the process.
fn leak(stream: &Stream, resource: Arc<dyn DeviceResource>) -> Result<()> {
    let vec = DeviceVec::<f32>::zeroed_in(stream, 1 << 20, resource)?;
    std::mem::forget(vec);
    Ok(())
}
