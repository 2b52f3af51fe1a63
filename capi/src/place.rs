//! Where results go.

use crate::status::{Failure, Result};
use std::ptr::NonNull;

/// A variable of the caller's, which may hold no value yet, and may be another result's as well.
pub(crate) struct Place<T>(NonNull<T>);

impl<T> Place<T> {
    /// # Safety
    ///
    /// Null, or a place for a `T` for as long as this is used.
    pub(crate) unsafe fn new(place: *mut T, what: &str) -> Result<Self> {
        NonNull::new(place).map(Self).ok_or_else(|| Failure::null(what))
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: the promise of `new`.
        unsafe { self.0.write(value) }
    }
}
