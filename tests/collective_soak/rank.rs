//! A rank: its device, streams, memory and communicator.

use crate::memory::Item;
use crate::plan::{Setup, Source};
use aquifer::sim::Simulator;
use aquifer::{
    Communicator, CudaResource, Device, DeviceBuffer, DeviceResource, DeviceVec, PoolResource,
    Result, Stream, collective::RegisteringAdaptor, mr::NcclResource,
};
use std::sync::Arc;

pub(crate) type Registering = RegisteringAdaptor<Arc<dyn DeviceResource>>;

pub(crate) struct Rank {
    pub(crate) number: usize,
    pub(crate) device: Device,
    pub(crate) simulator: Simulator,
    /// The first is the communicator's.
    pub(crate) streams: Vec<Stream>,
    pub(crate) memory: Memory,
    pub(crate) items: Vec<Item>,
    /// Until it leaves.
    pub(crate) communicator: Option<Communicator>,
    /// Calls of NCCL that were to register memory, and failed on purpose.
    pub(crate) refused: u64,
}

/// Where a rank's memory comes from.
pub(crate) struct Memory {
    pub(crate) pool: PoolResource<CudaResource>,
    pub(crate) registered: Registering,
    pub(crate) registered_pool: PoolResource<Registering>,
}

impl Memory {
    fn new(device: &Device, setup: &Setup) -> Result<Self> {
        let upstream: Arc<dyn DeviceResource> = match setup.nccl {
            true => Arc::new(NcclResource::new(device)),
            false => Arc::new(CudaResource::new(device)),
        };
        let registered = RegisteringAdaptor::new(upstream);
        Ok(Self {
            pool: PoolResource::new(CudaResource::new(device))?,
            registered_pool: PoolResource::new(registered.clone())?,
            registered,
        })
    }

    /// As many elements, which are zero.
    pub(crate) fn vec(
        &self,
        home: &Stream,
        length: usize,
        source: Source,
    ) -> Result<DeviceVec<u32>> {
        match source {
            Source::Pool => DeviceVec::zeroed_in(home, length, self.pool.clone()),
            Source::RegisteredPool => {
                DeviceVec::zeroed_in(home, length, self.registered_pool.clone())
            }
            Source::Registered => DeviceVec::zeroed_in(home, length, self.registered.clone()),
        }
    }

    pub(crate) fn buffer(
        &self,
        home: &Stream,
        length: usize,
        source: Source,
    ) -> Result<DeviceBuffer> {
        let bytes = length * size_of::<u32>();
        match source {
            Source::Pool => DeviceBuffer::zeroed_in(home, bytes, self.pool.clone()),
            Source::RegisteredPool => {
                DeviceBuffer::zeroed_in(home, bytes, self.registered_pool.clone())
            }
            Source::Registered => DeviceBuffer::zeroed_in(home, bytes, self.registered.clone()),
        }
    }

    pub(crate) fn trim(&self) -> Result<()> {
        self.pool.wait_and_trim(0)?;
        self.registered_pool.wait_and_trim(0).map(drop)
    }
}

impl Rank {
    pub(crate) fn new(number: usize, device: &Device, setup: &Setup) -> Result<Self> {
        Ok(Self {
            number,
            device: device.clone(),
            simulator: device.simulator().expect("a simulated device"),
            streams: (0..setup.streams).map(|_| device.new_stream()).collect::<Result<_>>()?,
            memory: Memory::new(device, setup)?,
            items: Vec::new(),
            communicator: None,
            refused: 0,
        })
    }
}
