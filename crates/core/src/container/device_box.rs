//! A slice in device memory that keeps its length.

use super::accessors::{constructors, container, host_copies};
use super::buffer::Buffer;
use super::device_vec::DeviceVec;
use super::view::lengths;
use crate::driver::CallSite;
use crate::error::{Refused, Result};
use crate::layout::DeviceLayout;
use crate::stream::Stream;
use bytemuck::Pod;
use std::marker::PhantomData;

/// A slice of plain data in device memory whose length never changes, like `Box<[T]>` on the GPU.
///
/// A [`DeviceVec`] becomes one when it has grown for the last time. It has no spare capacity but what its resource
/// rounds up, and its elements keep their address. A full vector is converted without a copy, either way.
/// [`DeviceScalar`](crate::DeviceScalar) holds a single value, so a `DeviceBox` of a sized type has no use here.
///
/// It has a home stream, and goes wherever a vector goes. RMM has no counterpart.
///
/// ```
/// use aquifer::{Device, DeviceVec, container::DeviceBox};
///
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let mut vec = DeviceVec::from_slice(&stream, &[1_u32, 2])?;
/// vec.push(3)?;
/// let mut fixed: DeviceBox<[u32]> = vec.into_boxed_slice()?;
/// fixed.as_mut_slice().slice_mut(..1)?.fill(9)?;
/// assert_eq!(fixed.to_vec()?, [9, 2, 3]);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct DeviceBox<B: ?Sized> {
    buffer: Buffer,
    length: usize,
    elements: PhantomData<B>,
}

impl<T: Pod> DeviceVec<T> {
    /// The elements as a slice that keeps its length. They stay in place if there is no capacity to give up, as
    /// [`shrink_to_fit`](Self::shrink_to_fit) explains.
    ///
    /// # Errors
    ///
    /// The errors of `shrink_to_fit`. The vector comes back with the error.
    #[track_caller]
    pub fn into_boxed_slice(mut self) -> Result<DeviceBox<[T]>, Refused<Self>> {
        let _site = CallSite::enter();
        match self.shrink_to_fit() {
            Ok(()) => {
                self.buffer.made_as::<DeviceBox<[T]>>(self.length, self.size_in_bytes());
                Ok(DeviceBox::of(self))
            }
            Err(error) => Err(Refused::new(error, self)),
        }
    }
}

container!([T: Pod] DeviceBox: DeviceBox<[T]>, T, buffer, length);
lengths!([T: Pod] DeviceBox<[T]>, T, length);
host_copies!([T: Pod] DeviceBox<[T]>, T);

impl<T: Pod> DeviceBox<[T]> {
    fn of(vec: DeviceVec<T>) -> Self {
        Self { buffer: vec.buffer, length: vec.length, elements: PhantomData }
    }

    constructors! {
        /// `length` elements whose bytes are all zero.
        ///
        /// # Errors
        ///
        /// The errors of [`DeviceVec::zeroed`].
        pub fn zeroed(stream: &Stream, length: usize) -> Result<Self>;
        /// Like [`zeroed`](Self::zeroed), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`DeviceVec::zeroed_in`].
        pub fn zeroed_in(.., resource) {
            let layout = DeviceLayout::array::<T>(length)?;
            Ok(Self::of(DeviceVec::filled::<Self>(stream, layout, T::zeroed(), resource)?))
        }

        /// A copy of `source`, complete when this returns.
        ///
        /// # Errors
        ///
        /// The errors of [`DeviceVec::from_slice`].
        pub fn from_slice(stream: &Stream, source: &[T]) -> Result<Self>;
        /// Like [`from_slice`](Self::from_slice), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`DeviceVec::from_slice_in`].
        pub fn from_slice_in(.., resource) {
            Ok(Self::of(DeviceVec::copy_of::<Self>(stream, source, resource)?))
        }
    }

    /// The elements as a vector, in place.
    pub fn into_vec(self) -> DeviceVec<T> {
        DeviceVec { buffer: self.buffer, length: self.length, elements: PhantomData }
    }
}

impl<T: Pod> From<DeviceBox<[T]>> for DeviceVec<T> {
    fn from(boxed: DeviceBox<[T]>) -> Self {
        boxed.into_vec()
    }
}
