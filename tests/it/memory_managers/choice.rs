//! Which memory manager a process has, and what comes before it.

use super::{Asked, Stocked, use_all};
use crate::log::Log;
use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceVec, ErrorKind, PoolResource,
    mr::{reset_current_device_resource, set_current_device_resource, with_device_resource},
    nbep7::{
        HostOnly, ResourceMemoryManager, memory_manager, register_memory_manager,
        set_memory_manager,
    },
};
use tracing::Level;

const VARIABLE: &str = "AQUIFER_MEMORY_MANAGER";

#[test]
fn a_manager_comes_after_named_scoped_and_set_resources() {
    let name = "a_manager_comes_after_named_scoped_and_set_resources";
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    set_memory_manager(|device| {
        let pool = PoolResource::new(CudaResource::new(device))?;
        HostOnly::new(device, ResourceMemoryManager::new(pool))
    })
    .unwrap();
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let resource_of =
        |vec: aquifer::Result<DeviceVec<u8>>| format!("{:?}", vec.unwrap().resource());
    let zeroed = || DeviceVec::<u8>::zeroed(&stream, 10);
    let of_manager = |name: &str| name.starts_with("ManagerMemory");
    assert!(of_manager(&resource_of(zeroed())), "{}", resource_of(zeroed()));
    let plain = CudaResource::new(&device);
    let named = DeviceVec::<u8>::zeroed_in(&stream, 10, plain.clone());
    assert!(resource_of(named).starts_with("CudaResource"));
    assert!(
        with_device_resource(plain.clone(), || resource_of(zeroed())).starts_with("CudaResource")
    );
    set_current_device_resource(plain);
    assert!(resource_of(zeroed()).starts_with("CudaResource"));
    reset_current_device_resource(&device);
    assert!(of_manager(&resource_of(zeroed())));
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| resource_of(zeroed())).join());
    assert!(of_manager(&elsewhere.unwrap()));
}

#[test]
fn a_manager_is_set_before_the_first_use_or_not_at_all() {
    let name = "a_manager_is_set_before_the_first_use_or_not_at_all";
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    let asked = Asked::default();
    for _ in 0..2 {
        // Nothing was used: the later one counts.
        let its = asked.clone();
        set_memory_manager(move |device| Stocked::new(device, &its)).unwrap();
    }
    let (device, _) = support::simulated(SimConfig::default());
    use_all(&device).unwrap();
    let its = asked.clone();
    let late = set_memory_manager(move |device| Stocked::new(device, &its)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn without_a_manager_none_can_be_set_later() {
    if !support::in_own_process(module_path!(), "without_a_manager_none_can_be_set_later") {
        return;
    }
    let (device, _) = support::simulated(SimConfig::default());
    use_all(&device).unwrap();
    assert!(memory_manager(&device).unwrap().is_none());
    let late = set_memory_manager(|device| Stocked::new(device, &Asked::default())).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn the_variable_names_a_manager_and_its_options() {
    let variables = [(VARIABLE, "small-pool:mib=2")];
    let name = "the_variable_names_a_manager_and_its_options";
    if !support::in_own_process_with(module_path!(), name, &variables) {
        return;
    }
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    // Not registered yet: an error at each use, and never the default.
    for _ in 0..2 {
        let unknown = DeviceVec::<u8>::zeroed(&stream, 10).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Environment);
        assert!(unknown.to_string().contains("small-pool"), "{unknown}");
    }
    // Ignored, with a warning.
    let (set, log) =
        Log::of(|| set_memory_manager(|device| Stocked::new(device, &Asked::default())));
    set.unwrap();
    assert_eq!(log.count(Level::WARN, "set_memory_manager was ignored"), 1, "{:?}", log.lines());
    register_memory_manager("small-pool", |device, options| {
        options.allow(&["mib"])?;
        let most = options.parse("mib")?.unwrap_or(64_usize) << 20;
        let pool = PoolResource::builder(CudaResource::new(device)).maximum_size(most).build()?;
        HostOnly::new(device, ResourceMemoryManager::new(pool))
    })
    .unwrap();
    let vec = DeviceVec::<u8>::zeroed(&stream, 1 << 20).unwrap();
    let full = DeviceVec::<u8>::zeroed(&stream, 2 << 20).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::OutOfMemory);
    assert!(full.to_string().contains("2097152"), "{full}");
    drop(vec);
    DeviceVec::<u8>::zeroed(&stream, 2 << 20).unwrap();
}

#[test]
fn options_that_a_manager_refuses_are_an_error_at_the_first_use() {
    let name = "options_that_a_manager_refuses_are_an_error_at_the_first_use";
    if !support::in_own_process_with(module_path!(), name, &[(VARIABLE, "stocked:mib=2")]) {
        return;
    }
    register_memory_manager("stocked", |device, options| {
        options.allow(&[])?;
        Stocked::new(device, &Asked::default())
    })
    .unwrap();
    let (device, _) = support::simulated(SimConfig::default());
    let refused = DeviceVec::<u8>::zeroed(&device.new_stream().unwrap(), 10).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Environment);
    assert!(refused.to_string().contains("mib"), "{refused}");
}

#[test]
fn default_is_the_name_of_the_crates_own_memory() {
    let name = "default_is_the_name_of_the_crates_own_memory";
    if !support::in_own_process_with(module_path!(), name, &[(VARIABLE, "default")]) {
        return;
    }
    let (device, _) = support::simulated(SimConfig::default());
    assert!(memory_manager(&device).unwrap().is_none());
    use_all(&device).unwrap();
    aquifer::mr::default_device_pool(&device).unwrap();
    for name in ["default", "", "a:b", "a,b", "a b"] {
        let make = |device: &aquifer::Device, _: &aquifer::nbep7::ManagerOptions| {
            Stocked::new(device, &Asked::default())
        };
        let refused = register_memory_manager(name, make).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{name:?}");
    }
}
