//! Entries of devices that are gone.

use super::*;
use crate::sim::SimConfig;

#[test]
fn devices_that_are_gone_leave_nothing() {
    let keys: Vec<_> = (0..10)
        .map(|_| {
            let device = Device::simulated(SimConfig::default());
            let _default = current_device_resource(&device).unwrap();
            device.key()
        })
        .collect();
    let living = Device::simulated(SimConfig::default());
    let set = Arc::new(CudaResource::new(&living));
    set_current_device_resource(set.clone());
    let _another = current_device_resource(&Device::simulated(SimConfig::default()));
    let devices = DEVICES.lock();
    assert!(keys.iter().all(|key| !devices.contains_key(key)));
    assert!(devices.contains_key(&living.key()), "what was set stays");
}
