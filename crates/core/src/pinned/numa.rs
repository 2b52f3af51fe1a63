//! Memory that is placed on a NUMA node which the program names.

use crate::device::Device;
use crate::driver::HostFlags;
#[cfg(target_os = "linux")]
use crate::error::ensure;
use crate::error::{Error, ErrorKind, Result};

/// Checks that page-locked memory of `device` can be placed on `node`, by placing a page there.
#[cfg(target_os = "linux")]
pub(super) fn require_placement(device: &Device, flags: HostFlags, node: u32) -> Result<()> {
    use super::huge_pages::{HugePages, MappingStep, Placement};

    ensure!(
        device.properties().host_register && !flags.write_combined,
        Unsupported,
        "leave write_combined off, or numa_node out",
        "page-locked memory of {device} was to be on NUMA node {node}, where only its driver can make such memory"
    );
    let placed = HugePages::map(4096, 1, Placement::Named(node));
    placed.map(drop).map_err(|failed| match failed.step() {
        MappingStep::NoNode => {
            let what = format!(
                "page-locked memory was to be on NUMA node {node}, which this machine does not have"
            );
            Error::new(ErrorKind::InvalidArgument, what).with_advice(
                "give a node with memory: /sys/devices/system/node/has_memory names them",
            )
        }
        _ => {
            let what = format!("page-locked memory was to be on NUMA node {node}: {failed}");
            Error::new(ErrorKind::Unsupported, what).with_advice("leave numa_node out")
        }
    })
}

#[cfg(not(target_os = "linux"))]
pub(super) fn require_placement(device: &Device, _: HostFlags, node: u32) -> Result<()> {
    let what = format!("page-locked memory of {device} was to be on NUMA node {node}");
    Err(Error::new(ErrorKind::Unsupported, what)
        .with_advice("leave numa_node out: it is of Linux alone"))
}
