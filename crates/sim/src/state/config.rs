//! The configuration of a simulated device, with its size, seed, schedule and missing features.

use aquifer_driver::DeviceProperties;
use aquifer_driver::error::{Result, ensure};
use aquifer_driver::impls::{setters, variable};
use std::ffi::OsString;
use std::time::Duration;

/// When the queues of a simulated device run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Schedule {
    /// The queues run only inside calls that wait or ask. A synchronisation runs ready operations of
    /// all streams in a seeded random order until its own target is done. An event query runs a few.
    /// The same calls with the same seed run in the same order.
    #[default]
    OnDemand,
    /// A thread of the device runs ready operations of all streams in a seeded random order.
    /// That is closer to a GPU, but how far the thread gets between two calls depends on the machine.
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
    pub(crate) pool_checks: bool,
    pub(crate) peer_access: bool,
    pub(crate) rank_timeout: Duration,
    pub(crate) granularity: usize,
    pub(crate) capacity: usize,
    pub(crate) schedule: Schedule,
    pub(crate) ordinal: usize,
    pub(crate) properties: DeviceProperties,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            poison: true,
            pool_checks: true,
            peer_access: true,
            rank_timeout: Duration::from_secs(30),
            capacity: 4 << 30,
            granularity: 2 << 20,
            schedule: Schedule::OnDemand,
            ordinal: 0,
            properties: DeviceProperties::simulated(),
        }
    }
}

/// A variable of the environment that chooses one thing of a [`SimConfig`].
struct Choice {
    variable: &'static str,
    /// The values that it can have, for people.
    values: &'static str,
    /// The configuration with a value. `None` if the value means nothing.
    apply: fn(SimConfig, &str) -> Option<SimConfig>,
}

const CHOICES: [Choice; 5] = [
    Choice {
        variable: SimConfig::SEED,
        values: "a number from 0 to 2^64 - 1",
        apply: |config, value| Some(config.seed(value.parse().ok()?)),
    },
    Choice {
        variable: "AQUIFER_SIM_CAPACITY",
        values: "a number of bytes",
        apply: |config, value| Some(config.capacity(value.parse().ok()?)),
    },
    Choice {
        variable: "AQUIFER_SIM_SCHEDULE",
        values: "`on-demand` or `background`",
        apply: |config, value| {
            let schedule = match value {
                "on-demand" => Schedule::OnDemand,
                "background" => Schedule::Background,
                _ => return None,
            };
            Some(config.schedule(schedule))
        },
    },
    Choice {
        variable: "AQUIFER_SIM_POISON",
        values: "`on` or `off`",
        apply: |config, value| Some(SimConfig { poison: switch(value)?, ..config }),
    },
    Choice {
        variable: "AQUIFER_SIM_POOL_CHECKS",
        values: "`on` or `off`",
        apply: |config, value| Some(SimConfig { pool_checks: switch(value)?, ..config }),
    },
];

/// A choice between `on` and `off`.
fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
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
    #[doc(hidden)]
    pub fn seed_or_default(&self) -> u64 {
        self.seed
    }

    /// The variable of the environment that names the seed.
    #[doc(hidden)]
    pub const SEED: &str = "AQUIFER_SIM_SEED";

    /// The default, and over it what the environment chooses. `Device::detect` begins with it
    /// if it makes a simulated device. `Device::simulated` asks nothing of the environment.
    ///
    /// | variable | values |
    /// | --- | --- |
    /// | `AQUIFER_SIM_SEED` | [`seed`](Self::seed), a number |
    /// | `AQUIFER_SIM_CAPACITY` | [`capacity`](Self::capacity), in bytes |
    /// | `AQUIFER_SIM_SCHEDULE` | [`schedule`](Self::schedule), `on-demand` or `background` |
    /// | `AQUIFER_SIM_POISON` | `on`, or `off` as by [`without_poison`](Self::without_poison) |
    /// | `AQUIFER_SIM_POOL_CHECKS` | `on`, or `off` as by [`without_pool_checks`](Self::without_pool_checks) |
    ///
    /// A variable that is empty counts as not set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Environment`](crate::ErrorKind::Environment) if a variable has another value.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(&variable)
    }

    /// Makes the configuration of [`from_env`](Self::from_env), with a function that reads a variable.
    #[doc(hidden)]
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut config = Self::default();
        for choice in &CHOICES {
            let Some(value) = variable(choice.variable) else { continue };
            let applied = value.to_str().and_then(|value| (choice.apply)(config.clone(), value));
            let is_known = applied.is_some();
            let (name, values) = (choice.variable, choice.values);
            ensure!(
                is_known,
                Environment,
                format!("set it to {values}, or unset it"),
                "{name} is {value:?}, which is none of its values"
            );
            config = applied.unwrap_or(config);
        }
        Ok(config)
    }

    setters! {
        /// Sets the seed of the scheduler. 0 unless set. Every [`Report`](crate::sim::Report) names it.
        seed: u64;

        /// Sets the device's memory in bytes. 4 GiB unless set. An allocation takes its memory from the host, and the
        /// device itself takes none. Page-locked memory does not count. Its limit is the machine's physical memory, if
        /// Linux tells that. Managed memory does not count either. It may be as much as the device and the machine have
        /// together.
        capacity: usize;

        /// Sets the granularity of mapped memory in bytes. The memory is that of a
        /// [`VirtualResource`](crate::mr::VirtualResource), and of pools on [handles](crate::mr::Handles). 2 MiB unless
        /// set, as on GPUs. Rounded up to a power of two, and to a page of 4 KiB.
        granularity: usize;

        /// Sets when the queues run. [`Schedule::OnDemand`] unless set.
        schedule: Schedule;

        /// Sets how long a wait stands still for a rank of a [`Communicator`](crate::Communicator) that does not call.
        /// Then the communicator is lost, and a report of [`LostRank`](crate::sim::Violation::LostRank) is the error.
        /// It holds for waits that have no time of their own, such as that of [`to_vec`](crate::DeviceVec::to_vec). 30
        /// seconds unless set. On a GPU such waits never end.
        /// [`Communicator::synchronize`](crate::Communicator::synchronize) goes by its own time, and makes no report.
        rank_timeout: Duration;

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
    /// Without this, new blocks of up to 64 MiB are filled with a pattern, and pieces of mapped memory up to 16 MiB. Reads of bytes that were
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

    /// Does not follow what pools hand out. The device then knows a pool's memory by the blocks of its upstream alone.
    /// It finds no use of memory after its free to a pool, and none past the end of a pool's block. It finds no read of
    /// a block that was handed out again and not written since. Its reports name no vectors.
    ///
    /// A pool that is followed hands out blocks of just the bytes that were asked, and each block takes the pool's slow
    /// way. This is for benches, counts of instructions and replays. It is also for tests of what a pool does on a GPU,
    /// as its capacities and its way without a lock are.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, sim::SimConfig};
    ///
    /// let device = Device::simulated(SimConfig::default().without_pool_checks());
    /// let vec = DeviceVec::<u8>::zeroed(&device.new_stream()?, 100)?;
    /// assert_eq!(vec.capacity(), 256);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn without_pool_checks(mut self) -> Self {
        self.pool_checks = false;
        self
    }

    /// Simulates a device that reaches no memory of other devices, nor they its own. Copies between them still run.
    pub fn without_peer_access(mut self) -> Self {
        self.peer_access = false;
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

        /// Simulates a device that cannot page-lock memory that is only read.
        without_read_only_host_register: read_only_host_register;

        /// Simulates a device without virtual memory management.
        without_virtual_memory: virtual_memory;

        /// Simulates a device whose virtual memory cannot be shared with other processes.
        without_virtual_memory_descriptors: virtual_memory_descriptors;

        /// Simulates a device whose driver cannot record an event for a whole context.
        without_context_events: context_events;
    }
}
