//! A thread's own blocks, ready for one stream: what makes a warm allocation a few instructions.
//!
//! As Bonwick's magazines, with a biased lock: the owner is the thread whose table has the magazine,
//! and each pool has one lock for all revokers of its magazines.

use crate::sync::Biased;
use std::any::Any;
use std::ops::Deref;

/// Sizes that a magazine remembers at once.
const SIZE_CLASSES: usize = 64;

/// Blocks of one size that a class has room for.
pub const CLASS_CAPACITY: usize = 8;

/// Misses of a size before its class keeps blocks again after a flush.
const BACKOFF_MISSES: u8 = 32;

/// The owner's number in its cell. Any one does: the thread's table says which magazines it owns.
const OWNER: u64 = 1;

/// A block that waits to be allocated again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cached {
    pub address: u64,
    pub token: u64,
}

/// The places of a class's blocks.
type Places = [Cached; CLASS_CAPACITY];

/// Blocks of one size, the last one freed on top. Only a size that was missed gets a class, so that
/// sizes which never come back are not kept from the heap.
///
/// INV-MAGAZINE-1: `length <= room`, and a class with room has its places. They are made with the class's first
/// size and stay: a thread of a thousand streams has as many magazines, and few sizes in each.
#[derive(Debug)]
struct SizeClass {
    units: u32,
    length: u8,
    /// Blocks that it keeps.
    room: u8,
    places: Option<Box<Places>>,
}

/// What a class knows of misses.
#[derive(Clone, Copy, Debug)]
struct MissHistory {
    /// The size that was missed last.
    missed: u32,
    /// Misses until it keeps blocks again.
    backoff: u8,
}

impl SizeClass {
    const UNUSED: Self = Self { units: NO_SIZE, length: 0, room: 0, places: None };

    /// The places of its blocks.
    ///
    /// # Safety
    ///
    /// It has blocks, or room for some.
    #[inline(always)]
    unsafe fn places_mut(&mut self) -> &mut Places {
        // SAFETY: INV-MAGAZINE-1, by the caller's promise.
        unsafe { self.places.as_deref_mut().unwrap_unchecked() }
    }

    fn blocks(&self) -> &[Cached] {
        let places = self.places.as_deref().and_then(|places| places.get(..self.length as usize));
        places.unwrap_or_default()
    }

    /// The last block that is aligned so, though others lie on top of it.
    fn take_aligned(&mut self, align: u64) -> Option<Cached> {
        let blocks = self.places.as_deref_mut()?.get_mut(..self.length as usize)?;
        let place = blocks.iter().rposition(|block| block.address & (align - 1) == 0)?;
        let block = blocks[place];
        blocks.copy_within(place + 1.., place);
        self.length -= 1;
        Some(block)
    }
}

/// No block has this size, nor 0.
const NO_SIZE: u32 = u32::MAX;

/// How much a magazine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Blocks of one size, [`CLASS_CAPACITY`] at most.
    pub entries: u8,
    /// Units of all blocks together.
    pub units: u64,
}

/// The contents of a magazine.
#[derive(Debug)]
pub struct SizeClasses {
    limits: Limits,
    /// Units that the classes have room for; never more than the limit.
    promised: u64,
    /// The classes that have a size, one bit each.
    sized: u64,
    /// Whether the owner's list of stocked magazines has this one.
    listed: bool,
    classes: [SizeClass; SIZE_CLASSES],
    /// Of the classes.
    misses: [MissHistory; SIZE_CLASSES],
    /// What the pool keeps beside the classes.
    extra: Box<dyn Any + Send>,
}

/// A thread's blocks for one stream of a pool.
#[derive(Debug)]
pub struct Magazine {
    slot: u32,
    classes: Biased<SizeClasses>,
}

#[inline]
fn class_place(units: u32) -> usize {
    (units.wrapping_mul(0x9E37_79B1) >> 26) as usize
}

const _: () = assert!(SIZE_CLASSES == 1 << (32 - 26) && SIZE_CLASSES == u64::BITS as usize);

impl SizeClasses {
    /// A block of exactly this size, if there is one.
    #[inline(always)]
    pub fn pop(&mut self, units: u32) -> Option<Cached> {
        let class = &mut self.classes[class_place(units)];
        if class.units != units || class.length == 0 {
            return None;
        }
        class.length -= 1;
        let place = class.length as usize % CLASS_CAPACITY;
        // SAFETY: it had a block.
        Some(unsafe { class.places_mut() }[place])
    }

    /// The last block of exactly this size at a multiple of `align`, a power of two, though others lie
    /// on top of it. Not part of [`pop`](Self::pop), which it would make slower.
    pub fn pop_aligned(&mut self, units: u32, align: u64) -> Option<Cached> {
        let class = &mut self.classes[class_place(units)];
        if class.units == units { class.take_aligned(align) } else { None }
    }

    /// Keeps a freed block if its size has a class with room.
    #[inline(always)]
    pub fn push(&mut self, units: u32, block: Cached) -> Result<(), Cached> {
        let class = &mut self.classes[class_place(units)];
        let length = class.length as usize;
        if class.units != units || class.length >= class.room {
            return Err(block);
        }
        // SAFETY: it has room for one more.
        let places = unsafe { class.places_mut() };
        // A block that is freed twice must not be handed out twice: a pool asks `holds` next.
        let mut place = length;
        while place > 0 {
            place -= 1;
            if places[place % CLASS_CAPACITY].token == block.token {
                return Err(block);
            }
        }
        // Mostly it comes back to where it was taken from, and still stands there. Then nothing is
        // stored: its next way out would have to wait for the store.
        let place = &mut places[length % CLASS_CAPACITY];
        if (place.address ^ block.address) | (place.token ^ block.token) != 0 {
            *place = block;
        }
        class.length += 1;
        Ok(())
    }

    /// Whether the block is inside, among those of its size.
    #[inline]
    pub fn holds(&self, units: u32, token: u64) -> bool {
        let class = &self.classes[class_place(units)];
        class.units == units && class.blocks().iter().any(|other| other.token == token)
    }

    /// Notes that this size was missed. The second miss in a row gives it the class, which keeps its next
    /// frees. Blocks that have to make room go to `evicted`.
    #[inline]
    pub fn note_miss(&mut self, units: u32, evicted: impl FnMut(Cached)) {
        if self.is_missed_again(units) {
            self.assign_class(units, evicted);
        }
    }

    /// Notes that this size was missed, and says whether that gives it its class, by
    /// [`assign_class`](Self::assign_class).
    #[inline]
    pub fn is_missed_again(&mut self, units: u32) -> bool {
        let place = class_place(units);
        if self.classes[place].units == units {
            return false;
        }
        let history = &mut self.misses[place];
        if history.missed != units {
            history.missed = units;
            return false;
        }
        if history.backoff > 0 {
            history.backoff -= 1;
            return false;
        }
        true
    }

    /// Gives a size its class, for which [`is_missed_again`](Self::is_missed_again) says that it is time.
    #[cold]
    pub fn assign_class(&mut self, units: u32, mut evicted: impl FnMut(Cached)) {
        let place = class_place(units);
        self.clear_class(place, &mut evicted);
        let size = u64::from(units);
        if size > self.limits.units || self.limits.entries == 0 || units == NO_SIZE || units == 0 {
            return;
        }
        if self.limits.units - self.promised < size {
            self.drain(evicted);
        }
        let room = (self.limits.units - self.promised) / size;
        let room = room.min(u64::from(self.limits.entries));
        // Before the sums change: a failing allocation may unwind.
        self.classes[place].places.get_or_insert_default();
        self.promised += room * size;
        self.sized |= 1 << place;
        let class = &mut self.classes[place];
        (class.units, class.room) = (units, room as u8);
    }

    fn clear_class(&mut self, place: usize, each: &mut impl FnMut(Cached)) {
        let class = &mut self.classes[place];
        if class.units != NO_SIZE {
            class.blocks().iter().for_each(|block| each(*block));
            self.promised -= u64::from(class.units) * u64::from(class.room);
            self.sized &= !(1 << place);
            // No room either: a block may be of the size that stands for none.
            (class.units, class.length, class.room) = (NO_SIZE, 0, 0);
        }
    }

    fn assigned_classes(&self) -> impl Iterator<Item = usize> + use<> {
        let mut sized = self.sized;
        std::iter::from_fn(move || {
            let place = sized.trailing_zeros();
            sized &= sized.checked_sub(1)?;
            Some(place as usize)
        })
    }

    /// Takes all blocks out, and their classes from all sizes.
    pub fn drain(&mut self, mut each: impl FnMut(Cached)) {
        self.assigned_classes().for_each(|place| self.clear_class(place, &mut each));
    }

    /// As [`drain`](Self::drain), where memory is short. The classes back off: for some misses the next
    /// frees go to the heap, where other threads find them.
    pub fn flush(&mut self, mut each: impl FnMut(Cached)) {
        for place in self.assigned_classes() {
            self.clear_class(place, &mut each);
            self.misses[place].backoff = BACKOFF_MISSES;
        }
    }

    /// Whether the owner has to list it now: it may get blocks, and is not listed yet.
    pub fn mark_listed_if_needed(&mut self) -> bool {
        if self.listed || self.sized == 0 {
            return false;
        }
        self.listed = true;
        true
    }

    /// Notes that the owner has taken it off the list, empty.
    pub fn unlist(&mut self) {
        self.listed = false;
    }

    /// Units of the largest block inside.
    pub fn largest(&self) -> u32 {
        let filled = self.assigned_classes().filter(|place| self.classes[*place].length > 0);
        filled.map(|place| self.classes[place].units).max().unwrap_or(0)
    }

    /// What [`Magazine::with_extra`] was given.
    ///
    /// # Safety
    ///
    /// The magazine was made with an extra of this type.
    #[inline(always)]
    pub unsafe fn extra<E: Any>(&mut self) -> &mut E {
        debug_assert!(self.extra.is::<E>());
        // SAFETY: the box has an `E`, by the caller's promise.
        unsafe { &mut *(&raw mut *self.extra).cast::<E>() }
    }

    /// Blocks and units inside.
    pub fn totals(&self) -> (usize, u64) {
        self.assigned_classes().fold((0, 0), |(blocks, units), place| {
            let class = &self.classes[place];
            let length = class.length;
            (blocks + length as usize, units + u64::from(length) * u64::from(class.units))
        })
    }
}

impl Magazine {
    /// An empty one, of the stream that has this slot of its pool.
    pub fn new(limits: Limits, slot: u32) -> Self {
        Self::with_extra(limits, slot, ())
    }

    /// As [`new`](Self::new), with what the pool keeps beside the classes: [`SizeClasses::extra`].
    pub fn with_extra(limits: Limits, slot: u32, extra: impl Any + Send) -> Self {
        let limits = Limits { entries: limits.entries.min(CLASS_CAPACITY as u8), ..limits };
        let classes = SizeClasses {
            limits,
            promised: 0,
            sized: 0,
            listed: false,
            classes: [const { SizeClass::UNUSED }; SIZE_CLASSES],
            misses: [MissHistory { missed: NO_SIZE, backoff: 0 }; SIZE_CLASSES],
            extra: Box::new(extra),
        };
        Self { slot, classes: Biased::with_owner(OWNER, classes) }
    }

    /// The slot of its stream in the pool.
    #[inline]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether [`try_with_fast`](Self::try_with_fast) would let its owner in, as of some moment.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.classes.is_open_to(OWNER)
    }

    /// The contents, for the owner. `None` while a revoker keeps it out.
    ///
    /// # Safety
    ///
    /// Called on the one thread that owns the magazine, and not from within `body`.
    #[inline(always)]
    pub unsafe fn try_with<R>(&self, body: impl FnOnce(&mut SizeClasses) -> R) -> Option<R> {
        // SAFETY: the caller's promise.
        unsafe { self.classes.try_with(OWNER, body) }
    }

    /// As [`try_with`](Self::try_with), and `None` where [`needs_fence`](Biased::needs_fence):
    /// [`Biased::try_with_fast`].
    ///
    /// # Safety
    ///
    /// As [`try_with`](Self::try_with).
    #[inline(always)]
    pub unsafe fn try_with_fast<R>(&self, body: impl FnOnce(&mut SizeClasses) -> R) -> Option<R> {
        // SAFETY: the caller's promise.
        unsafe { self.classes.try_with_fast(OWNER, body) }
    }

    /// Goes through magazines of any threads, whose owners do without meanwhile.
    ///
    /// # Safety
    ///
    /// The caller holds the revokers' lock of these magazines and is inside of none.
    pub unsafe fn with_revoked<'a>(
        magazines: impl Iterator<Item = &'a Magazine> + Clone,
        each: impl FnMut(&'a Magazine, &mut SizeClasses),
    ) {
        let cells = magazines.map(|magazine| (&magazine.classes, magazine));
        // SAFETY: the caller's promise.
        unsafe { Biased::with_revoked(cells, each) }
    }
}

/// What revokers do is as with any cell: [`retire`](Biased::retire) as its stream, its thread or its pool goes away and when the pool is trimmed,
/// [`suspend`](Biased::suspend) and [`resume`](Biased::resume) around a declared capture of its stream.
/// [`Magazine::with_revoked`] has to follow the first two.
impl Deref for Magazine {
    type Target = Biased<SizeClasses>;

    #[inline(always)]
    fn deref(&self) -> &Biased<SizeClasses> {
        &self.classes
    }
}

#[cfg(test)]
mod tests;
