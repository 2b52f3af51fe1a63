//! Devices, and what a machine without a GPU says.

use crate::processes;
use crate::support::{layout, simulated};
use crate::table::Table;
use aquifer::sim::SimConfig;
use aquifer::{CudaResource, Device, DeviceResource, DeviceVec, ErrorKind};

pub(crate) fn rows(table: &mut Table) {
    table.failed("open a GPU on a machine without a driver", Device::open(0));
    for (title, value) in
        [("AQUIFER_BACKEND=cuda without a driver", "cuda"), ("AQUIFER_BACKEND=gpu", "gpu")]
    {
        processes::rows_of_child(table, "detect", &[("AQUIFER_BACKEND", value)], title);
    }
    // An empty one counts as not set.
    let unset = [("AQUIFER_BACKEND", "")];
    processes::rows_of_child(table, "detect", &unset, "detect a GPU on a machine without a driver");
    let title = "PinnedAlloc on a machine without a driver is asked for more than there is";
    processes::rows_of_child(table, "ordinary memory", &unset, title);
    let none = [("AQUIFER_BACKEND", "sim"), ("AQUIFER_SIM_DEVICES", "0")];
    processes::rows_of_child(table, "detect all", &none, "AQUIFER_SIM_DEVICES=0");
    let wrong = [("AQUIFER_BACKEND", "sim"), ("AQUIFER_SIM_SEED", "seven")];
    processes::rows_of_child(table, "detect", &wrong, "AQUIFER_SIM_SEED=seven");

    let (one, simulator) = simulated(SimConfig::default());
    let (two, _) = simulated(SimConfig::default());
    let (named, _) = simulated(SimConfig::default().ordinal(1));
    let stream = one.new_stream().unwrap();
    let target = DeviceVec::<u8>::zeroed(&two.new_stream().unwrap(), 4).unwrap();
    table.failed("a stream of another device of the same number", target.on(&stream));
    let target = DeviceVec::<u8>::zeroed(&named.new_stream().unwrap(), 4).unwrap();
    table.failed("a stream of another device", target.on(&stream));

    table.failed("a call that is none was to fail", simulator.fail_call("cuFoo", 1, 2));
    table.failed("call 0 was to fail", simulator.fail_call("cuMemAlloc", 0, 2));
    table.failed("a call was to fail with success", simulator.fail_call("cuMemAlloc", 1, 0));
    simulator.fail_call("cuMemGetInfo", 1, 999).unwrap();
    table.failed("what is free cannot be asked", one.memory_info());
    table.failed("a part of the memory that is none", one.percent_of_memory(120.0));
    simulator.fail_call("cuStreamCreate", 1, 2).unwrap();
    table.failed("no room for a stream", one.new_stream());
    simulator.fail_call("cuCtxRecordEvent", 1, 999).unwrap();
    simulator.fail_call("cuCtxSynchronize", 1, 700).unwrap();
    table.failed("a device faulted before a wait", one.synchronize());
    // The context of the first is lost.
    let (one, simulator) = simulated(SimConfig::default());
    simulator.fail_call("cuEventSynchronize", 1, 700).unwrap();
    table.failed("a device faulted in a wait", one.synchronize());
    table.failed("more than an address range of the host", {
        let vast = simulated(SimConfig::default().capacity(1 << 60)).0;
        CudaResource::new(&vast).allocate(&vast.new_stream().unwrap(), layout(1 << 50))
    });

    violations(table);
}

fn violations(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    // SAFETY: wrong on purpose: the vector is read before it is written.
    let vec = unsafe { DeviceVec::<u8>::uninit(&stream, 16) }.unwrap();
    table.failed("a violation, through a copy", vec.to_vec());
    table.failed("a violation that was told before", stream.synchronize());
    table.failed("a violation, through the device", simulator.check());
    assert_eq!(simulator.take_reports().len(), 1);
    for _ in 0..3 {
        let _ = vec.to_vec();
    }
    table.failed("three violations", simulator.check());
    assert_eq!(simulator.check().unwrap_err().kind(), ErrorKind::Simulation);
    simulator.take_reports();
}
