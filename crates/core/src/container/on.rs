//! Guards, which are device memory on a stream that is ordered for its use.

use super::view::{DeviceSlice, DeviceSliceMut, lengths};
use crate::driver::{CallSite, DeviceCopy};
use crate::error::Result;
use crate::order::{CapturePolicy, StreamRef};
use std::fmt;

/// Device memory to read on a stream, from [`DeviceVec::on`](crate::DeviceVec::on).
///
/// The stream has waited for the vector's home stream. The home stream will wait for this stream before it writes or
/// frees the memory. Both hold if the guard is forgotten, and its drop does nothing. It leaves its thread if its stream
/// may. With cudarc, `&guard` is a kernel argument for that stream.
///
/// ```
/// use aquifer::{Device, DeviceVec};
///
/// let device = Device::detect_or_simulate()?;
/// let (home, other) = (device.new_stream()?, device.new_stream()?);
/// let mut vec = DeviceVec::from_slice(&home, &[1_u8, 2, 3])?;
/// std::mem::forget(vec.on(&other)?); // a reader's work on `other` would go here
/// vec.fill(0)?; // in home's order, after that work
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct On<'a, T: DeviceCopy, S> {
    slice: DeviceSlice<'a, T>,
    stream: &'a S,
}

/// Device memory to read and write on a stream, from [`DeviceVec::on_mut`](crate::DeviceVec::on_mut).
///
/// It is like [`On`], but the home stream will wait for this stream before it touches the memory at all. With cudarc,
/// `&mut guard` is a kernel argument for that stream.
pub struct OnMut<'a, T: DeviceCopy, S> {
    slice: DeviceSliceMut<'a, T>,
    stream: &'a S,
}

macro_rules! guard {
    ($name:ident, $slice:ident) => {
        impl<'a, T: DeviceCopy, S: StreamRef> $name<'a, T, S> {
            pub(super) fn new(slice: $slice<'a, T>, stream: &'a S) -> Result<Self> {
                slice.memory_use().order_on(stream, CapturePolicy::Join)?;
                Ok(Self { slice, stream })
            }

            /// The device's address of the first element.
            pub fn as_device_ptr(&self) -> u64 {
                self.slice.as_device_ptr()
            }

            /// The stream that it may be used on.
            pub fn stream(&self) -> &'a S {
                self.stream
            }

            pub(crate) fn address(&self) -> &u64 {
                self.slice.address()
            }
        }

        lengths!([T: DeviceCopy, S] $name<'_, T, S>, T, slice.length);

        impl<T: DeviceCopy, S> fmt::Debug for $name<'_, T, S> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.slice).finish()
            }
        }
    };
}
guard!(On, DeviceSlice);
guard!(OnMut, DeviceSliceMut);

impl<'a, T: DeviceCopy> DeviceSlice<'a, T> {
    /// The view, to be read on `stream`, which waits for the home stream. The home stream waits for `stream` before it
    /// writes or frees the memory.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::on`](crate::DeviceVec::on).
    #[track_caller]
    pub fn on<S: StreamRef>(&self, stream: &'a S) -> Result<On<'a, T, S>> {
        let _site = CallSite::enter();
        On::new(*self, stream)
    }
}

impl<T: DeviceCopy> DeviceSliceMut<'_, T> {
    /// The view, to be read on `stream` as by [`DeviceSlice::on`].
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::on`](crate::DeviceVec::on).
    #[track_caller]
    pub fn on<'b, S: StreamRef>(&'b self, stream: &'b S) -> Result<On<'b, T, S>> {
        let _site = CallSite::enter();
        On::new(self.as_slice(), stream)
    }

    /// The view, to be read and written on `stream`, which waits for the home stream and for every other use of this
    /// range. The home stream waits for `stream` before it touches the range again.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::on`](crate::DeviceVec::on).
    #[track_caller]
    pub fn on_mut<'b, S: StreamRef>(&'b mut self, stream: &'b S) -> Result<OnMut<'b, T, S>> {
        let _site = CallSite::enter();
        OnMut::new(self.reborrow(), stream)
    }
}
