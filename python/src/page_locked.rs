//! The page-locked blocks of NumPy's arrays, by address.
//!
//! Nearly all frees are of small blocks, which are not page-locked: one load tells where no page-locked block lies in the
//! same GiB, two loads else. No lock is taken for a block of a page or more, so a fork finds none locked.
//!
//! | word | what it guards or says | who writes it |
//! | --- | --- | --- |
//! | `PARTS` | of each GiB of the address space the `Part`, once a large block began in it | the thread that found none |
//! | an entry of a `Part` | the large block that begins in a page: its size, and where it begins. 0 of none | who has the block |
//! | `SMALL` | the blocks of less than a page, and those without a part, by address | threads that allocate and free them |
//! | `HAS_SMALL` | whether `SMALL` had one ever | threads that insert |
//!
//! - INV-1: an entry has one writer at a time. Two blocks of a page or more do not begin in the same page, and a block is its
//!   owner's: what hands it on from thread to thread, the pool as well, orders the writes and reads of its entry. An entry is
//!   cleared before its block is freed.

use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

const PAGE_BITS: u32 = 12;
const PAGE: usize = 1 << PAGE_BITS;
const PART_BITS: u32 = 30;

/// The bits of an address that a process has of Linux, unless it asks for more.
const ADDRESS_BITS: u32 = 48;

/// The pages of a GiB. Linux has no memory for those of its own pages that nobody has written: 2 MiB at most.
struct Part([AtomicUsize; 1 << (PART_BITS - PAGE_BITS)]);

static PARTS: [AtomicPtr<Part>; 1 << (ADDRESS_BITS - PART_BITS)] =
    [const { AtomicPtr::new(null_mut()) }; 1 << (ADDRESS_BITS - PART_BITS)];

static SMALL: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

static HAS_SMALL: AtomicBool = AtomicBool::new(false);

/// The part of an address, if there is one.
#[inline(always)]
fn part(address: usize) -> Option<&'static Part> {
    // Acquire: the part's zeros.
    let part = PARTS.get(address >> PART_BITS)?.load(Ordering::Acquire);
    // SAFETY: null, or a part, which stays for good.
    unsafe { part.as_ref() }
}

#[inline(always)]
fn entry(part: &Part, address: usize) -> &AtomicUsize {
    &part.0[(address >> PAGE_BITS) % part.0.len()]
}

/// As `part`, and makes it. `None` of an address above all parts, and without memory for one.
fn part_or_new(address: usize) -> Option<&'static Part> {
    if let Some(part) = part(address) {
        return Some(part);
    }
    let place = PARTS.get(address >> PART_BITS)?;
    let layout = Layout::new::<Part>();
    // SAFETY: a part has a size.
    let new = unsafe { alloc_zeroed(layout) }.cast::<Part>();
    if new.is_null() {
        return None;
    }
    // Release: its zeros. Acquire: those of another thread's.
    let found = place.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    if found.is_err() {
        // SAFETY: made above, and no other thread has it.
        unsafe { dealloc(new.cast(), layout) };
    }
    part(address)
}

/// Notes a block, before anyone else has its address. `bytes` is not 0.
pub(crate) fn insert(address: usize, bytes: usize) {
    if bytes >= PAGE
        && let Some(part) = part_or_new(address)
    {
        // No bits are lost, as no address space has 2^52 bytes.
        let value = (bytes << PAGE_BITS) | (address % PAGE);
        // Relaxed: INV-1.
        return entry(part, address).store(value, Ordering::Relaxed);
    }
    // Relaxed: the block's owner is told of its address after this.
    HAS_SMALL.store(true, Ordering::Relaxed);
    SMALL.lock().insert(address, bytes);
}

#[inline(always)]
fn large(address: usize) -> Option<(&'static AtomicUsize, usize)> {
    let entry = entry(part(address)?, address);
    // Relaxed: INV-1, of a block of this address. Of any other the value says another address.
    let value = entry.load(Ordering::Relaxed);
    let bytes = value >> PAGE_BITS;
    (bytes != 0 && value % PAGE == address % PAGE).then_some((entry, bytes))
}

/// The size of a block. `None` of what is not page-locked.
pub(crate) fn size(address: usize) -> Option<usize> {
    if let Some((_, bytes)) = large(address) {
        return Some(bytes);
    }
    if HAS_SMALL.load(Ordering::Relaxed) { SMALL.lock().get(&address).copied() } else { None }
}

/// Forgets a block, before it is freed: its size. `None` of what is not page-locked.
#[inline(always)]
pub(crate) fn remove(address: usize) -> Option<usize> {
    if let Some((entry, bytes)) = large(address) {
        // Relaxed: INV-1.
        entry.store(0, Ordering::Relaxed);
        return Some(bytes);
    }
    if HAS_SMALL.load(Ordering::Relaxed) { remove_small(address) } else { None }
}

#[cold]
fn remove_small(address: usize) -> Option<usize> {
    SMALL.lock().remove(&address)
}

/// How many blocks there are, and their bytes.
pub(crate) fn blocks_and_bytes() -> (usize, usize) {
    let parts = PARTS.iter().enumerate().filter_map(|(number, _)| part(number << PART_BITS));
    let entries = parts.flat_map(|part| part.0.iter());
    let large = entries.map(|entry| entry.load(Ordering::Relaxed) >> PAGE_BITS);
    let (mut blocks, mut bytes) = (0, 0);
    for size in large.filter(|size| *size != 0) {
        blocks += 1;
        bytes += size;
    }
    let small = SMALL.lock();
    (blocks + small.len(), bytes + small.values().sum::<usize>())
}
