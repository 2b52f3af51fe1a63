//! What a log is replayed against: a resource over counted memory of a device.

use crate::counting::{Counting, Counts};
use crate::event::{LogStream, StreamKind};
use crate::words::count;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceResource, Error, ErrorKind, PoolResource, Result, Stream,
    mr::{
        ArenaResource, AsyncResource, BinningResource, ManagedResource, PoolStatistics,
        VirtualResource,
    },
};
use std::sync::Arc;

/// The resource on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resource {
    /// Aquifer's pool over plain memory.
    #[default]
    Pool,
    /// Aquifer's pool that maps handles of memory.
    Virtual,
    /// Plain memory: `cuMemAlloc` for each allocation.
    Cuda,
    /// A pool of the driver.
    Async,
    /// Managed memory: `cuMemAllocManaged` for each allocation.
    Managed,
    /// Bins of 256 KiB to 4 MiB, RMM's, over a pool that serves what is larger.
    Binning,
    /// An arena, which takes the whole capacity at once: half of what is free on a GPU without one.
    Arena,
}

impl Resource {
    /// The name in reports.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// The bytes of the largest block that it can hand out, however much the device has; `None` where
    /// the device alone is the limit.
    pub fn largest_block(self) -> Option<u64> {
        match self {
            Self::Pool | Self::Virtual | Self::Binning | Self::Arena => Some(LARGEST_OF_A_POOL),
            Self::Cuda | Self::Async | Self::Managed => None,
        }
    }

    /// The streams that it can tell apart; `None` where it is any number.
    pub fn most_streams(self) -> Option<usize> {
        match self {
            Self::Pool | Self::Virtual | Self::Binning | Self::Arena => Some(STREAMS_OF_A_POOL),
            Self::Cuda | Self::Async | Self::Managed => None,
        }
    }
}

/// The device below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// A simulated device of its own, always the same.
    #[default]
    Simulated,
    /// The GPU of this number.
    Cuda(usize),
}

/// How to replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The resource on top.
    pub resource: Resource,
    /// The device below.
    pub backend: Backend,
    /// Bytes that may be taken from the device at once. A simulated device has so many, a pool has
    /// it as its maximum. Unless set there is no limit: a simulated device is as large as the log
    /// needs.
    pub capacity: Option<u64>,
}

/// Aquifer's pools and arenas count a block's bytes as 32 bits of 256.
const LARGEST_OF_A_POOL: u64 = (1 << 40) - 256;

/// Aquifer's pools and arenas number the streams of their blocks in 16 bits, of which two numbers are taken.
const STREAMS_OF_A_POOL: usize = 65_534;

/// What a simulated device has without a capacity: more than any log needs, and half of what a process
/// of 47 bits can address.
pub const AMPLE: u64 = 1 << 46;

/// Bytes that no allocation of a device has: the simulated one's addresses do not suffice.
pub const BEYOND_ANY_DEVICE: u64 = 1 << 42;

/// The least that an arena takes.
pub const LEAST_ARENA: u64 = 1 << 20;

pub(crate) struct Stack {
    pub(crate) device: Device,
    pub(crate) resource: Arc<dyn DeviceResource>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) counts: Arc<Counts>,
    statistics: Option<Box<Statistics>>,
    /// Asks a pool that maps its memory itself, so that nothing goes through `counts`.
    mapped_bytes: Option<Box<dyn Fn() -> u64 + Send + Sync>>,
}

type Statistics = dyn Fn() -> PoolStatistics + Send + Sync;

impl Stack {
    pub(crate) fn new(options: &Options, streams: &[LogStream]) -> Result<Self> {
        let (device, limit) = match options.backend {
            Backend::Simulated => {
                let capacity = options.capacity.unwrap_or(AMPLE);
                // Nothing is written, so a log of a large GPU needs none of its memory here.
                let config = SimConfig::default()
                    .capacity(capacity as usize)
                    .without_poison()
                    .without_pool_checks();
                (Device::simulated(config), options.capacity)
            }
            Backend::Cuda(ordinal) => (Device::open(ordinal)?, options.capacity),
        };
        // Where every allocation is a block of the device, these need no list of their own.
        let plain = matches!(
            options.resource,
            Resource::Virtual | Resource::Cuda | Resource::Async | Resource::Managed
        );
        let counts = Arc::new(Counts::new(limit, !plain));
        let mut statistics: Option<Box<Statistics>> = None;
        let mut mapped_bytes: Option<Box<dyn Fn() -> u64 + Send + Sync>> = None;
        let upstream = || Counting::new(CudaResource::new(&device), counts.clone());
        // What is more than an address space is no limit.
        let most = limit.map(|limit| limit.min(1 << 48) as usize & !255);
        let mut pool = || {
            let mut options = PoolResource::builder(upstream());
            if let Some(most) = most {
                options = options.maximum_size(most);
            }
            let made = options.build()?;
            let pool = made.clone();
            statistics = Some(Box::new(move || pool.statistics()));
            Ok::<_, Error>(made)
        };
        let resource: Arc<dyn DeviceResource> = match options.resource {
            Resource::Pool => Arc::new(pool()?),
            Resource::Virtual => {
                let memory = VirtualResource::new(&device)?;
                let granule = memory.granularity();
                let mut options = PoolResource::builder(memory);
                if let Some(most) = most {
                    if most < granule {
                        let words = format!(
                            "a pool of {}, whose handles have {} at least",
                            count(most, "byte"),
                            count(granule, "byte")
                        );
                        return Err(Error::new(ErrorKind::OutOfMemory, words));
                    }
                    options = options.maximum_size(most);
                }
                let made = options.build()?;
                let [pool, sized] = [made.clone(), made.clone()];
                statistics = Some(Box::new(move || pool.statistics()));
                mapped_bytes = Some(Box::new(move || sized.pool_size() as u64));
                Arc::new(made)
            }
            Resource::Binning => Arc::new(BinningResource::new(pool()?)?),
            Resource::Arena => {
                let mut options = ArenaResource::builder(upstream());
                if let Some(most) = most {
                    // It is one block, and the device would say that as much is free.
                    if device.simulator().is_some() && most as u64 >= BEYOND_ANY_DEVICE {
                        let words = format!(
                            "an arena of {}, where each block of a simulated device has less than \
                             4 TiB",
                            count(most, "byte")
                        );
                        return Err(Error::new(ErrorKind::OutOfMemory, words));
                    }
                    // Less is refused as too much for the capacity, which it is.
                    options = options.arena_size(most.max(LEAST_ARENA as usize));
                }
                let made = options.build()?;
                let arena = made.clone();
                statistics = Some(Box::new(move || arena.statistics()));
                Arc::new(made)
            }
            Resource::Cuda => Arc::new(upstream()),
            Resource::Async => {
                Arc::new(Counting::new(AsyncResource::new(&device)?, counts.clone()))
            }
            Resource::Managed => {
                Arc::new(Counting::new(ManagedResource::new(&device)?, counts.clone()))
            }
        };
        let streams = streams
            .iter()
            .map(|stream| match stream.kind {
                StreamKind::Default => Ok(device.default_stream()),
                StreamKind::PerThread | StreamKind::Other => device.new_stream(),
            })
            .collect::<Result<_>>()?;
        Ok(Self { device, resource, streams, counts, statistics, mapped_bytes })
    }

    pub(crate) fn statistics(&self) -> Option<PoolStatistics> {
        self.statistics.as_ref().map(|statistics| statistics())
    }

    /// The bytes that a pool has mapped, where nothing else counts them.
    pub(crate) fn mapped_bytes(&self) -> Option<u64> {
        self.mapped_bytes.as_ref().map(|bytes| bytes())
    }

    /// What a pool that maps its memory says of it.
    fn mapped_statistics(&self) -> Option<PoolStatistics> {
        self.statistics().filter(|_| self.mapped_bytes.is_some())
    }

    /// The most bytes that were taken from the device at once.
    pub(crate) fn peak_reserved(&self) -> u64 {
        let mapped = self.mapped_statistics();
        mapped.map_or_else(|| self.counts.peak(), |pool| pool.peak_reserved as u64)
    }

    /// How often memory was taken from the device or given back.
    pub(crate) fn upstream_calls(&self) -> u64 {
        let all = |pool: PoolStatistics| pool.growths as u64 + pool.returns as u64;
        self.mapped_statistics().map_or_else(|| self.counts.calls(), all)
    }

    /// Calls of the driver so far, where the device counts them.
    pub(crate) fn driver_calls(&self) -> Option<u64> {
        let simulator = self.device.simulator()?;
        Some(simulator.calls().iter().map(|(_, count)| count).sum())
    }

    /// What a simulated device has seen go wrong.
    pub(crate) fn check(&self) -> Result<()> {
        self.device.synchronize()?;
        match self.device.simulator() {
            Some(simulator) => simulator.check(),
            None => Ok(()),
        }
    }
}
