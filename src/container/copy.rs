//! Copies of views: to the host and from it, and between devices.

use super::accessors::host_copies;
use super::view::{DeviceRead, DeviceSlice, DeviceSliceMut};
use crate::error::{Error, ErrorKind, Result};
use crate::transfer::{between_devices, blocking};
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use bytemuck::Pod;

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
    /// As [`DeviceVec::to_vec`](crate::DeviceVec::to_vec).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut vec = Vec::new();
        vec.try_reserve_exact(self.len()).map_err(|_| host_out_of_memory(self.size_in_bytes()))?;
        vec.resize(self.len(), T::zeroed());
        self.copy_to_slice(&mut vec)?;
        Ok(vec)
    }

    /// The elements as a `Vec` in memory of `allocator`. Waits for the home stream.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::to_vec_in`](crate::DeviceVec::to_vec_in).
    pub fn to_vec_in<A: Allocator>(&self, allocator: A) -> Result<AllocVec<T, A>> {
        let mut vec = AllocVec::new_in(allocator);
        vec.try_reserve_exact(self.len()).map_err(|_| host_out_of_memory(self.size_in_bytes()))?;
        vec.resize(self.len(), T::zeroed());
        self.copy_to_slice(&mut vec)?;
        Ok(vec)
    }
}

fn host_out_of_memory(bytes: usize) -> Error {
    let reason = crate::pinned::last_error().map(|error| format!(": {error}")).unwrap_or_default();
    Error::new(ErrorKind::OutOfMemory, format!("{bytes} bytes on the host were asked{reason}"))
}

host_copies!([T: Pod] DeviceSliceMut<'_, T>, T);

impl<T: Pod> DeviceSliceMut<'_, T> {
    /// Overwrites all elements with those of `source`. See [`DeviceVec::copy_from`](crate::DeviceVec::copy_from).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn copy_from(&mut self, source: &impl DeviceRead<T>) -> Result<()> {
        between_devices::copy(&source.as_device_slice(), self)
    }
}
