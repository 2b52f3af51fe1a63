//! The table of outstanding blocks.
//!
//! # State table
//!
//! | state | blocks in | writer | reader | next state |
//! |---|---|---|---|---|
//! | owned | `first` | the first thread, without a lock | any; the owner waits | shared: a second thread calls |
//! | shared | `shards` | any, under the lock of the shard | any, under all locks | none |
//!
//! - INV-1: a block enters after the upstream handed it out, and leaves before the upstream gets it
//!   back. An address that the upstream hands out again is therefore absent, unless it was freed past
//!   the adaptor.
//! - INV-2: additions and removals inside `first` neither allocate nor free host memory, since the
//!   allocator may be the program's own, and call this adaptor.
//! - INV-3: the child of a fork reads and writes neither, since a thread of the parent may have been inside.

use super::allocation::Allocation;
use super::clock::TickClock;
use super::shard::{Removed, TrackedBlock, TrackingShard, map_with_capacity};
use crate::adaptor::call_stack::CallStack;
use crate::adaptor::shards::Shards;
use crate::debug_log::{deferred_event, event};
use crate::device::Device;
use crate::driver::is_forked_child;
use crate::impls::Count;
use crate::resource::DeviceBlock;
use crate::stream::Stream;
use crate::sync::trusted::{AtomicU64, Ordering, thread_local};
use crate::sync::{Bias, BiasedMutex, CachePadded};
use std::cell::Cell;
use std::fmt::Write;
use std::mem;
use std::thread::{self, ThreadId};

/// The most blocks that a log line names, since to look up the origin of one may take milliseconds.
const MAX_LOGGED: usize = 100;

/// A free that the table contradicts. The table counts each, and warns of the first of a kind.
#[derive(Clone, Copy)]
pub(super) enum BadFree {
    /// A free of a block that is not in the table.
    Unknown,
    WrongSize,
    /// A free past the adaptor. The upstream then hands out an address that is in the table.
    Bypassing,
}

impl BadFree {
    const ALL: [Self; 3] = [Self::Unknown, Self::WrongSize, Self::Bypassing];

    /// The words of a report.
    fn summary(self) -> &'static str {
        match self {
            Self::Unknown => "of blocks that were not handed out here",
            Self::WrongSize => "with a wrong size",
            Self::Bypassing => "past this adaptor",
        }
    }

    fn warning(self) -> &'static str {
        match self {
            Self::Unknown => "a block was freed that this tracking adaptor does not know",
            Self::WrongSize => "a tracked block was freed with a size that is not its own",
            Self::Bypassing => {
                "a tracked block was handed out again: it was freed past its tracking adaptor"
            }
        }
    }
}

pub(super) struct TrackingTable {
    device: Device,
    clock: TickClock,
    first: BiasedMutex<TrackingShard>,
    shards: Shards<TrackingShard>,
    /// The number of the next block, once the table is shared.
    next_number: CachePadded<AtomicU64>,
    /// The counts by [`BadFree`]. Accesses are relaxed, since the numbers order no other memory.
    bad_frees: [AtomicU64; 3],
}

#[inline]
fn this_thread() -> ThreadId {
    thread_local! {
        /// A copy of the id, since `thread::current` costs more than the rest of an entry.
        static THREAD: Cell<Option<ThreadId>> = const { Cell::new(None) };
    }
    #[cold]
    fn look_up() -> ThreadId {
        let id = thread::current().id();
        let _ = THREAD.try_with(|cached| cached.set(Some(id)));
        id
    }
    THREAD.try_with(Cell::get).ok().flatten().unwrap_or_else(look_up)
}

impl TrackingTable {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            clock: TickClock::start(),
            first: BiasedMutex::default(),
            shards: Shards::default(),
            next_number: CachePadded::default(),
            bad_frees: Default::default(),
        }
    }

    /// Adds a block that the upstream handed out.
    #[inline]
    pub(super) fn add(&self, block: &DeviceBlock, stream: &Stream, backtraces: bool) {
        if block.is_empty() || is_forked_child() {
            return;
        }
        let (address, bytes, stream_id) = (block.address(), block.bytes(), stream.id());
        let backtrace = if backtraces { Some(CallStack::capture()) } else { None };
        let (ticks, thread_id) = (self.clock.ticks(), this_thread());
        let block =
            TrackedBlock { address, number: 0, bytes, stream_id, thread_id, ticks, backtrace };
        let mut block = Some(block);
        let mut replaced = None;
        let add = |shard: &mut TrackingShard| {
            if shard.has_room()
                && let Some(block) = block.take()
            {
                replaced = shard.add(block);
            }
        };
        // SAFETY: `add` calls no code of others (INV-2).
        unsafe { self.first.try_owned(add) };
        if let Some(block) = block {
            replaced = self.add_slow(block);
        }
        if let Some((bytes, _)) = replaced {
            self.count_bad_free(BadFree::Bypassing, address, bytes, None);
        }
    }

    #[inline(never)]
    fn add_slow(&self, block: TrackedBlock) -> Option<Removed> {
        let mut block = Some(block);
        let mut replaced = None;
        let mut larger = map_with_capacity(0);
        loop {
            let add = |shard: &mut TrackingShard| {
                let needed = shard.needed_capacity();
                if needed != 0 {
                    if larger.capacity() < needed {
                        return needed;
                    }
                    shard.grow_into(&mut larger);
                }
                replaced = block.take().and_then(|block| shard.add(block));
                0
            };
            // SAFETY: `add` calls no code of others: it moves blocks and maps, and drops none (INV-2).
            match unsafe { self.with_first(add) } {
                Some(0) => return replaced,
                Some(needed) => larger = map_with_capacity(needed),
                None => return block.and_then(|block| self.add_to_shard(block)),
            }
        }
    }

    /// The blocks of the only thread that calls. `None` once the table is shared. If this call makes
    /// it shared, it moves the blocks first.
    ///
    /// # Safety
    ///
    /// `body` does not call this table.
    unsafe fn with_first<R>(&self, body: impl FnOnce(&mut TrackingShard) -> R) -> Option<R> {
        if self.first.bias() == Bias::Ended {
            return None;
        }
        // SAFETY: the caller's promise; shards know no biased mutex.
        unsafe {
            self.first.lock(|shard, bias| match bias {
                Bias::One => Some(body(shard)),
                Bias::Ended => {
                    self.move_to_shards(shard);
                    None
                }
            })
        }
    }

    /// Moves the first thread's blocks to where all threads find them.
    fn move_to_shards(&self, first: &mut TrackingShard) {
        self.next_number.fetch_add(mem::take(&mut first.next_number), Ordering::Relaxed);
        for block in first.take() {
            self.insert_in_shard(block);
        }
    }

    fn add_to_shard(&self, mut block: TrackedBlock) -> Option<Removed> {
        block.number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.insert_in_shard(block)
    }

    fn insert_in_shard(&self, block: TrackedBlock) -> Option<Removed> {
        let mut shard = self.shards.of(block.address);
        let needed = shard.needed_capacity();
        if needed > 0 {
            shard.grow_into(&mut map_with_capacity(needed));
        }
        shard.insert(block)
    }

    /// Removes a block that is about to go back (INV-1). Gives it with the size that it was handed out
    /// with, so that the upstream gets the right one.
    #[inline]
    pub(super) fn remove(&self, block: DeviceBlock) -> DeviceBlock {
        if is_forked_child() {
            return block;
        }
        let address = block.address();
        // SAFETY: `remove` calls no code of others (INV-2).
        let found = match unsafe { self.first.try_owned(|shard| shard.remove(address)) } {
            Some(found) => found,
            None => self.remove_slow(address),
        };
        match found {
            Some((bytes, _)) if bytes == block.bytes() => block,
            found => self.correct(block, found.map(|(bytes, _)| bytes)),
        }
    }

    #[inline(never)]
    fn remove_slow(&self, address: u64) -> Option<Removed> {
        // SAFETY: `remove` calls no code of others (INV-2).
        let removed = unsafe { self.with_first(|shard| shard.remove(address)) };
        removed.unwrap_or_else(|| self.shards.of(address).remove(address))
    }

    /// Counts a bad free of `block`, and gives the block with the size that it has in the table.
    #[cold]
    fn correct(&self, block: DeviceBlock, allocated: Option<usize>) -> DeviceBlock {
        let (address, bytes) = (block.address(), block.bytes());
        match allocated {
            Some(allocated) => {
                self.count_bad_free(BadFree::WrongSize, address, bytes, Some(allocated));
                DeviceBlock::new(address, allocated, block.token())
            }
            None => {
                if bytes != 0 {
                    self.count_bad_free(BadFree::Unknown, address, bytes, None);
                }
                block
            }
        }
    }

    #[cold]
    fn count_bad_free(&self, kind: BadFree, address: u64, bytes: usize, allocated: Option<usize>) {
        if self.bad_frees[kind as usize].fetch_add(1, Ordering::Relaxed) == 0 {
            let (device, warning) = (self.device.to_string(), kind.warning());
            let address = format!("{address:#x}");
            deferred_event!(warn, %device, %address, bytes, allocated, "{warning}");
        }
    }

    /// How many bad frees of a kind there were.
    pub(super) fn bad_frees(&self, kind: BadFree) -> u64 {
        self.bad_frees[kind as usize].load(Ordering::Relaxed)
    }

    /// Reads all parts of the table at one moment. Not in the child of a fork (INV-3).
    fn for_each_shard(&self, mut read: impl FnMut(&TrackingShard)) {
        if is_forked_child() {
            return;
        }
        let read_first = |shard: &TrackingShard, bias| {
            if bias == Bias::One {
                read(shard);
            }
            bias
        };
        // SAFETY: `read` calls no biased mutex.
        if unsafe { self.first.read(read_first) } == Bias::Ended {
            self.shards.all().iter().for_each(|shard| read(shard));
        }
    }

    pub(super) fn outstanding(&self) -> Vec<Allocation> {
        let mut blocks = Vec::new();
        self.for_each_shard(|shard| blocks.extend(shard.blocks().cloned()));
        blocks.sort_unstable_by_key(|block: &TrackedBlock| block.number);
        let time = self.clock.converter();
        let allocation = |block| {
            let TrackedBlock { number, address, bytes, stream_id, thread_id, ticks, backtrace } =
                block;
            let after = time(ticks);
            Allocation { number, address, bytes, stream_id, thread_id, after, backtrace }
        };
        blocks.into_iter().map(allocation).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.for_each_shard(|shard| bytes += shard.bytes());
        bytes
    }

    /// Names the first `most` of the blocks.
    pub(super) fn report(&self, outstanding: &[Allocation], most: usize) -> String {
        let bytes: usize = outstanding.iter().map(Allocation::bytes).sum();
        let mut text = format!(
            "Outstanding Allocations: {}, {} in all, on {}",
            Count(outstanding.len(), "block"),
            Count(bytes, "byte"),
            self.device
        );
        // Writing to a string does not fail.
        for allocation in outstanding.iter().take(most) {
            let _ = write!(text, "\n  {allocation}");
        }
        if let Some(more) = outstanding.len().checked_sub(most).filter(|more| *more > 0) {
            let _ = write!(text, "\n  and {more} more");
        }
        for kind in BadFree::ALL {
            let count = self.bad_frees(kind);
            if count != 0 {
                let _ = write!(text, "\n  frees {}: {count}", kind.summary());
            }
        }
        text
    }

    pub(super) fn log(&self) {
        let outstanding = self.outstanding();
        let report = self.report(&outstanding, MAX_LOGGED);
        if outstanding.is_empty() {
            event!(debug, "{report}");
        } else {
            event!(warn, "{report}");
        }
    }
}

impl Drop for TrackingTable {
    fn drop(&mut self) {
        // The blocks are the parent's, and the maps may be half written (INV-3).
        if is_forked_child() {
            mem::forget((mem::take(&mut self.first), mem::take(&mut self.shards)));
            return;
        }
        let left = self.outstanding();
        if !left.is_empty() {
            let report = self.report(&left, MAX_LOGGED);
            event!(warn, "a tracking adaptor ends before its blocks. {report}");
        }
    }
}
