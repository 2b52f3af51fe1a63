//! Managed memory for the host's collections.

use crate::driver::is_forked_child;
use crate::error::{Result, ensure};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::managed::ManagedResource;
use crate::resource::block::DeviceBlock;
use crate::resource::device_resource::{DeviceResource, HostAccessible};
use crate::resource::impls::{debug_struct, equal_by_identity, forward};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// Managed memory that the host touches while kernels run, from [`ManagedResource::allocator`].
///
/// `OnStream<ManagedAlloc>` is the allocator, since a free waits for a stream. The memory is free when
/// the call returns, as with `cuMemFree`. Clones are the same resource.
///
/// RMM's `managed_memory_resource` claims host access on every device.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, mr::{ManagedResource, OnStream}};
///
/// let device = Device::detect_or_simulate()?;
/// if device.properties().concurrent_managed_access {
///     let managed = ManagedResource::new(&device)?.allocator()?;
///     let mut vec = Vec::new_in(OnStream::new(managed, &device.new_stream()?)?);
///     vec.extend([1, 2, 3]);
/// }
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct ManagedAlloc {
    state: Arc<ManagedAllocState>,
}

struct ManagedAllocState {
    managed: ManagedResource,
    /// The driver's addresses of blocks that begin behind them, for their alignment.
    bases: Mutex<BTreeMap<u64, u64>>,
}

impl ManagedResource {
    /// The memory for the host's collections. It is an allocator once
    /// [`OnStream`](crate::mr::OnStream) binds it to a stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) unless the host may touch managed memory while kernels run
    /// ([`concurrent_managed_access`](crate::device::DeviceProperties::concurrent_managed_access)).
    /// Elsewhere a read of a `Vec` while any kernel runs is a fault of the process.
    pub fn allocator(&self) -> Result<ManagedAlloc> {
        ensure!(
            self.device().properties().concurrent_managed_access,
            Unsupported,
            "use PinnedAlloc for what both sides read",
            "the host may not touch managed memory while kernels run on {}",
            self.device()
        );
        let state = ManagedAllocState { managed: self.clone(), bases: Mutex::default() };
        Ok(ManagedAlloc { state: Arc::new(state) })
    }
}

impl ManagedAlloc {
    /// The resource that the memory comes from.
    pub fn upstream(&self) -> &ManagedResource {
        &self.state.managed
    }
}

equal_by_identity!(ManagedAlloc);

debug_struct!(ManagedAlloc { upstream(), .. });

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl DeviceResource for ManagedAlloc {
    forward!(device, peer_access, identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.upstream().allocate(stream, layout)?;
        if layout.alignment() > DEFAULT_ALIGNMENT && block.address() != block.token() {
            self.state.bases.lock().insert(block.address(), block.token());
        }
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if is_forked_child() {
            return;
        }
        if block.address() != block.token() {
            // Before the free: its address may be handed out again at once.
            self.state.bases.lock().remove(&block.address());
        }
        // SAFETY: the block is the upstream's; our caller vouches for the rest.
        unsafe { self.upstream().deallocate(stream, block) }
    }
}

// SAFETY: no work touches new managed memory, which the host may use; a block's free waits for its stream.
unsafe impl HostAccessible for ManagedAlloc {
    // Managed memory has one address for both sides.
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        block.host_pointer()
    }

    // A block's token is its address, or in `bases`.
    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock {
        let address = pointer.expose_provenance().get() as u64;
        // In the child of a fork nothing is freed, and the lock may be held for good.
        let base = match is_forked_child() {
            true => address,
            false => self.state.bases.lock().get(&address).copied().unwrap_or(address),
        };
        DeviceBlock::new(address, layout.bytes(), base)
    }
}
