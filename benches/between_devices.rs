//! Copies from one device to another, and what it costs to let the other one reach memory.
//!
//!     cargo bench --bench between_devices
//!
//! Prints rows of `what,bytes,value,unit`; values are medians. Without two GPUs the devices are simulated, and the
//! times mean nothing.

use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceResource, DeviceVec, Error, PoolResource,
    device::BackendKind, mr::AsyncResource,
};
use std::sync::Arc;
use std::time::Instant;

const ROUNDS: usize = 11;

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds(body: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
    let start = Instant::now();
    body()?;
    Ok(start.elapsed().as_secs_f64())
}

fn row(what: &str, bytes: usize, value: f64, unit: &str) {
    println!("{what},{bytes},{value:.2},{unit}");
}

fn main() -> Result<(), Error> {
    let found = Device::detect_or_simulate()?;
    let on_gpus = found.kind() == BackendKind::Cuda && Device::count()? > 1;
    let open = |ordinal| match on_gpus {
        true => Device::open(ordinal),
        false => Ok(Device::simulated(SimConfig::default().ordinal(ordinal).without_pool_checks())),
    };
    let (one, two) = (open(0)?, open(1)?);
    println!("# {one} and {two}, driver {}", one.properties().driver_version);
    println!("what,bytes,value,unit");
    let (bytes, blocks) = if on_gpus { (256 << 20, 2000) } else { (1 << 20, 10) };
    let stream = one.new_stream()?;
    let plain = CudaResource::new(&one);
    // First, while neither device reaches the other: a copy would change that.
    allocations("cuMemAlloc before", &one, bytes / 4)?;
    let live = (0..blocks)
        .map(|_| DeviceVec::<u8>::zeroed_in(&stream, 2 << 20, plain.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    let enabled = seconds(|| plain.enable_peer_access(&two))?;
    let live_bytes = live.len() * (2 << 20);
    row("enable_peer_access of CudaResource with live blocks", live_bytes, enabled * 1e3, "ms");
    allocations("cuMemAlloc after", &one, bytes / 4)?;
    drop(live);
    rate("copy of a pool's memory", &two, Arc::new(PoolResource::new(plain)?), bytes)?;
    let pool = Arc::new(AsyncResource::new(&one)?);
    rate("copy of a driver pool's memory without access", &two, pool.clone(), bytes)?;
    let kept = DeviceVec::<u8>::zeroed_in(&stream, bytes, pool.clone())?;
    let enabled = seconds(|| pool.enable_peer_access(&two))?;
    row("enable_peer_access of AsyncResource with live memory", bytes, enabled * 1e3, "ms");
    drop(kept);
    rate("copy of a driver pool's memory with access", &two, pool, bytes)?;
    for (bytes, copies) in [(8, 1000), (64 << 10, 1000)] {
        small(&one, &two, bytes, if on_gpus { copies } else { 10 })?;
    }
    Ok(())
}

/// GB/s of copies from memory of `resource` to the other device.
fn rate(
    what: &str,
    to: &Device,
    resource: Arc<dyn DeviceResource>,
    bytes: usize,
) -> Result<(), Error> {
    let (here, there) = (resource.device().new_stream()?, to.new_stream()?);
    let mut source = DeviceVec::<u8>::zeroed_in(&here, bytes, resource)?;
    source.fill(1)?;
    let mut target = DeviceVec::<u8>::zeroed(&there, bytes)?;
    let mut rates = Vec::new();
    for round in 0..=ROUNDS {
        there.synchronize()?;
        let time = seconds(|| {
            target.copy_from(&source)?;
            there.synchronize()
        })?;
        // The first warms up.
        if round > 0 {
            rates.push(bytes as f64 / time / 1e9);
        }
    }
    row(what, bytes, median(&mut rates), "GB/s");
    Ok(())
}

/// Microseconds of an allocation of the driver.
fn allocations(what: &str, device: &Device, bytes: usize) -> Result<(), Error> {
    let (stream, plain) = (device.new_stream()?, CudaResource::new(device));
    let layout = DeviceLayout::new(bytes)?;
    let mut times = Vec::new();
    for _ in 0..2 * ROUNDS {
        let start = Instant::now();
        let block = plain.allocate(&stream, layout)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        // SAFETY: the block is this resource's, and no work uses it.
        unsafe { plain.deallocate(&stream, block) };
    }
    row(what, bytes, median(&mut times), "us");
    Ok(())
}

/// Microseconds of a small copy among many.
fn small(one: &Device, two: &Device, bytes: usize, copies: usize) -> Result<(), Error> {
    let (here, there) = (one.new_stream()?, two.new_stream()?);
    let source = DeviceVec::<u8>::zeroed(&here, bytes)?;
    let mut target = DeviceVec::<u8>::zeroed(&there, bytes)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        there.synchronize()?;
        let time = seconds(|| {
            (0..copies).try_for_each(|_| target.copy_from(&source))?;
            there.synchronize()
        })?;
        times.push(time / copies as f64 * 1e6);
    }
    row("copy of a small vector, each", bytes, median(&mut times), "us");
    Ok(())
}
