//! Copies from the host, against the bare driver call.
//!
//!     cargo bench --bench transfer
//!
//! Prints rows of `what,bytes,value,unit`. Pairs alternate in one run, since machines drift; values
//! are medians. On the simulated device the rows of the bare call are missing.

use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{Device, DeviceVec, Error, PinnedAlloc, Stream, Transfer, device::BackendKind};
use std::time::Instant;

const LARGE: usize = 1 << 30;
const SMALL: usize = 4 << 10;
const PAIRS: usize = 11;
const IN_FLIGHT: usize = 128;
const ROUNDS: usize = 101;

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn timed<R>(body: impl FnOnce() -> R) -> (f64, R) {
    let start = Instant::now();
    let result = body();
    (start.elapsed().as_secs_f64(), result)
}

fn row(what: &str, bytes: usize, value: f64, unit: &str) {
    println!("{what},{bytes},{value:.2},{unit}");
}

fn main() -> Result<(), Error> {
    let found = Device::detect_or_simulate()?;
    let simulated = found.kind() == BackendKind::Simulated;
    let device = match simulated {
        true => Device::simulated(SimConfig::default().without_pool_checks()),
        false => found,
    };
    println!("# {device}, driver {}", device.properties().driver_version);
    println!("what,bytes,value,unit");
    bandwidth(&device, if simulated { LARGE / 64 } else { LARGE })?;
    enqueue(&device)?;
    Ok(())
}

/// The driver's own call, without this crate between.
#[cfg(feature = "cuda")]
mod bare {
    use aquifer::cudarc::driver::{result, sys};
    use aquifer::{Device, Stream};

    /// Memory of `cuMemHostAlloc`, left to the process's end.
    pub(crate) fn host(device: &Device, bytes: usize) -> Option<&'static mut [u8]> {
        device.cuda_context().ok()?.bind_to_thread().ok()?;
        // SAFETY: a new block of this size, never freed; zeroed before a reference to it exists.
        unsafe {
            let pointer = result::malloc_host(bytes, 0).ok()?.cast::<u8>();
            pointer.write_bytes(0, bytes);
            Some(std::slice::from_raw_parts_mut(pointer, bytes))
        }
    }

    pub(crate) fn copy(stream: &Stream, target: u64, source: &[u8]) {
        let Ok(raw) = stream.cuda_stream().map(|stream| stream.cu_stream()) else { return };
        // SAFETY: both buffers outlive the stream's next synchronisation, and the host leaves the
        // source alone.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(target, source.as_ptr().cast(), source.len(), raw) };
        assert_eq!(code as u32, 0, "the bare copy failed");
    }
}

fn pinned(bytes: usize) -> AllocVec<u8, PinnedAlloc> {
    let mut vec = AllocVec::with_capacity_in(bytes, PinnedAlloc);
    vec.resize(bytes, 1);
    vec
}

/// GB/s of large copies: bare from `cuMemHostAlloc`, ours from a pinned `Vec`, ours from a `Vec`.
fn bandwidth(device: &Device, bytes: usize) -> Result<(), Error> {
    let stream = device.new_stream()?;
    let mut target = DeviceVec::<u8>::zeroed(&stream, bytes)?;
    let ours = pinned(bytes);
    let ordinary = vec![1_u8; bytes];
    #[cfg(feature = "cuda")]
    let theirs = bare::host(device, bytes);
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    let (mut pinned_rates, mut ordinary_rates) = (Vec::new(), Vec::new());
    let mut bare_rates: Vec<f64> = Vec::new();
    for pair in 0..=PAIRS {
        #[cfg(feature = "cuda")]
        let bare = theirs.as_deref().map(|theirs| {
            let address = target.as_device_ptr();
            timed(|| {
                bare::copy(&stream, address, theirs);
                stream.synchronize()
            })
            .0
        });
        #[cfg(not(feature = "cuda"))]
        let bare: Option<f64> = None;
        let from_pinned = timed(|| target.copy_from_slice(&ours)).0;
        let from_ordinary = timed(|| target.copy_from_slice(&ordinary)).0;
        // The first pair warms up.
        if pair > 0 {
            bare_rates.extend(bare.map(rate));
            pinned_rates.push(rate(from_pinned));
            ordinary_rates.push(rate(from_ordinary));
        }
    }
    let pinned = median(&mut pinned_rates);
    if !bare_rates.is_empty() {
        let bare = median(&mut bare_rates);
        row("bare cuMemcpyHtoDAsync from cuMemHostAlloc", bytes, bare, "GB/s");
        row("pinned Vec over bare", bytes, pinned / bare * 100.0, "%");
    }
    row("copy_from_slice of a pinned Vec", bytes, pinned, "GB/s");
    row("copy_from_slice of an ordinary Vec", bytes, median(&mut ordinary_rates), "GB/s");
    Ok(())
}

type Pair = (AllocVec<u8, PinnedAlloc>, DeviceVec<u8>);

/// Nanoseconds to enqueue a small copy: the bare call, and an owned transfer on the vector's home.
fn enqueue(device: &Device) -> Result<(), Error> {
    let stream = device.new_stream()?;
    let mut pairs: Vec<Pair> = Vec::new();
    for _ in 0..IN_FLIGHT {
        pairs.push((pinned(SMALL), DeviceVec::zeroed(&stream, SMALL)?));
    }
    // As many blocks as ours, each of its own: the driver looks a block up for each copy.
    #[cfg(feature = "cuda")]
    let theirs: Vec<_> = (0..IN_FLIGHT).map_while(|_| bare::host(device, SMALL)).collect();
    let (mut bare, mut owned) = (Vec::new(), Vec::new());
    let mut transfers: Vec<Transfer<AllocVec<u8, PinnedAlloc>>> = Vec::with_capacity(IN_FLIGHT);
    for round in 0..ROUNDS + 10 {
        stream.synchronize()?;
        #[cfg(feature = "cuda")]
        if !theirs.is_empty() {
            let (time, ()) = timed(|| {
                for (source, (_, target)) in theirs.iter().zip(&pairs) {
                    bare::copy(&stream, target.as_device_ptr(), source);
                }
            });
            stream.synchronize()?;
            if round >= 10 {
                bare.push(time / IN_FLIGHT as f64 * 1e9);
            }
        }
        let (time, begun) = timed(|| begin_all(&stream, pairs.drain(..), &mut transfers));
        begun?;
        if round >= 10 {
            owned.push(time / IN_FLIGHT as f64 * 1e9);
        }
        for transfer in transfers.drain(..) {
            pairs.push(transfer.wait()?);
        }
    }
    let owned = median(&mut owned);
    if !bare.is_empty() {
        let bare = median(&mut bare);
        row("enqueue, bare cuMemcpyHtoDAsync", SMALL, bare, "ns");
        row("enqueue, owned transfer over bare", SMALL, owned - bare, "ns");
    }
    row("enqueue, owned transfer", SMALL, owned, "ns");
    Ok(())
}

fn begin_all(
    stream: &Stream,
    pairs: impl Iterator<Item = Pair>,
    transfers: &mut Vec<Transfer<AllocVec<u8, PinnedAlloc>>>,
) -> Result<(), Error> {
    for (host, device) in pairs {
        transfers.push(stream.upload(host, device)?);
    }
    Ok(())
}
