//! A slice in device memory that keeps its length.

use super::buffer::Buffer;
use super::device_vec::DeviceVec;
use super::foreign::{On, OnMut, StreamRef};
use super::view::{DeviceRead, DeviceSlice, DeviceSliceMut, DeviceWrite};
use crate::device::Device;
use crate::error::{Refused, Result};
use crate::resource::DeviceResource;
use crate::stream::Stream;
use crate::sync::Arc;
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;

/// A slice of plain data in device memory whose length never changes: `Box<[T]>` on the GPU.
///
/// What a [`DeviceVec`] becomes when it has grown for the last time: it has no room to spare beyond
/// what its resource rounds up, and whoever is given one cannot move its elements to another
/// address. Both ways are without a copy if the vector is full. For a single value there is
/// [`DeviceScalar`](crate::DeviceScalar), so a `DeviceBox` of a sized type has no use here.
///
/// It has a home stream, and goes wherever a vector goes. RMM has no counterpart.
///
/// ```
/// use aquifer::{Device, DeviceBox, DeviceVec};
///
/// let stream = Device::detect()?.new_stream()?;
/// let mut vec = DeviceVec::from_slice(&stream, &[1_u32, 2])?;
/// vec.push(3)?;
/// let mut fixed: DeviceBox<[u32]> = vec.into_boxed_slice()?;
/// fixed.as_mut_slice().slice_mut(..1)?.fill(9)?;
/// assert_eq!(fixed.to_vec()?, [9, 2, 3]);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct DeviceBox<B: ?Sized> {
    buffer: Buffer,
    length: usize,
    elements: PhantomData<B>,
}

impl<T: Pod> DeviceVec<T> {
    /// The elements as a slice that keeps its length, in place if there is no room to give up: see
    /// [`shrink_to_fit`](Self::shrink_to_fit).
    ///
    /// # Errors
    ///
    /// As there; then the vector comes back.
    pub fn into_boxed_slice(mut self) -> Result<DeviceBox<[T]>, Refused<Self>> {
        match self.shrink_to_fit() {
            Ok(()) => Ok(DeviceBox::of(self)),
            Err(error) => Err(Refused::new(error, self)),
        }
    }
}

impl<T: Pod> DeviceBox<[T]> {
    fn of(vec: DeviceVec<T>) -> Self {
        Self { buffer: vec.buffer, length: vec.length, elements: PhantomData }
    }

    /// `length` elements whose bytes are all zero.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::zeroed`].
    pub fn zeroed(stream: &Stream, length: usize) -> Result<Self> {
        Ok(Self::of(DeviceVec::zeroed(stream, length)?))
    }

    /// As [`zeroed`](Self::zeroed), from `resource`.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::zeroed_in`].
    pub fn zeroed_in(
        stream: &Stream,
        length: usize,
        resource: Arc<dyn DeviceResource>,
    ) -> Result<Self> {
        Ok(Self::of(DeviceVec::zeroed_in(stream, length, resource)?))
    }

    /// A copy of `source`, complete when this returns.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::from_slice`].
    pub fn from_slice(stream: &Stream, source: &[T]) -> Result<Self> {
        Ok(Self::of(DeviceVec::from_slice(stream, source)?))
    }

    /// As [`from_slice`](Self::from_slice), from `resource`.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::from_slice_in`].
    pub fn from_slice_in(
        stream: &Stream,
        source: &[T],
        resource: Arc<dyn DeviceResource>,
    ) -> Result<Self> {
        Ok(Self::of(DeviceVec::from_slice_in(stream, source, resource)?))
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The size of the elements in bytes.
    pub fn size_in_bytes(&self) -> usize {
        self.length * size_of::<T>()
    }

    /// The home stream.
    pub fn stream(&self) -> &Stream {
        self.buffer.home()
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Device {
        self.buffer.home().device()
    }

    /// The resource that its memory came from and goes back to.
    pub fn resource(&self) -> &Arc<dyn DeviceResource> {
        self.buffer.resource()
    }

    /// Makes `stream` the home, ordered after all use so far. Nothing waits on the host.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::set_stream`].
    pub fn set_stream(&mut self, stream: &Stream) -> Result<()> {
        self.buffer.set_home(stream)
    }

    /// The device's address of the first element, the same while this lives. Use it on the home
    /// stream, or inside a guard from [`on`](Self::on) or [`on_mut`](Self::on_mut); dangling if
    /// there are no elements.
    pub fn as_device_ptr(&self) -> u64 {
        self.buffer.address()
    }

    /// All of it, to read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        let buffer = &self.buffer;
        DeviceSlice::new(buffer.address(), 0, self.length, buffer.home(), buffer.debts())
    }

    /// All of it, to read and write.
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        let buffer = &self.buffer;
        DeviceSliceMut::new(buffer.address(), 0, self.length, buffer.home(), buffer.debts())
    }

    /// To be read on `stream`, as [`DeviceVec::on`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn on<'a, S: StreamRef>(&'a self, stream: &'a S) -> Result<On<'a, T, S>> {
        self.as_slice().on(stream)
    }

    /// To be read and written on `stream`, as [`DeviceVec::on_mut`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn on_mut<'a, S: StreamRef>(&'a mut self, stream: &'a S) -> Result<OnMut<'a, T, S>> {
        OnMut::new(self.as_mut_slice(), stream)
    }

    /// The elements as a `Vec` on the host. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_slice().to_vec()
    }

    /// The elements as a vector, in place.
    pub fn into_vec(self) -> DeviceVec<T> {
        DeviceVec { buffer: self.buffer, length: self.length, elements: PhantomData }
    }
}

impl<T: Pod> From<DeviceBox<[T]>> for DeviceVec<T> {
    fn from(boxed: DeviceBox<[T]>) -> Self {
        boxed.into_vec()
    }
}

impl<T: Pod> DeviceRead<T> for DeviceBox<[T]> {
    fn as_device_slice(&self) -> DeviceSlice<'_, T> {
        self.as_slice()
    }
}

impl<T: Pod> DeviceWrite<T> for DeviceBox<[T]> {
    fn as_device_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        self.as_mut_slice()
    }
}

/// Shows where it lives, not what it holds: that is on the device.
impl<B: ?Sized> fmt::Debug for DeviceBox<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBox")
            .field("type", &std::any::type_name::<B>())
            .field("length", &self.length)
            .field("address", &format_args!("{:#x}", self.buffer.address()))
            .field("home", &format_args!("{}", self.buffer.home()))
            .field("resource", self.buffer.resource())
            .finish()
    }
}
