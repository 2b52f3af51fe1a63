//! Blocks whose address is another block's as well: a callback of the program has allocated them by this library, and its
//! resource hands them out, whole or their beginning. The page map has the outer block of an address.
//!
//! | table | key | holds | until |
//! |---|---|---|---|
//! | `SHADOWED` | an address | the blocks below the one that the page map has or had, the innermost first | a callback frees them |
//! | `DEPTH`, a thread's | - | how many callbacks the thread is in | they return |

use crate::page_map::{self, Block};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::LazyLock;

static SHADOWED: LazyLock<Mutex<HashMap<u64, Vec<Block>>>> = LazyLock::new(Mutex::default);

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Calls a callback of a resource, which may free what it allocated by this library.
pub(crate) fn in_callback<T>(body: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _leave = Leave;
    body()
}

/// Keeps the block that the page map has of an address, which another one is to take the place of.
pub(crate) fn keep(address: u64) {
    if let Some(entry) = page_map::entry(address).filter(|entry| entry.is_live()) {
        SHADOWED.lock().entry(address).or_default().push(entry.block());
    }
}

/// Has the page map have the block below again, for a callback that frees it. A second free of the outer block by the
/// program, which is in no callback, does not find it.
pub(crate) fn restore_in_callback(address: u64) {
    if DEPTH.get() == 0 || page_map::entry(address).is_some_and(|entry| entry.is_live()) {
        return;
    }
    let mut shadowed = SHADOWED.lock();
    let Some(blocks) = shadowed.get_mut(&address) else { return };
    let below = blocks.pop();
    if blocks.is_empty() {
        shadowed.remove(&address);
    }
    drop(shadowed);
    if let Some(below) = below {
        page_map::insert(address, below);
    }
}
