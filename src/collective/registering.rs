//! Memory that communicators know.

use super::communicator::Communicator;
use super::rank::Rank;
use crate::debug_log::deferred_event;
use crate::driver::{DeviceRange, is_forked_child, not_forked};
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::impls::{adaptor, forward};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::trusted::Mutex;
use crate::sync::{Arc, Weak};
use std::collections::BTreeMap;

/// A resource whose blocks are registered with communicators, by `ncclCommRegister`: NCCL reads and writes them directly,
/// without a copy through buffers of its own, where it can.
///
/// Put it under a pool. Then each block of upstream, from which the pool cuts vectors, is registered once: when the pool
/// takes it, or when a communicator [comes](Self::register_with). Before it goes back, its stream is waited for and each
/// registration is taken back; a communicator whose collectives have not run within its
/// [`timeout`](crate::CommunicatorOptions::timeout) is aborted then. A communicator that ends takes its registrations along. How much it gains depends on the
/// memory and the links; [`NcclResource`](crate::NcclResource) has memory that NCCL can use in all ways.
///
/// ```
/// use aquifer::{
///     Communicator, CudaResource, Device, DeviceVec, PoolResource, ReduceOp, RegisteringAdaptor,
///     sim::SimConfig,
/// };
///
/// let device = Device::simulated(SimConfig::default());
/// let stream = device.new_stream()?;
/// let registering = RegisteringAdaptor::new(CudaResource::new(&device));
/// let pool = PoolResource::new(registering.clone())?;
/// let ranks = Communicator::from_streams(std::slice::from_ref(&stream))?;
/// registering.register_with(&ranks[0])?;
/// let mut sum = DeviceVec::<f32>::zeroed_in(&stream, 1000, pool)?;
/// ranks[0].all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
/// assert_eq!(registering.registered_blocks(), 1);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct RegisteringAdaptor<U> {
    state: Arc<RegisteringState<U>>,
}

struct RegisteringState<U> {
    upstream: U,
    /// Held over the calls that register, so that each block and each rank meet once. They wait for the call that
    /// another thread is in on that rank.
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    ranks: Vec<Weak<Rank>>,
    /// Live blocks by address.
    blocks: BTreeMap<u64, Registered>,
}

#[derive(Debug)]
struct Registered {
    bytes: usize,
    registrations: Vec<(Weak<Rank>, u64)>,
}

adaptor!(RegisteringAdaptor, state.upstream);

impl<U> RegisteringAdaptor<U> {
    /// Blocks of `upstream`, registered with no communicator yet.
    pub fn new(upstream: U) -> Self {
        Self { state: Arc::new(RegisteringState { upstream, table: Mutex::default() }) }
    }

    /// The number of live blocks that are registered with a communicator that lives.
    pub fn registered_blocks(&self) -> usize {
        if is_forked_child() {
            return 0;
        }
        let table = self.state.table.lock();
        let lives = |(rank, _): &(Weak<Rank>, u64)| rank.strong_count() > 0;
        table.blocks.values().filter(|block| block.registrations.iter().any(lives)).count()
    }
}

impl<U: DeviceResource> RegisteringAdaptor<U> {
    /// Registers all blocks that it has, and will have, with a communicator, as long as that lives. The communicator is
    /// not kept alive.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) for a rank of another device;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for an NCCL before 2.19; those of NCCL. Then no block is
    /// registered with it.
    pub fn register_with(&self, communicator: &Communicator) -> Result<()> {
        let RegisteringState { upstream, table } = &*self.state;
        not_forked("a communicator")?;
        upstream.device().require(communicator.device(), "the communicator")?;
        let rank = &communicator.rank;
        let mut table = table.lock();
        table.ranks.retain(|rank| rank.strong_count() > 0);
        if table.ranks.iter().any(|known| known.as_ptr() == Arc::as_ptr(rank)) {
            return Ok(());
        }
        let mut made = Vec::with_capacity(table.blocks.len());
        for (&address, block) in &table.blocks {
            match rank.register(DeviceRange { address, bytes: block.bytes }) {
                Ok(handle) => made.extend(handle.map(|handle| (address, handle))),
                Err(error) => {
                    for (_, handle) in made {
                        // SAFETY: registered above, and no collective has used it since: this thread has the lock.
                        unsafe { rank.deregister(handle) };
                    }
                    return Err(error);
                }
            }
        }
        for (address, handle) in made {
            if let Some(block) = table.blocks.get_mut(&address) {
                block.registrations.retain(|(rank, _)| rank.strong_count() > 0);
                block.registrations.push((Arc::downgrade(rank), handle));
            }
        }
        table.ranks.push(Arc::downgrade(rank));
        Ok(())
    }

    /// Registers a new block. One that cannot be is used without.
    fn register(&self, block: &DeviceBlock) {
        let (address, bytes) = (block.address(), block.bytes());
        let mut table = self.state.table.lock();
        let mut registrations = Vec::new();
        // Dropped after the lock: the last handle waits for its stream.
        let ranks: Vec<_> = table.ranks.iter().filter_map(Weak::upgrade).collect();
        for rank in &ranks {
            match rank.register(DeviceRange { address, bytes }) {
                Ok(handle) => {
                    registrations.extend(handle.map(|handle| (Arc::downgrade(rank), handle)));
                }
                Err(error) => {
                    let error = error.to_string();
                    deferred_event!(warn, bytes, %error, "memory is not registered with a communicator");
                }
            }
        }
        table.blocks.insert(address, Registered { bytes, registrations });
        drop(table);
    }
}

/// Waits for the stream as long as the ranks' timeouts are, and aborts those whose collectives have not run by then: the
/// stream would wait for a lost rank without an end.
fn abort_what_stands_still(registrations: &[(Weak<Rank>, u64)], stream: &Stream) {
    let Ok(event) = stream.record() else { return };
    for rank in registrations.iter().filter_map(|(rank, _)| rank.upgrade()) {
        // A lost communicator says so to its users.
        let _ = rank.wait(&event, rank.timeout);
    }
}

/// Takes the registrations of a block back when its work has run. What may still be in use stays registered.
fn deregister(registrations: Vec<(Weak<Rank>, u64)>, passed: Result<()>) {
    if let Err(error) = passed {
        let error = error.to_string();
        deferred_event!(error, %error, "memory stays registered: a communicator may use it");
        return;
    }
    for (rank, handle) in registrations {
        if let Some(rank) = rank.upgrade() {
            // SAFETY: of a block that was taken out of the table with it; its work has run.
            unsafe { rank.deregister(handle) };
        }
    }
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for RegisteringAdaptor<U> {
    forward!(device, peer_access, identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.state.upstream.allocate(stream, layout)?;
        if !block.is_empty() {
            self.register(&block);
        }
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let state = &self.state;
        if block.is_empty() || is_forked_child() {
            // SAFETY: the block is the upstream's; the caller vouches for the rest.
            return unsafe { state.upstream.deallocate(stream, block) };
        }
        let registered = state.table.lock().blocks.remove(&block.address());
        let registrations = registered.map(|block| block.registrations).unwrap_or_default();
        if !registrations.iter().any(|(rank, _)| rank.strong_count() > 0) {
            // SAFETY: as above.
            return unsafe { state.upstream.deallocate(stream, block) };
        }
        if stream.is_capturing().unwrap_or(false) {
            // Before the upstream's own free, which waits as long.
            stream.free_block_later(move |passed| deregister(registrations, passed));
        } else {
            abort_what_stands_still(&registrations, stream);
            deregister(registrations, stream.synchronize_uncaptured());
        }
        // SAFETY: as above.
        unsafe { state.upstream.deallocate(stream, block) }
    }
}
