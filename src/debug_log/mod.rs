//! What the crate says about itself: [`tracing`] events, and a log file of them.
//!
//! Events are made off the hot path alone: a block that a thread keeps ready costs no look at any
//! subscriber. [`TracedAdaptor`](crate::TracedAdaptor) tells of each allocation, where that is wanted.
//!
//! # What is told
//!
//! | level | target | message | fields |
//! | --- | --- | --- | --- |
//! | `DEBUG` | `aquifer::pool` | `pool made` | `pool`, `device`, `initial`, `maximum` |
//! | `DEBUG` | `aquifer::pool` | `pool grew` | `pool`, `device`, `stream`, `asked`, `bytes`, `reserved`, `elapsed_ns` |
//! | `DEBUG` | `aquifer::pool` | `upstream refused` | `pool`, `device`, `stream`, `asked`, `bytes`, `reserved`, `error` |
//! | `DEBUG` | `aquifer::pool` | `took a block of another stream` | `pool`, `device`, `stream`, `from`, `bytes`, `how` |
//! | `DEBUG` | `aquifer::pool` | `gathered free memory` | `pool`, `device`, `stream`, `asked`, `largest` |
//! | `DEBUG` | `aquifer::pool` | `gave memory back` | `pool`, `device`, `blocks`, `bytes`, `reserved` |
//! | `DEBUG` | `aquifer::pool` | `pool ended` | `pool`, `device`, `blocks`, `bytes`, `leaked` |
//! | `WARN` | `aquifer::pool` | `out of memory` | `pool`, `device`, `asked`, `rungs`, `reserved`, `live`, `largest_free`, `maximum`, `upstream` |
//! | `WARN` | `aquifer::pool` | `refused a stream in capture` | `pool`, `device`, `asked` |
//! | `ERROR` | `aquifer::pool` | `device lost` | `pool`, `device`, `asked`, `error` |
//! | `ERROR` | `aquifer::pool` | `a pool cannot go on` | `pool`, `device`, `asked`, `why` |
//! | `DEBUG` | `aquifer::driver_pool` | `driver pool made`, `driver pool trimmed` | `device`, `handle`, and `initial` or `keep` |
//! | `TRACE` | `aquifer::memory` | `allocate`, `allocate failure`, `free` | see [`TracedAdaptor`](crate::TracedAdaptor) |
//! | `WARN`, `ERROR` | `aquifer::` and the module | what was leaked, freed twice, or could not be done | by the case |
//!
//! `pool` is a number that no other pool of the process has, `device` an ordinal, and `stream` and
//! `from` are what [`Stream::id`](crate::Stream::id) says; `from` is 0 where that stream is gone, and
//! `stream` where the memory is for all streams. Sizes are bytes: `asked` is what the request needs,
//! `bytes` what was moved, `reserved` what the pool has of upstream then. `how` is `complete` (the
//! device had passed its last use), `ordered` (the stream was behind it already) or `waited` (the
//! stream was made to wait). A pool tells once that its device is lost.
//!
//! # What a subscriber may do
//!
//! It is called when the pool's locks are released, on the thread that did what is told, so it may
//! allocate from that pool and free to it; it must not begin a capture. What the crate does inside of
//! a subscriber is not told, so a subscriber that allocates is not called for its own allocations. A
//! subscriber that panics is stopped there: the panic's message goes where messages of panics go, and
//! neither the allocation nor the pool takes notice. One event may be told under a pool's lock, of a
//! block that was freed twice: do not allocate in that one.
//!
//! # Levels
//!
//! Without features all events are compiled in, and cost one look at a flag where nobody listens. The
//! features `log-level-debug`, `log-level-info`, `log-level-warn`, `log-level-error` and
//! `log-level-off` cut what is below out of the program; of several, the one that leaves least wins.
//! They act on this crate alone. `max_level_*` and `release_max_level_*` of the crate `tracing` do
//! the same to the whole program. RMM's `RMM_LOGGING_LEVEL` is the counterpart.
//!
//! # NVTX
//!
//! With the feature `nvtx`, a tool that is injected into the program (by `NVTX_INJECTION64_PATH`, as
//! Nsight Systems does) sees ranges in the domain `aquifer`, whose payload are bytes: `pool: grow`,
//! `pool: gather`, `pool: wait for a stream`, `pool: trim for a request`, and `pool: trim`. Where there
//! is no tool, or it cannot be loaded, nothing happens; what a warm allocation does has no range.
//! The tool is called under locks of the pool and must not call back. RMM has a macro for ranges that
//! it uses nowhere.
//!
//! ## A tool that watches memory
//!
//! A tool that also takes NVTX's memory extension, as compute-sanitizer documents to, is told what pools
//! cut: [`PoolResource`](crate::PoolResource) and the resources that are made of one. Build with the
//! feature and run
//!
//! ```text
//! $ compute-sanitizer --tool memcheck --nvtx yes ./program
//! ```
//!
//! Each block that a pool has of upstream is a heap of the usage *sub-allocator*, named
//! `aquifer pool 17, chunk`; each block that a user has is a region of it, named
//! `aquifer pool 17, stream 16`. To such a tool the rest of a heap is forbidden: an access past a
//! block's end that leaves the block, or after its free, is an error there, which it is not without
//! this. What is told, and when, is shown by a tool that stands in for it in the tests. compute-sanitizer
//! prints names with leaks and unused memory alone, by its manual; its option `--nvtx` is on by itself
//! since CUDA 12.
//!
//! Whether a tool watches is asked once, when the program's first pool is built. compute-sanitizer is
//! ready when CUDA has started, which it has for a pool on a GPU; a first pool on a simulated device may
//! find no tool yet. A pool that is watched is slow:
//!
//! - Threads keep no blocks ready, whatever [`PoolOptions`](crate::PoolOptions) says: the tool hears of
//!   each block.
//! - A free waits until the device has done what the stream was given. What still runs could touch
//!   the block, which is in order and must not be reported. A program in which such work waits for
//!   something that the freeing thread does later stands still. A capture that another thread begins
//!   on the stream at the very moment of the wait may be lost.
//! - A block that was handed out or freed while its stream was in capture stays a region after its
//!   free, since each launch of the graph may use it: until its memory is handed out again outside of
//!   a capture, for which the pool waits, too, or goes back upstream. So does one whose stream could not
//!   be waited for. Uses of those after the free are not seen.
//!
//! A region is what [`DeviceBlock::bytes`](crate::DeviceBlock::bytes) says, so an overrun inside of the
//! last 256 bytes that a size was rounded up to, or of a bin's block, is not seen either. Of a pool over
//! a pool, the blocks of the upper one are regions of the lower one's heap, and its blocks of upstream
//! are nothing to the tool: tools know regions by address, and those would share theirs. Memory whose
//! heap the tool refuses is not watched. By its manual, compute-sanitizer takes what was a heap for
//! forbidden until the driver frees it: a resource of yours below a pool that keeps such memory, and
//! serves it to others than pools, would be reported falsely. In the child of a fork nothing is told. A
//! tool without the extension, and none at all, leave pools as they are. Tools are called under a lock
//! of all pools, too, and must not call back. RMM registers nothing.
//!
//! Neither is made by cudarc's `nvtx`, which loads a library that CUDA 13 has no more and panics without
//! it, nor by NVIDIA's crate `nvtx`, which asks for libclang and a C compiler when it is built.
#![cfg_attr(
    feature = "debug-log",
    doc = "\n# A log file\n\n[`DebugLog`] writes the events to the file that `AQUIFER_DEBUG_LOG_FILE` names."
)]
#![cfg_attr(
    not(feature = "debug-log"),
    doc = "\n# A log file\n\n`DebugLog`, with the feature `debug-log`, writes the events to the file that \
           `AQUIFER_DEBUG_LOG_FILE` names."
)]

#[cfg(feature = "debug-log")]
mod file;
#[cfg(feature = "nvtx")]
mod nvtx;
mod tell;

#[cfg(feature = "debug-log")]
pub use file::DebugLog;
pub(crate) use nvtx::range;
#[cfg(feature = "nvtx")]
pub(crate) use nvtx::{HeapHandle, Memory, memory};
pub(crate) use tell::{LEVEL, POOL, event, hold, is_held, is_wanted, later, tell};

#[cfg(not(feature = "nvtx"))]
mod nvtx {
    /// No range: the feature is off.
    pub(crate) struct Range;

    pub(crate) fn range(_name: &'static std::ffi::CStr, _bytes: usize) -> Range {
        Range
    }
}
