//! The growable vector in device memory.

use super::buffer::Buffer;
use super::foreign::{On, OnMut, StreamRef};
use super::view::{DeviceRead, DeviceSlice, DeviceSliceMut, DeviceWrite, check_index};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::layout::DeviceLayout;
use crate::resource::DeviceResource;
use crate::resource::handle::{Handle, current};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::transfer::blocking;
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// A growable vector of plain data in device memory: `Vec<T>` on the GPU.
///
/// It has a *home stream*: constructors take it first, and all that the vector does by itself, its
/// free included, happens in that stream's order. Nothing waits for the device unless it says so,
/// and one stream alone makes no event. [`on`](Self::on) and [`on_mut`](Self::on_mut) use it on
/// another stream; the order between the two is kept even if the guard is forgotten.
///
/// Memory comes from the device's [current resource](crate::current_device_resource), or from the
/// one that an `*_in` constructor is given, and goes back there.
///
/// RMM: `device_uvector`, with growth.
///
/// ```
/// use aquifer::{Device, DeviceVec};
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let mut vec = DeviceVec::from_slice(&stream, &[1.0_f32, 2.0, 3.0])?;
/// vec.push(4.0)?;
/// vec.slice_mut(..2)?.fill(0.0)?;
/// assert_eq!(vec.to_vec()?, [0.0, 0.0, 3.0, 4.0]);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// An element must be plain data, any bit pattern of which is a value:
///
/// ```compile_fail
/// # let stream = aquifer::Device::detect().unwrap().new_stream().unwrap();
/// let vec = aquifer::DeviceVec::<bool>::new(&stream);
/// ```
pub struct DeviceVec<T: Pod> {
    pub(super) buffer: Buffer,
    pub(super) length: usize,
    pub(super) elements: PhantomData<T>,
}

impl<T: Pod> DeviceVec<T> {
    pub(super) fn allocate(
        stream: &Stream,
        capacity: usize,
        resource: impl Into<Handle>,
    ) -> Result<Self> {
        refuse_zero_sized::<T>()?;
        let buffer = Buffer::new(stream, DeviceLayout::array::<T>(capacity)?, resource)?;
        Ok(Self { buffer, length: 0, elements: PhantomData })
    }

    /// An empty vector at home on `stream`. No memory is taken yet.
    ///
    /// # Errors
    ///
    /// Those of [`current_device_resource`](crate::current_device_resource); [`ErrorKind::InvalidArgument`] if `T` has no size.
    pub fn new(stream: &Stream) -> Result<Self> {
        Self::with_capacity(stream, 0)
    }

    /// As [`new`](Self::new), from `resource`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] if `stream` is of another device; [`ErrorKind::InvalidArgument`]
    /// if `T` has no size.
    pub fn new_in(stream: &Stream, resource: Arc<dyn DeviceResource>) -> Result<Self> {
        Self::allocate(stream, 0, resource)
    }

    /// An empty vector with room for `capacity` elements.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::InvalidArgument`] for a size that overflows, those
    /// of the driver.
    pub fn with_capacity(stream: &Stream, capacity: usize) -> Result<Self> {
        Self::allocate(stream, capacity, current(stream.device())?)
    }

    /// As [`with_capacity`](Self::with_capacity), from `resource`.
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::WrongDevice`] if `stream` is of another device.
    pub fn with_capacity_in(
        stream: &Stream,
        capacity: usize,
        resource: Arc<dyn DeviceResource>,
    ) -> Result<Self> {
        Self::allocate(stream, capacity, resource)
    }

    /// `length` elements whose bytes are all zero.
    ///
    /// # Errors
    ///
    /// As [`with_capacity`](Self::with_capacity).
    pub fn zeroed(stream: &Stream, length: usize) -> Result<Self> {
        Self::zeroes(stream, length, current(stream.device())?)
    }

    /// As [`zeroed`](Self::zeroed), from `resource`.
    ///
    /// # Errors
    ///
    /// As [`with_capacity_in`](Self::with_capacity_in).
    pub fn zeroed_in(
        stream: &Stream,
        length: usize,
        resource: Arc<dyn DeviceResource>,
    ) -> Result<Self> {
        Self::zeroes(stream, length, resource)
    }

    fn zeroes(stream: &Stream, length: usize, resource: impl Into<Handle>) -> Result<Self> {
        let mut vec = Self::unwritten(stream, length, resource)?;
        vec.fill(T::zeroed())?;
        Ok(vec)
    }

    /// `length` elements that have to be written before anybody else sees the vector.
    pub(super) fn unwritten(
        stream: &Stream,
        length: usize,
        resource: impl Into<Handle>,
    ) -> Result<Self> {
        let mut vec = Self::allocate(stream, length, resource)?;
        vec.length = length;
        Ok(vec)
    }

    /// `length` elements that nobody has written: RMM's main point, since most buffers are written
    /// whole by the first kernel.
    ///
    /// The simulated device reports a read of bytes that were never written. (Memory that a pool
    /// hands out again was written by its former user.)
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect()?.new_stream()?;
    /// // SAFETY: written whole before it is read.
    /// let mut vec = unsafe { DeviceVec::<u32>::uninit(&stream, 3)? };
    /// vec.copy_from_slice(&[1, 2, 3])?;
    /// assert_eq!(vec.get(2)?, 3);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`with_capacity`](Self::with_capacity).
    ///
    /// # Safety
    ///
    /// Elements are written before they are read, by whatever means. (Any bit pattern is a `T`, so
    /// what is read too early has no defined value, but another program's data may be in it.)
    pub unsafe fn uninit(stream: &Stream, length: usize) -> Result<Self> {
        Self::unwritten(stream, length, current(stream.device())?)
    }

    /// As [`uninit`](Self::uninit), from `resource`.
    ///
    /// # Errors
    ///
    /// As [`with_capacity_in`](Self::with_capacity_in).
    ///
    /// # Safety
    ///
    /// As [`uninit`](Self::uninit).
    pub unsafe fn uninit_in(
        stream: &Stream,
        length: usize,
        resource: Arc<dyn DeviceResource>,
    ) -> Result<Self> {
        Self::unwritten(stream, length, resource)
    }

    /// A copy of `source`, complete when this returns.
    ///
    /// # Errors
    ///
    /// As [`with_capacity`](Self::with_capacity), and those of the copy.
    pub fn from_slice(stream: &Stream, source: &[T]) -> Result<Self> {
        Self::copied(stream, source, current(stream.device())?)
    }

    /// As [`from_slice`](Self::from_slice), from `resource`.
    ///
    /// # Errors
    ///
    /// As [`with_capacity_in`](Self::with_capacity_in), and those of the copy.
    pub fn from_slice_in(
        stream: &Stream,
        source: &[T],
        resource: Arc<dyn DeviceResource>,
    ) -> Result<Self> {
        Self::copied(stream, source, resource)
    }

    fn copied(stream: &Stream, source: &[T], resource: impl Into<Handle>) -> Result<Self> {
        let mut vec = Self::unwritten(stream, source.len(), resource)?;
        vec.copy_from_slice(source)?;
        Ok(vec)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Elements that fit without a new allocation.
    pub fn capacity(&self) -> usize {
        self.buffer.bytes() / size_of::<T>()
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
    /// [`ErrorKind::WrongDevice`] for a stream of another device; [`ErrorKind::Capture`] while home
    /// or `stream` is in capture; those of the driver. Then the home is what it was.
    pub fn set_stream(&mut self, stream: &Stream) -> Result<()> {
        self.buffer.set_home(stream)
    }

    /// The device's address of the first element. Use it on the home stream, or inside a guard from
    /// [`on`](Self::on) or [`on_mut`](Self::on_mut); dangling if the capacity is zero.
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

    /// A part of it, to read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if the range does not lie in it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// A part of it, to read and write.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if the range does not lie in it.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        self.as_mut_slice().into_slice_mut(range)
    }

    /// Two parts of it, before and from `middle`, to be used at once, on two streams too.
    ///
    /// ```compile_fail
    /// # let stream = aquifer::Device::detect().unwrap().new_stream().unwrap();
    /// let mut vec = aquifer::DeviceVec::<u8>::zeroed(&stream, 2).unwrap();
    /// let one = vec.slice_mut(..).unwrap();
    /// let two = vec.slice_mut(..).unwrap();
    /// drop((one, two));
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if `middle` lies past the end.
    pub fn split_at_mut(
        &mut self,
        middle: usize,
    ) -> Result<(DeviceSliceMut<'_, T>, DeviceSliceMut<'_, T>)> {
        self.as_mut_slice().into_split_at_mut(middle)
    }

    /// To be read on `stream`, which waits for the home stream; home waits for `stream` before it
    /// next writes or frees the memory, whatever becomes of the guard.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let device = Device::detect()?;
    /// let (home, other) = (device.new_stream()?, device.new_stream()?);
    /// let mut vec = DeviceVec::from_slice(&home, &[1_u8, 2, 3])?;
    /// std::mem::forget(vec.on(&other)?); // a reader's work on `other` would go here
    /// vec.fill(0)?; // in home's order, after that work
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] for a stream of another device; those of the driver.
    pub fn on<'a, S: StreamRef>(&'a self, stream: &'a S) -> Result<On<'a, T, S>> {
        self.as_slice().on(stream)
    }

    /// To be read and written on `stream`, which waits for the home stream and for all other use;
    /// home waits for `stream` before it next touches the memory, whatever becomes of the guard.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] for a stream of another device; those of the driver.
    pub fn on_mut<'a, S: StreamRef>(&'a mut self, stream: &'a S) -> Result<OnMut<'a, T, S>> {
        OnMut::new(self.as_mut_slice(), stream)
    }

    /// One element. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`]; those of the copy.
    pub fn get(&self, index: usize) -> Result<T> {
        check_index(index, self.length)?;
        let mut value = T::zeroed();
        blocking::download(&self.slice(index..=index)?, std::slice::from_mut(&mut value))?;
        Ok(value)
    }

    /// Overwrites one element. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`]; those of the copy.
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        check_index(index, self.length)?;
        blocking::upload(std::slice::from_ref(&value), &mut self.slice_mut(index..=index)?)
    }

    /// Overwrites all elements with a slice of the same length, complete when this returns.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`]; [`ErrorKind::Capture`] on a stream in capture; those of the
    /// copy.
    pub fn copy_from_slice(&mut self, source: &[T]) -> Result<()> {
        self.as_mut_slice().copy_from_slice(source)
    }

    /// Copies all elements into a slice of the same length, complete when this returns.
    ///
    /// # Errors
    ///
    /// As [`copy_from_slice`](Self::copy_from_slice).
    pub fn copy_to_slice(&self, target: &mut [T]) -> Result<()> {
        self.as_slice().copy_to_slice(target)
    }

    /// Overwrites all elements with those of `source`, of the same length, on this device or
    /// another, in this vector's home order. Nothing waits on the host.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect()?.new_stream()?;
    /// let source = DeviceVec::from_slice(&stream, &[1_u8, 2, 3])?;
    /// let mut target = DeviceVec::zeroed(&stream, 2)?;
    /// target.copy_from(&source.slice(1..)?)?;
    /// assert_eq!(target.to_vec()?, [2, 3]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`]; [`ErrorKind::WrongDevice`] between a GPU and a simulated
    /// device; those of the driver.
    pub fn copy_from(&mut self, source: &impl DeviceRead<T>) -> Result<()> {
        self.as_mut_slice().copy_from(source)
    }

    /// The elements as a `Vec` on the host. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the host has no room; those of the copy.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_slice().to_vec()
    }

    /// The elements as a `Vec` in memory of `allocator`, such as
    /// [`PinnedAlloc`](crate::PinnedAlloc). Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the allocator has no room; those of the copy.
    pub fn to_vec_in<A: Allocator>(&self, allocator: A) -> Result<AllocVec<T, A>> {
        self.as_slice().to_vec_in(allocator)
    }

    /// A copy of it, from the same resource, at home on the same stream, with room for its elements
    /// alone. Nothing waits on the host.
    ///
    /// # Errors
    ///
    /// As [`with_capacity`](Self::with_capacity), and those of the copy.
    pub fn try_clone(&self) -> Result<Self> {
        let mut clone = Self::unwritten(self.stream(), self.length, self.buffer.handle())?;
        clone.copy_from(self)?;
        Ok(clone)
    }

    /// The same bytes as elements of another type. The memory is freed as it was allocated.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect()?.new_stream()?;
    /// let words = DeviceVec::from_slice(&stream, &[0x0201_u16, 0x0403])?;
    /// assert_eq!(words.cast::<u8>()?.to_vec()?, [1, 2, 3, 4]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `U` has no size or wants more alignment than the memory
    /// has; [`ErrorKind::LengthMismatch`] if the bytes are no whole number of `U`s. The vector
    /// comes back with the error.
    pub fn cast<U: Pod>(self) -> Result<DeviceVec<U>, Refused<Self>> {
        match self.length_as::<U>() {
            Ok(length) => Ok(DeviceVec { buffer: self.buffer, length, elements: PhantomData }),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    /// How many elements of another type the same bytes are.
    pub(super) fn length_as<U: Pod>(&self) -> Result<usize> {
        refuse_zero_sized::<U>()?;
        let bytes = self.size_in_bytes();
        if !bytes.is_multiple_of(size_of::<U>()) {
            return Err(Error::new(
                ErrorKind::LengthMismatch,
                format!("{bytes} bytes are no whole number of elements of {}", size_of::<U>()),
            ));
        }
        if !self.buffer.address().is_multiple_of(align_of::<U>() as u64) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the memory is not aligned to {} bytes", align_of::<U>()),
            ));
        }
        Ok(bytes / size_of::<U>())
    }
}

fn refuse_zero_sized<T>() -> Result<()> {
    if size_of::<T>() != 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("{} has no size, so it needs no device memory", std::any::type_name::<T>()),
    ))
}

impl<'a, T: Pod> DeviceSlice<'a, T> {
    /// Copies all elements into a slice of the same length, complete when this returns.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`]; [`ErrorKind::Capture`] on a stream in capture; those of the
    /// copy.
    pub fn copy_to_slice(&self, target: &mut [T]) -> Result<()> {
        blocking::download(self, target)
    }

    /// The elements as a `Vec` on the host. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut vec = Vec::new();
        vec.try_reserve_exact(self.len()).map_err(|_| no_room(self.size_in_bytes()))?;
        vec.resize(self.len(), T::zeroed());
        self.copy_to_slice(&mut vec)?;
        Ok(vec)
    }

    /// The elements as a `Vec` in memory of `allocator`. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::to_vec_in`].
    pub fn to_vec_in<A: Allocator>(&self, allocator: A) -> Result<AllocVec<T, A>> {
        let mut vec = AllocVec::new_in(allocator);
        vec.try_reserve_exact(self.len()).map_err(|_| no_room(self.size_in_bytes()))?;
        vec.resize(self.len(), T::zeroed());
        self.copy_to_slice(&mut vec)?;
        Ok(vec)
    }
}

fn no_room(bytes: usize) -> Error {
    let reason = crate::host::last_error().map(|error| format!(": {error}")).unwrap_or_default();
    Error::new(ErrorKind::OutOfMemory, format!("{bytes} bytes on the host were asked{reason}"))
}

impl<T: Pod> DeviceSliceMut<'_, T> {
    /// Copies all elements into a slice of the same length, complete when this returns.
    ///
    /// # Errors
    ///
    /// As [`DeviceSlice::copy_to_slice`].
    pub fn copy_to_slice(&self, target: &mut [T]) -> Result<()> {
        self.as_slice().copy_to_slice(target)
    }

    /// The elements as a `Vec` on the host. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_slice().to_vec()
    }

    /// Overwrites all elements with a slice of the same length, complete when this returns.
    ///
    /// # Errors
    ///
    /// As [`DeviceSlice::copy_to_slice`].
    pub fn copy_from_slice(&mut self, source: &[T]) -> Result<()> {
        blocking::upload(source, self)
    }

    /// Overwrites all elements with those of `source`. See [`DeviceVec::copy_from`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn copy_from(&mut self, source: &impl DeviceRead<T>) -> Result<()> {
        crate::transfer::across::copy(&source.as_device_slice(), self)
    }
}

impl<T: Pod> DeviceRead<T> for DeviceVec<T> {
    fn as_device_slice(&self) -> DeviceSlice<'_, T> {
        self.as_slice()
    }
}

impl<T: Pod> DeviceWrite<T> for DeviceVec<T> {
    fn as_device_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        self.as_mut_slice()
    }
}

/// Shows where it lives, not what it holds: that is on the device.
impl<T: Pod> fmt::Debug for DeviceVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceVec")
            .field("element", &std::any::type_name::<T>())
            .field("length", &self.length)
            .field("capacity", &self.capacity())
            .field("address", &format_args!("{:#x}", self.buffer.address()))
            .field("home", &format_args!("{}", self.stream()))
            .field("resource", self.resource())
            .finish()
    }
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<DeviceVec<f32>>();
    is_send_and_sync::<DeviceSlice<'_, f32>>();
    is_send_and_sync::<DeviceSliceMut<'_, f32>>();
};
