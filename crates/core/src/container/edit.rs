//! Growing and shrinking a vector.

use super::blocking;
use super::buffer::{Buffer, kind_of};
use super::device_vec::DeviceVec;
use super::view::DeviceSliceMut;
use crate::driver::{CallSite, DeviceCopy, ErrorContext, RawCopy};
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::layout::DeviceLayout;
use crate::order::CapturePolicy;
use crate::resource::asleep::require_awake;
use bytemuck::NoUninit;

/// The least part of its capacity by which a vector grows in place. Nothing is copied, so the part bounds the number of
/// calls, which is some 90 for twice the capacity.
const SPARE_DIVISOR: usize = 128;

/// The outcome of growth in place.
#[derive(PartialEq, Eq)]
enum InPlace {
    Grown,
    /// The memory cannot grow where it is.
    NoPlace,
    /// The memory could grow, but the device has none.
    NoMemory,
}

impl<T: DeviceCopy> DeviceVec<T> {
    /// Makes space for `capacity`, and for no more, in home's order.
    fn reallocate(&mut self, capacity: usize) -> Result<()> {
        if self.grows_in_place(capacity)? == InPlace::Grown {
            return Ok(());
        }
        let new = match self.allocate_growable(capacity)? {
            Some(new) => new,
            None => self.allocate_like(capacity)?,
        };
        self.move_to(new)
    }

    /// Extends the vector's memory to `capacity` where it lies, if there is room for it. If memory is lacking, some
    /// that lies elsewhere may serve.
    fn grows_in_place(&mut self, capacity: usize) -> Result<InPlace> {
        let bytes = DeviceLayout::array::<T>(capacity)?.bytes();
        match self.buffer.grow_in_place(bytes, kind_of::<Self, T>) {
            Ok(true) => Ok(InPlace::Grown),
            Ok(false) => Ok(InPlace::NoPlace),
            Err(error) if error.kind() == ErrorKind::OutOfMemory => Ok(InPlace::NoMemory),
            Err(error) => Err(error),
        }
    }

    /// Another block, which can grow where it is.
    fn allocate_growable(&self, capacity: usize) -> Result<Option<Buffer>> {
        let layout = DeviceLayout::array::<T>(capacity)?;
        match self.buffer.allocate_growable(layout, kind_of::<Self, T>) {
            Err(error) if error.kind() != ErrorKind::ContextLost => Ok(None),
            new => new,
        }
    }

    /// Moves the elements into `new`, which has space for them, in home's order. A capture refuses it, since the copy
    /// would run when the graph is launched, if at all, and the vector has its new block now.
    fn move_to(&mut self, new: Buffer) -> Result<()> {
        let bytes = self.size_in_bytes();
        if bytes != 0 {
            let call = self.as_slice().memory_use().order_on(self.stream(), CapturePolicy::Join)?;
            call.refuse_capture("moving a vector's elements into another block")?;
            // Of the same pool, or of one that the resource has chosen.
            require_awake(new.address())?;
            let copy = RawCopy { target: new.address(), source: self.buffer.address(), bytes };
            // SAFETY: both blocks hold the elements' bytes; the new one is used on home alone, and
            // the old one is freed in home's order, after this copy.
            unsafe { self.device().driver().copy_on_device(copy, call.raw()) }.with_context(
                || format!("moving {} into another block on {call}", Count(bytes, "byte")),
            )?;
        }
        self.buffer.replace_with(new);
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

    /// Makes space for `additional` more elements. Where the memory can [grow in place](Self::growth), it does, by a
    /// 128th of the capacity or more. Else the elements move on the device, in home's order, to at least twice the capacity.
    /// So pushes cost amortised constant time.
    ///
    /// # Errors
    ///
    /// The errors of [`with_capacity`](Self::with_capacity). [`ErrorKind::Capture`] if elements would have to move
    /// while home is in capture, or while a capture on another thread has it. The vector is as it was then.
    #[track_caller]
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        let _site = CallSite::enter();
        let wanted = self.required_length(additional)?;
        let capacity = self.capacity();
        if wanted <= capacity {
            return Ok(());
        }
        let spare = capacity.saturating_add(capacity / SPARE_DIVISOR);
        if spare > wanted
            && let Ok(layout) = DeviceLayout::array::<T>(spare)
            && self.buffer.grow_by_wish(layout.bytes(), kind_of::<Self, T>)
        {
            return Ok(());
        }
        let doubled = match self.grows_in_place(wanted)? {
            InPlace::Grown => return Ok(()),
            InPlace::NoPlace => capacity.saturating_mul(2).max(wanted),
            // For twice as much there is no memory either.
            InPlace::NoMemory => wanted,
        };
        // What can grow where it is needs no more; twice as much may be the first that can.
        for capacity in [wanted, doubled].into_iter().take(1 + usize::from(doubled > wanted)) {
            if let Some(new) = self.allocate_growable(capacity)? {
                return self.move_to(new);
            }
        }
        let new = match self.allocate_like(doubled) {
            // Twice the space may not be there where just enough is.
            Err(error) if doubled > wanted && error.kind() != ErrorKind::ContextLost => {
                self.allocate_like(wanted)
            }
            new => new,
        };
        self.move_to(new?)
    }

    /// Like [`reserve`](Self::reserve), without spare capacity.
    ///
    /// # Errors
    ///
    /// The errors of [`reserve`](Self::reserve).
    #[track_caller]
    pub fn reserve_exact(&mut self, additional: usize) -> Result<()> {
        let _site = CallSite::enter();
        let wanted = self.required_length(additional)?;
        if wanted <= self.capacity() { Ok(()) } else { self.reallocate(wanted) }
    }

    /// Gives up capacity beyond the elements. Memory that can [grow in place](Self::growth) shrinks in place, if the
    /// elements take a granule or more. Otherwise the elements move into a block of their size. They stay where they
    /// are if the resource has no smaller block for them.
    ///
    /// # Errors
    ///
    /// The errors of [`reserve`](Self::reserve). The vector is as it was then.
    #[track_caller]
    pub fn shrink_to_fit(&mut self) -> Result<()> {
        let _site = CallSite::enter();
        if self.length == self.capacity() {
            return Ok(());
        }
        let bytes = self.size_in_bytes();
        if bytes > 0 && self.buffer.shrink_in_place(bytes, kind_of::<Self, T>)? {
            return Ok(());
        }
        let new = self.allocate_like(self.length)?;
        if new.bytes() < self.buffer.bytes() { self.move_to(new) } else { Ok(()) }
    }

    /// Makes it `length` elements long. It cuts the rest off, or adds `value`s. The host does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`reserve`](Self::reserve) and [`fill`](Self::fill). The vector is as long as it was then.
    #[track_caller]
    pub fn resize(&mut self, length: usize, value: T) -> Result<()>
    where
        T: NoUninit,
    {
        let _site = CallSite::enter();
        self.truncate(length);
        self.append(length - self.length, |mut added| added.fill(value))
    }

    /// Adds elements for `write` to write. The vector is as long as before, if that fails.
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
    /// The errors of [`reserve`](Self::reserve) and [`copy_from_slice`](Self::copy_from_slice). The vector is as long
    /// as it was then.
    #[track_caller]
    pub fn extend_from_slice(&mut self, source: &[T]) -> Result<()>
    where
        T: NoUninit,
    {
        let _site = CallSite::enter();
        self.append(source.len(), |mut added| blocking::upload(source, &mut added))
    }

    /// Adds one element. The host does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`resize`](Self::resize), with [`ErrorKind::Capture`] while a capture on another thread has home.
    #[track_caller]
    pub fn push(&mut self, value: T) -> Result<()>
    where
        T: NoUninit,
    {
        let _site = CallSite::enter();
        self.resize(self.required_length(1)?, value)
    }

    /// Keeps the first `length` elements, and all if there are fewer. The capacity stays.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Removes all elements. The capacity stays.
    pub fn clear(&mut self) {
        self.length = 0;
    }
}
