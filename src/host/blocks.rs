//! The process-wide map from addresses to page-locked memory: the slabs of pools, and the blocks
//! that came from the driver one by one.
//!
//! `deallocate` finds a block's owner here, never through the current resource, so that any
//! allocator handle on any thread frees any block. A thread remembers slabs that it
//! freed into: a warm free does not come here.

use super::ground::Extent;
use super::lane::{Key, pointer_to};
use super::slabs::Slab;
use super::source::HostSource;
use crate::backend::is_forked_child;
use crate::sync::trusted::{AtomicU64, Ordering, RwLock, thread_local};
use crate::sync::{Arc, LazyLock};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;

static BLOCKS: LazyLock<RwLock<BTreeMap<usize, Entry>>> = LazyLock::new(RwLock::default);

/// Changes with every slab that leaves the map. A thread that frees a block of a new slab at an old
/// slab's address got the block after that, so it sees the change.
static GENERATION: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Its address was exposed when it came in.
    pub(super) base: usize,
    pub(super) bytes: usize,
    pub(super) owner: Owner,
}

/// Who a piece of page-locked memory goes back to.
#[derive(Clone, Debug)]
pub(super) enum Owner {
    /// It is one block.
    Source(Arc<HostSource>),
    /// It is a slab of a pool, which keeps the pool alive.
    Slab(Arc<Slab>),
}

pub(super) fn insert(base: NonNull<u8>, bytes: usize, source: &Arc<HostSource>) {
    let base = base.expose_provenance().get();
    let owner = Owner::Source(source.clone());
    BLOCKS.write().insert(base, Entry { base, bytes, owner });
}

/// The memory that holds `address`. None is found in the child of a fork.
pub(super) fn find(address: usize) -> Option<Entry> {
    // The child may have inherited the lock in a locked state; its copy of the memory goes with it.
    if is_forked_child() {
        return None;
    }
    let blocks = BLOCKS.read();
    let (base, entry) = blocks.range(..=address).next_back()?;
    (address - base < entry.bytes).then(|| entry.clone())
}

/// Frees the block that holds `pointer`: off the map, and to its source's pending blocks. No driver
/// call, no context, no unwind. Whose memory it is if it is a pool's: nothing is done then.
///
/// # Safety
///
/// `pointer` was allocated by a source or a pool with a nonzero size, is freed once, and the host
/// uses the block no more.
pub(super) unsafe fn release(pointer: NonNull<u8>) -> Option<Arc<Slab>> {
    // As in `find`.
    if is_forked_child() {
        return None;
    }
    let address = pointer.addr().get();
    let entry = find(address);
    match entry {
        Some(Entry { owner: Owner::Slab(slab), .. }) => return Some(slab),
        Some(Entry { base, bytes, owner: Owner::Source(source) }) => {
            // It is live, so nobody else removes it meanwhile.
            BLOCKS.write().remove(&base);
            if let Some(base) = pointer_to(base) {
                source.take_back(base, bytes);
            }
        }
        None => crate::debug_log::event!(
            error,
            address = format_args!("{address:#x}"),
            "a pointer was freed that is no page-locked block of this process: ignored"
        ),
    }
    None
}

/// Makes a block that came from a source a slab of a pool, which `slab` describes by its base and
/// its size. `None`: the block is not in the map.
pub(super) fn adopt(address: usize, slab: impl FnOnce(usize, usize) -> Slab) -> Option<Arc<Slab>> {
    let Entry { base, bytes, .. } = find(address)?;
    let slab = Arc::new(slab(base, bytes));
    let owner = Owner::Slab(slab.clone());
    BLOCKS.write().insert(base, Entry { base, bytes, owner });
    Some(slab)
}

/// Takes a slab off the map. Nothing of it is live.
pub(super) fn remove_slab(base: usize) {
    let removed = BLOCKS.write().remove(&base);
    // Relaxed: whoever could find an old slab at a new one's address learnt of the new one later
    // than this, through whatever handed him the block.
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // Not under the lock: it may be the pool's last trace.
    drop(removed);
}

/// Slabs that a thread remembers.
const SLABS: usize = 8;

/// Parts of the address space for which a thread remembers which of those slabs served last.
const PARTS: usize = 256;
const PART: u32 = 20;

#[derive(Clone, Copy)]
struct Seen {
    base: usize,
    bytes: usize,
    key: Key,
    generation: u64,
}

const NOTHING: Seen =
    Seen { base: 0, bytes: 0, key: Key { number: 0, fenced: true }, generation: 0 };

thread_local! {
    static SEEN: [Cell<Seen>; SLABS] = const { [const { Cell::new(NOTHING) }; SLABS] };
    static HINTS: [Cell<u8>; PARTS] = const { [const { Cell::new(0) }; PARTS] };
    /// The place to be used again next.
    static NEXT: Cell<u8> = const { Cell::new(0) };
}

#[inline(always)]
fn holds(seen: &Seen, address: usize) -> bool {
    address.wrapping_sub(seen.base) < seen.bytes
        && seen.generation == GENERATION.load(Ordering::Relaxed)
}

/// The pool of a live block, if this thread has seen the slab that it lies in.
#[inline(always)]
pub(super) fn seen(address: usize) -> Option<Key> {
    let hint = HINTS.with(|hints| hints[(address >> PART) % PARTS].get());
    let seen = SEEN.with(|seen| seen[hint as usize % SLABS].get());
    if holds(&seen, address) { Some(seen.key) } else { seen_elsewhere(address) }
}

#[cold]
fn seen_elsewhere(address: usize) -> Option<Key> {
    let at = SEEN.with(|seen| seen.iter().position(|seen| holds(&seen.get(), address)))?;
    HINTS.with(|hints| hints[(address >> PART) % PARTS].set(at as u8));
    SEEN.with(|seen| Some(seen[at].get().key))
}

/// Remembers the slab of a live block for [`seen`].
pub(super) fn remember(address: usize, slab: &Slab) {
    let generation = GENERATION.load(Ordering::Relaxed);
    let (Extent { base, bytes, .. }, key) = (slab.extent, slab.core.key());
    let place = NEXT.with(|next| next.replace(next.get().wrapping_add(1)));
    SEEN.with(|seen| seen[place as usize % SLABS].set(Seen { base, bytes, key, generation }));
    HINTS.with(|hints| hints[(address >> PART) % PARTS].set(place % SLABS as u8));
}
