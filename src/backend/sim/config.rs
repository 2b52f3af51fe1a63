//! What a simulated device is like: its size, its seed, its schedule, what it lacks.

/// When the queues of a simulated device run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Schedule {
    /// Only inside calls that wait or ask: a synchronisation runs ready operations of all streams
    /// in a seeded random order until its own target is done, and an event query runs a few. The
    /// same calls with the same seed run in the same order.
    #[default]
    OnDemand,
    /// A thread of the device runs ready operations of all streams in a seeded random order.
    /// Closer to a GPU, but how far it gets between two calls depends on the machine.
    Background,
}

/// How to build a simulated device.
///
/// ```
/// use aquifer::sim::{Schedule, SimConfig};
///
/// let config = SimConfig::default()
///     .seed(42)
///     .capacity(1 << 30)
///     .schedule(Schedule::Background)
///     .without_managed_memory();
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct SimConfig {
    pub(super) seed: u64,
    pub(super) poison: bool,
    pub(super) capacity: u64,
    pub(super) schedule: Schedule,
    pub(super) name: String,
    pub(super) ordinal: usize,
    pub(super) managed_memory: bool,
    pub(super) pageable_memory_access: bool,
    pub(super) memory_pools: bool,
    pub(super) host_mapping: bool,
    pub(super) host_register: bool,
    pub(super) virtual_memory: bool,
    pub(super) context_events: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            poison: true,
            capacity: 4 << 30,
            schedule: Schedule::OnDemand,
            name: String::from("simulated device"),
            ordinal: 0,
            managed_memory: true,
            pageable_memory_access: true,
            memory_pools: true,
            host_mapping: true,
            host_register: true,
            virtual_memory: true,
            context_events: true,
        }
    }
}

impl SimConfig {
    /// Sets the seed of the scheduler. 0 unless set. Every [`Report`](super::Report) names it.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the device's memory in bytes. 4 GiB unless set. Nothing of it is taken from the host
    /// before it is allocated.
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Sets when the queues run. [`Schedule::OnDemand`] unless set.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sets the device's name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the device's number among the simulated devices. 0 unless set.
    #[must_use]
    pub fn ordinal(mut self, ordinal: usize) -> Self {
        self.ordinal = ordinal;
        self
    }

    /// Memory that is not filled with a pattern as it is allocated, so that on Linux a block of 1 MiB
    /// or more takes no host memory until it is touched, and there may be more of it than the host
    /// has. Reads of what nobody wrote are reported all the same. For replays and models that
    /// allocate and touch nothing; blocks above 64 MiB are never filled.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceLayout, DeviceResource, sim::SimConfig};
    ///
    /// let device = Device::simulated(SimConfig::default().capacity(80 << 30).without_poison());
    /// let stream = device.new_stream()?;
    /// let resource = CudaResource::new(&device);
    /// let block = resource.allocate(&stream, DeviceLayout::new(1 << 30)?)?;
    /// // SAFETY: the block is this resource's, and no work uses it.
    /// unsafe { resource.deallocate(&stream, block) };
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    #[must_use]
    pub fn without_poison(mut self) -> Self {
        self.poison = false;
        self
    }

    /// A device that cannot allocate managed memory.
    #[must_use]
    pub fn without_managed_memory(mut self) -> Self {
        self.managed_memory = false;
        self
    }

    /// A device whose kernels do not reach ordinary host memory, as most are.
    #[must_use]
    pub fn without_pageable_memory_access(mut self) -> Self {
        self.pageable_memory_access = false;
        self
    }

    /// A device without stream-ordered driver pools.
    #[must_use]
    pub fn without_memory_pools(mut self) -> Self {
        self.memory_pools = false;
        self
    }

    /// A device that cannot map host memory for kernels.
    #[must_use]
    pub fn without_host_mapping(mut self) -> Self {
        self.host_mapping = false;
        self
    }

    /// A device that cannot page-lock memory that someone else owns.
    #[must_use]
    pub fn without_host_register(mut self) -> Self {
        self.host_register = false;
        self
    }

    /// A device without virtual memory management.
    #[must_use]
    pub fn without_virtual_memory(mut self) -> Self {
        self.virtual_memory = false;
        self
    }

    /// A device whose driver cannot record an event for a whole context.
    #[must_use]
    pub fn without_context_events(mut self) -> Self {
        self.context_events = false;
        self
    }
}
