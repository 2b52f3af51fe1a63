//! Host functions of a stream: their launch, their panics, and what they may not call.

use crate::support::simulated;
use crate::table::Table;
use aquifer::sim::SimConfig;
use aquifer::{CudaResource, DeviceLayout, DeviceResource, DeviceVec, Error, PoolResource, Stream};
use std::sync::mpsc::channel;

/// The error of `call` inside of a host function.
fn inside<T>(
    stream: &Stream,
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<(), Error> {
    let (sender, receiver) = channel();
    stream.launch_host_fn(move || sender.send(call().map(drop)).unwrap()).unwrap();
    stream.synchronize().unwrap();
    receiver.recv().unwrap()
}

pub(crate) fn rows(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let captured = stream.capture(&pool, |stream| {
        table.failed("a host function in a capture", stream.launch_host_fn(|| ()));
        Ok(())
    });
    drop(captured.unwrap());
    simulator.fail_call("cuStreamAddCallback", 1, 2).unwrap();
    table.failed("a host function without room", stream.launch_host_fn(|| ()));

    stream.launch_host_fn(|| panic!("no such record")).unwrap();
    table.failed("a host function that panicked", stream.synchronize());
    for _ in 0..3 {
        stream.launch_host_fn(|| std::panic::panic_any(5)).unwrap();
    }
    table.failed("some host functions that panicked with no text", device.synchronize());

    let own = stream.clone();
    table.failed("a stream inside of a host function", inside(&stream, move || own.record()));
    let own = device.clone();
    table.failed(
        "a driver call inside of a host function",
        inside(&stream, move || own.new_stream()),
    );
    let (own, on) = (pool.clone(), stream.clone());
    let layout = DeviceLayout::new(8).unwrap();
    table.failed(
        "a pool inside of a host function",
        inside(&stream, move || own.allocate(&on, layout)),
    );
    let other = device.new_stream().unwrap();
    let transfer = other.upload(vec![1_u8; 8], DeviceVec::zeroed(&other, 8).unwrap()).unwrap();
    table.failed(
        "a transfer inside of a host function",
        inside(&stream, move || transfer.wait().map_err(Error::from)),
    );
}
