//! The properties that a device reports.

use std::fmt;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// A GPU, through the CUDA driver.
    Cuda,
    /// The simulated device, which has host memory, a scheduler and no GPU.
    Simulated,
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "CUDA",
            Self::Simulated => "simulated",
        })
    }
}

/// Free and total memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Bytes that can still be allocated. Other programs may allocate them first.
    pub free: usize,
    /// Bytes that the device has in all.
    pub total: usize,
}

impl MemoryInfo {
    /// Memory as a memory manager reports it.
    pub const fn new(free: usize, total: usize) -> Self {
        Self { free, total }
    }
}

/// The properties of a device, read once when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// The device's name, such as `NVIDIA H200` or `simulated device`.
    pub name: String,
    /// Compute capability, major and minor. The simulated device has `(0, 0)`.
    pub compute_capability: (u32, u32),
    /// The driver's version as the driver gives it, such as 13000 for CUDA 13.0. The simulated device
    /// has 0.
    pub driver_version: u32,
    /// The device supports managed memory.
    pub managed_memory: bool,
    /// The host may touch managed memory while kernels run.
    pub concurrent_managed_access: bool,
    /// Kernels can access ordinary host memory, without registration.
    pub pageable_memory_access: bool,
    /// The device supports stream-ordered memory pools.
    pub memory_pools: bool,
    /// Host memory can be mapped for kernels.
    pub map_host_memory: bool,
    /// Memory of the caller can be page-locked (`cuMemHostRegister`).
    pub host_register: bool,
    /// Memory that is only read, such as a file that is mapped, can be page-locked.
    pub read_only_host_register: bool,
    /// The NUMA node of the host that is nearest to the device. `None` if the driver does not tell.
    pub host_numa_node: Option<u32>,
    /// The device supports virtual memory management.
    pub virtual_memory: bool,
    /// Virtual memory can be shared with other processes, by file descriptors.
    pub virtual_memory_descriptors: bool,
    /// Network cards and disks can reach virtual memory (GPUDirect RDMA).
    pub virtual_memory_rdma: bool,
    /// One event can cover all work of the context (`cuCtxRecordEvent`, CUDA 12.5).
    pub context_events: bool,
}

impl DeviceProperties {
    /// The properties of a simulated device. It is on the host, so all that a device may have is there.
    #[doc(hidden)]
    pub fn simulated() -> Self {
        Self {
            name: String::from("simulated device"),
            compute_capability: (0, 0),
            driver_version: 0,
            managed_memory: true,
            concurrent_managed_access: true,
            pageable_memory_access: true,
            memory_pools: true,
            map_host_memory: true,
            host_register: true,
            read_only_host_register: true,
            host_numa_node: None,
            virtual_memory: cfg!(target_os = "linux"),
            virtual_memory_descriptors: cfg!(target_os = "linux"),
            virtual_memory_rdma: true,
            context_events: true,
        }
    }
}
