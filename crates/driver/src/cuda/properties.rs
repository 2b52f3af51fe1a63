//! The properties of a GPU, read once when it is opened.

use super::library::{Library, out_param};
use crate::{DeviceProperties, DriverResult};
use std::ffi::CStr;

const CAN_MAP_HOST_MEMORY: u32 = 19;
const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
const COMPUTE_CAPABILITY_MINOR: u32 = 76;
const MANAGED_MEMORY: u32 = 83;
const PAGEABLE_MEMORY_ACCESS: u32 = 88;
const CONCURRENT_MANAGED_ACCESS: u32 = 89;
const HOST_REGISTER_SUPPORTED: u32 = 99;
const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: u32 = 102;
const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: u32 = 103;
const GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: u32 = 110;
const READ_ONLY_HOST_REGISTER_SUPPORTED: u32 = 113;
const MEMORY_POOLS_SUPPORTED: u32 = 115;
const HOST_NUMA_ID: u32 = 134;

/// The first driver version with `cuCtxRecordEvent`.
const CONTEXT_EVENTS_SINCE: u32 = 12050;

/// Reads the properties. An attribute that an old driver does not know counts as missing.
pub(super) fn properties(library: &Library, device: i32) -> DriverResult<DeviceProperties> {
    let attribute = |number| {
        // SAFETY: `value` is writable for the call.
        let value =
            out_param(|value| unsafe { library.device_get_attribute(value, number, device) });
        value.ok().and_then(|value| u32::try_from(value).ok()).unwrap_or(0)
    };
    let flag = |number| attribute(number) != 0;
    // SAFETY: `value` is writable for the call.
    let node =
        out_param(|value| unsafe { library.device_get_attribute(value, HOST_NUMA_ID, device) });

    // SAFETY: `version` is writable for the call.
    let version = out_param(|version| unsafe { library.driver_get_version(version) })?;
    let driver_version = u32::try_from(version).unwrap_or(0);

    let mut name = [0_u8; 256];
    // SAFETY: the buffer is as long as the call says.
    unsafe { library.device_get_name(name.as_mut_ptr().cast(), name.len() as i32, device) }?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy();

    Ok(DeviceProperties {
        name: name.into_owned(),
        compute_capability: (
            attribute(COMPUTE_CAPABILITY_MAJOR),
            attribute(COMPUTE_CAPABILITY_MINOR),
        ),
        driver_version,
        managed_memory: flag(MANAGED_MEMORY),
        concurrent_managed_access: flag(CONCURRENT_MANAGED_ACCESS),
        pageable_memory_access: flag(PAGEABLE_MEMORY_ACCESS),
        memory_pools: flag(MEMORY_POOLS_SUPPORTED),
        map_host_memory: flag(CAN_MAP_HOST_MEMORY),
        host_register: flag(HOST_REGISTER_SUPPORTED),
        read_only_host_register: flag(READ_ONLY_HOST_REGISTER_SUPPORTED),
        host_numa_node: node.ok().and_then(|node: i32| u32::try_from(node).ok()),
        virtual_memory: flag(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
        virtual_memory_descriptors: flag(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
        virtual_memory_rdma: flag(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
        context_events: driver_version >= CONTEXT_EVENTS_SINCE && library.has("cuCtxRecordEvent"),
    })
}
