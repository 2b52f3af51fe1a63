//! Taking a vector apart, and making one of parts.

use super::buffer::Buffer;
use super::device_vec::{DeviceVec, refuse_zero_sized};
use crate::driver::CallSite;
use crate::error::{Refused, Result, ensure};
use crate::impls::Count;
use crate::layout::DEFAULT_ALIGNMENT;
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;

/// The advice of a refusal that drops the parts.
const LEAKED: &str = "the parts were dropped with the error, and the memory is leaked";

/// The parts of a vector, from [`DeviceVec::into_raw_parts`]. Their drop leaks the memory.
pub struct DeviceVecParts {
    /// The home stream.
    pub stream: Stream,
    /// The memory.
    pub block: DeviceBlock,
    /// The number of elements.
    pub length: usize,
    /// The resource that the memory came from and goes back to.
    pub resource: Arc<dyn DeviceResource>,
}

/// The text shows the resource by its name.
impl fmt::Debug for DeviceVecParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceVecParts")
            .field("stream", &format_args!("{}", self.stream))
            .field("block", &self.block)
            .field("length", &self.length)
            .field("resource", &format_args!("{}", self.resource.identity().name()))
            .finish()
    }
}

impl<T: Pod> DeviceVec<T> {
    /// Takes the vector apart without freeing its memory. The home stream is ordered after all use so far.
    ///
    /// # Errors
    ///
    /// The errors of making the home stream wait. The vector comes back then.
    #[track_caller]
    pub fn into_raw_parts(mut self) -> Result<DeviceVecParts, Refused<Self>> {
        let _site = CallSite::enter();
        let block = match self.buffer.take_block() {
            Ok(block) => block,
            Err(error) => return Err(Refused::new(error, self)),
        };
        let (stream, resource) = (self.stream().clone(), self.resource().clone());
        Ok(DeviceVecParts { stream, block, length: self.length, resource })
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
    /// let parts = DeviceVec::from_slice(&stream, &[1_u8, 2])?.into_raw_parts()?;
    /// // SAFETY: the parts of a vector, put together once.
    /// let vec = unsafe { DeviceVec::<u8>::from_raw_parts(parts)? };
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
    pub unsafe fn from_raw_parts(parts: DeviceVecParts) -> Result<Self> {
        let _site = CallSite::enter();
        // SAFETY: the caller's promise, unchanged.
        unsafe { Self::assemble(parts) }
    }

    /// Makes the vector. An error names the place in the crate, not the caller's.
    ///
    /// # Safety
    ///
    /// The conditions of [`from_raw_parts`](Self::from_raw_parts).
    unsafe fn assemble(parts: DeviceVecParts) -> Result<Self> {
        let DeviceVecParts { stream, block, length, resource } = parts;
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
