//! A trait of cudarc's that safe code implements would say where the memory lies.

use aquifer::bytemuck::{Pod, Zeroable};
use aquifer::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceSlice, SyncOnDrop};
use std::sync::Arc;

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Own(u32);

unsafe impl Zeroable for Own {}
unsafe impl Pod for Own {}

impl DeviceSlice<Own> for CudaSlice<u8> {
    fn len(&self) -> usize {
        1 << 40
    }

    fn stream(&self) -> &Arc<CudaStream> {
        CudaSlice::stream(self)
    }
}

impl DevicePtr<Own> for CudaSlice<u8> {
    fn device_ptr<'a>(&'a self, _: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (0xdead_0000, SyncOnDrop::Record(None))
    }
}

impl aquifer::interop::CudaMemory<Own> for CudaSlice<u8> {}

fn main() {}
