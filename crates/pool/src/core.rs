//! The data of a pool: a slot for each stream, and what all of them share.
//!
//! # Locks and words
//!
//! A thread that has one of these locks takes only those below it. `trim_lock` and `growth_lock` are held
//! over calls of upstream, and are reentrant: an upstream may call back into the pool, where growth then only
//! *tries* `trim_lock` above it, as does growth that gives surplus back, and a trim may go without. An upstream
//! may also wait for another thread that uses the pool: that one waits for the two locks for a time only, and
//! goes on without, which costs a growth or a refusal at most. Those two,
//! `in_transit` while memory is gathered or mapped, `Slot::epochs`, and `reclaim_lock` where a stream's slot is
//! retired are held over driver calls that do not wait for the device; only `trim_lock` over those that
//! do, and `growth_lock` where an upstream's callback trims; `trim_lock` keeps from nothing but another
//! trim. Growth that gives surplus back asks for up to 2 ms whether the device is idle. Events are deferred until all
//! locks are free.
//!
//! | lock or word | protects | taken or written by |
//! | --- | --- | --- |
//! | `trim_lock` | blocks on their way back to upstream, and the room that a request makes that way, from other trims | trim, the last step of a miss, growth that gives surplus back |
//! | `growth_lock` | growth at a miss: one thread asks upstream; the others look again when they come in, and grow if that fails | growth |
//! | `in_transit` (readers and writer) | memory in hand between upstream or the shared heap and a heap, handles on their way between heaps, what a block takes while memory is mapped behind it | read: growth, `prepare`, refill, `drain_shared_into_own`; written: gather, trim, a refusal |
//! | `reclaim_lock` | the words by which magazines are revoked, the list of a slot's magazines, `Slot::captured`, `asleep` | a new magazine, growth, gather, trim, captures, statistics, the end of a thread, a stream or the pool |
//! | `Slot::magazines` | the list of magazines | the same |
//! | `Slot::epochs` | the stream's handle, the events of its closed epochs | registration, misses, gather, trim, captures, a stream's end |
//! | `graphs` | what graphs keep | captures, frees of blocks that graphs may use, a graph's end |
//! | `Slot::heap` | the heap; taking it drains `remote_frees` | allocations, misses; the warm way's next one and a free only try it, without draining: then the one goes on as a miss, the other is a remote one |
//! | `Slot::addresses` | where the heap's memory may be mapped, and the room of blocks that grow | growth, trim |
//! | `upstream_blocks` | blocks and handles of upstream, reservations, and the bytes that are reserved | growth, trim |
//! | `vacated` | addresses whose memory has moved, until they are unmapped | growth, trim |
//! | `streams` | which stream has which slot; new slots, which `slot_count` publishes to readers without it | registration, a stream's end |
//! | `Populated` | which slots have had memory | growth |
//! | `RemoteFrees::head` | frees on their way to a heap ([table](super::remote_frees)) | frees, drained under `Slot::heap` |
//! | `StreamEpochs::current`, `completed`, `ordered` | readiness ([table](super::epochs)) | closes; polls and waits of the host; waits of streams |
//! | `Slot::captured` | which graph has the stream ([table](super::slot::Slot::recording_graph)) | the begin and the end of a declared capture |
//!
//! # Invariants
//!
//! - INV-POOL-1: a close bumps the epoch, then records the event ([`epochs`](super::epochs)).
//! - INV-POOL-2: a wait is enqueued, then published ([`epochs`](super::epochs)).
//! - INV-POOL-3: free memory carries the slot that freed it and a stamp. A stream takes it if the slot is its
//!   own, or the stamp is complete, or the stream is ordered after it ([`Pool::ready_stamp`]); after a wait
//!   otherwise.
//! - INV-POOL-4: `Magazine::with_revoked`, `retire` and `suspend` run under `reclaim_lock`.
//! - INV-POOL-5: a policy with `Gather` or `Trim` refuses a request after a look under `in_transit.write()`, or behind
//!   it where memory is mapped: then all free memory is in a heap, a magazine or the list of remote frees, but for a block that
//!   `steal_one_with_wait` has in hand, for a growth that another thread has just been given, and for
//!   what goes back to upstream under `trim_lock`.
//! - INV-POOL-6: bytes are reserved before upstream is asked for them, and until it has them back
//!   ([`upstream_blocks`](super::upstream_blocks)).
//! - INV-POOL-7: a graph gets memory that is complete, or that its stream had freed or was ordered after when
//!   the capture began ([`graphs`](super::graphs)).
//! - INV-POOL-8: the gate of a stream refuses calls of all threads but the one whose capture has it
//!   ([`Upstream`]).

use super::addresses::Vacated;
use super::append_array::AppendArray;
use super::block::{
    Block, BlockSizes, POOL_BITS, SHARED, SlotId, UNIT_SHIFT, node_of, owner_of, token_of,
};
use super::graphs::Graphs;
use super::local::PoolId;
use super::magazine::Cached;
use super::miss_step::MissStep;
use super::populated::Populated;
use super::remote_frees::Freed;
use super::settings::Settings;
use super::slot::Slot;
use super::upstream::{Counted, Counters, Failure, Upstream};
use super::upstream_blocks::UpstreamBlocks;
use crate::debug_log::{POOL, emit_deferred, event};
use crate::heap::{Heap, Node, NotLive, Piece};
use crate::sync::trusted;
use crate::sync::{
    Arc, AtomicBool, AtomicUsize, Mutex, OnceLock, Ordering, ReentrantMutex, ReentrantMutexGuard,
    RwLock, Weak,
};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// How long a thread waits for another that grows.
const GROWTH_PATIENCE: Duration = Duration::from_secs(1);
/// How long a thread waits for another that gives memory back: longer than kernels take, for whose end that one may wait.
const TRIM_PATIENCE: Duration = Duration::from_secs(10);

/// A stream-ordered pool.
pub struct Pool<U: Upstream> {
    pub(super) id: PoolId,
    /// What the tokens of this pool have in common.
    pub(super) mark: u16,
    pub(super) sizes: BlockSizes,
    pub(super) upstream: Counted<U>,
    pub(super) settings: Settings,
    pub(super) slots: AppendArray<OnceLock<Box<Slot<U>>>>,
    pub(super) slot_count: AtomicUsize,
    pub(super) streams: Mutex<Streams>,
    /// Where the next scan for abandoned streams begins.
    pub(super) next_scan: trusted::AtomicUsize,
    pub(super) populated: Populated,
    /// Where among those the next scan for free memory begins.
    pub(super) next_source: trusted::AtomicUsize,
    /// The count of misses from which on caches are flushed again for growth.
    pub(super) next_flush: trusted::AtomicUsize,
    /// The most that was in use where the pool grew, since the last trim.
    pub(super) peak_live: trusted::AtomicUsize,
    /// The bytes from which on growth looks again for blocks to give back, where it found none.
    pub(super) next_surplus: trusted::AtomicUsize,
    pub(super) reclaim_lock: Mutex<()>,
    pub(super) growth_lock: ReentrantMutex<()>,
    pub(super) trim_lock: ReentrantMutex<()>,
    pub(super) in_transit: RwLock<()>,
    pub(super) upstream_blocks: Mutex<UpstreamBlocks<U::Block>>,
    pub(super) vacated: Mutex<Vec<Vacated>>,
    pub(super) graphs: Mutex<Graphs<U::Stream>>,
    /// Whether the pool sleeps ([`sleep`](super::sleep)). Written under `reclaim_lock`.
    pub(super) asleep: AtomicBool,
    pub(super) this: Weak<Self>,
}

/// The streams that have a slot.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) by_id: HashMap<u64, SlotId>,
    /// Slots of streams that are gone, for the next ones.
    pub(super) vacant: BTreeSet<SlotId>,
}

impl<U: Upstream> Pool<U> {
    pub fn new(upstream: U, settings: Settings) -> Arc<Self> {
        Arc::new_cyclic(|this| {
            let id = if settings.listed { PoolId::new_listed() } else { PoolId::new() };
            Self {
                id,
                mark: (id.number() & POOL_BITS) as u16,
                sizes: BlockSizes::new(settings.alignment),
                upstream: Counted { inner: upstream, counters: Counters::default() },
                settings,
                slots: AppendArray::new(),
                slot_count: AtomicUsize::new(1),
                streams: Mutex::default(),
                next_scan: trusted::AtomicUsize::new(0),
                populated: Populated::default(),
                next_source: trusted::AtomicUsize::new(0),
                next_flush: trusted::AtomicUsize::new(0),
                peak_live: trusted::AtomicUsize::new(0),
                next_surplus: trusted::AtomicUsize::new(0),
                reclaim_lock: Mutex::new(()),
                growth_lock: ReentrantMutex::new(()),
                trim_lock: ReentrantMutex::new(()),
                in_transit: RwLock::new(()),
                upstream_blocks: Mutex::new(UpstreamBlocks::new()),
                vacated: Mutex::default(),
                graphs: Mutex::default(),
                asleep: AtomicBool::new(false),
                this: this.clone(),
            }
        })
    }

    /// Whether the pool sleeps, or is about to, or to wake.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        // Relaxed: locks order it, as `sleep` says.
        self.asleep.load(Ordering::Relaxed)
    }

    /// The error of what a pool that sleeps does not do.
    pub(super) fn require_awake(&self) -> Result<(), Failure<U::Error>> {
        if self.is_asleep() { Err(Failure::Asleep) } else { Ok(()) }
    }

    #[inline]
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// A number that no other pool of the process has.
    pub fn id(&self) -> u64 {
        self.id.number()
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.upstream.counters
    }

    #[inline]
    pub(super) fn slot(&self, id: SlotId) -> Option<&Slot<U>> {
        self.slots.get(id as usize)?.get().map(|slot| &**slot)
    }

    /// The slot of the shared heap, made if nothing was given to it so far.
    pub(super) fn make_shared_slot(&self) -> Option<&Slot<U>> {
        let place = self.slots.get_or_make(SHARED as usize)?;
        Some(place.get_or_init(|| Box::new(Slot::new(SHARED, None))))
    }

    pub(super) fn all_slots(&self) -> impl Iterator<Item = &Slot<U>> + Clone {
        (0..self.slot_count()).filter_map(|id| self.slot(id as SlotId))
    }

    /// All slots but the shared one.
    pub(super) fn stream_slots(&self) -> impl Iterator<Item = &Slot<U>> + Clone {
        self.all_slots().filter(|slot| !slot.is_shared_heap())
    }

    pub(super) fn slot_count(&self) -> usize {
        // Acquire: the slots below are there. One that is just being made has no memory yet.
        self.slot_count.load(Ordering::Acquire)
    }

    /// The bytes that are reserved of upstream.
    pub fn reserved_bytes(&self) -> usize {
        self.upstream_blocks.lock().bytes()
    }

    /// The units of a request: whole multiples of the pool's alignment. `None` if no heap has them.
    #[inline]
    pub fn aligned_units(&self, bytes: usize) -> Option<u32> {
        self.sizes.aligned_units(bytes)
    }

    /// Bytes of the largest block.
    pub fn largest(&self) -> u64 {
        self.sizes.largest()
    }

    /// The bytes of a block for a request of so many.
    pub fn round_up(&self, bytes: usize) -> usize {
        self.aligned_units(bytes).map_or(bytes, |units| (units as usize) << UNIT_SHIFT)
    }

    pub(super) fn make_block(&self, owner: SlotId, node: Node, address: u64, units: u32) -> Block {
        let token = token_of(self.mark, owner, node);
        Block { address, bytes: (units as usize) << UNIT_SHIFT, token }
    }

    /// Frees a block whose last work was given to the stream of the slot `freeing` before this call.
    /// An error is for [`report`].
    pub(super) fn free_to_owner(&self, freeing: &Slot<U>, block: Cached) -> Result<(), NotLive> {
        let (owner, node) = (owner_of(block.token), node_of(block.token));
        let freed = Freed { node, freed_by: freeing.id, stamp: freeing.epochs.current() };
        if owner == freeing.id {
            return freeing.free(freed);
        }
        self.slot(owner).map_or(Err(NotLive(node)), |owner| owner.push_remote(freed))
    }

    /// Adds memory to a slot's heap. All of it comes this way: what does not is missed until it is
    /// gathered.
    pub(super) fn add(&self, slot: &Slot<U>, heap: &mut Heap, tag: SlotId, piece: Piece) {
        heap.add(tag, piece);
        self.note_memory(slot);
    }

    /// A slot's heap was given memory, whose lock the caller has.
    pub(super) fn note_memory(&self, slot: &Slot<U>) {
        if slot.is_shared_heap() {
            slot.set_shared_heap_may_have_free(true);
        } else if slot.mark_populated() {
            self.populated.insert(slot.id);
        }
    }

    /// Goes through the slots of streams whose heaps may have memory, until `find` returns some.
    pub(super) fn find_populated<T>(&self, find: impl FnMut(&Slot<U>) -> Option<T>) -> Option<T> {
        let slots = self.populated.snapshot()?;
        slots.iter().filter_map(|id| self.slot(*id)).find_map(find)
    }

    pub(super) fn each_populated(&self, mut each: impl FnMut(&Slot<U>)) {
        let _: Option<()> = self.find_populated(|source| {
            each(source);
            None
        });
    }

    /// As [`each_populated`](Self::each_populated), and of the shared heap last.
    pub(super) fn each_heap(&self, mut each: impl FnMut(&Slot<U>)) {
        self.each_populated(&mut each);
        self.slot(SHARED).map(each);
    }

    /// Whether more than one stream's heap was given memory.
    pub(super) fn has_several_sources(&self) -> bool {
        self.populated.snapshot().is_some_and(|slots| slots.len() > 1)
    }

    /// Whether the policy has streams wait for each other.
    pub(super) fn has_waits(&self) -> bool {
        self.settings.steps.iter().any(MissStep::waits)
    }

    /// INV-POOL-3: the last stamp of the slot `freed_by` that needs no wait of the slot's stream.
    pub(super) fn ready_stamp(&self, slot: &Slot<U>, freed_by: SlotId) -> usize {
        if freed_by == slot.id || freed_by == SHARED {
            return usize::MAX;
        }
        let completed = self.slot(freed_by).map_or(0, |source| source.epochs.completed());
        completed.max(slot.epochs.ordered_after(freed_by))
    }

    /// Makes the slot's stream ordered after `stamp` of the slot `source`.
    pub(super) fn make_wait(
        &self,
        slot: &Slot<U>,
        stream: &U::Stream,
        source: SlotId,
        stamp: usize,
    ) -> Result<(), Failure<U::Error>> {
        if stamp <= self.ready_stamp(slot, source) {
            return Ok(());
        }
        let from = self.slot(source).ok_or(Failure::Gone)?;
        if from.recording_graph() != 0 {
            return Err(Failure::Captured);
        }
        from.epochs.make_wait(&self.upstream, (source, stamp), (&slot.epochs, stream))
    }

    /// Keeps other threads from growth. `None` where one of them grows for so long that its upstream may wait for
    /// this thread, which then grows beside it.
    pub(super) fn lock_growth(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        let growth = self.growth_lock.try_lock_for(GROWTH_PATIENCE);
        if growth.is_none() {
            self.report_patience("growth_lock", GROWTH_PATIENCE);
        }
        growth
    }

    /// Says that another thread has a lock for so long that its upstream may wait for this one.
    fn report_patience(&self, lock: &'static str, waited: Duration) {
        let (pool, device) = (self.id(), U::device(&self.upstream));
        emit_deferred(move || {
            let waited_ms = waited.as_millis() as u64;
            event!(
                warn, target: POOL, pool, device, lock, waited_ms,
                "a thread goes on without a lock that another one keeps in a call of upstream, which may wait for it"
            );
        });
    }

    /// Keeps other threads from giving blocks back. `None` where upstream called back during growth and
    /// another thread trims: that one may wait for the growth. And where one trims for so long that its
    /// upstream may wait for this thread.
    pub(super) fn lock_or_try_trim(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        if self.growth_lock.is_owned_by_current_thread() {
            return self.trim_lock.try_lock();
        }
        let trim = self.trim_lock.try_lock_for(TRIM_PATIENCE);
        if trim.is_none() {
            self.report_patience("trim_lock", TRIM_PATIENCE);
        }
        trim
    }
}
