//! The pool: heaps, epochs and magazines. Stream-ordered memory that costs no driver call when warm.
//!
//! Each stream has a slot: a heap of its own behind a lock that no other stream needs, an
//! epoch, remote frees, and the magazines of the threads that use it. A block stays with the heap that
//! owns it: freed on another stream, it goes back to its owner with that stream's stamp. Slot 0 has
//! the heap that all streams share.
//!
//! The locks and the invariants are in `core`. Files import only files above them here:
//!
//! | file | what is in it |
//! | --- | --- |
//! | `upstream`, `miss_step`, `settings` | what a pool stands on, and its settings |
//! | `append_array`, `magazine`, `block` | an array that grows; a thread's own blocks; a block that is handed out |
//! | `local` | a thread's table of magazines |
//! | `addresses` | reserved addresses without memory |
//! | `remote_frees`, `ordered`, `epochs`, `recent_owners`, `slot` | the parts of a slot, and the slot |
//! | `graph_heap`, `graphs`, `populated`, `upstream_blocks` | memory that graphs share; what graphs keep; which heaps to scan; blocks and handles of upstream |
//! | `core` | [`Pool`] |
//! | `caches` | threads' magazines, emptied into the heaps |
//! | `thread_magazine` | a thread's magazine of one stream, looked up once |
//! | `events`, `stats`, `streams`, `request` | its events and numbers; its streams; one request |
//! | `placement`, `ready` | blocks taken out of free memory; which free memory is ready, and merges |
//! | `room` | new addresses, and those for blocks that grow |
//! | `handles`, `whole_blocks` | handles, and blocks of upstream: made, and given back |
//! | `look`, `wait`, `mapping`, `above`, `grow`, `trim` | the mechanisms of a miss |
//! | `pending`, `callback` | what the device may still use, and the host's waits for it; the user's callback |
//! | `miss` | the loop over the steps of a miss |
//! | `resize` | blocks that may grow, and that change their size where they are |
//! | `memory_map` | where the pool's memory lies |
//! | `capture`, `allocate`, `end` | declared captures; allocation and free; the pool's end |

#![allow(
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "the models of loom_tests reach it through `models`; no user does"
)]

pub mod heap;

mod above;
mod addresses;
mod allocate;
mod append_array;
mod block;
mod caches;
mod callback;
mod capture;
mod core;
mod end;
mod epochs;
mod events;
mod graph_heap;
mod graphs;
mod grow;
mod handles;
pub mod local;
mod look;
pub mod magazine;
mod mapping;
mod memory_map;
mod miss;
mod miss_step;
mod ordered;
mod pending;
mod placement;
mod populated;
mod ready;
mod recent_owners;
mod remote_frees;
mod request;
mod resize;
mod room;
mod settings;
mod sleep;
mod slot;
mod stats;
mod streams;
mod thread_magazine;
mod trim;
mod upstream;
pub mod upstream_blocks;
mod wait;
mod whole_blocks;

#[cfg(test)]
mod tests;

use aquifer_events as debug_log;
use aquifer_sync as sync;

pub use block::Block;
pub use callback::MAX_CALLS;
pub use core::Pool;
pub use memory_map::{PoolBlock, PoolMap};
pub use miss_step::MissStep;
pub use settings::{Settings, SizeLimits, is_limit};
pub use sleep::MappedPlace;
pub use stats::PoolStatistics;
pub use thread_magazine::ThreadMagazine;
pub use upstream::{
    Failure, MapFailure, Mapped, MappedEnd, MappedMemory, Retry, Unserved, Upstream,
};

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::magazine::{Cached, Limits, Magazine, SizeClasses};
        pub use super::remote_frees::{Freed, RemoteFrees};
        pub use super::{
            Block, Failure, MapFailure, Mapped, MappedEnd, MappedMemory, MappedPlace, MissStep, Pool,
            PoolStatistics, Settings, SizeLimits, Upstream,
        };
    }
}
