//! Memory of the device that has its addresses apart, by CUDA's virtual memory management.

use super::block::DeviceBlock;
use super::cuda::{free_behind, report_failed_free, report_leak};
use super::device_resource::DeviceResource;
use super::identity::ResourceId;
use super::mapped::{Mappable, VirtualMemory};
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{BackendKind, DeviceRange, DriverResult, HandleSpec, is_forked_child};
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout, Requested};
use crate::pool::MapFailure;
use crate::stream::{Stream, deferred};

/// Device memory that is mapped to addresses of its own, by CUDA's virtual memory management (VMM). The calls are
/// `cuMemCreate`, `cuMemMap` and `cuMemUnmap`.
///
/// A free waits for its own stream, and for no other work of the device, while `cuMemFree` of
/// [`CudaResource`](crate::CudaResource) waits for all kernels. Each block takes a multiple of the granularity, 2 MiB
/// on today's GPUs. So put a pool above it.
///
/// A [`PoolResource`](crate::PoolResource) takes no blocks of it, but maps its memory by itself, piece by piece. Free
/// memory between blocks in use then serves a larger block elsewhere, on another stream too, without a copy. So a pool
/// whose sizes change all the time takes little more than it uses, and gives memory back beside a kernel that runs
/// long. Memory moves in the steps [`GrowToMaximum`](crate::mr::MissStep::GrowToMaximum),
/// [`Gather`](crate::mr::MissStep::Gather) and [`Trim`](crate::mr::MissStep::Trim) of the pool's policy. A pool over an
/// adaptor around this resource takes blocks. A maximum is rounded down to whole granules. An initial size is rounded up to them, within the maximum. A pool over
/// [`CudaResource`](crate::CudaResource) does the same with [`Handles::On`](crate::mr::Handles::On). So this resource
/// is for blocks by themselves, and for programs that want an error elsewhere.
///
/// Vectors in such a pool grow [in place](crate::DeviceVec::growth).
///
/// Keep in mind:
/// - `cuIpcGetMemHandle` shares no such memory, but `DeviceVec::send_to` does. Take blocks
///   of `CudaResource` where PyTorch's, CuPy's or Numba's sharing of tensors needs it.
/// - It is made for GPUDirect RDMA if the device says that it can
///   ([`DeviceProperties::virtual_memory_rdma`](crate::device::DeviceProperties::virtual_memory_rdma)) and does not
///   refuse it. No network card was tried.
/// - Another library, such as UCX, NCCL or cuFile, may register or cache memory by its address. Such an entry is for
///   the memory that is mapped there at that time. Take it back before the vector grows, shrinks or is dropped.
/// - A kernel launch with programmatic stream serialization begins before the work ahead of it has ended. Make none by
///   a stream's own handle, since the pool trusts the stream's order.
/// - A block of this resource itself is one handle. Some platforms refuse one of 4 GiB and more. Put a pool above it,
///   whose handles have 64 MiB at most.
/// - `cuda-checkpoint` was not tried with mapped memory.
///
/// Other devices reach all of it or none. [`enable_peer_access`](DeviceResource::enable_peer_access) is for all mapped
/// memory of the device, for as long as a `VirtualResource` of it, or a pool over one, lives. All instances on one
/// device are equal.
///
/// ```
/// use aquifer::{Device, DeviceVec, PoolResource, mr::VirtualResource, sim::SimConfig};
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
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the device or its driver has no virtual memory
    /// management, or has one that does not work. A GPU's is tried once, with one granule. Other errors are those of
    /// the driver calls.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { memory: try_once(VirtualMemory::new(device)?)? })
    }

    /// The memory, which was tried.
    #[doc(hidden)]
    pub fn into_memory(self) -> VirtualMemory {
        self.memory
    }

    /// The unit, in bytes, to which the size of each block is rounded up, and of each piece that a pool maps.
    pub fn granularity(&self) -> usize {
        self.memory.granularity()
    }

    /// Maps a block. An error names the place in the crate, not the caller's.
    fn map(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device().require(stream.device(), "the stream")?;
        let (bytes, alignment) = (layout.bytes(), layout.alignment());
        if bytes == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        let all = self.memory.range(0, bytes).bytes;
        let made = reserve_new(&self.memory, all, alignment.max(self.granularity()));
        let requested = Requested { bytes, alignment, usual: DEFAULT_ALIGNMENT };
        let range = self.memory.in_context(requested, made);
        let DeviceRange { address, .. } = range.map_err(|error| requested.advise(error))?;
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

    /// Gives access by `cuMemSetAccess`, to all mapped memory of the device.
    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        self.memory.enable_peer_access(peer)
    }

    fn has_peer_access(&self, peer: &Device) -> bool {
        self.memory.has_peer_access(peer)
    }

    fn mappable(&self) -> Mappable<'_> {
        Mappable::Mapped(&self.memory)
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

/// Maps one granule and gives it back, once for a device. Some platforms claim virtual memory management, and refuse
/// it. Others refuse handles for network cards. A simulated device does what it claims.
fn try_once(memory: VirtualMemory) -> Result<VirtualMemory> {
    let device = memory.device().clone();
    if device.kind() == BackendKind::Simulated || memory.is_tried() {
        return Ok(memory);
    }
    let claimed = memory.spec();
    let mut specs = vec![claimed, HandleSpec { rdma: false, ..claimed }, HandleSpec::default()];
    specs.dedup();
    let (mut refused, mut was_full) = (None, false);
    for spec in specs {
        let memory = memory.with_spec(spec);
        let granule = memory.granularity();
        let tried = reserve_new(&memory, granule, granule);
        // SAFETY: mapped above; nothing has used it.
        match tried.and_then(|range| unsafe { unmap_and_free(&memory, range) }) {
            Ok(()) => {
                // A device that was full before this has refused nothing.
                if !was_full {
                    memory.set_tried(spec);
                }
                return Ok(memory);
            }
            Err(error) if error.kind() == ErrorKind::ContextLost => {
                return Err(Error::driver_call(
                    format!("trying the virtual memory of {device}"),
                    error,
                ));
            }
            Err(error) => {
                was_full |= error.kind() == ErrorKind::OutOfMemory;
                refused = Some(error);
            }
        }
    }
    match refused {
        Some(error) if error.kind() != ErrorKind::OutOfMemory => {
            let refused = Error::new(
                ErrorKind::Unsupported,
                format!("{device} refuses virtual memory management"),
            );
            Err(refused.with_driver(error).with_advice("use CudaResource"))
        }
        // A device that is full now says nothing of what it can do.
        _ => Ok(memory.with_spec(HandleSpec { rdma: false, ..claimed })),
    }
}

/// Reserves addresses and maps new memory there. If that fails, both go back. Memory that cannot go back is reported.
fn reserve_new(
    memory: &VirtualMemory,
    bytes: usize,
    alignment: usize,
) -> DriverResult<DeviceRange> {
    let address = memory.driver().address_reserve(bytes, alignment)?;
    let range = DeviceRange { address, bytes };
    // SAFETY: reserved above.
    let mapped = unsafe { map_new(memory, range) };
    mapped.map(|()| range).map_err(|MapFailure { error, is_mapped }| {
        if !is_mapped {
            // SAFETY: reserved above, and nothing is mapped there. Addresses that are not freed are lost, no memory.
            let _ = unsafe { memory.driver().address_free(range) };
        }
        error
    })
}

/// Maps new memory at the range, which goes back when it is unmapped.
///
/// # Safety
///
/// The range is reserved, and nothing is mapped there.
unsafe fn map_new(
    memory: &VirtualMemory,
    range: DeviceRange,
) -> Result<(), MapFailure<DriverError>> {
    let driver = memory.driver();
    let created = memory.create(range.bytes);
    let handle = created.map_err(|error| MapFailure { error, is_mapped: false })?;
    // SAFETY: the caller's promise; the handle is of this size.
    let mapped = unsafe { memory.map(range, handle) };
    // The mapping keeps the memory from here on.
    // SAFETY: the handle is used no more.
    let released = unsafe { driver.handle_release(handle) };
    if let (_, Err(error)) | (Err(MapFailure { error, is_mapped: true }), _) = (&mapped, &released)
    {
        report_failed_free(memory.device(), range.bytes, error);
    }
    mapped?;
    released.map_err(|error| {
        // SAFETY: mapped above; nothing has used it.
        let is_mapped = unsafe { memory.unmap(range) }.is_err();
        MapFailure { error, is_mapped }
    })
}

/// # Safety
///
/// The range is one of [`reserve_new`], given up once, and no work uses it.
unsafe fn unmap_and_free(memory: &VirtualMemory, range: DeviceRange) -> DriverResult<()> {
    // SAFETY: the caller's promise.
    unsafe { memory.unmap(range) }?;
    // SAFETY: as above, and nothing is mapped there any more.
    unsafe { memory.driver().address_free(range) }
}
