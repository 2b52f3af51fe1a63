//! The growable vector in device memory.

use super::accessors::{constructors, container, host_copies};
use super::blocking;
use super::buffer::{Buffer, kind_of};
use super::growth::Growth;
use super::view::{DeviceRead, DeviceSlice, DeviceSliceMut, TwoSlicesMut, check_index, lengths};
use crate::driver::{CallSite, DeviceCopy};
use crate::error::{Error, ErrorKind, Refused, Result, ensure};
use crate::impls::Count;
use crate::layout::DeviceLayout;
use crate::resource::{CudaResource, DeviceBlock, DeviceResource, ResourceHandle, current_handle};
use crate::stream::Stream;
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use bytemuck::{AnyBitPattern, NoUninit};
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// A growable vector of plain data in device memory, like `Vec<T>` on the GPU.
///
/// It has a *home stream*, which constructors take first. All its own work, its free included, happens in that stream's
/// order. A call waits for the device only if its documentation says so, and a vector on one stream alone makes no
/// event. [`on`](Self::on) and [`on_mut`](Self::on_mut) use it on another stream. The order between the two is kept
/// even if the guard is forgotten.
///
/// Memory comes from the device's [current resource](crate::mr::current_device_resource), or from the
/// one that an `*_in` constructor is given, and goes back there.
///
/// RMM has `device_uvector`, without growth.
///
/// ```
/// use aquifer::{Device, DeviceVec};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let mut vec = DeviceVec::from_slice(&stream, &[1.0_f32, 2.0, 3.0])?;
/// vec.push(4.0)?;
/// vec.slice_mut(..2)?.fill(0.0)?;
/// assert_eq!(vec.to_vec()?, [0.0, 0.0, 3.0, 4.0]);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// An element must be plain data, any bit pattern of which is a value. So this does not compile, since only two of a
/// `bool`'s bit patterns are values.
///
/// ```compile_fail
/// # let stream = aquifer::Device::detect_or_simulate().unwrap().new_stream().unwrap();
/// let vec = aquifer::DeviceVec::<bool>::new(&stream);
/// ```
pub struct DeviceVec<T: DeviceCopy> {
    pub(super) buffer: Buffer,
    pub(super) length: usize,
    pub(super) elements: PhantomData<T>,
}

container!(DeviceVec<T: DeviceCopy>, T, buffer, length);
lengths!([T: DeviceCopy] DeviceVec<T>, T, length);
host_copies!([T: DeviceCopy + NoUninit] [T: DeviceCopy + AnyBitPattern] DeviceVec<T>, T);

impl<T: DeviceCopy> DeviceVec<T> {
    /// An empty vector with space for `layout`, to be a container `C`'s.
    fn allocate<C>(
        stream: &Stream,
        layout: DeviceLayout,
        resource: ResourceHandle,
    ) -> Result<Self> {
        refuse_zero_sized::<T>()?;
        let buffer = Buffer::new(stream, layout, resource, kind_of::<C, T>)?;
        Ok(Self { buffer, length: 0, elements: PhantomData })
    }

    /// `layout` of elements that the caller has to write before it returns the vector.
    pub(super) fn unwritten<C>(
        stream: &Stream,
        layout: DeviceLayout,
        resource: ResourceHandle,
    ) -> Result<Self> {
        let mut vec = Self::allocate::<C>(stream, layout, resource)?;
        vec.length = layout.bytes() / size_of::<T>();
        Ok(vec)
    }

    /// A vector without memory, in place of one that could not be made. `None` for elements without a size.
    pub(crate) fn without_memory(stream: &Stream) -> Option<Self> {
        refuse_zero_sized::<T>().ok()?;
        let plain = |_| ResourceHandle::from(CudaResource::new(stream.device()).into_shared());
        let resource = current_handle(stream.device()).unwrap_or_else(plain);
        let block = DeviceBlock::new(0, 0, 0);
        let buffer = Buffer::from_block(stream, block, align_of::<T>(), resource);
        Some(Self { buffer, length: 0, elements: PhantomData })
    }

    constructors! {
        /// An empty vector at home on `stream`. No memory is taken yet.
        ///
        /// # Errors
        ///
        /// The errors of [`current_device_resource`](crate::mr::current_device_resource), and
        /// [`ErrorKind::InvalidArgument`] if `T` has no size.
        pub fn new(stream: &Stream) -> Result<Self>;
        /// Like [`new`](Self::new), from `resource`.
        ///
        /// # Errors
        ///
        /// [`ErrorKind::WrongDevice`] if `stream` is of another device, and [`ErrorKind::InvalidArgument`] if `T` has
        /// no size.
        pub fn new_in(.., resource) {
            Self::allocate::<Self>(stream, DeviceLayout::array::<T>(0)?, resource)
        }

        /// An empty vector with space for `capacity` elements.
        ///
        /// # Errors
        ///
        /// [`ErrorKind::OutOfMemory`], [`ErrorKind::InvalidArgument`] for a size that overflows, and the errors of the
        /// driver.
        pub fn with_capacity(stream: &Stream, capacity: usize) -> Result<Self>;
        /// Like [`with_capacity`](Self::with_capacity), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`with_capacity`](Self::with_capacity), and [`ErrorKind::WrongDevice`] if `stream` is of
        /// another device.
        pub fn with_capacity_in(.., resource) {
            Self::allocate::<Self>(stream, DeviceLayout::array::<T>(capacity)?, resource)
        }

        /// A vector of `length` elements that are not written yet. RMM's vector never writes them, since the first
        /// kernel writes most buffers whole.
        ///
        /// The simulated device reports a read of bytes that were not written since they were allocated. Memory that a
        /// pool hands out again is not written there either, though its former user wrote to it. Three kinds of memory
        /// count as written:
        ///
        /// - memory that the host reaches without a call, which is managed, page-locked and ordinary memory
        /// - memory that a resource of your own hands out again
        /// - memory that a pool hands out again on a device
        ///   [`without_pool_checks`](crate::sim::SimConfig::without_pool_checks)
        ///
        /// A GPU reports nothing, and reads the bytes that the former user left.
        ///
        /// ```
        /// use aquifer::{Device, DeviceVec};
        ///
        /// let stream = Device::detect_or_simulate()?.new_stream()?;
        /// // SAFETY: written whole before it is read.
        /// let mut vec = unsafe { DeviceVec::<u32>::uninit(&stream, 3)? };
        /// vec.copy_from_slice(&[1, 2, 3])?;
        /// assert_eq!(vec.get(2)?, 3);
        /// # Ok::<(), aquifer::Error>(())
        /// ```
        ///
        /// # Errors
        ///
        /// The errors of [`with_capacity`](Self::with_capacity).
        ///
        /// # Safety
        ///
        /// Elements are written before they are read, by whatever means. (Any bit pattern is a `T`, so an element that
        /// is read too early has no defined value, but another program's data may be in it.)
        pub [unsafe] fn uninit(stream: &Stream, length: usize) -> Result<Self>;
        /// Like [`uninit`](Self::uninit), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`with_capacity_in`](Self::with_capacity_in).
        ///
        /// # Safety
        ///
        /// The condition of [`uninit`](Self::uninit).
        pub fn uninit_in(.., resource) {
            Self::unwritten::<Self>(stream, DeviceLayout::array::<T>(length)?, resource)
        }
    }

    /// The number of elements that fit without a new allocation.
    pub fn capacity(&self) -> usize {
        self.buffer.bytes() / size_of::<T>()
    }

    /// The last change of its capacity, or `None` if there was none since it got memory.
    ///
    /// The capacity changes in place if the memory comes from a [pool](crate::PoolResource) on
    /// [handles](crate::mr::Handles) and has one granule or more, which is 2 MiB on today's GPUs. Memory is mapped
    /// behind the vector by the next granule where elements are added, so that it has no more than it needs. The first
    /// growth moves it, unless free memory or addresses lie behind it. From then on it has addresses of its own, for
    /// all memory of the device.
    ///
    /// The vector moves in these cases:
    ///
    /// - from another resource, also one over a pool (binning, arena, fixed-size)
    /// - through an adaptor that cannot hand this on (checked, thread-safe, prefetching and registering ones)
    /// - in a pool on blocks, as one over another pool or an adaptor is
    /// - as a part of a vector that was split
    /// - from a pool that has no more addresses, of which it reserves 8 TiB for this
    ///
    /// The address stays, and more memory lies behind it. A library that registered the vector's memory by its address
    /// has to do that again, as [`VirtualResource`](crate::mr::VirtualResource) explains.
    ///
    /// The first memory of an empty vector is no change. A shrink is one. Memory that a vector gets in a capture is its
    /// own, like the memory that it had, since the graph does not keep it.
    ///
    /// ```
    /// use aquifer::{
    ///     Device, DeviceVec, PoolResource, container::Growth, mr::VirtualResource, sim::SimConfig,
    /// };
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let pool = PoolResource::new(VirtualResource::new(&device)?)?;
    /// let mut vec = DeviceVec::<u8>::zeroed_in(&device.new_stream()?, 1 << 20, pool)?;
    /// vec.resize(2 << 20, 1)?;
    /// let pointer = vec.as_device_ptr();
    /// vec.resize(64 << 20, 2)?;
    /// assert_eq!((vec.growth(), vec.as_device_ptr()), (Some(Growth::InPlace), pointer));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn growth(&self) -> Option<Growth> {
        self.buffer.growth()
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
    /// Two calls of [`slice_mut`](Self::slice_mut) do not give them. This does not compile, since the second call would
    /// borrow the vector while the first slice still does:
    ///
    /// ```compile_fail
    /// # let stream = aquifer::Device::detect_or_simulate().unwrap().new_stream().unwrap();
    /// let mut vec = aquifer::DeviceVec::<u8>::zeroed(&stream, 2).unwrap();
    /// let one = vec.slice_mut(..).unwrap();
    /// let two = vec.slice_mut(..).unwrap();
    /// drop((one, two));
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if `middle` lies past the end.
    pub fn split_at_mut(&mut self, middle: usize) -> Result<TwoSlicesMut<'_, T>> {
        self.as_mut_slice().into_split_at_mut(middle)
    }

    /// One element. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`], [`ErrorKind::Capture`] while home is in capture, on this thread or another, and the
    /// errors of the copy.
    #[track_caller]
    pub fn get(&self, index: usize) -> Result<T>
    where
        T: AnyBitPattern,
    {
        let _site = CallSite::enter();
        check_index(index, self.length)?;
        let mut value = T::zeroed();
        blocking::download(&self.slice(index..=index)?, std::slice::from_mut(&mut value))?;
        Ok(value)
    }

    /// Overwrites one element. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`], [`ErrorKind::Capture`] while home is in capture, on this thread or another, and the
    /// errors of the copy.
    #[track_caller]
    pub fn set(&mut self, index: usize, value: T) -> Result<()>
    where
        T: NoUninit,
    {
        let _site = CallSite::enter();
        check_index(index, self.length)?;
        blocking::upload(std::slice::from_ref(&value), &mut self.slice_mut(index..=index)?)
    }

    /// Overwrites all elements with those of `source`, of the same length, on this device or another. It happens in the
    /// order of this vector's home stream. The host does not wait.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let source = DeviceVec::from_slice(&stream, &[1_u8, 2, 3])?;
    /// let mut target = DeviceVec::zeroed(&stream, 2)?;
    /// target.copy_from(&source.slice(1..)?)?;
    /// assert_eq!(target.to_vec()?, [2, 3]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::LengthMismatch`].
    /// - [`ErrorKind::WrongDevice`] between a GPU and a simulated device.
    /// - [`ErrorKind::Capture`] while a capture on another thread has either home, or where one of the two is in a
    ///   capture that the other cannot join.
    /// - The errors of the driver.
    #[track_caller]
    pub fn copy_from(&mut self, source: &impl DeviceRead<T>) -> Result<()> {
        let _site = CallSite::enter();
        self.as_mut_slice().copy_from(source)
    }

    /// The elements as a `Vec` in memory of `allocator`, such as
    /// [`PinnedAlloc`](crate::PinnedAlloc). Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the allocator has no space, and the errors of the copy.
    #[track_caller]
    pub fn to_vec_in<A: Allocator>(&self, allocator: A) -> Result<AllocVec<T, A>>
    where
        T: AnyBitPattern,
    {
        let _site = CallSite::enter();
        self.as_slice().to_vec_in(allocator)
    }

    /// Another block of the vector's resource, with space for `capacity`.
    pub(super) fn allocate_like(&self, capacity: usize) -> Result<Buffer> {
        let layout = DeviceLayout::array::<T>(capacity)?;
        self.buffer.allocate_like(layout, kind_of::<Self, T>)
    }

    /// A copy of it, from the same resource, at home on the same stream. It has space for its elements alone. The host
    /// does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`with_capacity`](Self::with_capacity), and those of the copy.
    #[track_caller]
    pub fn try_clone(&self) -> Result<Self> {
        let _site = CallSite::enter();
        let buffer = self.allocate_like(self.length)?;
        let mut clone = Self { buffer, length: self.length, elements: PhantomData };
        clone.copy_from(self)?;
        Ok(clone)
    }

    /// A copy of it at home on `stream`, of this device or another. It comes from the current resource of that device,
    /// with space for its elements alone. The host does not wait, and both orders are kept. The copy comes after all
    /// that this vector's home was given, and this vector's memory is freed after the copy. So
    /// `let vec = vec.to_device(&stream)?` moves a vector.
    ///
    /// Between two GPUs that reach each other's memory, the first copy makes the driver enable that for the plain
    /// memory of this vector's device, which takes it some milliseconds. Copies of plain memory, and of pools over it,
    /// go from device to device then. For memory of a driver pool, enable it by
    /// [`enable_peer_access`](crate::DeviceResource::enable_peer_access). Other copies go by way of the host.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, sim::SimConfig};
    ///
    /// let one = Device::simulated(SimConfig::default());
    /// let two = Device::simulated(SimConfig::default().ordinal(1));
    /// let vec = DeviceVec::from_slice(&one.new_stream()?, &[1.0_f32, 2.0])?;
    /// let vec = vec.to_device(&two.new_stream()?)?;
    /// assert_eq!(vec.device(), &two);
    /// assert_eq!(vec.to_vec()?, [1.0, 2.0]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`with_capacity`](Self::with_capacity) and [`copy_from`](Self::copy_from).
    #[track_caller]
    pub fn to_device(&self, stream: &Stream) -> Result<Self> {
        let _site = CallSite::enter();
        self.copy_to(stream, current_handle(stream.device())?)
    }

    /// Like [`to_device`](Self::to_device), from `resource`.
    ///
    /// # Errors
    ///
    /// The errors of [`with_capacity_in`](Self::with_capacity_in) and [`copy_from`](Self::copy_from).
    #[track_caller]
    pub fn to_device_in(
        &self,
        stream: &Stream,
        resource: impl DeviceResource + 'static,
    ) -> Result<Self> {
        let _site = CallSite::enter();
        self.copy_to(stream, resource.into_shared().into())
    }

    fn copy_to(&self, stream: &Stream, resource: ResourceHandle) -> Result<Self> {
        let layout = DeviceLayout::array::<T>(self.length)?;
        let mut copy = Self::unwritten::<Self>(stream, layout, resource)?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// A vector of the same bytes as elements of another type. The memory is freed as it was allocated.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let words = DeviceVec::from_slice(&stream, &[0x0201_u16, 0x0403])?;
    /// assert_eq!(words.cast::<u8>()?.to_vec()?, [1, 2, 3, 4]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `U` has no size or wants more alignment than the memory has, and
    /// [`ErrorKind::LengthMismatch`] if the bytes are no whole number of `U`s. The vector comes back with the error.
    pub fn cast<U: DeviceCopy + AnyBitPattern>(self) -> Result<DeviceVec<U>, Refused<Self>> {
        match self.length_as::<U>() {
            Ok(length) => Ok(DeviceVec { buffer: self.buffer, length, elements: PhantomData }),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    /// The number of elements of another type in the same bytes.
    pub(super) fn length_as<U>(&self) -> Result<usize> {
        refuse_zero_sized::<U>()?;
        let (bytes, size, alignment) = (self.size_in_bytes(), size_of::<U>(), align_of::<U>());
        let (element, address) = (std::any::type_name::<U>(), self.buffer.address());
        ensure!(
            bytes.is_multiple_of(size),
            LengthMismatch,
            "take a length that is",
            "memory of {} is no whole number of `{element}`, of {} each",
            Count(bytes, "byte"),
            Count(size, "byte")
        );
        ensure!(
            address.is_multiple_of(alignment as u64),
            InvalidArgument,
            "allocate the memory with such an alignment, as a DeviceBuffer does",
            "`{element}` needs an alignment of {}, and the memory is at {address:#x}",
            Count(alignment, "byte")
        );
        Ok(bytes / size)
    }
}

impl<T: DeviceCopy + NoUninit> DeviceVec<T> {
    /// A vector with the elements of `source`, whose copy is complete when this returns.
    pub(super) fn copy_of<C>(
        stream: &Stream,
        source: &[T],
        resource: ResourceHandle,
    ) -> Result<Self> {
        let layout = DeviceLayout::array::<T>(source.len())?;
        let mut vec = Self::unwritten::<C>(stream, layout, resource)?;
        vec.copy_from_slice(source)?;
        Ok(vec)
    }

    constructors! {
        /// A copy of `source`, complete when this returns.
        ///
        /// # Errors
        ///
        /// The errors of [`with_capacity`](Self::with_capacity), and those of the copy.
        pub fn from_slice(stream: &Stream, source: &[T]) -> Result<Self>;
        /// Like [`from_slice`](Self::from_slice), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`with_capacity_in`](Self::with_capacity_in), and those of the copy.
        pub fn from_slice_in(.., resource) {
            Self::copy_of::<Self>(stream, source, resource)
        }
    }
}

#[allow(missing_docs, reason = "for the crates above alone")]
pub fn refuse_zero_sized<T>() -> Result<()> {
    if size_of::<T>() != 0 {
        return Ok(());
    }
    let element = std::any::type_name::<T>();
    let what = format!("`{element}` has no size, so that no device memory holds it");
    Err(Error::new(ErrorKind::InvalidArgument, what).with_advice("keep such elements on the host"))
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<DeviceVec<f32>>();
    is_send_and_sync::<DeviceSlice<'_, f32>>();
    is_send_and_sync::<DeviceSliceMut<'_, f32>>();
};
