//! The pool: a slot for each stream, and the short ways in and out.

use super::capture::Graphs;
use super::chunks::Chunks;
use super::homes::Homes;
use super::inbox::Freed;
use super::local::{self, Leave};
use super::magazine::{Cached, Limits, Magazine, Shelves};
use super::reserve::Reserve;
use super::rungs::Rung;
use super::slot::{Slot, UNIT_SHIFT, report_not_live};
use super::upstream::{Failure, Upstream};
use crate::debug_log::hold;
use crate::heap::{COMPLETE, Node, Tag};
use crate::sync::trusted;
use crate::sync::{Arc, AtomicUsize, Mutex, OnceLock, Ordering, RwLock, Weak};
use std::collections::{BTreeSet, HashMap};

/// What a pool is built with; every value has been checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Never more bytes of upstream than this.
    pub maximum: usize,
    /// `Rung::Grow` stays under this.
    pub soft_limit: usize,
    /// Bytes to grow by; by an eighth of what is there, if 0.
    pub step: usize,
    /// What every block is aligned to and a multiple of: 256 bytes at least.
    pub alignment: u64,
    pub rungs: Vec<Rung>,
    pub entries: u8,
    pub cached_bytes: usize,
}

/// A block as it is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Block {
    pub address: u64,
    pub token: u64,
    pub bytes: usize,
}

/// What happened, for statistics.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) misses: trusted::AtomicUsize,
    pub(super) steals: trusted::AtomicUsize,
    pub(super) records: trusted::AtomicUsize,
    pub(super) waits: trusted::AtomicUsize,
    pub(super) growths: trusted::AtomicUsize,
    pub(super) returns: trusted::AtomicUsize,
}

pub(super) fn count(counter: &trusted::AtomicUsize) {
    // Relaxed: a number for people.
    counter.fetch_add(1, trusted::Ordering::Relaxed);
}

/// A stream-ordered pool.
pub struct Pool<U: Upstream> {
    pub(super) id: u64,
    /// What the tokens of this pool have in common.
    mark: u16,
    /// One less than what blocks are aligned to.
    mask: u64,
    /// Bytes of the largest block that a heap can have.
    largest: u64,
    pub(super) upstream: U,
    pub(super) settings: Settings,
    pub(super) slots: Chunks<OnceLock<Slot<U>>>,
    slot_count: AtomicUsize,
    pub(super) known: Mutex<Known>,
    /// Where the next look for abandoned streams begins.
    next_look: trusted::AtomicUsize,
    pub(super) homes: Homes,
    /// One reclaimer of magazines at a time.
    pub(super) reclaiming: Mutex<()>,
    /// One thread at a time on the rungs that move the memory of all streams: two that gather would
    /// each miss what the other has just taken.
    pub(super) turn: Mutex<()>,
    /// Read by who has free memory in hand, on its way from upstream or the bank to a heap. Written,
    /// inside the turn, by who needs it all where it can be found: to refuse a request, and to give
    /// back before more is counted in.
    pub(super) moving: RwLock<()>,
    pub(super) reserve: Mutex<Reserve<U::Range>>,
    pub(super) counters: Counters,
    /// What graphs keep. Its lock is held over no other but a heap's.
    pub(super) graphs: Mutex<Graphs<U::Stream>>,
    this: Weak<Self>,
}

/// The streams that have a slot.
#[derive(Debug, Default)]
pub(super) struct Known {
    by_stream: HashMap<u64, Tag>,
    /// Slots that were made; their tags are below.
    pub(super) slots: usize,
    /// Slots of streams that are gone, for the next ones.
    vacant: BTreeSet<Tag>,
}

/// How many streams that have a user a new stream looks at, on its way past those that have none.
const LOOKS: usize = 64;

/// Bits of a token: the node, its heap's slot, and a few of the pool's number.
const SLOT_SHIFT: u32 = 32;
const POOL_SHIFT: u32 = 48;
const POOL_BITS: u64 = 0x7fff;

/// Set in the token of a block that belongs to a graph.
pub(super) const GRAPH_BIT: u64 = 1 << 63;

impl<U: Upstream> Pool<U> {
    pub fn new(upstream: U, settings: Settings) -> Arc<Self> {
        Arc::new_cyclic(|this| {
            let slots = Chunks::<OnceLock<Slot<U>>>::new();
            if let Some(bank) = slots.get_or_make(0) {
                let _ = bank.set(Slot::new(COMPLETE, None));
            }
            let id = trusted::unique();
            Self {
                id,
                mark: (id & POOL_BITS) as u16,
                mask: settings.alignment - 1,
                largest: (u64::from(u32::MAX) << UNIT_SHIFT) & !(settings.alignment - 1),
                upstream,
                settings,
                slots,
                slot_count: AtomicUsize::new(1),
                known: Mutex::new(Known { slots: 1, ..Known::default() }),
                next_look: trusted::AtomicUsize::new(0),
                homes: Homes::default(),
                reclaiming: Mutex::new(()),
                turn: Mutex::new(()),
                moving: RwLock::new(()),
                reserve: Mutex::new(Reserve::new()),
                counters: Counters::default(),
                graphs: Mutex::default(),
                this: this.clone(),
            }
        })
    }

    #[inline]
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// A number that no other pool of the process has.
    pub fn number(&self) -> u64 {
        self.id
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    #[inline]
    pub(super) fn token(&self, slot: Tag, node: Node) -> u64 {
        u64::from(self.mark) << POOL_SHIFT | u64::from(slot) << SLOT_SHIFT | u64::from(node)
    }

    #[inline]
    pub(super) fn slot(&self, tag: Tag) -> Option<&Slot<U>> {
        self.slots.get(tag as usize)?.get()
    }

    pub(super) fn all_slots(&self) -> impl Iterator<Item = &Slot<U>> + Clone {
        (0..self.slot_count()).filter_map(|tag| self.slot(tag as Tag))
    }

    pub(super) fn slot_count(&self) -> usize {
        // Acquire: the slots below are there. One that is just being made has no memory yet.
        self.slot_count.load(Ordering::Acquire)
    }

    /// The units of a request: whole multiples of the pool's alignment. `None` if no heap has them.
    #[inline]
    pub fn units(&self, bytes: usize) -> Option<u32> {
        if bytes as u64 > self.largest {
            return None;
        }
        // Up to the largest size there is nothing that could wrap.
        Some((((bytes as u64 + self.mask) & !self.mask) >> UNIT_SHIFT) as u32)
    }

    /// A block that the calling thread keeps ready for the stream: no lock, no driver call. `None`
    /// for no bytes.
    #[inline(always)]
    pub fn allocate_warm(&self, id: u64, bytes: usize, align: u64) -> Option<Block> {
        self.allocate_warm_units(id, self.units(bytes)?, align)
    }

    /// The same for units that are known.
    #[inline(always)]
    pub fn allocate_warm_units(&self, id: u64, units: u32, align: u64) -> Option<Block> {
        if align > self.settings.alignment {
            return None;
        }
        // SAFETY: the reference is gone when this returns; the table gives a thread its own magazines,
        // and `pop` enters none.
        unsafe {
            local::find_then(self.id, id, |magazine| {
                let cached = magazine.enter_warm(|shelves| shelves.pop(units))??;
                Some(Self::warm(cached, units))
            })
        }
    }

    #[inline(always)]
    fn warm(Cached { address, token }: Cached, units: u32) -> Block {
        Block { address, bytes: (units as usize) << UNIT_SHIFT, token }
    }

    /// `bytes > 0` bytes, aligned to `align`, for work on `stream`, after
    /// [`allocate_warm`](Self::allocate_warm) had none.
    pub fn allocate(
        &self,
        stream: &U::Stream,
        id: u64,
        bytes: usize,
        align: u64,
    ) -> Result<Block, Failure<U::Error>> {
        let Some(units) = self.units(bytes) else { return Err(Failure::Exhausted(None)) };
        // SAFETY: used before anything else looks for a magazine.
        let magazine = unsafe { local::find(self.id, id) };
        // What the warm way leaves to this one.
        let is_left =
            |magazine: &Magazine| align > self.settings.alignment || magazine.is_behind_fence();
        if let Some(magazine) = magazine
            && is_left(magazine)
            // SAFETY: the table gives a thread its own magazines, and `search` enters none.
            && let Some(Some(cached)) = unsafe { magazine.enter(|shelves| shelves.search(units, align)) }
        {
            return Ok(Self::warm(cached, units));
        }
        self.allocate_past_magazine(stream, id, magazine, units, align)
    }

    fn allocate_past_magazine(
        &self,
        stream: &U::Stream,
        id: u64,
        magazine: Option<&Magazine>,
        units: u32,
        align: u64,
    ) -> Result<Block, Failure<U::Error>> {
        let tag = match magazine {
            // A stream that was given up may be here again.
            Some(magazine) if !magazine.is_retired() => {
                self.want(magazine, id, units);
                magazine.home() as Tag
            }
            _ => self.arrive(stream, id)?,
        };
        let align = align.max(self.settings.alignment);
        let Some(slot) = self.slot(tag) else { return Err(Failure::Crowded) };
        let block = |home: Tag, taken: crate::heap::Taken| Block {
            address: taken.address,
            bytes: (units as usize) << UNIT_SHIFT,
            token: self.token(home, taken.node),
        };
        if slot.captured() != 0
            && let Some(block) = self.allocate_captured(slot, units, align)?
        {
            return Ok(block);
        }
        if let Some(taken) = slot.allocate(units, align) {
            return Ok(block(tag, taken));
        }
        self.settle_late();
        // What the miss tells waits until the stream's leave is back, too.
        let _held = hold();
        let Some(_busy) = slot.busy() else {
            // A capture has begun since we looked. The magazine may be gone by now, if it was retired.
            // SAFETY: used before anything else looks for a magazine.
            let magazine = unsafe { local::find(self.id, id) };
            return self.allocate_past_magazine(stream, id, magazine, units, align);
        };
        let (home, taken) = self.miss(slot, stream, units, align)?;
        Ok(block(home, taken))
    }

    /// Tells the magazine which size was missed; what has to make room goes to its heap, which knows
    /// no magazines.
    fn want(&self, magazine: &Magazine, id: u64, units: u32) {
        let give = |block| self.give_home(magazine.home() as Tag, block);
        // SAFETY: the table gave us this thread's own magazine, and heaps enter none.
        let to_list = unsafe {
            magazine.enter(|shelves| {
                shelves.want(units, give);
                shelves.is_to_list()
            })
        };
        if to_list == Some(true) {
            local::note_stocked(self.id, id);
        }
    }

    /// Keeps a block that the stream freed ready for it. Gives it back if it is not to be kept.
    ///
    /// # Safety
    ///
    /// As [`deallocate`](Self::deallocate).
    #[inline(always)]
    pub unsafe fn deallocate_warm(&self, id: u64, block: Block) -> Result<(), Block> {
        // SAFETY: the reference is gone when this returns; the table gives a thread its own magazines,
        // and `push` enters none.
        let kept = unsafe {
            local::find_then(self.id, id, |magazine| {
                let (units, cached) = self.keepable(&block)?;
                magazine.enter_warm(|shelves| shelves.push(units, cached))?.ok()
            })
        };
        kept.ok_or(block)
    }

    /// What a magazine may keep of a block: of its own pool's, and of no graph's.
    #[inline(always)]
    fn keepable(&self, block: &Block) -> Option<(u32, Cached)> {
        let Block { address, bytes, token } = *block;
        // A block of ours has the size that it was handed out with: a multiple of the unit.
        let units = (bytes >> UNIT_SHIFT) as u32;
        ((token >> POOL_SHIFT) as u16 == self.mark).then_some((units, Cached { address, token }))
    }

    /// Takes a block back, in the order of `stream`, that [`deallocate_warm`](Self::deallocate_warm)
    /// did not keep.
    ///
    /// # Safety
    ///
    /// The block is this pool's and live, and what uses it is ordered before this call on `stream`.
    pub unsafe fn deallocate(&self, stream: &U::Stream, id: u64, block: Block) {
        let Block { address, token, .. } = block;
        if (token & !GRAPH_BIT) >> POOL_SHIFT != u64::from(self.mark) {
            crate::debug_log::event!(
                error,
                address = format_args!("{address:#x}"),
                "a block was given to a pool that is not its own: ignored"
            );
            return;
        }
        // SAFETY: used before anything else looks for a magazine.
        let magazine = unsafe { local::find(self.id, id) };
        if let Some(magazine) = magazine
            && let Some((units, cached)) = self.keepable(&block)
        {
            let is_to_push = magazine.is_behind_fence();
            // SAFETY: as in `deallocate_warm`; `holds` enters none either.
            let found = unsafe {
                magazine.enter(|shelves| {
                    let kept = is_to_push && shelves.push(units, cached).is_ok();
                    // To its heap what lies in a magazine is live: it would free it, and the magazine
                    // has it as well.
                    (kept, !kept && shelves.holds(units, token))
                })
            };
            match found {
                Some((true, _)) => return,
                Some((_, true)) => return report_not_live(token as Node),
                _ => {}
            }
        }
        let tag = match magazine {
            Some(magazine) if !magazine.is_retired() => magazine.home() as Tag,
            _ => match self.arrive(stream, id) {
                Ok(tag) => tag,
                Err(_) => {
                    crate::debug_log::event!(
                        error,
                        address = format_args!("{address:#x}"),
                        "leaked device memory: the stream is of another device, or one more than a \
                         pool can tell apart"
                    );
                    return;
                }
            },
        };
        if !self.hold(tag, &block) {
            self.give_home(tag, Cached { address, token });
        }
    }

    /// Frees a block whose last work was given to the stream of `tag` before this call.
    pub(super) fn give_home(&self, tag: Tag, block: Cached) {
        let home = (block.token >> SLOT_SHIFT) as Tag;
        let node = block.token as Node;
        let (Some(freeing), Some(owner)) = (self.slot(tag), self.slot(home)) else {
            crate::debug_log::event!(
                error,
                node,
                "a block was freed that is not of this pool: ignored"
            );
            return;
        };
        #[cfg(not(aquifer_fault = "stamp_of_home"))]
        let freed = Freed { node, tag, stamp: freeing.epochs.open() };
        #[cfg(aquifer_fault = "stamp_of_home")]
        let freed = Freed { node, tag: home, stamp: owner.epochs.open() };
        if tag == home { freeing.free(freed) } else { owner.send_home(freed) }
    }

    /// Takes a magazine's blocks home. The caller may be inside: heaps know no magazines.
    pub(super) fn empty(&self, magazine: &Magazine, shelves: &mut Shelves) {
        shelves.drain(|block| self.give_home(magazine.home() as Tag, block));
    }

    /// As [`empty`](Self::empty), because memory is short.
    pub(super) fn raid(&self, magazine: &Magazine, shelves: &mut Shelves) {
        shelves.raid(|block| self.give_home(magazine.home() as Tag, block));
    }

    /// The slot of a stream that the thread has no magazine for, and such a magazine.
    #[cold]
    fn arrive(&self, stream: &U::Stream, id: u64) -> Result<Tag, Failure<U::Error>> {
        self.upstream.check(stream)?;
        let tag = self.slot_of(stream, id)?;
        let limits = Limits {
            entries: self.settings.entries,
            units: (self.settings.cached_bytes >> UNIT_SHIFT) as u64,
        };
        local::find_or_make(self.id, id, || {
            let slot = self.slot(tag)?;
            let magazine = Arc::new(Magazine::new(limits, u32::from(tag)));
            let owner: Weak<dyn Leave> = self.this.clone();
            let _one = self.reclaiming.lock();
            if slot.captured() != 0 {
                // SAFETY: under the reclaimers' lock.
                unsafe { magazine.shut(true) };
            }
            slot.magazines.lock().push(magazine.clone());
            Some((magazine, owner))
        });
        Ok(tag)
    }

    /// The slot of a stream: its own, that of a stream which is gone, or a new one.
    pub(super) fn slot_of(&self, stream: &U::Stream, id: u64) -> Result<Tag, Failure<U::Error>> {
        if let Some(tag) = self.known.lock().by_stream.get(&id) {
            return Ok(*tag);
        }
        self.retire_abandoned();
        let heir = self.inherit(stream);
        let mut known = self.known.lock();
        if let Some(tag) = known.by_stream.get(&id) {
            // Another thread came first. What was inherited waits for the next stream.
            let tag = *tag;
            drop(known);
            if let Some(heir) = heir.and_then(|heir| self.slot(heir)) {
                let kept = heir.epochs.lock().stream.take();
                self.known.lock().vacant.insert(heir.tag);
                kept.into_iter().for_each(U::let_go);
            }
            return Ok(tag);
        }
        let tag = match heir {
            Some(tag) => tag,
            None => {
                let tag = known.slots as Tag;
                let place = self.slots.get_or_make(known.slots);
                let Some(place) = place.filter(|_| known.slots < Tag::MAX as usize) else {
                    return Err(Failure::Crowded);
                };
                let _ = place.set(Slot::new(tag, Some(U::keep(stream))));
                known.slots += 1;
                self.slot_count.store(known.slots, Ordering::Release);
                tag
            }
        };
        known.by_stream.insert(id, tag);
        Ok(tag)
    }

    /// Gives a stream the slot of one that is gone, with its memory: the new stream waits for the
    /// last work of the old one, so what was its own is the heir's own.
    fn inherit(&self, stream: &U::Stream) -> Option<Tag> {
        // A stream in capture cannot wait for what lies outside.
        if self.upstream.is_capturing(stream).unwrap_or(true) {
            return None;
        }
        let mut refused = Vec::<Tag>::new();
        let heir = loop {
            let vacant = self.known.lock().vacant.pop_first();
            let Some(slot) = vacant.and_then(|tag| self.slot(tag)) else { break None };
            let mut record = slot.epochs.lock();
            #[cfg(not(aquifer_fault = "inherit_without_wait"))]
            {
                if record.inherit(&self.upstream, stream).is_err() {
                    refused.push(slot.tag);
                    continue;
                }
                if record.newest() > 0 {
                    count(&self.counters.waits);
                }
            }
            record.stream = Some(U::keep(stream));
            break Some(slot.tag);
        };
        if !refused.is_empty() {
            self.known.lock().vacant.extend(refused);
        }
        heir
    }

    /// Lets go of streams that nobody but pools hold. Where there are many, it ends after
    /// [`LOOKS`] that somebody holds, and goes on there the next time: so a new stream costs no more
    /// for all that are there, and none stays abandoned for longer than they take to go round.
    fn retire_abandoned(&self) {
        let slots = self.slot_count();
        // The last slot is about to be given out: every one that may come free is wanted.
        let mut left = if slots < Tag::MAX as usize { LOOKS } else { usize::MAX };
        // Relaxed: where two begin at one place, one looks in vain.
        let begin = if slots > LOOKS { self.next_look.load(trusted::Ordering::Relaxed) } else { 0 };
        for step in 0..slots {
            let place = (begin + step) % slots;
            let Some(slot) = self.slot(place as Tag).filter(|slot| !slot.is_bank()) else {
                continue;
            };
            if left == 0 {
                return self.next_look.store(place, trusted::Ordering::Relaxed);
            }
            if !self.retire_if_abandoned(slot) {
                left -= 1;
            }
        }
    }

    /// Lets go of a slot's stream, closing its last epoch, if nobody but pools holds it.
    fn retire_if_abandoned(&self, slot: &Slot<U>) -> bool {
        let _one = self.reclaiming.lock();
        let mut record = slot.epochs.lock();
        if slot.captured() != 0 || !record.stream.as_ref().is_some_and(U::is_abandoned) {
            return false;
        }
        drop(record);
        // Before the close: what the magazines hold is stamped with the epoch that it closes.
        let magazines = std::mem::take(&mut *slot.magazines.lock());
        // SAFETY: under the reclaimers' lock.
        unsafe {
            magazines.iter().for_each(|magazine| magazine.retire());
            Magazine::reclaim(magazines.iter().map(|own| &**own), |magazine, shelves| {
                self.empty(magazine, shelves);
            });
        }
        record = slot.epochs.lock();
        if slot.epochs.close(&self.upstream, &mut record).is_err() {
            // No event, no heir: the stream is kept, and tried again.
            slot.magazines.lock().clear();
            return false;
        }
        count(&self.counters.records);
        let gone = record.stream.take();
        drop(record);
        if let Some(stream) = gone {
            let mut known = self.known.lock();
            known.by_stream.remove(&U::id(&stream));
            known.vacant.insert(slot.tag);
            drop(known);
            U::let_go(stream);
        }
        true
    }
}

impl<U: Upstream> Leave for Pool<U> {
    fn leave(&self, magazine: &Arc<Magazine>) {
        // In the child of a fork the lock may be held by a thread that is not here.
        if self.upstream.is_forked() {
            return;
        }
        let _one = self.reclaiming.lock();
        // SAFETY: on the owner's thread, and under the reclaimers' lock.
        unsafe {
            #[cfg(not(aquifer_fault = "leave_keeps_blocks"))]
            let _ = magazine.enter(|shelves| self.empty(magazine, shelves));
            magazine.retire();
        }
        if let Some(slot) = self.slot(magazine.home() as Tag) {
            slot.magazines.lock().retain(|other| !Arc::ptr_eq(other, magazine));
        }
    }
}
