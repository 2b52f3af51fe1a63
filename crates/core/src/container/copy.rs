//! Copies of views, to the host and from it, and between devices.

use super::accessors::host_copies;
use super::device_vec::DeviceVec;
use super::view::{DeviceRead, DeviceSlice, DeviceSliceMut};
use super::{between_devices, blocking};
use crate::driver::{CallSite, DeviceCopy};
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::pinned::last_error_of;
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use bytemuck::checked::CheckedBitPattern;
use bytemuck::{AnyBitPattern, NoUninit};
use std::mem::MaybeUninit;

impl<T: DeviceCopy + AnyBitPattern> DeviceSlice<'_, T> {
    /// Copies all elements into a slice of the same length, complete when this returns.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`], [`ErrorKind::Capture`] on a stream in capture, and the errors of the copy.
    #[track_caller]
    pub fn copy_to_slice(&self, target: &mut [T]) -> Result<()> {
        let _site = CallSite::enter();
        blocking::download(self, target)
    }

    /// The elements as a `Vec` on the host. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::to_vec`](crate::DeviceVec::to_vec).
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let _site = CallSite::enter();
        let mut vec = Vec::new();
        vec.try_reserve_exact(self.len()).map_err(|_| self.host_out_of_memory(None))?;
        vec.resize(self.len(), T::zeroed());
        self.copy_to_slice(&mut vec)?;
        Ok(vec)
    }

    /// The elements as a `Vec` in memory of `allocator`. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::to_vec_in`](crate::DeviceVec::to_vec_in).
    #[track_caller]
    pub fn to_vec_in<A: Allocator>(&self, allocator: A) -> Result<AllocVec<T, A>> {
        let _site = CallSite::enter();
        let mut vec = AllocVec::new_in(allocator);
        let (reserved, why) = last_error_of(|| vec.try_reserve_exact(self.len()));
        reserved.map_err(|_| self.host_out_of_memory(why))?;
        vec.resize(self.len(), T::zeroed());
        self.copy_to_slice(&mut vec)?;
        Ok(vec)
    }
}

impl<T: DeviceCopy> DeviceSlice<'_, T> {
    /// Copies the bytes of all elements into a slice of the same length, complete when this returns. On success, all of it
    /// is written. The device may hold bytes that are no `T`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`], [`ErrorKind::Capture`] on a stream in capture, and the errors of the copy. Any part
    /// of the slice may be written then.
    #[track_caller]
    pub fn copy_to_uninit_slice(&self, target: &mut [MaybeUninit<T>]) -> Result<()> {
        let _site = CallSite::enter();
        blocking::download_uninit(self, target)
    }

    /// The elements as a `Vec` on the host, each checked to be a value of its type. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if an element is no value of `T`, and the errors of
    /// [`DeviceVec::to_vec`].
    #[track_caller]
    pub fn to_vec_checked(&self) -> Result<Vec<T>>
    where
        T: CheckedBitPattern,
    {
        let _site = CallSite::enter();
        let mut vec: Vec<T> = Vec::new();
        vec.try_reserve_exact(self.len()).map_err(|_| self.host_out_of_memory(None))?;
        let space = &mut vec.spare_capacity_mut()[..self.len()];
        blocking::download_uninit(self, space)?;
        // SAFETY: written whole; `Bits` has the size of `T` and no more alignment, and any bytes are one.
        let bits = unsafe { &*(std::ptr::from_ref(space) as *const [T::Bits]) };
        if let Some(index) = bits.iter().position(|bits| !T::is_valid_bit_pattern(bits)) {
            return Err(self.invalid_element(index));
        }
        // SAFETY: written whole, and each of them is a `T`.
        unsafe { vec.set_len(self.len()) };
        Ok(vec)
    }

    #[cold]
    fn invalid_element(&self, index: usize) -> Error {
        let what = format!(
            "the element at index {index} is no value of `{}`, in a vector of {}",
            std::any::type_name::<T>(),
            Count(self.len(), "element")
        );
        Error::new(ErrorKind::InvalidArgument, what)
            .with_advice("look for the kernel that wrote it, or read the bits with `cast`")
    }

    #[cold]
    fn host_out_of_memory(&self, why: Option<Error>) -> Error {
        let (elements, bytes) = (Count(self.len(), "element"), Count(self.size_in_bytes(), "byte"));
        let what = format!("allocating {bytes} on the host for {elements} of a vector");
        match why {
            Some(why) => why.within(what),
            None => Error::new(ErrorKind::OutOfMemory, what)
                .with_advice("copy a part of the vector at a time"),
        }
    }
}

impl<T: DeviceCopy> DeviceVec<T> {
    /// Copies the bytes of all elements into a slice of the same length, complete when this returns, as
    /// [`DeviceSlice::copy_to_uninit_slice`] does.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3])?;
    /// let mut host = Vec::with_capacity(3);
    /// vec.copy_to_uninit_slice(&mut host.spare_capacity_mut()[..3])?;
    /// // SAFETY: written whole, and the elements are values: no kernel wrote to them.
    /// unsafe { host.set_len(3) };
    /// assert_eq!(host, [1, 2, 3]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceSlice::copy_to_uninit_slice`].
    #[track_caller]
    pub fn copy_to_uninit_slice(&self, target: &mut [MaybeUninit<T>]) -> Result<()> {
        let _site = CallSite::enter();
        self.as_slice().copy_to_uninit_slice(target)
    }

    /// The elements as a `Vec` on the host, each checked to be a value of its type. Waits for the home stream.
    /// [`DeviceCopy`](crate::DeviceCopy) has an example.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceSlice::to_vec_checked`].
    #[track_caller]
    pub fn to_vec_checked(&self) -> Result<Vec<T>>
    where
        T: CheckedBitPattern,
    {
        let _site = CallSite::enter();
        self.as_slice().to_vec_checked()
    }
}

host_copies!([T: DeviceCopy + NoUninit] [T: DeviceCopy + AnyBitPattern] DeviceSliceMut<'_, T>, T);

impl<T: DeviceCopy> DeviceSliceMut<'_, T> {
    /// Overwrites all elements with those of `source`. See [`DeviceVec::copy_from`](crate::DeviceVec::copy_from).
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::copy_from`](crate::DeviceVec::copy_from).
    #[track_caller]
    pub fn copy_from(&mut self, source: &impl DeviceRead<T>) -> Result<()> {
        let _site = CallSite::enter();
        between_devices::copy(&source.as_device_slice(), self)
    }
}
