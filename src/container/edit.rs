//! Growing and shrinking a vector.

use super::buffer::{Buffer, kind_of};
use super::device_vec::DeviceVec;
use super::memory_use::CapturePolicy;
use super::view::DeviceSliceMut;
use crate::driver::sim::CallSite;
use crate::driver::{ErrorContext, RawCopy};
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::layout::DeviceLayout;
use crate::transfer::blocking;
use bytemuck::Pod;

impl<T: Pod> DeviceVec<T> {
    /// Another block of the vector's resource, with space for `capacity`.
    pub(super) fn allocate_like(&self, capacity: usize) -> Result<Buffer> {
        let layout = DeviceLayout::array::<T>(capacity)?;
        self.buffer.allocate_like(layout, kind_of::<Self, T>)
    }

    /// Moves the elements into a new block with space for `capacity`, in home's order.
    fn reallocate(&mut self, capacity: usize) -> Result<()> {
        let new = self.allocate_like(capacity)?;
        self.move_to(new)
    }

    /// Moves the elements into `new`, which has space for them, in home's order. Not in a capture: the
    /// copy would run when the graph is launched, if at all, and the vector has its new block now.
    fn move_to(&mut self, new: Buffer) -> Result<()> {
        let bytes = self.size_in_bytes();
        if bytes != 0 {
            let call = self.as_slice().memory_use().order_on(self.stream(), CapturePolicy::Join)?;
            call.refuse_capture("moving a vector's elements into another block")?;
            let copy = RawCopy { target: new.address(), source: self.buffer.address(), bytes };
            // SAFETY: both blocks hold the elements' bytes; the new one is used on home alone, and
            // the old one is freed in home's order, after this copy.
            unsafe { self.device().driver().copy_on_device(copy, call.raw()) }.with_context(
                || format!("moving {} into another block on {call}", Count(bytes, "byte")),
            )?;
        }
        self.buffer = new;
        Ok(())
    }

    fn required_length(&self, additional: usize) -> Result<usize> {
        self.length.checked_add(additional).ok_or_else(|| {
            let what = format!(
                "no address space holds {} beside {}",
                Count(additional, "more element"),
                self.length
            );
            Error::new(ErrorKind::InvalidArgument, what).with_advice("ask for less")
        })
    }

    /// Makes space for `additional` more elements: at least twice the capacity when it has to grow,
    /// so that pushes cost amortised constant time. Elements move on the device, in home's order.
    ///
    /// # Errors
    ///
    /// As [`with_capacity`](Self::with_capacity); [`ErrorKind::Capture`] if elements would have to move
    /// while home is in capture, or while a capture on another thread has it. Then the vector is as it
    /// was.
    #[track_caller]
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        let _site = CallSite::enter();
        let wanted = self.required_length(additional)?;
        if wanted <= self.capacity() {
            return Ok(());
        }
        let doubled = self.capacity().saturating_mul(2).max(wanted);
        let new = match self.allocate_like(doubled) {
            // Twice the space may not be there where just enough is.
            Err(error) if doubled > wanted && error.kind() != ErrorKind::ContextLost => {
                self.allocate_like(wanted)
            }
            new => new,
        };
        self.move_to(new?)
    }

    /// As [`reserve`](Self::reserve), without spare capacity.
    ///
    /// # Errors
    ///
    /// As there.
    #[track_caller]
    pub fn reserve_exact(&mut self, additional: usize) -> Result<()> {
        let _site = CallSite::enter();
        let wanted = self.required_length(additional)?;
        if wanted <= self.capacity() { Ok(()) } else { self.reallocate(wanted) }
    }

    /// Gives up capacity beyond the elements, by moving them into a block of their size. They stay where
    /// they are if the resource has no smaller block for them.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve); then the vector is as it was.
    #[track_caller]
    pub fn shrink_to_fit(&mut self) -> Result<()> {
        let _site = CallSite::enter();
        if self.length == self.capacity() {
            return Ok(());
        }
        let new = self.allocate_like(self.length)?;
        if new.bytes() < self.buffer.bytes() { self.move_to(new) } else { Ok(()) }
    }

    /// Makes it `length` elements long: cuts the rest off, or adds `value`s. Nothing waits on the
    /// host.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve) and [`fill`](Self::fill); then the vector is as long as it was.
    #[track_caller]
    pub fn resize(&mut self, length: usize, value: T) -> Result<()> {
        let _site = CallSite::enter();
        self.truncate(length);
        self.append(length - self.length, |mut added| added.fill(value))
    }

    /// Adds elements for `write` to write. As long as before, if that fails.
    fn append(
        &mut self,
        additional: usize,
        write: impl FnOnce(DeviceSliceMut<'_, T>) -> Result<()>,
    ) -> Result<()> {
        self.reserve(additional)?;
        let before = self.length;
        self.length += additional;
        let written = self.slice_mut(before..).and_then(write);
        if written.is_err() {
            self.length = before;
        }
        written
    }

    /// Adds a copy of `source`, complete when this returns.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve) and [`copy_from_slice`](Self::copy_from_slice); then the vector is
    /// as long as it was.
    #[track_caller]
    pub fn extend_from_slice(&mut self, source: &[T]) -> Result<()> {
        let _site = CallSite::enter();
        self.append(source.len(), |mut added| blocking::upload(source, &mut added))
    }

    /// Adds one element. Nothing waits on the host.
    ///
    /// # Errors
    ///
    /// As [`resize`](Self::resize): [`ErrorKind::Capture`] too, while a capture on another thread has
    /// home.
    #[track_caller]
    pub fn push(&mut self, value: T) -> Result<()> {
        let _site = CallSite::enter();
        self.resize(self.required_length(1)?, value)
    }

    /// Keeps the first `length` elements; no effect if there are fewer. The capacity stays.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Removes all elements. The capacity stays.
    pub fn clear(&mut self) {
        self.length = 0;
    }
}
