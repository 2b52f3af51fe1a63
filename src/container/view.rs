//! Views of device memory, and what can be read and written through them.

use super::debts::Debts;
use super::foreign::{Borrower, On, OnMut, StreamRef};
use crate::error::{Error, ErrorKind, Result};
use crate::stream::Stream;
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

/// A borrowed range of a [`DeviceVec`](crate::DeviceVec), to read: `&[T]` on the device.
///
/// Shares its vector's home stream and debts.
#[derive(Clone, Copy)]
pub struct DeviceSlice<'a, T: Pod> {
    place: Place<'a>,
    length: usize,
    elements: PhantomData<&'a [T]>,
}

/// A mutably borrowed range of a [`DeviceVec`](crate::DeviceVec): `&mut [T]` on the device.
///
/// Shares its vector's home stream and debts.
pub struct DeviceSliceMut<'a, T: Pod> {
    place: Place<'a>,
    length: usize,
    elements: PhantomData<&'a mut [T]>,
}

/// Where a view lies: the address of its first byte, that byte's offset in the block, and what the
/// block shares.
#[derive(Clone, Copy)]
struct Place<'a> {
    address: u64,
    offset: usize,
    home: &'a Stream,
    debts: &'a Debts<Borrower>,
}

impl Place<'_> {
    fn advance(self, bytes: usize) -> Self {
        Self { address: self.address + bytes as u64, offset: self.offset + bytes, ..self }
    }
}

/// Turns a range of indices into start and end, inside `length`.
pub(super) fn check_range(range: impl RangeBounds<usize>, length: usize) -> Result<Range<usize>> {
    let outside = |what: String| {
        Err(Error::new(ErrorKind::OutOfBounds, format!("{what} of a vector of {length} elements")))
    };
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
    if start > end || end > length {
        return outside(format!("the range {start}..{end} was asked"));
    }
    Ok(start..end)
}

/// An index inside `length`, or the error that says so.
pub(super) fn check_index(index: usize, length: usize) -> Result<()> {
    if index < length {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::OutOfBounds,
        format!("element {index} was asked of a vector of {length} elements"),
    ))
}

impl<'a, T: Pod> DeviceSlice<'a, T> {
    #[cfg(feature = "cuda")]
    pub(super) fn address(&self) -> &u64 {
        &self.place.address
    }

    pub(super) fn new(
        address: u64,
        offset: usize,
        length: usize,
        home: &'a Stream,
        debts: &'a Debts<Borrower>,
    ) -> Self {
        Self { place: Place { address, offset, home, debts }, length, elements: PhantomData }
    }

    pub(crate) fn home(&self) -> &'a Stream {
        self.place.home
    }

    pub(crate) fn debts(&self) -> &'a Debts<Borrower> {
        self.place.debts
    }

    /// The same memory as bytes: plain data has no others.
    pub(super) fn as_bytes(&self) -> DeviceSlice<'a, u8> {
        DeviceSlice { place: self.place, length: self.size_in_bytes(), elements: PhantomData }
    }

    /// The bytes of the block that the view covers.
    pub(crate) fn byte_range(&self) -> Range<usize> {
        self.place.offset..self.place.offset + self.size_in_bytes()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The size in bytes.
    pub fn size_in_bytes(&self) -> usize {
        self.length * size_of::<T>()
    }

    /// The device's address of the first element. Use it on the home stream, or inside a guard from
    /// [`on`](Self::on).
    pub fn as_device_ptr(&self) -> u64 {
        self.place.address
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if the range does not lie in it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'a, T>> {
        let range = check_range(range, self.length)?;
        let place = self.place.advance(range.start * size_of::<T>());
        Ok(Self { place, length: range.len(), elements: PhantomData })
    }

    /// To be read on `stream`, which waits for the home stream; home waits for `stream` before it
    /// writes or frees the memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] for a stream of another device; those of the driver.
    pub fn on<S: StreamRef>(&self, stream: &'a S) -> Result<On<'a, T, S>> {
        On::new(*self, stream)
    }
}

impl<'a, T: Pod> DeviceSliceMut<'a, T> {
    #[cfg(feature = "cuda")]
    pub(super) fn address(&self) -> &u64 {
        &self.place.address
    }

    pub(super) fn new(
        address: u64,
        offset: usize,
        length: usize,
        home: &'a Stream,
        debts: &'a Debts<Borrower>,
    ) -> Self {
        Self { place: Place { address, offset, home, debts }, length, elements: PhantomData }
    }

    pub(crate) fn home(&self) -> &'a Stream {
        self.place.home
    }

    pub(crate) fn debts(&self) -> &'a Debts<Borrower> {
        self.place.debts
    }

    /// The bytes of the block that the view covers.
    pub(crate) fn byte_range(&self) -> Range<usize> {
        self.as_slice().byte_range()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The size in bytes.
    pub fn size_in_bytes(&self) -> usize {
        self.length * size_of::<T>()
    }

    /// The device's address of the first element. Use it on the home stream, or inside a guard from
    /// [`on`](Self::on) or [`on_mut`](Self::on_mut).
    pub fn as_device_ptr(&self) -> u64 {
        self.place.address
    }

    /// The same memory, to read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice { place: self.place, length: self.length, elements: PhantomData }
    }

    /// A shorter borrow of it, as `&mut *slice` is.
    pub fn reborrow(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut { place: self.place, length: self.length, elements: PhantomData }
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
        let place = self.place.advance(range.start * size_of::<T>());
        Ok(Self { place, length: range.len(), elements: PhantomData })
    }

    /// Two parts of it, before and from `middle`, to be used at once, on two streams too.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if `middle` lies past the end.
    pub fn split_at_mut(
        &mut self,
        middle: usize,
    ) -> Result<(DeviceSliceMut<'_, T>, DeviceSliceMut<'_, T>)> {
        self.reborrow().into_split_at_mut(middle)
    }

    /// Two parts of it, for as long as the whole was borrowed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if `middle` lies past the end.
    pub fn into_split_at_mut(
        self,
        middle: usize,
    ) -> Result<(DeviceSliceMut<'a, T>, DeviceSliceMut<'a, T>)> {
        check_range(middle.., self.length)?;
        let head = Self { place: self.place, length: middle, elements: PhantomData };
        let tail = Self {
            place: self.place.advance(middle * size_of::<T>()),
            length: self.length - middle,
            elements: PhantomData,
        };
        Ok((head, tail))
    }

    /// To be read on `stream`, as [`DeviceSlice::on`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] for a stream of another device; those of the driver.
    pub fn on<'b, S: StreamRef>(&'b self, stream: &'b S) -> Result<On<'b, T, S>> {
        On::new(self.as_slice(), stream)
    }

    /// To be read and written on `stream`, which waits for the home stream and for every other use
    /// of this range; home waits for `stream` before it touches the range again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] for a stream of another device; those of the driver.
    pub fn on_mut<'b, S: StreamRef>(&'b mut self, stream: &'b S) -> Result<OnMut<'b, T, S>> {
        OnMut::new(self.reborrow(), stream)
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T: bytemuck::Pod> Sealed for crate::container::DeviceBox<[T]> {}
    impl Sealed for crate::container::DeviceBuffer {}
    impl<T: bytemuck::Pod> Sealed for crate::container::DeviceScalar<T> {}
    impl<T: bytemuck::Pod> Sealed for crate::container::DeviceVec<T> {}
    impl<T: bytemuck::Pod> Sealed for super::DeviceSlice<'_, T> {}
    impl<T: bytemuck::Pod> Sealed for super::DeviceSliceMut<'_, T> {}
}

/// Device memory to read: a container or a view of one.
pub trait DeviceRead<T: Pod>: sealed::Sealed {
    /// The whole of it, to read.
    fn as_device_slice(&self) -> DeviceSlice<'_, T>;
}

/// Device memory to write: a container or a mutable view of one.
pub trait DeviceWrite<T: Pod>: DeviceRead<T> {
    /// The whole of it, to read and write.
    fn as_device_slice_mut(&mut self) -> DeviceSliceMut<'_, T>;
}

impl<T: Pod> DeviceRead<T> for DeviceSlice<'_, T> {
    fn as_device_slice(&self) -> DeviceSlice<'_, T> {
        *self
    }
}

impl<T: Pod> DeviceRead<T> for DeviceSliceMut<'_, T> {
    fn as_device_slice(&self) -> DeviceSlice<'_, T> {
        self.as_slice()
    }
}

impl<T: Pod> DeviceWrite<T> for DeviceSliceMut<'_, T> {
    fn as_device_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        self.reborrow()
    }
}

fn show<T>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    place: &Place<'_>,
    length: usize,
) -> fmt::Result {
    f.debug_struct(name)
        .field("element", &std::any::type_name::<T>())
        .field("length", &length)
        .field("address", &format_args!("{:#x}", place.address))
        .field("home", &format_args!("{}", place.home))
        .finish()
}

impl<T: Pod> fmt::Debug for DeviceSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show::<T>(f, "DeviceSlice", &self.place, self.length)
    }
}

impl<T: Pod> fmt::Debug for DeviceSliceMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show::<T>(f, "DeviceSliceMut", &self.place, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lie_inside_or_are_errors() {
        assert_eq!(check_range(.., 5).unwrap(), 0..5);
        assert_eq!(check_range(2..=4, 5).unwrap(), 2..5);
        assert_eq!(check_range(5.., 5).unwrap(), 5..5);
        let excluded = (Bound::Excluded(usize::MAX), Bound::Unbounded);
        for bad in [
            check_range(0..6, 5),
            check_range(6.., 5),
            check_range(..=usize::MAX, 5),
            check_range(excluded, 5),
            #[allow(clippy::reversed_empty_ranges)]
            check_range(3..2, 5),
        ] {
            assert_eq!(bad.unwrap_err().kind(), ErrorKind::OutOfBounds);
        }
    }
}
