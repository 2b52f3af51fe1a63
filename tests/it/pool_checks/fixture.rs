//! All kinds of pools, each on a device of its own.

use aquifer::sim::{Report, SimConfig, Simulator, Violation};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceResource, DeviceVec, PoolResource, Result, Stream,
    mr::{
        AlignedAdaptor, ArenaResource, AsyncResource, BinningResource, CheckedAdaptor,
        FailureCallbackAdaptor, FixedSizeResource, LimitingAdaptor, LogFormat, LoggingAdaptor,
        ManagedResource, PrefetchAdaptor, StatisticsAdaptor, TracedAdaptor, TrackingAdaptor,
        current_device_resource,
    },
    pinned::PinnedResource,
};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Elements of the vectors: of no whole unit of a pool.
pub(crate) const LENGTH: usize = 1000;

/// Bytes of a block of the rows that have blocks of one size.
const BLOCK: usize = 4096;

pub(crate) struct Made {
    pub(crate) resource: Arc<dyn DeviceResource>,
    /// The bytes that a request of so many gets.
    pub(crate) room: fn(usize) -> usize,
    /// The host reaches it without a call, so it counts as written.
    pub(crate) is_host_visible: bool,
    /// Bytes that the threads keep ready, where that is known.
    cached: Option<Box<dyn Fn() -> usize>>,
}

impl Made {
    fn of<R: DeviceResource + 'static>(resource: R) -> Self {
        let resource = Arc::new(resource);
        Self { resource, room: |bytes| bytes, is_host_visible: false, cached: None }
    }

    fn pool<U: DeviceResource + 'static>(pool: PoolResource<U>) -> Self {
        let cached: Box<dyn Fn() -> usize> = {
            let pool = pool.clone();
            Box::new(move || pool.statistics().cached)
        };
        Self { cached: Some(cached), ..Self::of(pool) }
    }

    fn in_blocks(self) -> Self {
        Self { room: |bytes| bytes.next_multiple_of(BLOCK), ..self }
    }

    fn host_visible(self) -> Self {
        Self { is_host_visible: true, ..self }
    }
}

type Row = (&'static str, fn(&Device) -> Result<Made>);

fn pool(device: &Device) -> Result<PoolResource<CudaResource>> {
    PoolResource::new(CudaResource::new(device))
}

const MIB: usize = 1 << 20;

const ROWS: &[Row] = &[
    ("the default", |device| {
        Ok(Made { resource: current_device_resource(device)?, ..Made::pool(pool(device)?) })
    }),
    ("PoolResource", |device| Ok(Made::pool(pool(device)?))),
    ("PoolResource without magazines", |device| {
        let pool = PoolResource::builder(CudaResource::new(device)).magazine_entries(0).build()?;
        Ok(Made { cached: None, ..Made::pool(pool) })
    }),
    ("PoolResource over AsyncResource", |device| {
        Ok(Made::pool(PoolResource::new(AsyncResource::new(device)?)?))
    }),
    ("PoolResource over ManagedResource", |device| {
        Ok(Made::pool(PoolResource::new(ManagedResource::new(device)?)?).host_visible())
    }),
    ("PoolResource over PinnedResource", |device| {
        Ok(Made::pool(PoolResource::new(PinnedResource::new(device)?)?).host_visible())
    }),
    ("PoolResource over PoolResource", |device| {
        Ok(Made::pool(PoolResource::builder(pool(device)?).growth_step(MIB).build()?))
    }),
    ("three pools", |device| {
        let middle = PoolResource::builder(pool(device)?).growth_step(MIB).build()?;
        Ok(Made::pool(PoolResource::builder(middle).growth_step(64 << 10).build()?))
    }),
    ("PoolResource over an adaptor", |device| {
        let counted = StatisticsAdaptor::new(pool(device)?);
        Ok(Made::pool(PoolResource::builder(counted).growth_step(MIB).build()?))
    }),
    ("ArenaResource", |device| {
        let arena = ArenaResource::builder(CudaResource::new(device)).arena_size(4 * MIB);
        Ok(Made::of(arena.build()?))
    }),
    ("FixedSizeResource", |device| {
        let fixed = FixedSizeResource::builder(CudaResource::new(device)).block_size(BLOCK);
        Ok(Made::of(fixed.build()?).in_blocks())
    }),
    ("BinningResource", |device| {
        let binning = BinningResource::builder(pool(device)?).fixed_size_bins(12, 12);
        Ok(Made::of(binning.build()?).in_blocks())
    }),
    ("BinningResource, of no bin", |device| {
        let binning = BinningResource::builder(pool(device)?).fixed_size_bins(8, 8);
        Ok(Made::of(binning.build()?))
    }),
    ("AlignedAdaptor", |device| Ok(Made::of(AlignedAdaptor::new(pool(device)?, 512, 0)?))),
    ("LimitingAdaptor", |device| Ok(Made::of(LimitingAdaptor::new(pool(device)?, MIB)))),
    ("StatisticsAdaptor", |device| Ok(Made::of(StatisticsAdaptor::new(pool(device)?)))),
    ("TrackingAdaptor", |device| Ok(Made::of(TrackingAdaptor::new(pool(device)?)))),
    ("LoggingAdaptor", |device| {
        let logged = LoggingAdaptor::builder(pool(device)?).format(LogFormat::Events);
        Ok(Made::of(logged.writer(Box::new(std::io::sink())).build()?))
    }),
    ("FailureCallbackAdaptor", |device| {
        Ok(Made::of(FailureCallbackAdaptor::new(pool(device)?, |_| false)))
    }),
    ("PrefetchAdaptor", |device| {
        let pool = PoolResource::new(ManagedResource::new(device)?)?;
        Ok(Made::of(PrefetchAdaptor::new(pool)).host_visible())
    }),
    // It writes to what is freed, of the free's own order.
    ("CheckedAdaptor", |device| {
        Ok(Made::of(CheckedAdaptor::builder(pool(device)?).poison(None).build()))
    }),
    ("TracedAdaptor", |device| Ok(Made::of(TracedAdaptor::new(pool(device)?)))),
];

/// One row, with memory that was used before.
pub(crate) struct Fixture {
    pub(crate) device: Device,
    pub(crate) simulator: Simulator,
    /// The home of the vectors.
    pub(crate) stream: Stream,
    pub(crate) other: Stream,
    pub(crate) name: &'static str,
    pub(crate) made: Made,
}

/// Asks every row, with checks whatever the environment says. Nothing is left to be found at the end.
pub(crate) fn each(body: impl Fn(&Fixture)) {
    each_on(SimConfig::default(), |fixture| {
        body(fixture);
        fixture.clean();
    });
}

pub(crate) fn each_on(config: SimConfig, body: impl Fn(&Fixture)) {
    for (name, make) in ROWS {
        for seed in 0..2 {
            let device = Device::simulated(config.clone().seed(seed));
            let simulator = device.simulator().unwrap();
            let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
            let made = make(&device).unwrap();
            let fixture = Fixture { device, simulator, stream, other, name, made };
            fixture.warm();
            body(&fixture);
        }
    }
}

impl Fixture {
    /// Has the threads keep blocks of the size ready, as far as they do.
    fn warm(&self) {
        for _ in 0..3 {
            let vecs = [(); 4].map(|()| self.written());
            drop(vecs);
        }
        self.stream.synchronize().unwrap();
        if let Some(cached) = &self.made.cached
            && self.name != "the default"
        {
            assert!(cached() > 0, "{}: nothing is in the magazines", self.name);
        }
    }

    pub(crate) fn resource(&self) -> Arc<dyn DeviceResource> {
        self.made.resource.clone()
    }

    pub(crate) fn written(&self) -> DeviceVec<u32> {
        DeviceVec::from_slice_in(&self.stream, &[7; LENGTH], self.resource()).unwrap()
    }

    pub(crate) fn unwritten(&self, stream: &Stream) -> DeviceVec<u32> {
        // SAFETY: the simulated device tells of reads before a write.
        unsafe { DeviceVec::uninit_in(stream, LENGTH, self.resource()) }.unwrap()
    }

    /// Everything ran, and nothing is out of order.
    pub(crate) fn clean(&self) {
        self.device.synchronize().unwrap();
        self.simulator.check().unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// The one report there is.
    #[track_caller]
    pub(crate) fn saw(&self, kind: Violation) -> Report {
        let mut reports = self.simulator.take_reports();
        assert_eq!(reports.len(), 1, "{}: {kind:?} in {reports:?}", self.name);
        let report = reports.remove(0);
        assert_eq!(report.kind(), kind, "{}: {report}", self.name);
        assert_eq!(report.seed(), self.simulator.seed());
        report
    }
}

/// A second vector over the memory of one, which owns nothing.
pub(crate) struct Alias(Option<DeviceVec<u32>>);

/// As the raw pointer of a kernel of one's own: `length` elements, on whatever stream.
pub(crate) fn alias(vec: &DeviceVec<u32>, stream: &Stream, length: usize) -> Alias {
    let block = DeviceBlock::new(vec.as_device_ptr(), length * size_of::<u32>(), 0);
    let resource = vec.resource().clone();
    // SAFETY: it is never freed. The accesses through it are the simulated device's to judge.
    let alias = unsafe { DeviceVec::from_raw_parts(stream.clone(), block, length, resource) };
    Alias(Some(alias.unwrap()))
}

impl Drop for Alias {
    fn drop(&mut self) {
        // The parts free nothing; a vector would.
        if let Some(Err(refused)) = self.0.take().map(DeviceVec::into_raw_parts) {
            std::mem::forget(refused);
        }
    }
}

impl Deref for Alias {
    type Target = DeviceVec<u32>;

    fn deref(&self) -> &DeviceVec<u32> {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for Alias {
    fn deref_mut(&mut self) -> &mut DeviceVec<u32> {
        self.0.as_mut().unwrap()
    }
}
