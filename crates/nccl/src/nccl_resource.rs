//! Memory of NCCL's own allocator.

use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::device_calls::calls_of;
use crate::driver::CallSite;
use crate::driver::is_forked_child;
use crate::error::{Error, Result};
use crate::impls::Count;
use crate::inside::deferred;
use crate::layout::DeviceLayout;
use crate::resource::block::{DeviceBlock, padded_block, padded_bytes};
use crate::resource::cuda::free_behind;
use crate::resource::device_resource::DeviceResource;
use crate::resource::identity::ResourceId;
use crate::stream::Stream;
use aquifer_collective::CollectiveError;

/// Device memory by `ncclMemAlloc`, which NCCL can register for all of its ways to other devices.
///
/// Each call is a blocking call of the driver, and a free waits for its stream, as for
/// [`CudaResource`](crate::CudaResource). So put a pool above it, with a
/// [`RegisteringAdaptor`](crate::RegisteringAdaptor) between the two. On the simulated
/// device it is plain memory. All instances on one device are equal.
///
/// ```
/// use aquifer::{Device, DeviceVec, PoolResource, mr::NcclResource, sim::SimConfig};
///
/// let device = Device::simulated(SimConfig::default());
/// let pool = PoolResource::new(NcclResource::new(&device))?;
/// let vec = DeviceVec::<f32>::zeroed_in(&device.new_stream()?, 1000, pool)?;
/// # drop(vec);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcclResource {
    device: Device,
}

impl NcclResource {
    /// NCCL's memory of `device`.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone() }
    }
}

// SAFETY: NCCL hands out disjoint blocks, and gets one back when its stream has passed every use.
unsafe impl DeviceResource for NcclResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, 0)
    }

    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where NCCL is not installed, and
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) as NCCL does not tell why it gave none.
    #[track_caller]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let _site = CallSite::enter();
        deferred::collect_blocks();
        self.device.require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        let base = calls_of(&self.device)
            .and_then(|calls| calls.collective_mem_alloc(padded_bytes(layout)));
        let base = base.map_err(|error| {
            let bytes = Count(layout.bytes(), "byte");
            error.into_allocation_error(format_args!(
                "allocating {bytes} of NCCL's on {}",
                self.device
            ))
        })?;
        Ok(padded_block(layout, base))
    }

    #[track_caller]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let _site = CallSite::enter();
        if block.is_empty() || is_forked_child() {
            return;
        }
        let device = self.device.clone();
        free_behind(stream, move |passed| match passed {
            Ok(()) => match calls_of(&device).and_then(|calls| {
                // SAFETY: the token is NCCL's address, and the stream has passed every use; the caller vouches for the
                // rest.
                unsafe { calls.collective_mem_free(block.token()) }
            }) {
                Ok(()) => {}
                Err(CollectiveError::Driver(error)) if error.is_gone() => {}
                Err(error) => {
                    report_leak(&device, &block, &error.into_error("freeing NCCL's memory"))
                }
            },
            Err(error) => report_leak(&device, &block, &error),
        });
    }
}

fn report_leak(device: &Device, block: &DeviceBlock, error: &Error) {
    let (device, bytes, error) = (device.to_string(), block.bytes(), error.to_string());
    // Deferred: a pool above may have its locks.
    deferred_event!(error, %device, bytes, %error, "leaked device memory of NCCL");
}
