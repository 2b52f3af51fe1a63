//! Vectors to and from cudarc's own slices.

use crate::container::{DeviceVec, refuse_zero_sized};
use crate::device::Device;
use crate::driver::cuda::restoring;
use crate::driver::{DeviceCopy, ErrorContext};
use crate::error::{DriverError, Refused, Result, ensure};
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, cuda, current_device_resource};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicBool, Ordering};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

/// The resource of a vector that was a `CudaSlice`. Its first block is cudarc's, and is freed as cudarc would free it.
/// Any other block is the current resource's.
#[derive(Debug)]
struct Adopted {
    address: u64,
    pending: AtomicBool,
    upstream: Arc<dyn DeviceResource>,
}

// SAFETY: one block of cudarc's, disjoint from the upstream's while it lives, and the upstream's own.
unsafe impl DeviceResource for Adopted {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.upstream.allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // The first block with this address is cudarc's: while it lived, no other had it.
        let adopted = block.address() == self.address && self.pending.swap(false, Ordering::AcqRel);
        if !adopted {
            // SAFETY: the upstream's block; the caller's promise.
            return unsafe { self.upstream.deallocate(stream, block) };
        }
        // SAFETY: the address, which is the token, was cudarc's allocation, given up with its slice;
        // `pending` lets one caller in; the stream is ordered after all use by the caller's promise.
        unsafe {
            if self.device().properties().memory_pools {
                cuda::free_in_order(stream, self.device(), block);
            } else {
                cuda::free_blocking(stream, self.device(), block);
            }
        }
    }
}

/// Runs calls of cudarc's without an old error that waits in the context, which they would return in
/// place of their own result. The old error is put back for the call that it belongs to.
pub(super) fn without_stale<R>(context: &CudaContext, calls: impl FnOnce() -> R) -> R {
    let stale = context.check_err();
    let done = calls();
    context.record_err(stale);
    done
}

/// cudarc panics where it cannot make the two events of a slice, so this tries two first. An event that
/// cannot be destroyed is an error that cudarc's next call would give.
fn try_events(context: &Arc<CudaContext>) -> Result<()> {
    let both = context.new_event(None).and_then(|one| Ok((one, context.new_event(None)?)));
    both.map(drop)
        .and_then(|()| context.check_err())
        .map_err(|error| DriverError::new("cuEventCreate", error.0 as u32))
        .with_context(|| "making cudarc's events")
}

impl<T: DeviceCopy> DeviceVec<T> {
    /// Takes cudarc's slice over, at home on the slice's stream. The memory is freed as cudarc would free it. Growth
    /// takes memory from the device's current resource.
    ///
    /// ```no_run
    /// use aquifer::{Device, DeviceVec, cudarc::driver::CudaContext, mr::AsyncResource};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let context = CudaContext::new(0)?;
    /// let stream = context.new_stream()?;
    /// let vec = DeviceVec::from_cuda_slice(stream.clone_htod(&[1_u32, 2, 3])?)?;
    /// assert_eq!(vec.to_vec()?, [1, 2, 3]);
    ///
    /// // And back, of memory that cudarc frees rightly.
    /// let device = Device::from_cudarc(&context)?;
    /// let driver_pool = AsyncResource::new(&device)?;
    /// let vec = DeviceVec::<u32>::zeroed_in(&device.new_stream()?, 3, driver_pool)?;
    /// let slice = vec.into_cuda_slice()?;
    /// assert_eq!(stream.clone_dtoh(&slice)?, [0; 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `T` has no size, or the slice's stream is
    /// the per-thread default one, and the errors of taking the device over. The slice is dropped then. It is leaked
    /// where the driver does not answer, as in the child of a fork, or cannot wait for the slice's uses.
    pub fn from_cuda_slice(slice: CudaSlice<T>) -> Result<Self> {
        // cudarc's calls, the slice's drop among them, make its context current and leave it so.
        match restoring() {
            Ok(_restore) => Self::adopt(slice),
            Err(error) => {
                std::mem::forget(slice);
                Err(error)
            }
        }
    }

    fn adopt(slice: CudaSlice<T>) -> Result<Self> {
        let stream = Stream::from_cudarc(slice.stream())?;
        let length = slice.len();
        let upstream = current_device_resource(stream.device())?;
        refuse_zero_sized::<T>()?;
        if length == 0 {
            return Self::new(&stream);
        }
        let context = slice.context().clone();
        let (address, waited) = without_stale(&context, || (slice.leak(), context.check_err()));
        if waited.is_err() {
            // A use on another stream may not be waited for. An error leaks the memory.
            stream.device().synchronize()?;
        }
        let resource = Adopted { address, pending: AtomicBool::new(true), upstream };
        let block = DeviceBlock::new(address, length * size_of::<T>(), address);
        // SAFETY: the block was the slice's, which gave it up; cudarc has made its stream wait for
        // the uses that it tracked, or they are over.
        unsafe { Self::from_raw_parts(stream, block, length, resource) }
    }

    /// Gives the vector to cudarc, where cudarc frees the memory as its resource would. That is so for memory of an
    /// `AsyncResource`, which `cuMemFreeAsync` of any library frees.
    /// [`from_cuda_slice`](Self::from_cuda_slice) has an example.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a simulated device, for memory of another resource,
    /// and for an empty vector. Other errors are those of making the home stream wait for other use. The vector comes
    /// back.
    pub fn into_cuda_slice(self) -> Result<CudaSlice<T>, Refused<Self>> {
        let ready = self.cudarc_owner().and_then(|stream| Ok((restoring()?, stream)));
        let (_restore, stream) = match ready {
            Ok(ready) => ready,
            Err(error) => return Err(Refused::new(error, self)),
        };
        without_stale(stream.context(), || {
            if let Err(error) = try_events(stream.context()) {
                return Err(Refused::new(error, self));
            }
            let (_, block, length, _) = self.into_raw_parts()?;
            // SAFETY: the block is live, of `length` elements at least, and ours to give up;
            // `cuMemFreeAsync` on this stream frees it, by the resource's word.
            Ok(unsafe { stream.upgrade_device_ptr(block.address(), length) })
        })
    }

    /// The stream on which cudarc would free the memory as its resource does.
    fn cudarc_owner(&self) -> Result<Arc<CudaStream>> {
        let stream = self.stream().cuda_stream()?;
        ensure!(
            self.buffer_frees_with_driver() && stream.context().has_async_alloc(),
            Unsupported,
            "allocate it from an AsyncResource",
            "cudarc would not free this memory as its resource does"
        );
        ensure!(
            !self.is_empty(),
            Unsupported,
            "let cudarc allocate a slice of length 0",
            "an empty vector has no memory to give to cudarc"
        );
        Ok(stream.clone())
    }
}
