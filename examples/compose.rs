//! A resource made of others finds a leak: a tracking adaptor over the current pool, a vector that is
//! forgotten on purpose, and a report that names the line which allocated it.
//!
//!     cargo run --release --example compose
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

/// Whether the report names the leak, and nothing else.
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
    let origin = left.first().and_then(aquifer::Allocation::origin).unwrap_or_default();
    Ok(left.len() == 1 && origin.contains("compose.rs:"))
}

/// Forgets a vector: its memory and its resource stay for as long as the process.
fn leak(stream: &Stream, resource: Arc<dyn DeviceResource>) -> Result<()> {
    let vec = DeviceVec::<f32>::zeroed_in(stream, 1 << 20, resource)?;
    std::mem::forget(vec);
    Ok(())
}
