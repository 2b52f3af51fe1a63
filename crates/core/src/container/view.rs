//! Views of device memory, and the traits of memory to read and to write.

use super::buffer::Buffer;
use crate::driver::DeviceCopy;
use crate::error::{Error, ErrorKind, Result, SPLIT_ADVICE, ensure};
use crate::impls::Count;
use crate::order::MemoryUse;
use crate::stream::Stream;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

/// The number and the size of elements, by the field or the fields of their number.
macro_rules! lengths {
    ([$($generics:tt)*] $type:ty, $element:ty, $($length:ident).+) => {
        impl<$($generics)*> $type {
            /// The number of elements.
            pub fn len(&self) -> usize {
                self.$($length).+
            }

            /// Whether there are no elements.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// The size of the elements in bytes.
            pub fn size_in_bytes(&self) -> usize {
                self.len() * size_of::<$element>()
            }
        }
    };
}
pub(crate) use lengths;

/// A borrowed range of a [`DeviceVec`](crate::DeviceVec), to read, like `&[T]` on the device.
///
/// Its home stream is the vector's, and a use of either is a use of the other.
#[derive(Clone, Copy)]
pub struct DeviceSlice<'a, T: DeviceCopy> {
    buffer: &'a Buffer,
    /// Inside of the buffer.
    address: u64,
    pub(super) length: usize,
    elements: PhantomData<&'a [T]>,
}

/// A mutably borrowed range of a [`DeviceVec`](crate::DeviceVec), like `&mut [T]` on the device.
///
/// Its home stream is the vector's, and a use of either is a use of the other.
pub struct DeviceSliceMut<'a, T: DeviceCopy> {
    buffer: &'a Buffer,
    /// Inside of the buffer.
    address: u64,
    pub(super) length: usize,
    elements: PhantomData<&'a mut [T]>,
}

/// Two parts of one slice.
pub(super) type TwoSlicesMut<'a, T> = (DeviceSliceMut<'a, T>, DeviceSliceMut<'a, T>);

macro_rules! view {
    ($name:ident, $writes:literal) => {
        lengths!(['a, T: DeviceCopy] $name<'a, T>, T, length);

        impl<'a, T: DeviceCopy> $name<'a, T> {
            pub(super) fn new(buffer: &'a Buffer, length: usize) -> Self {
                Self { buffer, address: buffer.address(), length, elements: PhantomData }
            }

            /// `length` elements from the `start`th, inside of this view. Two parts of a mutable view must
            /// not overlap.
            fn part(&self, start: usize, length: usize) -> Self {
                let address = self.address + (start * size_of::<T>()) as u64;
                Self { buffer: self.buffer, address, length, elements: PhantomData }
            }

            pub(super) fn address(&self) -> &u64 {
                &self.address
            }

            #[doc(hidden)]
            pub fn home(&self) -> &'a Stream {
                self.buffer.home()
            }

            /// The use of this memory, in the way that the view allows.
            pub(crate) fn memory_use(&self) -> MemoryUse<'a> {
                let start = (self.address - self.buffer.address()) as usize;
                self.buffer.memory_use(start..start + self.size_in_bytes(), $writes)
            }

            /// The device's address of the first element. It puts nothing in order. So use it on a stream that
            /// [`on`](Self::on) or `on_mut` gave a guard for, also if that is the home stream.
            pub fn as_device_ptr(&self) -> u64 {
                self.address
            }
        }

        impl<T: DeviceCopy> Sealed for $name<'_, T> {}

        impl<T: DeviceCopy> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("element", &format_args!("{}", std::any::type_name::<T>()))
                    .field("length", &self.length)
                    .field("address", &format_args!("{:#x}", self.address))
                    .field("home", &format_args!("{}", self.home()))
                    .finish()
            }
        }
    };
}
view!(DeviceSlice, false);
view!(DeviceSliceMut, true);

/// Turns a range of indices into start and end, inside `length`.
pub(crate) fn check_range(range: impl RangeBounds<usize>, length: usize) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => length,
    };
    if start <= end && end <= length {
        return Ok(start..end);
    }
    Err(range_error(&range, start > end, length))
}

/// The error of a range, in the words of its user. Its bounds may be past the largest number that a count holds.
#[cold]
fn range_error(range: &impl RangeBounds<usize>, is_reversed: bool, length: usize) -> Error {
    let first = match range.start_bound() {
        Bound::Included(start) => start.to_string(),
        Bound::Excluded(before) => format!("({before}, excluded)"),
        Bound::Unbounded => String::new(),
    };
    let last = match range.end_bound() {
        Bound::Included(last) => format!("={last}"),
        Bound::Excluded(end) => end.to_string(),
        Bound::Unbounded => String::new(),
    };
    let range_shown = format!("{first}..{last}");
    if is_reversed && !matches!(range.end_bound(), Bound::Unbounded) {
        let what = format!("the range {range_shown} ends before it begins");
        return Error::new(ErrorKind::OutOfBounds, what)
            .with_advice("give the smaller index first");
    }
    let elements = Count(length, "element");
    Error::new(ErrorKind::OutOfBounds, format!("the range {range_shown} was asked of {elements}"))
        .with_advice("keep it within the length, or give a longer buffer")
}

/// An index inside `length`, or the error that says so.
pub(super) fn check_index(index: usize, length: usize) -> Result<()> {
    if index < length {
        return Ok(());
    }
    let what = format!("index {index} was asked of {}", Count(length, "element"));
    Err(Error::new(ErrorKind::OutOfBounds, what)
        .with_advice("give an index below the length, or a longer vector"))
}

impl<'a, T: DeviceCopy> DeviceSlice<'a, T> {
    /// The same memory as bytes. Plain data has no other bytes.
    pub(super) fn as_bytes(&self) -> DeviceSlice<'a, u8> {
        let Self { buffer, address, .. } = *self;
        DeviceSlice { buffer, address, length: self.size_in_bytes(), elements: PhantomData }
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if the range does not lie in it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'a, T>> {
        let range = check_range(range, self.length)?;
        Ok(self.part(range.start, range.len()))
    }
}

impl<'a, T: DeviceCopy> DeviceSliceMut<'a, T> {
    /// A view of the same memory, to read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        let Self { buffer, address, length, .. } = *self;
        DeviceSlice { buffer, address, length, elements: PhantomData }
    }

    /// A shorter borrow of it, as `&mut *slice` is.
    pub fn reborrow(&mut self) -> DeviceSliceMut<'_, T> {
        self.part(0, self.length)
    }

    /// A part of it, to read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if the range does not lie in it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// A part of it, to read and write.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if the range does not lie in it.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        self.reborrow().into_slice_mut(range)
    }

    /// A part of it, for as long as the whole was borrowed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if the range does not lie in it.
    pub fn into_slice_mut(self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'a, T>> {
        let range = check_range(range, self.length)?;
        Ok(self.part(range.start, range.len()))
    }

    /// Two parts of it, before and from `middle`, to be used at once, on two streams too.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if `middle` lies past the end.
    pub fn split_at_mut(&mut self, middle: usize) -> Result<TwoSlicesMut<'_, T>> {
        self.reborrow().into_split_at_mut(middle)
    }

    /// Two parts of it, for as long as the whole was borrowed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if `middle` lies past the end.
    pub fn into_split_at_mut(self, middle: usize) -> Result<TwoSlicesMut<'a, T>> {
        let elements = Count(self.length, "element");
        ensure!(
            middle <= self.length,
            OutOfBounds,
            SPLIT_ADVICE,
            "a split at {middle} was asked of {elements}"
        );
        Ok((self.part(0, middle), self.part(middle, self.length - middle)))
    }
}

mod sealed {
    pub trait Sealed {}
}

pub(super) use sealed::Sealed;

/// Device memory to read, which is a container or a view of one.
pub trait DeviceRead<T: DeviceCopy>: Sealed {
    /// The whole of it, to read.
    fn as_device_slice(&self) -> DeviceSlice<'_, T>;
}

/// Device memory to write, which is a container or a mutable view of one.
pub trait DeviceWrite<T: DeviceCopy>: DeviceRead<T> {
    /// The whole of it, to read and write.
    fn as_device_slice_mut(&mut self) -> DeviceSliceMut<'_, T>;
}

impl<T: DeviceCopy> DeviceRead<T> for DeviceSlice<'_, T> {
    fn as_device_slice(&self) -> DeviceSlice<'_, T> {
        *self
    }
}

impl<T: DeviceCopy> DeviceRead<T> for DeviceSliceMut<'_, T> {
    fn as_device_slice(&self) -> DeviceSlice<'_, T> {
        self.as_slice()
    }
}

impl<T: DeviceCopy> DeviceWrite<T> for DeviceSliceMut<'_, T> {
    fn as_device_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        self.reborrow()
    }
}

#[cfg(test)]
mod tests;
