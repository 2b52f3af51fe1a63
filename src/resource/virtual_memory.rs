//! Memory of the device that has its addresses apart: CUDA's virtual memory management.

use super::block::DeviceBlock;
use super::cuda::{free_behind, report_failed_free, report_leak};
use super::device_resource::DeviceResource;
use super::identity::ResourceId;
use super::mapped::VirtualMemory;
use crate::device::Device;
use crate::driver::sim::CallSite;
use crate::driver::{DeviceAddress, DeviceRange, DriverResult, is_forked_child};
use crate::error::Result;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout, Requested};
use crate::stream::{Stream, deferred};

/// Device memory that is mapped to addresses of its own: CUDA's virtual memory management (VMM), `cuMemCreate`,
/// `cuMemMap` and `cuMemUnmap`.
///
/// A free waits for its own stream, and for no other work of the device, where `cuMemFree` of
/// [`CudaResource`](crate::CudaResource) waits for all kernels. Each block takes a multiple of the granularity, 2 MiB on
/// today's GPUs: put a pool above it.
///
/// A [`PoolResource`](crate::PoolResource) takes no blocks of it, but maps its memory by itself, piece by piece. What lies free
/// between blocks in use then serves a larger one elsewhere, on another stream too, without a copy. So a pool whose sizes
/// change all the time takes little more than it uses, and gives memory back beside a kernel that runs long. Memory moves in
/// the steps [`GrowToMaximum`](crate::MissStep::GrowToMaximum), [`Gather`](crate::MissStep::Gather) and
/// [`Trim`](crate::MissStep::Trim) of the pool's policy. A pool over an adaptor around this resource takes blocks, as does one
/// that a tool of NVTX's memory extension watches. A maximum is rounded down to whole granules, an initial size up to them,
/// within the maximum.
///
/// Vectors in such a pool grow [in place](crate::DeviceVec::growth).
///
/// `cuIpcGetMemHandle` shares no such memory. Take `CudaResource` where other processes, or PyTorch's, CuPy's or Numba's sharing
/// of tensors, need it. Other devices reach it as one: [`enable_peer_access`](DeviceResource::enable_peer_access) is for all mapped
/// memory of the device, for as long as a `VirtualResource` of it, or a pool over one, lives. All instances on one device are
/// equal.
///
/// ```
/// use aquifer::{Device, DeviceVec, PoolResource, VirtualResource, sim::SimConfig};
///
/// let device = Device::simulated(SimConfig::default());
/// let pool = PoolResource::new(VirtualResource::new(&device)?)?;
/// let vec = DeviceVec::<f32>::zeroed_in(&device.new_stream()?, 1000, pool)?;
/// assert_eq!(vec.to_vec()?, [0.0; 1000]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualResource {
    memory: VirtualMemory,
}

impl VirtualResource {
    /// Memory of `device` that is mapped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the device or its driver has no virtual memory
    /// management; those of the driver call.
    pub fn new(device: &Device) -> Result<Self> {
        VirtualMemory::new(device).map(|memory| Self { memory })
    }

    /// What the size of each block is rounded up to, in bytes, and each piece that a pool maps.
    pub fn granularity(&self) -> usize {
        self.memory.granularity()
    }

    /// An error names the place in the crate, not the caller's.
    fn map(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device().require(stream.device(), "the stream")?;
        let (bytes, alignment) = (layout.bytes(), layout.alignment());
        if bytes == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        let range = self.memory.range(0, bytes);
        let reserved = self.memory.driver();
        let reserved = reserved.address_reserve(range.bytes, alignment.max(self.granularity()));
        let made =
            reserved.and_then(|address| map_new(&self.memory, DeviceRange { address, ..range }));
        let requested = Requested { bytes, alignment, usual: DEFAULT_ALIGNMENT };
        let address = self.memory.in_context(requested, made);
        let address = address.map_err(|error| requested.advise(error))?;
        Ok(DeviceBlock::new(address, bytes, address))
    }
}

// SAFETY: each block has memory and addresses of its own, and both go back when its stream has passed every use.
unsafe impl DeviceResource for VirtualResource {
    fn device(&self) -> &Device {
        self.memory.device()
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(self.device(), 0)
    }

    /// By `cuMemSetAccess`, of all mapped memory of the device.
    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        self.memory.enable_peer_access(peer)
    }

    fn has_peer_access(&self, peer: &Device) -> bool {
        self.memory.has_peer_access(peer)
    }

    fn virtual_memory(&self) -> Option<&VirtualMemory> {
        Some(&self.memory)
    }

    #[track_caller]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let _site = CallSite::enter();
        deferred::collect_blocks();
        self.map(stream, layout)
    }

    #[track_caller]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let _site = CallSite::enter();
        if block.is_empty() || is_forked_child() {
            return;
        }
        let (device, memory) = (self.device().clone(), self.memory.clone());
        let range = self.memory.range(block.token(), block.bytes());
        free_behind(stream, move |passed| match passed {
            Ok(()) => {
                // SAFETY: the range of `allocate`, and the stream has passed every use; the caller vouches for the rest.
                if let Err(error) = unsafe { unmap_and_free(&memory, range) } {
                    report_failed_free(&device, block.bytes(), &error);
                }
            }
            Err(error) => report_leak(&device, block.bytes(), &error),
        });
    }
}

/// Has the range be new memory. If that fails, the range is free again.
fn map_new(memory: &VirtualMemory, range: DeviceRange) -> DriverResult<DeviceAddress> {
    let driver = memory.driver();
    let undone = |error| {
        // SAFETY: reserved by the caller, and nothing is mapped there. Addresses that are not freed are lost, no memory.
        let _ = unsafe { driver.address_free(range) };
        error
    };
    let handle = driver.handle_create(range.bytes).map_err(undone)?;
    // SAFETY: the caller has just reserved it.
    let mapped = unsafe { memory.map(range, handle) };
    // The mapping keeps the memory from here on.
    // SAFETY: the handle is used no more.
    let released = unsafe { driver.handle_release(handle) };
    mapped.map_err(undone)?;
    if let Err(error) = released {
        // SAFETY: mapped above; nothing has used it.
        let _ = unsafe { unmap_and_free(memory, range) };
        return Err(error);
    }
    Ok(range.address)
}

/// # Safety
///
/// The range is one of [`map_new`], given up once, and no work uses it.
unsafe fn unmap_and_free(memory: &VirtualMemory, range: DeviceRange) -> DriverResult<()> {
    // SAFETY: the caller's promise.
    unsafe { memory.unmap(range) }?;
    // SAFETY: as above, and nothing is mapped there any more.
    unsafe { memory.driver().address_free(range) }
}
