//! The process-wide map from addresses to page-locked blocks.
//!
//! `deallocate` finds a block's owner here, never through the current resource, so that any
//! allocator handle on any thread frees any block. It stands until a pool with tokens of its own
//! takes the hot path.

use super::source::HostSource;
use crate::sync::trusted::RwLock;
use crate::sync::{Arc, LazyLock};
use std::collections::BTreeMap;
use std::ptr::NonNull;

static BLOCKS: LazyLock<RwLock<BTreeMap<usize, Entry>>> = LazyLock::new(RwLock::default);

struct Entry {
    base: NonNull<u8>,
    bytes: usize,
    source: Arc<HostSource>,
}

// SAFETY: the pointer names a block that belongs to whoever allocated it; the map only compares it.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// What the map knows of the block around an address.
pub(super) struct Found {
    pub(super) base: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) source: Arc<HostSource>,
}

pub(super) fn insert(base: NonNull<u8>, bytes: usize, source: &Arc<HostSource>) {
    let entry = Entry { base, bytes, source: source.clone() };
    BLOCKS.write().insert(base.addr().get(), entry);
}

/// The block that holds `address`. None is found in the child of a fork.
pub(super) fn find(address: usize) -> Option<Found> {
    // As in `release`.
    if crate::backend::is_forked_child() {
        return None;
    }
    let blocks = BLOCKS.read();
    let (base, entry) = blocks.range(..=address).next_back()?;
    (address - base < entry.bytes).then(|| Found {
        base: entry.base,
        bytes: entry.bytes,
        source: entry.source.clone(),
    })
}

/// Frees the block that holds `pointer`: off the map, and to its source's pending blocks. No driver
/// call, no context, no unwind.
///
/// # Safety
///
/// `pointer` was allocated by a source with a nonzero size, is freed once, and the host uses the
/// block no more.
pub(super) unsafe fn release(pointer: NonNull<u8>) {
    // The child of a fork may have inherited the lock in a locked state; its copy of the memory
    // goes with it.
    if crate::backend::is_forked_child() {
        return;
    }
    let address = pointer.addr().get();
    let entry = {
        let mut blocks = BLOCKS.write();
        let base = blocks
            .range(..=address)
            .next_back()
            .filter(|(base, entry)| address - **base < entry.bytes)
            .map(|(base, _)| *base);
        base.and_then(|base| blocks.remove(&base))
    };
    match entry {
        Some(entry) => entry.source.take_back(entry.base, entry.bytes),
        None => tracing::error!(
            address = format_args!("{address:#x}"),
            "a pointer was freed that is no page-locked block of this process: ignored"
        ),
    }
}
