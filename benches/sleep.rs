//! A pool that sleeps and wakes, beside the bare copies of as many bytes.
//!
//! `cargo bench --bench sleep`. `AQUIFER_SLEEP_MIB` is the size of what sleeps, 32 MiB unless set. One row a case: its
//! name, MiB, milliseconds (the least and the median of the rounds), and GB/s by the median.

use allocator_api2::vec::Vec as HostVec;
use aquifer::mr::{Keep, VirtualResource};
use aquifer::pinned::{PinnedResource, current_pinned_resource};
use aquifer::{Device, DeviceVec, PoolResource, Result, Stream};
use std::path::PathBuf;
use std::time::Instant;

const ROUNDS: usize = 5;
const MIB: usize = 1 << 20;

fn row(name: &str, bytes: usize, times: &mut [f64]) {
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let rate = bytes as f64 / median / 1e6;
    println!("{name},{},{:.2},{median:.2},{rate:.2}", bytes / MIB, times[0]);
}

fn timed<R>(times: &mut Vec<f64>, body: impl FnOnce() -> Result<R>) -> Result<R> {
    let begun = Instant::now();
    let done = body()?;
    times.push(begun.elapsed().as_secs_f64() * 1e3);
    Ok(done)
}

/// The memory of the pool: vectors of 256 MiB, as weights are, and the rest.
fn weights(
    stream: &Stream,
    pool: &PoolResource<VirtualResource>,
    bytes: usize,
) -> Result<Vec<DeviceVec<u8>>> {
    let sizes = (0..bytes).step_by(256 * MIB).map(|at| (256 * MIB).min(bytes - at));
    let vecs = sizes.map(|bytes| DeviceVec::zeroed_in(stream, bytes, pool.clone()));
    vecs.collect()
}

fn sleeps(
    name: &str,
    pool: &PoolResource<VirtualResource>,
    bytes: usize,
    keep: impl Fn() -> Keep,
) -> Result<()> {
    let (mut first, mut slept, mut woken) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let times = if round == 0 { &mut first } else { &mut slept };
        // SAFETY: this program has no pointers to the pool's memory, and no graph.
        timed(times, || unsafe { pool.sleep(keep()) })?;
        timed(&mut woken, || pool.wake())?;
    }
    row(&format!("{name}: the first sleep"), bytes, &mut first);
    row(&format!("{name}: sleep"), bytes, &mut slept);
    row(&format!("{name}: wake"), bytes, &mut woken);
    Ok(())
}

fn main() -> Result<()> {
    let mib = std::env::var("AQUIFER_SLEEP_MIB").ok().and_then(|text| text.parse().ok());
    let bytes = mib.unwrap_or(32) * MIB;
    let device = Device::detect_or_simulate()?;
    let stream = device.new_stream()?;
    println!("# {}, driver {}", device.properties().name, device.properties().driver_version);
    println!("case,MiB,least ms,median ms,GB/s");
    let pool = PoolResource::new(VirtualResource::new(&device)?)?;
    let mut vecs = weights(&stream, &pool, bytes)?;
    for (number, vec) in vecs.iter_mut().enumerate() {
        vec.fill(number as u8 + 1)?;
    }
    sleeps("page-locked", &pool, bytes, || Keep::PageLocked)?;

    // The bare copies, between the same vectors and page-locked memory of the same kind.
    current_pinned_resource()?.trim()?;
    let pinned = PinnedResource::new(&device)?;
    let mut hosts = Vec::new();
    for vec in &vecs {
        let mut host = HostVec::<u8, PinnedResource>::new_in(pinned.clone());
        host.resize(vec.len(), 0);
        hosts.push(host);
    }
    let (mut out, mut back) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        timed(&mut out, || {
            vecs.iter().zip(&mut hosts).try_for_each(|(vec, host)| vec.copy_to_slice(host))
        })?;
        timed(&mut back, || {
            vecs.iter_mut().zip(&hosts).try_for_each(|(vec, host)| vec.copy_from_slice(host))
        })?;
    }
    row("bare copies to the host", bytes, &mut out);
    row("bare copies to the device", bytes, &mut back);
    for (number, host) in hosts.iter().enumerate() {
        assert!(host.iter().all(|byte| *byte == number as u8 + 1), "a vector came back wrong");
    }
    drop(hosts);
    pinned.trim()?;

    if let Some(folder) = std::env::var_os("AQUIFER_SLEEP_FOLDER") {
        sleeps("file", &pool, bytes, || Keep::File(PathBuf::from(&folder)))?;
    }
    sleeps("dropped", &pool, bytes, || Keep::Nothing)
}
