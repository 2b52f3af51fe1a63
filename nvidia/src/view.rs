//! A vector that a stream of theirs uses for a while.

use crate::error::theirs;
use crate::stream::{from_stream, refuse_capture};
use aquifer::bytemuck::Pod;
use aquifer::{DeviceVec, Result};
use cuda_core::{DeviceBuffer, DeviceCopy, RawDeviceBuffer};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A buffer of theirs over a vector's memory, from [`borrow_mut`].
pub struct BorrowedBuffer<'a, T: Pod> {
    buffer: DeviceBuffer<T>,
    vec: PhantomData<&'a mut DeviceVec<T>>,
}

impl<T: Pod> Deref for BorrowedBuffer<'_, T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &Self::Target {
        &self.buffer
    }
}

impl<T: Pod> DerefMut for BorrowedBuffer<'_, T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.buffer
    }
}

impl<T: Pod> fmt::Debug for BorrowedBuffer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedBuffer").field("len", &self.buffer.len()).finish_non_exhaustive()
    }
}

/// The vector as a buffer of theirs for work on `stream`, while the vector is borrowed.
///
/// `stream` waits for the vector's home and its other uses. The home waits for `stream` before it uses the vector again,
/// also where the guard is forgotten. The stream is kept until the program ends, as by
/// [`from_stream`](crate::from_stream). [`into_buffer`](crate::into_buffer) is the safe way.
///
/// ```no_run
/// use aquifer::{Device, DeviceVec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::detect()?;
/// let theirs = aquifer_nvidia::context(&device)?.new_stream()?;
/// let mut vec = DeviceVec::from_slice(&device.new_stream()?, &[1_u32, 2, 3])?;
/// // SAFETY: the buffer is used on that stream, and no view of it is kept.
/// unsafe { aquifer_nvidia::borrow_mut(&mut vec, &theirs)?.zero_async(&theirs)? };
/// assert_eq!(vec.to_vec()?, [0; 3]); // after theirs
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The errors of [`into_buffer`](crate::into_buffer), [`DeviceVec::on_mut`].
///
/// # Safety
///
/// - The memory is used by work alone that `stream` is given while the vector is borrowed.
/// - No view on it, such as a clone of its storage, a tensor or a graph, is used after the borrow.
/// - The buffer is not swapped for another one.
#[track_caller]
pub unsafe fn borrow_mut<'a, T: Pod + DeviceCopy>(
    vec: &'a mut DeviceVec<T>,
    stream: &Arc<cuda_core::Stream>,
) -> Result<BorrowedBuffer<'a, T>> {
    crate::context::require_same(vec.device(), stream.context())?;
    refuse_capture(stream, "a buffer over a vector")?;
    let ours = from_stream(stream)?;
    // Both orders are made here, and hold without the guard.
    vec.on_mut(&ours)?;
    let (address, bytes) = (vec.as_device_ptr(), vec.size_in_bytes());
    // SAFETY: the vector keeps the memory while it is borrowed, and the caller's promise ends all use by then. The order of
    // that use is made above.
    let buffer = unsafe {
        let raw =
            RawDeviceBuffer::borrowed_from_raw_parts(address, bytes, stream.context().clone());
        DeviceBuffer::from_storage_copy(raw, vec.len())
    };
    let buffer = buffer.map_err(|error| theirs("borrowing a vector", "DeviceBuffer", error))?;
    Ok(BorrowedBuffer { buffer, vec: PhantomData })
}
