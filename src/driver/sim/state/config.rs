//! The configuration of a simulated device: size, seed, schedule, missing features.

use crate::driver::DeviceProperties;
use crate::impls::setters;

/// When the queues of a simulated device run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Schedule {
    /// Only inside calls that wait or ask. A synchronisation runs ready operations of all streams in
    /// a seeded random order until its own target is done; an event query runs a few. The same calls
    /// with the same seed run in the same order.
    #[default]
    OnDemand,
    /// A thread of the device runs ready operations of all streams in a seeded random order.
    /// Closer to a GPU, but how far it gets between two calls depends on the machine.
    Background,
}

/// The configuration of a simulated device.
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
#[must_use]
pub struct SimConfig {
    pub(crate) seed: u64,
    pub(crate) poison: bool,
    pub(crate) capacity: u64,
    pub(crate) schedule: Schedule,
    pub(crate) ordinal: usize,
    pub(crate) properties: DeviceProperties,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            poison: true,
            capacity: 4 << 30,
            schedule: Schedule::OnDemand,
            ordinal: 0,
            properties: DeviceProperties {
                name: String::from("simulated device"),
                compute_capability: (0, 0),
                driver_version: 0,
                managed_memory: true,
                concurrent_managed_access: true,
                pageable_memory_access: true,
                memory_pools: true,
                map_host_memory: true,
                host_register: true,
                virtual_memory: true,
                context_events: true,
            },
        }
    }
}

/// Makes a method for each name, which takes away these properties.
macro_rules! without {
    ($($(#[$doc:meta])* $name:ident: $($property:ident),+;)+) => {
        $($(#[$doc])*
        pub fn $name(mut self) -> Self {
            $(self.properties.$property = false;)+
            self
        })+
    };
}

impl SimConfig {
    setters! {
        /// Sets the seed of the scheduler. 0 unless set. Every [`Report`](crate::sim::Report) names it.
        seed: u64;

        /// Sets the device's memory in bytes. 4 GiB unless set. An allocation takes its memory from the
        /// host, the device itself takes none.
        capacity: u64;

        /// Sets when the queues run. [`Schedule::OnDemand`] unless set.
        schedule: Schedule;

        /// Sets the device's number among the simulated devices. 0 unless set.
        ordinal: usize;
    }

    /// Sets the device's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.properties.name = name.into();
        self
    }

    /// Leaves new memory unfilled. On Linux a block of 1 MiB or more then takes no host memory until
    /// it is touched, and the device's memory may exceed the host's. For replays and models that
    /// allocate and touch nothing.
    ///
    /// Without this, new blocks of up to 64 MiB are filled with a pattern. Reads of bytes that were
    /// never written are reported either way.
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
    pub fn without_poison(mut self) -> Self {
        self.poison = false;
        self
    }

    without! {
        /// Simulates a device that cannot allocate managed memory.
        without_managed_memory: managed_memory, concurrent_managed_access;

        /// Simulates a device whose kernels do not reach ordinary host memory, as most are.
        without_pageable_memory_access: pageable_memory_access;

        /// Simulates a device without stream-ordered driver pools.
        without_memory_pools: memory_pools;

        /// Simulates a device that cannot map host memory for kernels.
        without_host_mapping: map_host_memory;

        /// Simulates a device that cannot page-lock memory of the caller.
        without_host_register: host_register;

        /// Simulates a device without virtual memory management.
        without_virtual_memory: virtual_memory;

        /// Simulates a device whose driver cannot record an event for a whole context.
        without_context_events: context_events;
    }
}
