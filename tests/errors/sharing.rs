//! Rows of memory that processes share.

use crate::support::simulated;
use crate::table::Table;
use aquifer::ipc::IpcExport;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceResource, DeviceVec, Result, Stream,
    ipc::{IpcHandle, IpcPool},
    mr::{AsyncResource, ManagedResource, VirtualResource},
    pinned::PinnedResource,
};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

struct Fixture {
    device: Device,
    simulator: Simulator,
    stream: Stream,
}

impl Fixture {
    fn new() -> Self {
        let (device, simulator) = simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        Self { device, simulator, stream }
    }

    fn vec(&self) -> DeviceVec<u8> {
        let plain = CudaResource::new(&self.device);
        DeviceVec::from_slice_in(&self.stream, &[1_u8; 20], plain).unwrap()
    }

    fn open<T: bytemuck::Pod>(&self, handle: &IpcHandle) -> Result<DeviceVec<T>> {
        // SAFETY: each row that opens memory keeps the vector behind it.
        unsafe { handle.open(&self.stream) }
    }
}

pub(crate) fn rows(table: &mut Table) {
    exports(table);
    bytes(table);
    openings(table);
    pools(table);
    mapped(table);
}

/// Over a socket.
fn mapped(table: &mut Table) {
    let fixture = Fixture::new();
    let Fixture { device, simulator, stream } = &fixture;
    let (here, there) = UnixStream::pair().unwrap();
    // SAFETY: what comes is refused.
    let receive = || unsafe { aquifer::ipc::receive::<u32>(stream, &there) };
    table.failed("plain memory over a socket", fixture.vec().send_to(&here));
    let memory = VirtualResource::new(device).unwrap();
    let vec = DeviceVec::from_slice_in(stream, &[1_u8; 30], memory).unwrap();
    table.failed("mapped memory by a handle", vec.ipc_handle());
    table.failed("no memory over a socket", vec.slice(..0).unwrap().send_to(&here));
    for (title, call) in [
        ("no mapping of memory", "cuMemGetAddressRange"),
        ("no descriptor of memory", "cuMemExportToShareableHandle"),
    ] {
        simulator.fail_call(call, 1, 999).unwrap();
        table.failed(title, vec.send_to(&here));
    }
    for (title, call) in [
        ("no handle of a descriptor", "cuMemImportFromShareableHandle"),
        ("no place for another process's memory", "cuMemMap"),
    ] {
        simulator.fail_call(call, 1, 2).unwrap();
        vec.slice(..28).unwrap().send_to(&here).unwrap();
        table.failed(title, receive());
    }
    vec.send_to(&here).unwrap();
    table.failed("a part of an element over a socket", receive());
    vec.slice(2..10).unwrap().send_to(&here).unwrap();
    table.failed("an alignment over a socket", receive());
    std::io::Write::write_all(&mut &here, b"something else").unwrap();
    table.failed("something else over a socket", receive());
    drop(here);
    let (here, there) = UnixStream::pair().unwrap();
    drop(there);
    table.failed("a socket without another end", vec.send_to(&here));

    let config = SimConfig::default().without_virtual_memory_descriptors();
    let (device, _simulator) = simulated(config);
    let stream = device.new_stream().unwrap();
    let memory = VirtualResource::new(&device).unwrap();
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8; 30], memory).unwrap();
    table.failed("a device that shares no mapped memory", vec.send_to(&here));
}

fn exports(table: &mut Table) {
    let fixture = Fixture::new();
    let Fixture { device, simulator, stream } = &fixture;
    let resources: [(&str, Arc<dyn DeviceResource>); 3] = [
        ("managed memory for another process", Arc::new(ManagedResource::new(device).unwrap())),
        ("page-locked memory for another process", Arc::new(PinnedResource::new(device).unwrap())),
        (
            "memory of a driver pool for another process",
            Arc::new(AsyncResource::new(device).unwrap()),
        ),
    ];
    for (title, resource) in resources {
        let vec = DeviceVec::<u8>::zeroed_in(stream, 100, resource).unwrap();
        table.failed(title, vec.ipc_handle());
    }
    let vec = fixture.vec();
    table.failed("no memory for another process", vec.slice(..0).unwrap().ipc_handle());
    let wild = DeviceBlock::new(64, 8, 0);
    table.failed("an address for another process", IpcHandle::of_block(stream, &wild));
    let handle = vec.ipc_handle().unwrap();
    let shared = fixture.open::<u8>(&handle).unwrap();
    table.failed("another process's memory for a third", shared.ipc_handle());
    drop(shared);
    for (title, call) in [
        ("no kind of memory", "cuPointerGetAttributes"),
        ("no allocation of memory", "cuMemGetAddressRange"),
        ("no handle of memory", "cuIpcGetMemHandle"),
        ("no UUID", "cuDeviceGetUuid"),
    ] {
        simulator.fail_call(call, 1, 999).unwrap();
        table.failed(title, vec.ipc_handle());
    }
    simulator.start_capture(stream).unwrap();
    let block = DeviceBlock::new(vec.as_device_ptr(), 20, 0);
    table.failed("a handle in a capture", IpcHandle::of_block(stream, &block));
    assert!(simulator.stop_capture(stream));
}

fn bytes(table: &mut Table) {
    let fixture = Fixture::new();
    let good = fixture.vec().ipc_handle().unwrap().to_bytes();
    table.failed("a handle that is cut short", IpcHandle::from_bytes(&good[..100]));
    let mut changed = |title: &str, at: usize, to: u8| {
        let mut bytes = good;
        bytes[at] = to;
        table.failed(title, IpcHandle::from_bytes(&bytes));
    };
    changed("bytes that are no handle", 0, b'x');
    changed("a handle of a newer format", 6, 2);
    changed("a handle of virtual memory", 7, 3);
    changed("a handle of nothing", 112, 0);
    changed("a handle with more in it", 127, 1);
}

fn openings(table: &mut Table) {
    let fixture = Fixture::new();
    let vec = fixture.vec();
    let handle = vec.ipc_handle().unwrap();
    table.failed("elements that do not fit the bytes", fixture.open::<u64>(&handle));
    let part = vec.slice(2..10).unwrap().ipc_handle().unwrap();
    table.failed("elements that do not fit the address", fixture.open::<u64>(&part));
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = handle.to_bytes();
        bytes[at..at + to.len()].copy_from_slice(to);
        IpcHandle::from_bytes(&bytes).unwrap()
    };
    table.failed("a handle past its allocation", fixture.open::<u8>(&changed(104, &[1])));
    table.failed("a handle of no memory", fixture.open::<u8>(&changed(32, &[0; 64])));
    table.failed("a handle of another device", Fixture::new().open::<u8>(&handle));
    let elsewhere = changed(16, &[b's', b'i', b'm', 0, 1, 0, 0, 0]);
    table.failed("a handle of another process's simulated device", fixture.open::<u8>(&elsewhere));
    let mut shared = fixture.open::<u8>(&handle).unwrap();
    table.failed("a vector in another process's memory grows", shared.push(1));
    fixture.simulator.start_capture(&fixture.stream).unwrap();
    // SAFETY: it is refused.
    let copied = unsafe { handle.copy_to::<u8>(&fixture.device, &fixture.stream) };
    table.failed("a copy of another process's memory in a capture", copied);
    assert!(fixture.simulator.stop_capture(&fixture.stream));
}

fn pools(table: &mut Table) {
    let fixture = Fixture::new();
    let Fixture { device, simulator, stream } = &fixture;
    let shareable = || Arc::new(AsyncResource::builder(device).shareable(true).build().unwrap());
    let (pool, other) = (shareable(), shareable());
    let vec = DeviceVec::from_slice_in(stream, &[1_u8; 20], pool.clone()).unwrap();
    let handle = vec.ipc_handle().unwrap();
    simulator.fail_call("cuMemPoolExportPointer", 1, 999).unwrap();
    table.failed("no handle of a driver pool's memory", vec.ipc_handle());
    table.failed("a handle of a driver pool, without it", fixture.open::<u8>(&handle));
    let received = |pool: &AsyncResource| {
        let (here, there) = UnixStream::pair().unwrap();
        IpcPool::send(pool, &here)?;
        IpcPool::receive(device, &there)
    };
    let imported = received(&other).unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { imported.open::<u8>(stream, &handle) };
    table.failed("a handle of another driver pool", refused);
    let plain = fixture.vec().ipc_handle().unwrap();
    // SAFETY: it is refused.
    table.failed("plain memory by a driver pool", unsafe { imported.open::<u8>(stream, &plain) });
    let null = std::fs::File::open("/dev/null").unwrap();
    table.failed("a descriptor of no pool", IpcPool::import(device, &null));
    simulator.fail_call("cuMemPoolImportFromShareableHandle", 1, 999).unwrap();
    table.failed("no import of a driver pool", received(&pool));
    let (here, there) = UnixStream::pair().unwrap();
    drop(here);
    table.failed("a socket whose other end is closed", IpcPool::receive(device, &there));
    table.failed("a pool for nobody", IpcPool::send(&pool, &there));
    let (here, there) = UnixStream::pair().unwrap();
    IpcPool::send(&pool, &here).unwrap();
    let other = Fixture::new().device;
    table.failed("a pool of another device", IpcPool::receive(&other, &there));
}
