//! The devices of this process: GPUs, or simulated ones where there are none.

use crate::output::Outcome;
use aquifer::sim::SimConfig;
use aquifer::{Device, Result, device::BackendKind};
use std::num::NonZeroUsize;

/// Simulated devices that are taken unless told otherwise.
const SIMULATED: usize = 2;

/// How many GPUs there are, or `None` for simulated devices. `AQUIFER_BACKEND` decides as for
/// `Device::detect`, which is asked only where there is no GPU: it would open GPU 0, which is another process's.
pub(crate) fn gpus() -> Result<Option<usize>> {
    let backend = std::env::var_os("AQUIFER_BACKEND").unwrap_or_default();
    if (backend.is_empty() || backend == "cuda")
        && let Ok(count @ 1..) = Device::count()
    {
        return Ok(Some(count));
    }
    match Device::detect_or_simulate()?.kind() {
        BackendKind::Simulated => Ok(None),
        _ => Device::count().map(Some),
    }
}

/// As many devices as are wanted. Unless told otherwise: all GPUs, or two simulated devices.
pub(crate) fn open(wanted: Option<NonZeroUsize>) -> Outcome<Vec<Device>> {
    let wanted = wanted.map(NonZeroUsize::get);
    let devices: Result<Vec<Device>> = match gpus()? {
        Some(count) => {
            let wanted = wanted.unwrap_or(count);
            if wanted > count {
                return Err(
                    format!("{wanted} devices were asked for, and the GPUs are {count}").into()
                );
            }
            (0..wanted).map(Device::open).collect()
        }
        None => {
            let config = SimConfig::from_env()?;
            let simulated = |ordinal| Ok(Device::simulated(config.clone().ordinal(ordinal)));
            (0..wanted.unwrap_or(SIMULATED)).map(simulated).collect()
        }
    };
    Ok(devices?)
}

/// Whether kernels of the devices reach each other's memory. Where they do, NCCL need not go by way of the host.
pub(crate) fn reach(devices: &[Device]) -> Result<String> {
    let mut unreached = Vec::new();
    for one in devices {
        for other in devices.iter().filter(|&other| other != one) {
            if !one.can_access_peer(other)? {
                unreached.push(format!("{} not that of {}", one.ordinal(), other.ordinal()));
            }
        }
    }
    Ok(match (devices.len(), unreached.is_empty()) {
        (1, _) => "one device in this process: it has no peer".to_owned(),
        (_, true) => "each reaches that of all others".to_owned(),
        (_, false) => unreached.join(", "),
    })
}

/// The backend in words, with a warning where its speeds mean nothing.
pub(crate) fn backend(device: &Device) -> String {
    match device.kind() {
        BackendKind::Simulated => {
            "SIMULATED: no GPU took part, and its speeds mean nothing".to_owned()
        }
        kind => format!("{kind}, driver {}", device.properties().driver_version),
    }
}
