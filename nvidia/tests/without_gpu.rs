//! What runs without a GPU: what is refused, and the types.

use aquifer::{Device, DeviceVec, ErrorKind, sim::SimConfig};
use aquifer_nvidia::{HostTransfer, adopt, context, into_buffer, into_vec};
use cuda_core::{Context, DeviceBuffer, RawDeviceBuffer, Stream};
use std::sync::Arc;

/// A context that no call of the driver succeeds with.
fn no_context() -> Arc<Context> {
    // SAFETY: a borrowed context is not released, and calls with it are refused before they reach the driver.
    unsafe { Context::borrow_raw(0x2000 as *mut _, 0, 0) }
}

#[test]
fn a_simulated_device_has_no_context_of_theirs() {
    let device = Device::simulated(SimConfig::default());
    assert_eq!(context(&device).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_simulated_vector_is_refused_and_comes_back() {
    let device = Device::simulated(SimConfig::default());
    let vec = DeviceVec::from_slice(&device.new_stream().unwrap(), &[1_u32, 2, 3]).unwrap();
    // SAFETY: it is never given work. Its drop leaks it, since no driver knows it.
    let theirs =
        std::mem::ManuallyDrop::new(unsafe { Stream::borrow_raw(0x3000 as *mut _, &no_context()) });
    let refused = into_buffer(vec, &theirs).err().unwrap();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
    assert_eq!(refused.value.to_vec().unwrap(), [1, 2, 3]);
}

/// A buffer that is no vector's.
fn theirs() -> DeviceBuffer<u32> {
    // SAFETY: nothing reads the memory that it names.
    unsafe {
        let raw = RawDeviceBuffer::borrowed_from_raw_parts(0x1000, 8, no_context());
        DeviceBuffer::from_storage_copy(raw, 2).unwrap()
    }
}

#[test]
fn a_buffer_that_was_no_vector_is_refused_and_comes_back() {
    let refused = into_vec(theirs()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidArgument);
    assert!(refused.error.advice().unwrap().contains("adopt"), "{}", refused.error);
    assert_eq!((refused.value.len(), refused.value.cu_deviceptr()), (2, 0x1000));
}

#[test]
fn a_buffer_of_another_device_is_not_adopted() {
    let device = Device::simulated(SimConfig::default());
    let refused = adopt(theirs(), &device.new_stream().unwrap()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
    assert_eq!(refused.value.len(), 2);
}

#[test]
fn transfers_and_buffers_leave_their_thread() {
    fn is_send<T: Send>() {}
    is_send::<HostTransfer<f32>>();
    is_send::<DeviceBuffer<f32>>();
}
