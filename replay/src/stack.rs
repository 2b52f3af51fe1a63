//! What a log is replayed against: a resource over counted memory of a device.

use crate::bottom::{Counting, Counts};
use aquifer::sim::SimConfig;
use aquifer::{
    AsyncResource, CudaResource, Device, DeviceResource, ErrorKind, ManagedResource, PoolResource,
    PoolStatistics, Result, Stream,
};
use std::sync::Arc;

/// The resource on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resource {
    /// Aquifer's pool over plain memory.
    #[default]
    Pool,
    /// Plain memory: `cuMemAlloc` for each allocation.
    Cuda,
    /// A pool of the driver.
    Async,
    /// Managed memory: `cuMemAllocManaged` for each allocation.
    Managed,
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
    /// it as its maximum. 4 GiB on a simulated device and no limit on a GPU unless set.
    pub capacity: Option<u64>,
}

/// What a simulated device has where nothing was asked.
pub const SIMULATED_CAPACITY: u64 = 4 << 30;

pub(crate) struct Stack {
    pub(crate) device: Device,
    pub(crate) resource: Arc<dyn DeviceResource>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) counts: Arc<Counts>,
    pool: Option<PoolResource<Counting<CudaResource>>>,
}

impl Stack {
    pub(crate) fn new(options: &Options, streams: &[String], observe: bool) -> Result<Self> {
        let (device, limit) = match options.backend {
            Backend::Simulated => {
                let capacity = options.capacity.unwrap_or(SIMULATED_CAPACITY);
                (Device::simulated(SimConfig::default().capacity(capacity)), Some(capacity))
            }
            Backend::Cuda(ordinal) => (Device::open(ordinal)?, options.capacity),
        };
        let counts = Arc::new(Counts::new(limit, observe));
        let mut pool = None;
        let resource: Arc<dyn DeviceResource> = match options.resource {
            Resource::Pool => {
                let bottom = Counting::new(CudaResource::new(&device), counts.clone());
                let mut options = PoolResource::builder(bottom);
                if let Some(limit) = limit {
                    // What is more than an address space is no limit.
                    let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(1 << 48);
                    options = options.maximum_size(limit & !255);
                }
                let made = options.build()?;
                pool = Some(made.clone());
                Arc::new(made)
            }
            Resource::Cuda => Arc::new(Counting::new(CudaResource::new(&device), counts.clone())),
            Resource::Async => {
                Arc::new(Counting::new(AsyncResource::new(&device)?, counts.clone()))
            }
            Resource::Managed => {
                Arc::new(Counting::new(ManagedResource::new(&device)?, counts.clone()))
            }
        };
        let streams = streams
            .iter()
            .map(|name| match name.as_str() {
                "default" => Ok(device.default_stream()),
                _ => device.new_stream(),
            })
            .collect::<Result<_>>()?;
        Ok(Self { device, resource, streams, counts, pool })
    }

    pub(crate) fn statistics(&self) -> Option<PoolStatistics> {
        self.pool.as_ref().map(PoolResource::statistics)
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

/// Whether an error is the answer of a resource that is full, and not the end of a replay.
pub(crate) fn is_full(error: &aquifer::Error) -> bool {
    error.kind() == ErrorKind::OutOfMemory
}
