//! What the crates of aquifer have of each other's types is not to be had through `aquifer`.

use aquifer::container::StreamRef;
use aquifer::ipc::IpcExport;
use aquifer::{Device, DeviceSlice, Stream};

fn of_a_device(device: &Device) {
    let _ = device.driver();
}

fn of_a_stream(stream: &Stream) {
    let _ = stream.begin_call();
    stream.free_block_later(|_| {});
}

fn of_a_view(view: &DeviceSlice<'_, u8>) {
    let _ = view.memory_use();
}

fn by_a_bound(memory: &impl IpcExport, stream: &impl StreamRef) {
    let _ = memory.shared();
    let _ = stream.begin_call();
}

use aquifer::pinned::allocator::HostAllocator;
use aquifer::sim::{SimDriver, SimulatedStream};
use aquifer::stream::{Patience, StreamCall, deferred};

fn main() {}
