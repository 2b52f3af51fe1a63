//! Bytes in device memory.

use super::accessors::{constructors, container, host_copies};
use super::device_vec::DeviceVec;
use super::growth::Growth;
use super::host_copy::same_number;
use super::view::{DeviceRead, DeviceSlice, DeviceSliceMut};
use crate::driver::{CallSite, DeviceCopy};
use crate::error::{Refused, Result};
use crate::layout::DeviceLayout;
use crate::resource::DeviceResource;
use crate::stream::Stream;
use bytemuck::AnyBitPattern;
use std::marker::PhantomData;

/// Untyped device memory of any size and alignment.
///
/// It has a home stream, as a [`DeviceVec`] has, and all its own work, its free included, happens in that stream's
/// order. Its [length](Self::len) is the number of bytes that it was asked to hold. Its [capacity](Self::capacity) is
/// the number that it holds without another allocation. Both are in bytes. It grows to exactly the size that was asked,
/// while a vector doubles, since it is made for few, large allocations.
///
/// A buffer goes wherever a vector of bytes goes. [`into_vec`](Self::into_vec) and [`view`](Self::view) give its bytes
/// a type, without a copy.
///
/// RMM has `device_buffer`. There, added bytes are never written, memory that is used on another stream than the stored
/// one is freed too early, and alignments over 256 bytes are refused.
///
/// ```
/// use aquifer::{Device, DeviceBuffer};
///
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let mut buffer = DeviceBuffer::from_slice(&stream, &[1, 2, 3])?;
/// buffer.resize_zeroed(8)?;
/// assert_eq!(buffer.to_vec()?, [1, 2, 3, 0, 0, 0, 0, 0]);
/// let words = buffer.into_vec::<u32>()?;
/// assert_eq!(words.get(1)?, 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct DeviceBuffer {
    /// Its block has the alignment of the buffer.
    bytes: DeviceVec<u8>,
}

container!(DeviceBuffer, u8, bytes.buffer, bytes.length);
host_copies!([] [] DeviceBuffer, u8);

impl DeviceBuffer {
    /// Moves the bytes into another block, or changes the size of theirs, perhaps.
    fn reallocate(&mut self, change: impl FnOnce(&mut DeviceVec<u8>) -> Result<()>) -> Result<()> {
        let before = (self.as_device_ptr(), self.capacity());
        change(&mut self.bytes)?;
        if (self.as_device_ptr(), self.capacity()) != before {
            self.bytes.buffer.made_as::<Self>(self.capacity(), self.capacity());
        }
        Ok(())
    }

    constructors! {
        /// An empty buffer at home on `stream`. No memory is taken yet.
        ///
        /// # Errors
        ///
        /// The errors of [`current_device_resource`](crate::mr::current_device_resource).
        pub fn new(stream: &Stream) -> Result<Self>;
        /// Like [`new`](Self::new), from `resource`.
        ///
        /// # Errors
        ///
        /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) if `stream` is of another device.
        pub fn new_in(.., resource) {
            Ok(Self { bytes: DeviceVec::unwritten::<Self>(stream, DeviceLayout::new(0)?, resource)? })
        }

        /// A buffer of `bytes` bytes of the value zero. The host does not wait.
        ///
        /// # Errors
        ///
        /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory),
        /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a size that overflows, and the errors
        /// of the driver.
        pub fn zeroed(stream: &Stream, bytes: usize) -> Result<Self>;
        /// Like [`zeroed`](Self::zeroed), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`zeroed`](Self::zeroed), and [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) if
        /// `stream` is of another device.
        pub fn zeroed_in(.., resource) {
            Ok(Self { bytes: DeviceVec::filled_with_zeros::<Self>(stream, DeviceLayout::new(bytes)?, resource)? })
        }

        /// Zero bytes of a size and an alignment, which every later block of the buffer and of its
        /// clones has, too.
        ///
        /// ```
        /// use aquifer::{Device, DeviceBuffer, DeviceLayout};
        ///
        /// let stream = Device::detect_or_simulate()?.new_stream()?;
        /// let page = DeviceLayout::with_alignment(100, 4096)?;
        /// let mut buffer = DeviceBuffer::with_layout(&stream, page)?;
        /// buffer.resize_zeroed(10_000)?;
        /// assert_eq!(buffer.as_device_ptr() % 4096, 0);
        /// # Ok::<(), aquifer::Error>(())
        /// ```
        ///
        /// # Errors
        ///
        /// The errors of [`zeroed`](Self::zeroed), and those of the resource for an alignment that it does not have.
        pub fn with_layout(stream: &Stream, layout: DeviceLayout) -> Result<Self>;
        /// Like [`with_layout`](Self::with_layout), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`with_layout`](Self::with_layout) and of [`zeroed_in`](Self::zeroed_in).
        pub fn with_layout_in(.., resource) {
            Ok(Self { bytes: DeviceVec::filled_with_zeros::<Self>(stream, layout, resource)? })
        }

        /// A copy of the host's `source`, complete when this returns. [`bytemuck::cast_slice`](https://docs.rs/bytemuck/1/bytemuck/fn.cast_slice.html) makes
        /// bytes of other plain data.
        ///
        /// # Errors
        ///
        /// The errors of [`zeroed`](Self::zeroed), and those of the copy.
        pub fn from_slice(stream: &Stream, source: &[u8]) -> Result<Self>;
        /// Like [`from_slice`](Self::from_slice), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`zeroed_in`](Self::zeroed_in), and those of the copy.
        pub fn from_slice_in(.., resource) {
            Ok(Self { bytes: DeviceVec::copy_of::<Self>(stream, source, resource)? })
        }

        /// A copy of device memory, of this device or another, with space for its bytes alone. The two
        /// streams are ordered for it, and nothing waits on the host.
        ///
        /// ```
        /// use aquifer::{Device, DeviceBuffer, DeviceVec};
        ///
        /// let stream = Device::detect_or_simulate()?.new_stream()?;
        /// let vec = DeviceVec::from_slice(&stream, &[0x0201_u16, 0x0403])?;
        /// let copy = DeviceBuffer::copy_of(&stream, &vec)?;
        /// assert_eq!(copy.to_vec()?, [1, 2, 3, 4]);
        /// # Ok::<(), aquifer::Error>(())
        /// ```
        ///
        /// # Errors
        ///
        /// The errors of [`zeroed`](Self::zeroed) and of [`DeviceVec::copy_from`].
        pub fn copy_of<T: DeviceCopy>(stream: &Stream, source: &impl DeviceRead<T>) -> Result<Self>;
        /// Like [`copy_of`](Self::copy_of), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`copy_of`](Self::copy_of) and of [`zeroed_in`](Self::zeroed_in).
        pub fn copy_of_in(.., resource) {
            let source = source.as_device_slice().as_bytes();
            let layout = DeviceLayout::new(source.len())?;
            let mut bytes = DeviceVec::unwritten::<Self>(stream, layout, resource)?;
            bytes.copy_from(&source)?;
            Ok(Self { bytes })
        }

        /// A buffer of `bytes` bytes that are not written yet. RMM's constructor of a size gives no more than that.
        ///
        /// ```
        /// use aquifer::{Device, DeviceBuffer};
        ///
        /// let stream = Device::detect_or_simulate()?.new_stream()?;
        /// // SAFETY: written whole before it is read.
        /// let mut buffer = unsafe { DeviceBuffer::uninit(&stream, 3)? };
        /// buffer.copy_from_slice(&[1, 2, 3])?;
        /// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
        /// # Ok::<(), aquifer::Error>(())
        /// ```
        ///
        /// # Errors
        ///
        /// The errors of [`zeroed`](Self::zeroed).
        ///
        /// # Safety
        ///
        /// Bytes are written before they are read, as with [`DeviceVec::uninit`].
        pub [unsafe] fn uninit(stream: &Stream, bytes: usize) -> Result<Self>;
        /// Like [`uninit`](Self::uninit), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`zeroed_in`](Self::zeroed_in).
        ///
        /// # Safety
        ///
        /// The condition of [`uninit`](Self::uninit).
        pub fn uninit_in(.., resource) {
            Ok(Self { bytes: DeviceVec::unwritten::<Self>(stream, DeviceLayout::new(bytes)?, resource)? })
        }
    }

    /// Like [`with_layout_in`](Self::with_layout_in), with bytes that are not written yet.
    ///
    /// # Errors
    ///
    /// The errors of [`with_layout_in`](Self::with_layout_in).
    ///
    /// # Safety
    ///
    /// The condition of [`uninit`](Self::uninit).
    #[track_caller]
    pub unsafe fn uninit_with_layout_in(
        stream: &Stream,
        layout: DeviceLayout,
        resource: impl DeviceResource + 'static,
    ) -> Result<Self> {
        let _site = CallSite::enter();
        let resource = resource.into_shared().into();
        Ok(Self { bytes: DeviceVec::unwritten::<Self>(stream, layout, resource)? })
    }

    /// A copy of it, from the same resource, at home on the same stream, of the same alignment. It has space for its
    /// bytes alone. The host does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`zeroed`](Self::zeroed), and those of the copy.
    #[track_caller]
    pub fn try_clone(&self) -> Result<Self> {
        let _site = CallSite::enter();
        let bytes = self.bytes.try_clone()?;
        bytes.buffer.made_as::<Self>(bytes.length, bytes.length);
        Ok(Self { bytes })
    }

    /// The number of bytes, which is RMM's `size`.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that fit without a new allocation.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The last change of its capacity, as by [`DeviceVec::growth`].
    pub fn growth(&self) -> Option<Growth> {
        self.bytes.growth()
    }

    /// The alignment of its memory in bytes, now and after each move. A power of two.
    pub fn alignment(&self) -> usize {
        self.bytes.buffer.alignment()
    }

    /// Makes space for `additional` more bytes, and no more than that, or than whole granules where it
    /// [grows in place](Self::growth). (RMM's `reserve` takes the capacity.) Else the bytes move on the device, in home's
    /// order.
    ///
    /// # Errors
    ///
    /// The errors of [`zeroed`](Self::zeroed). The buffer is as it was then.
    #[track_caller]
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        let _site = CallSite::enter();
        self.reallocate(|bytes| bytes.reserve_exact(additional))
    }

    /// Gives up capacity beyond the bytes, as [`DeviceVec::shrink_to_fit`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`zeroed`](Self::zeroed). The buffer is as it was then.
    #[track_caller]
    pub fn shrink_to_fit(&mut self) -> Result<()> {
        let _site = CallSite::enter();
        self.reallocate(DeviceVec::shrink_to_fit)
    }

    /// Makes it `bytes` long. It cuts the rest off and keeps the capacity, or adds bytes of the value zero. If they do
    /// not fit, it takes a new block of exactly this size. The host does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`zeroed`](Self::zeroed). The buffer is as long as it was then.
    #[track_caller]
    pub fn resize_zeroed(&mut self, bytes: usize) -> Result<()> {
        let _site = CallSite::enter();
        self.reserve(bytes.saturating_sub(self.len()))?;
        self.bytes.resize(bytes, 0)
    }

    /// Like [`resize_zeroed`](Self::resize_zeroed), but the added bytes are not written, as with RMM.
    ///
    /// ```
    /// use aquifer::{Device, DeviceBuffer};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let mut buffer = DeviceBuffer::from_slice(&stream, &[1, 2])?;
    /// // SAFETY: what is added is written before it is read.
    /// unsafe { buffer.resize_uninit(4)? };
    /// buffer.as_mut_slice().slice_mut(2..)?.copy_from_slice(&[3, 4])?;
    /// assert_eq!(buffer.to_vec()?, [1, 2, 3, 4]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`resize_zeroed`](Self::resize_zeroed).
    ///
    /// # Safety
    ///
    /// The condition of [`uninit`](Self::uninit), for the bytes that are added.
    #[track_caller]
    pub unsafe fn resize_uninit(&mut self, bytes: usize) -> Result<()> {
        let _site = CallSite::enter();
        self.reserve(bytes.saturating_sub(self.len()))?;
        self.bytes.length = bytes;
        Ok(())
    }

    /// Overwrites all bytes with those of `source`, of as many bytes, on this device or another. It happens in the
    /// order of this buffer's home stream. The host does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::copy_from`].
    #[track_caller]
    pub fn copy_from<T: DeviceCopy>(&mut self, source: &impl DeviceRead<T>) -> Result<()> {
        let _site = CallSite::enter();
        let source = source.as_device_slice();
        same_number(self.len(), source.size_in_bytes(), "byte")?;
        self.bytes.copy_from(&source.as_bytes())
    }

    /// The bytes as elements of a type, to read.
    ///
    /// # Errors
    ///
    /// The errors of [`into_vec`](Self::into_vec).
    pub fn view<T: DeviceCopy + AnyBitPattern>(&self) -> Result<DeviceSlice<'_, T>> {
        let length = self.bytes.length_as::<T>()?;
        Ok(DeviceSlice::new(&self.bytes.buffer, length))
    }

    /// The bytes as elements of a type, to read and write.
    ///
    /// ```
    /// use aquifer::{Device, DeviceBuffer};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let mut buffer = DeviceBuffer::zeroed(&stream, 4)?;
    /// buffer.view_mut::<u16>()?.fill(0x0201)?;
    /// assert_eq!(buffer.to_vec()?, [1, 2, 1, 2]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`into_vec`](Self::into_vec).
    pub fn view_mut<T: DeviceCopy + AnyBitPattern>(&mut self) -> Result<DeviceSliceMut<'_, T>> {
        let length = self.bytes.length_as::<T>()?;
        Ok(DeviceSliceMut::new(&self.bytes.buffer, length))
    }

    /// A vector in the same memory, with all of its capacity. Blocks that the vector grows into have the alignment of
    /// its elements and that of the buffer, 256 bytes at least.
    ///
    /// RMM has the other way alone (`device_uvector::release`), which is `DeviceBuffer::from`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch) if the bytes are no whole number of `T`s, and
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `T` has no size or wants more alignment
    /// than the memory has. The buffer comes back with the error.
    pub fn into_vec<T: DeviceCopy + AnyBitPattern>(self) -> Result<DeviceVec<T>, Refused<Self>> {
        let refused = |Refused { error, value: bytes }| Refused::new(error, Self { bytes });
        self.bytes.cast().map_err(refused)
    }
}

/// The vector's memory, with all of its capacity, as by RMM's `device_uvector::release`.
impl<T: DeviceCopy> From<DeviceVec<T>> for DeviceBuffer {
    fn from(vec: DeviceVec<T>) -> Self {
        let length = vec.size_in_bytes();
        Self { bytes: DeviceVec { buffer: vec.buffer, length, elements: PhantomData } }
    }
}
