//! Copies of views, to the host and from it, and between devices.

use super::accessors::host_copies;
use super::view::{DeviceRead, DeviceSlice, DeviceSliceMut};
use super::{between_devices, blocking};
use crate::driver::CallSite;
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::pinned::last_error_of;
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use bytemuck::Pod;

impl<'a, T: Pod> DeviceSlice<'a, T> {
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

host_copies!([T: Pod] DeviceSliceMut<'_, T>, T);

impl<T: Pod> DeviceSliceMut<'_, T> {
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
