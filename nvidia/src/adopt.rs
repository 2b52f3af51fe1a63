//! Memory that NVIDIA's crates allocated, as a vector.

use crate::context::require_same;
use crate::convert::{in_between, refuse_captured_home};
use crate::error::refused;
use crate::later;
use aquifer::bytemuck::Pod;
use aquifer::error::Refused;
use aquifer::mr::current_device_resource;
use aquifer::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, Result, Stream,
};
use cuda_core::{DeviceBuffer, DeviceCopy, RawDeviceBuffer};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The resource of a vector that was a buffer of theirs. Its first block is that buffer's. Others are the upstream's.
struct Adopted {
    address: u64,
    buffer: Mutex<Option<RawDeviceBuffer>>,
    upstream: Arc<dyn DeviceResource>,
}

impl Adopted {
    fn take(&self) -> Option<RawDeviceBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for Adopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adopted")
            .field("address", &format_args!("{:#x}", self.address))
            .field("upstream", &self.upstream)
            .finish_non_exhaustive()
    }
}

// SAFETY: one block of theirs, which its last view here keeps until it is deallocated, and the upstream's own.
unsafe impl DeviceResource for Adopted {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.upstream.allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // The first block with this address is theirs: while it lived, no other had it.
        let theirs = if block.address() == self.address { self.take() } else { None };
        let Some(buffer) = theirs else {
            // SAFETY: the upstream's block; the caller's promise.
            return unsafe { self.upstream.deallocate(stream, block) };
        };
        later::drop_after(stream, buffer);
    }
}

/// A buffer that NVIDIA's crates allocated as a vector at home on `home`, without a copy.
///
/// The home is ordered after all work of the context, and the host does not wait (a driver before CUDA 12.5 makes it). The
/// memory goes back to theirs when the vector is dropped or grows and its home's work is complete, on their worker.
/// Growth takes memory of the device's current resource.
///
/// ```no_run
/// use aquifer::Device;
/// use cuda_core::DeviceBuffer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::detect()?;
/// let theirs = aquifer_nvidia::context(&device)?.new_stream()?;
/// let buffer = DeviceBuffer::from_host(&theirs, &[1_u32, 2, 3])?;
/// let mut vec = aquifer_nvidia::adopt(buffer, &device.new_stream()?)?;
/// vec.push(4)?;
/// assert_eq!(vec.to_vec()?, [1, 2, 3, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The buffer comes back with each.
///
/// - [`ErrorKind::InvalidArgument`] if another view of the buffer is left, or `T` has no size.
/// - [`ErrorKind::WrongDevice`] if it is of another context than the primary one of `home`'s device.
/// - [`ErrorKind::Capture`] while `home` is in capture.
/// - The errors of the driver. It refuses while any stream of the context is in capture.
pub fn adopt<T: Pod + DeviceCopy>(
    buffer: DeviceBuffer<T>,
    home: &Stream,
) -> Result<DeviceVec<T>, Refused<DeviceBuffer<T>>> {
    match adopt_view(&buffer, home) {
        // The vector has the last view now.
        Ok(vec) => Ok(vec),
        Err(error) => Err(Refused { error, value: buffer }),
    }
}

/// A vector over a second view of the buffer, whose first one the caller drops then.
fn adopt_view<T: Pod + DeviceCopy>(
    buffer: &DeviceBuffer<T>,
    home: &Stream,
) -> Result<DeviceVec<T>> {
    if buffer.num_bytes() == 0 {
        return DeviceVec::new(home);
    }
    let upstream = order(buffer, home)?;
    let (address, bytes) = (buffer.cu_deviceptr(), buffer.num_bytes());
    let view = Mutex::new(Some(buffer.storage().clone()));
    let resource = Adopted { address, buffer: view, upstream };
    let block = DeviceBlock::new(address, bytes, address);
    // SAFETY: the block is the buffer's, of which the resource has a view and the caller the only other one. `home` was
    // ordered after all use of it.
    unsafe { DeviceVec::from_raw_parts(home.clone(), block, buffer.len(), resource) }
}

/// Orders `home` after all use of the buffer. Returns the resource of a growth.
fn order<T: DeviceCopy>(
    buffer: &DeviceBuffer<T>,
    home: &Stream,
) -> Result<Arc<dyn DeviceResource>> {
    require_same(home.device(), buffer.context())?;
    if !buffer.storage().is_unique() {
        return Err(refused(
            ErrorKind::InvalidArgument,
            format!(
                "a vector was asked for of a buffer of {} bytes with other views",
                buffer.num_bytes()
            ),
            "drop the tensors, graphs and views of it first",
        ));
    }
    refuse_captured_home(home, "a vector of a buffer")?;
    let upstream = current_device_resource(home.device())?;
    in_between(home, |between| between.order_home_after_all(home))?;
    Ok(upstream)
}
