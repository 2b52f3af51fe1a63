//! One row for each number of the driver, by a call that fails with it.

use crate::support::simulated;
use crate::table::Table;
use aquifer::DeviceVec;
use aquifer::sim::SimConfig;

const CODES: [u32; 51] = [
    1, 2, 3, 4, 34, 46, 100, 101, 200, 201, 208, 209, 214, 218, 220, 222, 226, 304, 400, 401, 500,
    600, 700, 701, 702, 709, 710, 712, 713, 714, 715, 716, 717, 718, 719, 721, 800, 801, 802, 803,
    900, 901, 902, 903, 904, 905, 906, 907, 908, 999, 4242,
];

pub(crate) fn rows(table: &mut Table) {
    for code in CODES {
        let (device, simulator) = simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        simulator.fail_call("cuStreamSynchronize", 1, code).unwrap();
        table.failed(&format!("code {code}"), stream.synchronize());
    }
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3]).unwrap();
    simulator.fail_call("cuMemcpyHtoDAsync", 1, 1).unwrap();
    table.failed("code 1 of a copy", vec.copy_from_slice(&[4; 3]));
    simulator.fail_call("cuMemsetAsync", 1, 1).unwrap();
    table.failed("code 1 of a fill", vec.fill(1));
    simulator.start_capture(&stream).unwrap();
    table.failed("a capture in a capture", simulator.start_capture(&stream));
    let theirs = simulated(SimConfig::default()).0.new_stream().unwrap();
    table.failed("a stream of another device to be held up", simulator.stall(&theirs));
    table.failed("a stream of another device to go on", simulator.resume(&theirs));
    assert!(simulator.stop_capture(&stream));
}
