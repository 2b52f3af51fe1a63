//! Copies that neither wait nor own their memory. The caller keeps the order.

use crate::container::DeviceVec;
use crate::container::host_copy::{to_device, to_host};
use crate::driver::{CallSite, DeviceCopy};
use crate::error::Result;
use bytemuck::{AnyBitPattern, NoUninit};

impl<T: DeviceCopy> DeviceVec<T> {
    /// Overwrites all elements with those of `source`, of the same length, in home's order, and
    /// returns at once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch),
    /// [`ErrorKind::Capture`](crate::ErrorKind::Capture), and the errors of the driver.
    ///
    /// # Safety
    ///
    /// Until the home stream has passed this call, the slice is neither written nor freed.
    #[track_caller]
    pub unsafe fn copy_from_slice_async(&mut self, source: &[T]) -> Result<()>
    where
        T: NoUninit,
    {
        let _site = CallSite::enter();
        let home = self.stream().clone();
        home.note_unseen_copy();
        // SAFETY: the caller's promise.
        unsafe { to_device(&home, &mut self.as_mut_slice(), source).map(drop) }
    }

    /// Copies all elements to `target`, of the same length, in home's order, and returns at once.
    ///
    /// # Errors
    ///
    /// The errors of [`copy_from_slice_async`](Self::copy_from_slice_async).
    ///
    /// # Safety
    ///
    /// Until the home stream has passed this call, the slice is neither read, written nor freed,
    /// and no reference to it is used.
    #[track_caller]
    pub unsafe fn copy_to_slice_async(&self, target: &mut [T]) -> Result<()>
    where
        T: AnyBitPattern,
    {
        let _site = CallSite::enter();
        self.stream().note_unseen_copy();
        // SAFETY: the caller's promise.
        unsafe { to_host(self.stream(), &self.as_slice(), target).map(drop) }
    }
}
