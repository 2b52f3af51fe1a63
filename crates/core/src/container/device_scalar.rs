//! One value in device memory.

use super::accessors::{constructors, container};
use super::device_vec::DeviceVec;
use super::view::DeviceRead;
use crate::driver::CallSite;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::impls::Count;
use crate::layout::DeviceLayout;
use crate::stream::Stream;
use bytemuck::Pod;

/// One value of plain data in device memory: a kernel's counter, sum or flag.
///
/// A [`DeviceVec`] of one element that stays one: it has a home stream, and all that it does by
/// itself, its free included, happens in that stream's order. It goes wherever a vector goes, as a
/// kernel's argument or as the source of a copy; with cudarc, as `scalar.as_slice().cuda()`.
///
/// Only [`value`](Self::value) waits for the device. To read without a wait, download it inside a
/// [`scope`](Stream::scope), or turn it [into a vector](Self::into_vec) that
/// [`Stream::download`] owns while the copy runs.
///
/// RMM: `device_scalar`. There, the value to set is borrowed until the device has read it, which
/// nothing checks, and a `bool` may come back with a value that is none; here, the value travels in
/// the driver's call, and such types are no [`Pod`](https://docs.rs/bytemuck/1/bytemuck/trait.Pod.html).
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
/// This does not compile, since a `bool` is not plain data: of its bit patterns two alone are values.
///
/// ```compile_fail
/// # let stream = aquifer::Device::detect_or_simulate().unwrap().new_stream().unwrap();
/// let flag = aquifer::DeviceScalar::new(&stream, true);
/// ```
pub struct DeviceScalar<T: Pod> {
    /// Exactly one element: nothing here gives it out to be made longer or shorter.
    vec: DeviceVec<T>,
}

container!([T: Pod] DeviceScalar: DeviceScalar<T>, T, vec.buffer, vec.length);

impl<T: Pod> DeviceScalar<T> {
    constructors! {
        /// `value`, at home on `stream`, from the device's current resource. Nothing waits on the host.
        ///
        /// # Errors
        ///
        /// [`ErrorKind::OutOfMemory`]; [`ErrorKind::InvalidArgument`] if `T` has no size; those of
        /// [`current_device_resource`](crate::mr::current_device_resource) and of the driver.
        pub fn new(stream: &Stream, value: T) -> Result<Self>;
        /// As [`new`](Self::new), from `resource`.
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
        /// As there, and [`ErrorKind::WrongDevice`] if `stream` is of another device.
        pub fn new_in(.., resource) {
            let layout = DeviceLayout::array::<T>(1)?;
            Ok(Self { vec: DeviceVec::filled::<Self>(stream, layout, value, resource)? })
        }

        /// A value whose bytes are all zero.
        ///
        /// # Errors
        ///
        /// As [`new`](Self::new).
        pub fn zeroed(stream: &Stream) -> Result<Self>;
        /// As [`zeroed`](Self::zeroed), from `resource`.
        ///
        /// # Errors
        ///
        /// As [`new_in`](Self::new_in).
        pub fn zeroed_in(.., resource) {
            let layout = DeviceLayout::array::<T>(1)?;
            Ok(Self { vec: DeviceVec::filled::<Self>(stream, layout, T::zeroed(), resource)? })
        }

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
        /// As [`new`](Self::new).
        ///
        /// # Safety
        ///
        /// As [`DeviceVec::uninit`]: it is written before it is read.
        pub [unsafe] fn uninit(stream: &Stream) -> Result<Self>;
        /// As [`uninit`](Self::uninit), from `resource`.
        ///
        /// # Errors
        ///
        /// As [`new_in`](Self::new_in).
        ///
        /// # Safety
        ///
        /// As [`uninit`](Self::uninit).
        pub fn uninit_in(.., resource) {
            Ok(Self { vec: DeviceVec::unwritten::<Self>(stream, DeviceLayout::array::<T>(1)?, resource)? })
        }
    }

    /// The value. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] while home is in capture, on this thread or another; those of the copy.
    #[track_caller]
    pub fn value(&self) -> Result<T> {
        let _site = CallSite::enter();
        self.vec.get(0)
    }

    /// Overwrites the value, in home's order. Nothing waits on the host, and `value` need not live
    /// on: it travels in the driver's calls, one for each 4 bytes unless it repeats a word.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::fill`].
    #[track_caller]
    pub fn set_value(&mut self, value: T) -> Result<()> {
        let _site = CallSite::enter();
        self.vec.fill(value)
    }

    /// Overwrites all bytes with zero, in home's order: `0.0`, never `-0.0`. Nothing waits on the
    /// host.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::fill`].
    #[track_caller]
    pub fn set_to_zero(&mut self) -> Result<()> {
        let _site = CallSite::enter();
        self.vec.fill(T::zeroed())
    }

    /// Overwrites the value with that of `source`, of one element, on this device or another, in
    /// home's order. Nothing waits on the host.
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
    /// As [`DeviceVec::copy_from`].
    #[track_caller]
    pub fn copy_from(&mut self, source: &impl DeviceRead<T>) -> Result<()> {
        let _site = CallSite::enter();
        self.vec.copy_from(source)
    }

    /// A copy of it, from the same resource, at home on the same stream. Nothing waits on the host.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and those of the copy.
    #[track_caller]
    pub fn try_clone(&self) -> Result<Self> {
        let _site = CallSite::enter();
        let vec = self.vec.try_clone()?;
        vec.buffer.made_as::<Self>(1, size_of::<T>());
        Ok(Self { vec })
    }

    /// The vector of one element that it is. `DeviceScalar::try_from` is the way back.
    ///
    /// Here to read the value while the host goes on:
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
impl<T: Pod> TryFrom<DeviceVec<T>> for DeviceScalar<T> {
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
