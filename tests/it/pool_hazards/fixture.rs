//! A small device and what the tests do with it.

use super::support;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, PoolResource, Result, Stream,
    mr::{AsyncResource, MissPolicy, PoolOptions},
};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) type Upstream = Arc<dyn DeviceResource>;
pub(crate) type Pool = PoolResource<Upstream>;

/// What the tests count memory in: a multiple of every alignment that they ask for but 2 MiB.
pub(crate) const UNIT: usize = 64 << 10;

/// Schedules that each situation is tried with.
pub(crate) const SEEDS: std::ops::Range<u64> = 0..4;

pub(crate) struct Fixture {
    pub(crate) device: Device,
    pub(crate) simulator: Simulator,
}

impl Fixture {
    /// A device that follows what pools hand out for an odd seed. The others' pools take the way without a
    /// lock.
    pub(crate) fn new(seed: u64) -> Self {
        let config = SimConfig::default().seed(seed).capacity(1 << 30);
        Self::with(if seed.is_multiple_of(2) { config.without_pool_checks() } else { config })
    }

    pub(crate) fn with(config: SimConfig) -> Self {
        let (device, simulator) = support::simulated(config);
        Self { device, simulator }
    }

    pub(crate) fn stream(&self) -> Stream {
        self.device.new_stream().unwrap()
    }

    pub(crate) fn streams<const N: usize>(&self) -> [Stream; N] {
        std::array::from_fn(|_| self.stream())
    }

    pub(crate) fn plain(&self) -> Upstream {
        Arc::new(CudaResource::new(&self.device))
    }

    pub(crate) fn stream_ordered(&self) -> Upstream {
        Arc::new(AsyncResource::new(&self.device).unwrap())
    }

    /// A pool that grows by what it is asked for, up to `maximum`.
    pub(crate) fn pool(&self, maximum: usize) -> Pool {
        self.options(maximum).build().unwrap()
    }

    pub(crate) fn options(&self, maximum: usize) -> PoolOptions<Upstream> {
        PoolResource::builder(self.plain()).maximum_size(maximum).growth_step(UNIT)
    }

    /// Waits for all, and asserts that nothing was out of order.
    pub(crate) fn clean(&self) {
        self.device.synchronize().unwrap();
        self.simulator.check().unwrap();
    }

    /// As `clean`, when everything is dropped: no memory is left. A scope does not wait until its
    /// threads are torn down, and one that is may be the last to let go of a pool, a moment later.
    pub(crate) fn all_is_back(&self) {
        self.clean();
        let started = Instant::now();
        while self.simulator.live_bytes() != 0 && started.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.clean();
        assert_eq!(self.simulator.live_bytes(), 0, "memory was not given back");
    }
}

/// The policies that a situation is tried with: what comes first differs.
pub(crate) fn policies() -> [MissPolicy; 2] {
    [MissPolicy::default(), MissPolicy::rmm()]
}

/// `bytes` bytes of `tag`, written in the order of `stream`. Nothing waits.
pub(crate) fn try_vec(
    pool: &Pool,
    stream: &Stream,
    bytes: usize,
    tag: u8,
) -> Result<DeviceVec<u8>> {
    let mut vec = DeviceVec::with_capacity_in(stream, bytes, Arc::new(pool.clone()))?;
    vec.resize(bytes, tag).expect("a fill of new memory");
    Ok(vec)
}

pub(crate) fn vec(pool: &Pool, stream: &Stream, bytes: usize, tag: u8) -> DeviceVec<u8> {
    try_vec(pool, stream, bytes, tag).expect("there is room")
}

/// Reads the vector back.
pub(crate) fn holds(vec: &DeviceVec<u8>, tag: u8) {
    let found = vec.to_vec().unwrap();
    assert!(!found.is_empty() && found.iter().all(|&byte| byte == tag), "not all is {tag}");
}

/// Whether two blocks share a byte.
pub(crate) fn overlap(a: &DeviceVec<u8>, b: &DeviceVec<u8>) -> bool {
    let range = |vec: &DeviceVec<u8>| {
        let start = vec.as_device_ptr();
        start..start + vec.capacity() as u64
    };
    let (a, b) = (range(a), range(b));
    a.start < b.end && b.start < a.end
}

/// All vectors hold what they were written with, and no two overlap.
pub(crate) fn whole(vecs: &[(DeviceVec<u8>, u8)]) {
    for (index, (vec, tag)) in vecs.iter().enumerate() {
        holds(vec, *tag);
        for (other, _) in &vecs[..index] {
            assert!(!overlap(vec, other), "{vec:?} and {other:?} overlap");
        }
    }
}
