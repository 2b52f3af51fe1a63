//! Taking a vector apart, and making one of parts.

use super::buffer::Buffer;
use super::device_vec::{DeviceVec, refuse_zero_sized};
use crate::driver::{CallSite, DeviceCopy};
use crate::error::{Refused, Result, ensure};
use crate::impls::Count;
use crate::layout::DEFAULT_ALIGNMENT;
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use std::marker::PhantomData;

/// The advice of a refusal that drops the parts.
const LEAKED: &str = "the parts were dropped with the error, and the memory is leaked";

type Parts = (Stream, DeviceBlock, usize, Arc<dyn DeviceResource>);

impl<T: DeviceCopy> DeviceVec<T> {
    /// Takes the vector apart without freeing its memory. The parts are the home stream, the memory, the number of
    /// elements, and the resource that the memory came from and goes back to. The stream is ordered after all use so
    /// far. A drop of the parts leaks the memory.
    ///
    /// # Errors
    ///
    /// The errors of making the home stream wait. The vector comes back then.
    #[track_caller]
    pub fn into_raw_parts(mut self) -> Result<Parts, Refused<Self>> {
        let _site = CallSite::enter();
        let block = match self.buffer.take_block() {
            Ok(block) => block,
            Err(error) => return Err(Refused::new(error, self)),
        };
        let (stream, resource) = (self.stream().clone(), self.resource().clone());
        Ok((stream, block, self.length, resource))
    }

    /// Whether `cuMemFreeAsync` of the vector's address would free it.
    pub(crate) fn buffer_frees_with_driver(&self) -> bool {
        self.buffer.frees_with_driver()
    }

    /// A vector made of parts.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let vec = DeviceVec::from_slice(&stream, &[1_u8, 2])?;
    /// let (stream, block, length, resource) = vec.into_raw_parts()?;
    /// // SAFETY: the parts of a vector, put together once.
    /// let vec = unsafe { DeviceVec::<u8>::from_raw_parts(stream, block, length, resource)? };
    /// assert_eq!(vec.to_vec()?, [1, 2]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the block is too short or badly aligned
    ///   for `length` elements, or `T` has no size.
    /// - [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) if stream and resource differ in their device.
    ///
    /// The parts are dropped then, which leaks the memory.
    ///
    /// # Safety
    ///
    /// - The block is live and has no other owner.
    /// - The block is the resource's, or of a resource that equals it.
    /// - The stream is ordered after all use of the block so far.
    #[track_caller]
    pub unsafe fn from_raw_parts(
        stream: Stream,
        block: DeviceBlock,
        length: usize,
        resource: impl DeviceResource + 'static,
    ) -> Result<Self> {
        let _site = CallSite::enter();
        // SAFETY: the caller's promise, unchanged.
        unsafe { Self::assemble((stream, block, length, resource.into_shared())) }
    }

    /// Makes the vector. An error names the place in the crate, not the caller's.
    ///
    /// # Safety
    ///
    /// The conditions of [`from_raw_parts`](Self::from_raw_parts).
    unsafe fn assemble((stream, block, length, resource): Parts) -> Result<Self> {
        resource.device().require(stream.device(), "the stream")?;
        refuse_zero_sized::<T>()?;
        let (size, alignment, address) = (size_of::<T>(), align_of::<T>(), block.address());
        ensure!(
            length.checked_mul(size).is_some_and(|bytes| bytes <= block.bytes()),
            InvalidArgument,
            LEAKED,
            "a block of {} was given for {} of {} each",
            Count(block.bytes(), "byte"),
            Count(length, "element"),
            Count(size, "byte")
        );
        ensure!(
            address.is_multiple_of(alignment as u64),
            InvalidArgument,
            LEAKED,
            "a block at {address:#x} was given for elements that need an alignment of {}",
            Count(alignment, "byte")
        );
        let wanted = align_of::<T>().max(DEFAULT_ALIGNMENT);
        let found = 1_usize.checked_shl(block.address().trailing_zeros());
        let alignment = found.map_or(wanted, |found| found.min(wanted));
        let buffer = Buffer::from_block(&stream, block, alignment, resource.into());
        buffer.assembled_as::<Self>(length, length * size);
        Ok(Self { buffer, length, elements: PhantomData })
    }
}
