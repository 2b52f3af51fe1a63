//! The live blocks, by address: a page map of three levels, as of tcmalloc and mimalloc.
//!
//! A block begins at a multiple of 256 bytes that no other block has, so each such unit has an entry of its own. Its
//! levels are made at their first use and stay. Nothing here takes a lock.

pub(crate) use crate::entry::{Block, Entry, FREED, FREEING, numbers};
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes of a unit, and the least alignment of a block.
pub(crate) const UNIT: u64 = 256;

/// Bits of an address below [`HIGH`] that count.
const ADDRESS_BITS: u32 = 47;

/// The simulated device's addresses begin here.
const HIGH: u64 = 1 << 60;

const LEAF_BITS: u32 = 16;
/// Bits of an address below those that tell leaves apart.
const LEAF_SHIFT: u32 = UNIT.trailing_zeros() + LEAF_BITS;
const MIDDLE_BITS: u32 = 11;
const ROOT_BITS: u32 = ADDRESS_BITS - 8 - MIDDLE_BITS - LEAF_BITS;

struct Leaf {
    entries: [Entry; 1 << LEAF_BITS],
}

struct Middle {
    leaves: [AtomicPtr<Leaf>; 1 << MIDDLE_BITS],
}

struct Root {
    middles: [AtomicPtr<Middle>; 1 << ROOT_BITS],
}

static ROOTS: [Root; 2] =
    [const { Root { middles: [const { AtomicPtr::new(std::ptr::null_mut()) }; 1 << ROOT_BITS] } };
        2];

/// A value of zeros, for good.
///
/// # Safety
///
/// Zeros are a value of `T`.
unsafe fn zeroed<T>() -> Option<Box<T>> {
    let layout = std::alloc::Layout::new::<T>();
    // SAFETY: `T` has a size.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<T>();
    // SAFETY: allocated above by the layout of `T`, and a value by the caller's promise.
    (!memory.is_null()).then(|| unsafe { Box::from_raw(memory) })
}

/// What a slot points to, made if `make` says so.
#[inline(always)]
fn level<T>(slot: &AtomicPtr<T>, make: bool) -> Option<&'static T> {
    // Acquire: pairs with the exchange of `make_level`.
    let known = slot.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: a level is never freed.
        return Some(unsafe { &*known });
    }
    if make { make_level(slot) } else { None }
}

#[cold]
fn make_level<T>(slot: &AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: levels are atomics of numbers and of pointers that may be null.
    let new = Box::into_raw(unsafe { zeroed::<T>() }?);
    // Release: the zeros come before the pointer.
    match slot.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: published, and never freed from here on.
        Ok(_) => Some(unsafe { &*new }),
        Err(others) => {
            // SAFETY: made above, and not published.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: as above.
            Some(unsafe { &*others })
        }
    }
}

/// The bits that an address of a block may have: of its unit, and [`HIGH`].
const OF_A_BLOCK: u64 = HIGH | ((1 << ADDRESS_BITS) - UNIT);

/// The leaf that has the entry of an address.
fn find_leaf(address: u64, make: bool) -> Option<&'static Leaf> {
    if address & !OF_A_BLOCK != 0 {
        return None;
    }
    let place = ((address & !HIGH) >> LEAF_SHIFT) as usize;
    let middle = &ROOTS[(address / HIGH) as usize].middles[place >> MIDDLE_BITS];
    level(&level(middle, make)?.leaves[place % (1 << MIDDLE_BITS)], make)
}

impl Leaf {
    #[inline(always)]
    fn entry(&self, address: u64) -> &Entry {
        &self.entries[(address / UNIT) as usize % (1 << LEAF_BITS)]
    }
}

/// The leaf that a thread used last, so that it need not go by the levels.
pub(crate) struct LastLeaf {
    /// An address of the leaf, less the bits that tell its entries apart; an odd number for none.
    base: Cell<u64>,
    leaf: Cell<Option<&'static Leaf>>,
}

impl LastLeaf {
    pub(crate) const fn new() -> Self {
        Self { base: Cell::new(1), leaf: Cell::new(None) }
    }

    #[inline(always)]
    fn find(&self, address: u64, make: bool) -> Option<&'static Entry> {
        // What is no multiple of a unit is of no leaf.
        let base = address & (!((UNIT << LEAF_BITS) - 1) | (UNIT - 1));
        let leaf = match self.leaf.get() {
            Some(leaf) if self.base.get() == base => leaf,
            _ => self.find_past(address, base, make)?,
        };
        Some(leaf.entry(address))
    }

    #[cold]
    #[inline(never)]
    fn find_past(&self, address: u64, base: u64, make: bool) -> Option<&'static Leaf> {
        let leaf = find_leaf(address, make)?;
        self.base.set(base);
        self.leaf.set(Some(leaf));
        Some(leaf)
    }

    /// As [`insert`].
    #[inline(always)]
    pub(crate) fn insert(&self, address: u64, block: Block) -> bool {
        self.find(address, true).map(|entry| entry.insert(block)).is_some()
    }

    /// As [`entry`](fn@entry).
    #[inline(always)]
    pub(crate) fn entry(&self, address: u64) -> Option<&'static Entry> {
        self.find(address, false)
    }
}

/// Puts a block in that the caller alone has. `false` if there is no room for it.
pub(crate) fn insert(address: u64, block: Block) -> bool {
    find_leaf(address, true).map(|leaf| leaf.entry(address).insert(block)).is_some()
}

/// The entry of an address, which may be of no block.
pub(crate) fn entry(address: u64) -> Option<&'static Entry> {
    find_leaf(address, false).map(|leaf| leaf.entry(address))
}
