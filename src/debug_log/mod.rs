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
//! No memory is registered by NVTX's memory extension, so compute-sanitizer sees a pool's upstream
//! blocks and not what is cut from them; RMM registers nothing either. A tool that is told of a pool
//! takes all of its memory for forbidden but the blocks that are registered, so each allocation would
//! have to be, warm ones too: that is work for an adaptor, not for the pool, and there is none yet. To
//! check accesses, allocate from [`CudaResource`](crate::CudaResource) meanwhile. The ranges are not
//! made by cudarc's `nvtx`, which loads a library that CUDA 13 has no more and panics without it, nor
//! by NVIDIA's crate `nvtx`, which asks for libclang and a C compiler when it is built.
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
