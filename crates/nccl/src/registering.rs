//! Memory that communicators know.

use super::communicator::Communicator;
use super::rank::Rank;
use crate::debug_log::{defer_events, deferred_event};
use crate::driver::{DeviceRange, is_forked_child, is_in_host_function, may_not_call, not_forked};
use crate::error::Result;
use crate::inside::StreamInside;
use crate::layout::DeviceLayout;
use crate::resource::asleep::{KeptAwake, require_awake};
use crate::resource::impls::{adaptor, forward};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use aquifer_collective::CollectiveError;
use std::collections::BTreeMap;

/// A resource whose blocks are registered with communicators, by `ncclCommRegister`. NCCL then reads
/// and writes them directly where it can, without a copy through buffers of its own.
///
/// Put it under a pool. Then each block of upstream, from which the pool cuts vectors, is registered
/// once. That happens when the pool takes the block, or when a communicator
/// [comes](Self::register_with). Before the block goes back, the adaptor waits for its stream and
/// takes each registration back. It aborts a communicator whose collectives have not run within its
/// [`timeout`](crate::CommunicatorOptions::timeout) then. A communicator that ends takes its
/// registrations along. A call that registers a block or takes that back waits for the call of another
/// thread on the communicator. Have each rank of a communicator take its vectors from such a pool, or
/// none. The safety section of [`Communicator::new`] says why. The gain depends on the memory and the
/// links. `NcclResource` has memory that NCCL can use in all ways.
///
/// ```
/// use aquifer::{
///     Communicator, CudaResource, Device, DeviceVec, PoolResource,
///     collective::{ReduceOp, RegisteringAdaptor}, sim::SimConfig,
/// };
///
/// let device = Device::simulated(SimConfig::default());
/// let stream = device.new_stream()?;
/// let registering = RegisteringAdaptor::new(CudaResource::new(&device));
/// let pool = PoolResource::new(registering.clone())?;
/// // SAFETY: one rank has nothing to agree with.
/// let ranks = unsafe { Communicator::from_streams(std::slice::from_ref(&stream))? };
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
    /// The lock is held over the calls that register, so that each block and each rank meet once.
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    ranks: Vec<Arc<Rank>>,
    /// Live blocks by address.
    blocks: BTreeMap<u64, Registered>,
}

#[derive(Debug)]
struct Registered {
    bytes: usize,
    registrations: Registrations,
    /// NCCL knows the memory that is there now.
    awake: KeptAwake,
}

/// The handles of a block, each of a rank, which may have ended since.
type Registrations = Vec<(Arc<Rank>, u64)>;

/// A rank that refused memory.
type Failure = (Arc<Rank>, CollectiveError);

adaptor!(RegisteringAdaptor, state.upstream);

impl<U> RegisteringAdaptor<U> {
    /// Blocks of `upstream`, registered with no communicator yet.
    pub fn new(upstream: U) -> Self {
        Self { state: Arc::new(RegisteringState { upstream, table: Mutex::default() }) }
    }

    /// The number of live blocks that are registered with a communicator that is not lost and has not ended. 0 inside of a host
    /// function.
    pub fn registered_blocks(&self) -> usize {
        if may_not_call() {
            return 0;
        }
        let table = self.state.table.lock();
        let is_joined = |(rank, _): &(Arc<Rank>, u64)| rank.lock().joined().is_ok();
        table.blocks.values().filter(|block| block.registrations.iter().any(is_joined)).count()
    }
}

impl<U: DeviceResource> RegisteringAdaptor<U> {
    /// Registers all blocks that it has, and will have, with a communicator, until that ends.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) for a rank of another device.
    /// - [`ErrorKind::CommunicatorLost`](crate::ErrorKind::CommunicatorLost) for one that is lost.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for an NCCL before 2.19.
    /// - The errors of NCCL.
    ///
    /// After an error no block is registered with the communicator.
    pub fn register_with(&self, communicator: &Communicator) -> Result<()> {
        let RegisteringState { upstream, table } = &*self.state;
        not_forked("a communicator")?;
        upstream.device().require(communicator.device(), "the communicator")?;
        let rank = &communicator.rank;
        let held = defer_events();
        let registered = table.lock().register_all(rank);
        drop(held);
        // Without the locks: it may abort, and tells a subscriber.
        registered?.map_err(|error| rank.fail(error, "registering memory"))
    }
}

impl Table {
    /// Registers all blocks with a rank that is new here, or none.
    fn register_all(
        &mut self,
        rank: &Arc<Rank>,
    ) -> Result<std::result::Result<(), CollectiveError>> {
        // Over all of it: no collective comes between, so what is taken back was not used.
        let state = rank.lock();
        state.joined()?;
        if self.ranks.iter().any(|known| Arc::ptr_eq(known, rank)) {
            return Ok(Ok(()));
        }
        let mut made = Vec::with_capacity(self.blocks.len());
        for (&address, block) in &self.blocks {
            let range = DeviceRange { address, bytes: block.bytes };
            // SAFETY: a live block, which is deregistered before it goes.
            match unsafe { rank.register(&state, range) }? {
                Ok(handle) => made.push((address, handle)),
                Err(error) => {
                    for (_, handle) in made {
                        // SAFETY: made above, and used by no collective.
                        let _ = unsafe { rank.deregister(&state, handle) };
                    }
                    return Ok(Err(error));
                }
            }
        }
        drop(state);
        for (address, handle) in made {
            if let Some(block) = self.blocks.get_mut(&address) {
                block.registrations.push((rank.clone(), handle));
            }
        }
        self.ranks.push(rank.clone());
        Ok(Ok(()))
    }

    /// Adds a new block, registered with all ranks that have not ended. Returns the ranks that refuse
    /// it, and the ranks that have ended, to be dropped without the lock.
    fn add(&mut self, block: &DeviceBlock, awake: KeptAwake) -> (Vec<Failure>, Vec<Arc<Rank>>) {
        let (address, bytes) = (block.address(), block.bytes());
        let (mut registrations, mut failures) = (Vec::new(), Vec::new());
        let mut register = |rank: &mut Arc<Rank>| {
            let state = rank.lock();
            // SAFETY: a live block, which is deregistered before it goes.
            match unsafe { rank.register(&state, DeviceRange { address, bytes }) } {
                Ok(Ok(handle)) => registrations.push((rank.clone(), handle)),
                Ok(Err(error)) => failures.push((rank.clone(), error)),
                // Lost or ended.
                Err(_) => return true,
            }
            false
        };
        let ended = self.ranks.extract_if(.., |rank| register(rank)).collect();
        self.blocks.insert(address, Registered { bytes, registrations, awake });
        (failures, ended)
    }
}

/// Takes the registrations of a block back, whose work has run.
fn deregister(registrations: Registrations) {
    for (rank, handle) in registrations {
        let state = rank.lock();
        // SAFETY: of a block that was taken out of the table with it; its work has run.
        let taken_back = unsafe { rank.deregister(&state, handle) };
        drop(state);
        if let Err(error) = taken_back {
            let error = error.to_string();
            deferred_event!(error, %error, "memory could not be deregistered");
        }
    }
}

// SAFETY: every block is the upstream's, and goes back to it unchanged, or is leaked.
unsafe impl<U: DeviceResource> DeviceResource for RegisteringAdaptor<U> {
    forward!(device, peer_access, identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.state.upstream.allocate(stream, layout)?;
        if block.is_empty() || is_forked_child() {
            return Ok(block);
        }
        let why = "is registered with NCCL";
        let awake = KeptAwake::new(self.device(), block.address(), block.bytes(), why);
        // After that: a pool that falls asleep sees it, or is seen.
        if let Err(error) = require_awake(block.address()) {
            // SAFETY: allocated above, and not used.
            unsafe { self.state.upstream.deallocate(stream, block) };
            return Err(error);
        }
        let held = defer_events();
        let (failures, _ended) = self.state.table.lock().add(&block, awake);
        drop(held);
        for (rank, error) in failures {
            // Deferred: a pool above may have its locks. The next call on the rank finds out what is fatal.
            let (rank, bytes, error) = (rank.number, block.bytes(), error.to_string());
            deferred_event!(warn, rank, bytes, %error, "memory is not registered with a communicator");
        }
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let state = &self.state;
        if block.is_empty() || is_forked_child() {
            // SAFETY: the block is the upstream's; the caller vouches for the rest.
            return unsafe { state.upstream.deallocate(stream, block) };
        }
        if is_in_host_function() {
            // The table's lock may be another thread's over a call of NCCL's. A vector's free comes later, and passes here then.
            let bytes = block.bytes();
            return deferred_event!(
                error,
                bytes,
                "leaked device memory: a block of a RegisteringAdaptor was freed by hand inside of a host function"
            );
        }
        let registered = state.table.lock().blocks.remove(&block.address());
        let (registrations, awake) =
            registered.map(|block| (block.registrations, Some(block.awake))).unwrap_or_default();
        if registrations.is_empty() {
            // SAFETY: as above.
            return unsafe { state.upstream.deallocate(stream, block) };
        }
        if stream.is_capturing().unwrap_or(false) {
            // Before the upstream's own free, which waits as long.
            stream.free_block_later(move |passed| match passed {
                Ok(()) => {
                    deregister(registrations);
                    drop(awake);
                }
                Err(error) => {
                    std::mem::forget(awake);
                    let error = error.to_string();
                    deferred_event!(error, %error, "memory stays registered: a communicator may use it");
                }
            });
        } else {
            // The stream would wait for a lost rank without an end: what stands still is aborted. That is said to who uses
            // the communicator.
            for (rank, _) in &registrations {
                let _ = rank.drain();
            }
            if let Err(error) = stream.synchronize_uncaptured() {
                std::mem::forget(awake);
                let (bytes, error) = (block.bytes(), error.to_string());
                deferred_event!(error, bytes, %error, "leaked device memory: a communicator may use it");
                return;
            }
            deregister(registrations);
        }
        // SAFETY: as above.
        unsafe { state.upstream.deallocate(stream, block) }
    }
}
