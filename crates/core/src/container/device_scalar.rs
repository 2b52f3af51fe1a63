//! One value in device memory.

use super::accessors::{constructors, container};
use super::device_vec::DeviceVec;
use super::view::DeviceRead;
use crate::driver::{CallSite, DeviceCopy};
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::impls::Count;
use crate::layout::DeviceLayout;
use crate::stream::Stream;
use bytemuck::{AnyBitPattern, NoUninit, Zeroable};

/// One value of plain data in device memory, such as a kernel's counter, sum or flag.
///
/// It is a [`DeviceVec`] that always has one element. It has a home stream, and all its own work, its free included,
/// happens in that stream's order. A scalar goes wherever a vector goes, as a kernel's argument or as the source of a
/// copy. With cudarc, it goes as `scalar.as_slice().cuda()`.
///
/// Only [`value`](Self::value) waits for the device. To read without a wait, download it inside a
/// [`scope`](Stream::scope), or turn it [into a vector](Self::into_vec) that
/// [`Stream::download`] owns while the copy runs.
///
/// RMM has `device_scalar`. There, the value to set is borrowed until the device has read it, which nothing checks, and
/// a `bool` may come back with a value that is none. Here, the value travels in the driver's call, and such types are
/// no [`Pod`](https://docs.rs/bytemuck/1/bytemuck/trait.Pod.html).
///
/// ```
/// use aquifer::{Device, DeviceScalar};
///
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let mut sum = DeviceScalar::new(&stream, 1.5_f64)?;
/// assert_eq!(sum.value()?, 1.5);
/// sum.set_value(-2.0)?; // nothing waits
/// assert_eq!(sum.value()?, -2.0);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// This does not compile, since a `bool` is not plain data. Only two of its bit patterns are values.
///
/// ```compile_fail
/// # let stream = aquifer::Device::detect_or_simulate().unwrap().new_stream().unwrap();
/// let flag = aquifer::DeviceScalar::new(&stream, true);
/// ```
pub struct DeviceScalar<T: DeviceCopy> {
    /// A vector of exactly one element. No function here gives it out to be made longer or shorter.
    vec: DeviceVec<T>,
}

container!(DeviceScalar<T: DeviceCopy>, T, vec.buffer, vec.length);

impl<T: DeviceCopy + NoUninit> DeviceScalar<T> {
    constructors! {
        /// A scalar of `value`, at home on `stream`, from the device's current resource. The host does not wait.
        ///
        /// # Errors
        ///
        /// [`ErrorKind::OutOfMemory`], [`ErrorKind::InvalidArgument`] if `T` has no size, and the errors of
        /// [`current_device_resource`](crate::mr::current_device_resource) and of the driver.
        pub fn new(stream: &Stream, value: T) -> Result<Self>;
        /// Like [`new`](Self::new), from `resource`.
        ///
        /// ```
        /// use aquifer::{CudaResource, Device, DeviceScalar};
        /// use std::sync::Arc;
        ///
        /// let device = Device::detect_or_simulate()?;
        /// let resource = Arc::new(CudaResource::new(&device));
        /// let count = DeviceScalar::new_in(&device.new_stream()?, 7_u32, resource)?;
        /// assert_eq!(count.value()?, 7);
        /// # Ok::<(), aquifer::Error>(())
        /// ```
        ///
        /// # Errors
        ///
        /// The errors of [`new`](Self::new), and [`ErrorKind::WrongDevice`] if `stream` is of another device.
        pub fn new_in(.., resource) {
            let layout = DeviceLayout::array::<T>(1)?;
            let mut vec = DeviceVec::unwritten::<Self>(stream, layout, resource)?;
            vec.fill(value)?;
            Ok(Self { vec })
        }
    }
}

impl<T: DeviceCopy + Zeroable> DeviceScalar<T> {
    constructors! {
        /// A value whose bytes are all zero.
        ///
        /// # Errors
        ///
        /// The errors of [`new`](Self::new).
        pub fn zeroed(stream: &Stream) -> Result<Self>;
        /// Like [`zeroed`](Self::zeroed), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`new_in`](Self::new_in).
        pub fn zeroed_in(.., resource) {
            let layout = DeviceLayout::array::<T>(1)?;
            Ok(Self { vec: DeviceVec::filled_with_zeros::<Self>(stream, layout, resource)? })
        }
    }
}

impl<T: DeviceCopy> DeviceScalar<T> {
    constructors! {
        /// A value that is not written yet.
        ///
        /// ```
        /// use aquifer::{Device, DeviceScalar};
        ///
        /// let stream = Device::detect_or_simulate()?.new_stream()?;
        /// // SAFETY: written before it is read.
        /// let mut count = unsafe { DeviceScalar::<u64>::uninit(&stream)? };
        /// count.set_to_zero()?;
        /// assert_eq!(count.value()?, 0);
        /// # Ok::<(), aquifer::Error>(())
        /// ```
        ///
        /// # Errors
        ///
        /// The errors of [`new`](Self::new).
        ///
        /// # Safety
        ///
        /// The value is written before it is read, as with [`DeviceVec::uninit`].
        pub [unsafe] fn uninit(stream: &Stream) -> Result<Self>;
        /// Like [`uninit`](Self::uninit), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`new_in`](Self::new_in).
        ///
        /// # Safety
        ///
        /// The condition of [`uninit`](Self::uninit).
        pub fn uninit_in(.., resource) {
            Ok(Self { vec: DeviceVec::unwritten::<Self>(stream, DeviceLayout::array::<T>(1)?, resource)? })
        }
    }

    /// The value. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] while home is in capture, on this thread or another, and the errors of the copy.
    #[track_caller]
    pub fn value(&self) -> Result<T>
    where
        T: AnyBitPattern,
    {
        let _site = CallSite::enter();
        self.vec.get(0)
    }

    /// Overwrites the value, in home's order. The host does not wait, and `value` need not live on. It travels in the
    /// driver's calls, one for each 4 bytes unless it repeats a word.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::fill`].
    #[track_caller]
    pub fn set_value(&mut self, value: T) -> Result<()>
    where
        T: NoUninit,
    {
        let _site = CallSite::enter();
        self.vec.fill(value)
    }

    /// Overwrites all bytes with zero, in home's order. A float becomes `0.0`, never `-0.0`. The host does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::fill`].
    #[track_caller]
    pub fn set_to_zero(&mut self) -> Result<()>
    where
        T: Zeroable,
    {
        let _site = CallSite::enter();
        self.vec.as_mut_slice().fill_with_zeros()
    }

    /// Overwrites the value with the one element of `source`, on this device or another, in home's order. The host does
    /// not wait.
    ///
    /// ```
    /// use aquifer::{Device, DeviceScalar, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let sums = DeviceVec::from_slice(&stream, &[1_u32, 2, 3])?;
    /// let mut last = DeviceScalar::zeroed(&stream)?;
    /// last.copy_from(&sums.slice(2..)?)?;
    /// assert_eq!(last.value()?, 3);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::copy_from`].
    #[track_caller]
    pub fn copy_from(&mut self, source: &impl DeviceRead<T>) -> Result<()> {
        let _site = CallSite::enter();
        self.vec.copy_from(source)
    }

    /// A copy of it, from the same resource, at home on the same stream. The host does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new), and those of the copy.
    #[track_caller]
    pub fn try_clone(&self) -> Result<Self> {
        let _site = CallSite::enter();
        let vec = self.vec.try_clone()?;
        vec.buffer.made_as::<Self>(1, size_of::<T>());
        Ok(Self { vec })
    }

    /// The vector of one element that it is. `DeviceScalar::try_from` is the way back.
    ///
    /// A transfer of that vector reads the value while the host goes on:
    ///
    /// ```
    /// use aquifer::{Device, DeviceScalar};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let sum = DeviceScalar::new(&stream, 42_u32)?;
    /// let download = stream.download(sum.into_vec(), vec![0; 1])?;
    /// // ... the host does something else ...
    /// let (host, vec) = download.wait()?;
    /// assert_eq!(host, [42]);
    /// let sum = DeviceScalar::try_from(vec)?;
    /// # drop(sum);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn into_vec(self) -> DeviceVec<T> {
        self.vec
    }
}

/// The vector's element, where it lies.
impl<T: DeviceCopy> TryFrom<DeviceVec<T>> for DeviceScalar<T> {
    type Error = Refused<DeviceVec<T>>;

    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`] unless there is exactly one element. The vector comes back.
    fn try_from(vec: DeviceVec<T>) -> Result<Self, Refused<DeviceVec<T>>> {
        if vec.len() == 1 {
            return Ok(Self { vec });
        }
        let what = format!("a vector of {} was to become a scalar", Count(vec.len(), "element"));
        let error = Error::new(ErrorKind::LengthMismatch, what)
            .with_advice("give a vector of 1 element; DeviceVec::get reads one of several");
        Err(Refused::new(error, vec))
    }
}
