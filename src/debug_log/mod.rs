//! The crate's [`tracing`](https://docs.rs/tracing) events, and a log file of them.
//!
//! Events are emitted off the hot path alone, so an allocation from a thread's magazine does not look
//! at the subscriber. [`TracedAdaptor`](crate::mr::TracedAdaptor) emits an event for each allocation.
//!
//! # Events
//!
//! | level | target | message | fields |
//! | --- | --- | --- | --- |
//! | `DEBUG` | `aquifer::pool` | `pool made` | `pool`, `device`, `initial`, `maximum` |
//! | `DEBUG` | `aquifer::pool` | `pool grew` | `pool`, `device`, `stream`, `asked`, `bytes`, `reserved`, `elapsed_ns` |
//! | `DEBUG` | `aquifer::pool` | `mapped memory` | `pool`, `device`, `stream`, `asked`, `moved`, `new`, `reserved`, `elapsed_ns` |
//! | `DEBUG` | `aquifer::pool` | `upstream refused` | `pool`, `device`, `stream`, `asked`, `bytes`, `reserved`, `error` |
//! | `DEBUG` | `aquifer::pool` | `took a block of another stream` | `pool`, `device`, `stream`, `from`, `bytes`, `how` |
//! | `DEBUG` | `aquifer::pool` | `gathered free memory` | `pool`, `device`, `stream`, `asked`, `largest` |
//! | `DEBUG` | `aquifer::pool` | `gave memory back` | `pool`, `device`, `blocks`, `bytes`, `reserved` |
//! | `DEBUG` | `aquifer::pool` | `pool ended` | `pool`, `device`, `blocks`, `bytes`, `leaked` |
//! | `WARN` | `aquifer::pool` | `out of memory` | `pool`, `device`, `asked`, `steps`, `reserved`, `live`, `pending`, `largest_free`, `maximum`, `device_free`, `device_total`, `others_reserved`, `others_free`, `upstream` |
//! | `WARN` | `aquifer::pool` | `refused a stream in capture` | `pool`, `device`, `asked` |
//! | `ERROR` | `aquifer::pool` | `device lost` | `pool`, `device`, `asked`, `error` |
//! | `ERROR` | `aquifer::pool` | `a pool cannot go on` | `pool`, `device`, `asked`, `why` |
//! | `DEBUG` | `aquifer::driver_pool` | `driver pool made`, `driver pool trimmed` | `device`, `handle`, and `initial` or `keep` |
//! | `DEBUG` | `aquifer::ipc` | `opened memory of another process`, `closed memory of another process` | `device`, `bytes`, `process` |
//! | `TRACE` | `aquifer::memory` | `allocate`, `allocate failure`, `resize`, `free` | see [`TracedAdaptor`](crate::mr::TracedAdaptor) |
//! | `WARN`, `ERROR` | `aquifer::` and the module | what was leaked, freed twice, or could not be done | by the case |
//!
//! `pool` is a number that no other pool of the process has, and `device` is an ordinal. `stream` and
//! `from` are what [`Stream::id`](crate::Stream::id) returns. `from` is 0 where that stream is gone,
//! and `stream` is 0 where the memory is for all streams. Sizes are bytes. `asked` is the size that
//! the request needs, `bytes` is the size that was moved, and `reserved` is the size that the pool has
//! of upstream then. For mapped memory, `moved` is the size that came from elsewhere in the pool, and
//! `new` is the size from upstream. `how` is one of three words:
//!
//! - `complete`, if the device had passed the last use of the block
//! - `ordered`, if the stream was behind that use already
//! - `waited`, if the stream was made to wait for it
//!
//! A pool emits `device lost` once.
//!
//! # What a subscriber may do
//!
//! The crate calls the subscriber after it has released the pool's locks, on the thread that caused the
//! event. So a subscriber may allocate from that pool and free to it, but must not begin a capture.
//! The crate emits nothing from inside of a subscriber, so one that allocates is not called for its
//! own allocations. A panic of the subscriber is stopped there. Its message goes where messages of
//! panics go, and neither the allocation nor the pool is affected.
//!
//! # Levels
//!
//! Without features all events are compiled in, and cost one look at a flag without a subscriber. The
//! features `log-level-debug`, `log-level-info`, `log-level-warn`, `log-level-error` and
//! `log-level-off` cut lower levels out of the program. Of several features, the one that leaves least
//! wins. They act on this crate alone. `max_level_*` and `release_max_level_*` of the crate `tracing`
//! act on the whole program. RMM's `RMM_LOGGING_LEVEL` is the counterpart.
//!
//! # NVTX
//!
//! With the feature `nvtx`, a tool that is injected into the program sees ranges in the domain
//! `aquifer`. Nsight Systems injects its tool by `NVTX_INJECTION64_PATH`. The ranges are
//! `pool: grow`, `pool: map`, `pool: gather`, `pool: wait for a stream`, `pool: trim for a request`,
//! `pool: trim`, and `pool: wait and trim`. Their payload is a number of bytes. An
//! allocation from a magazine has no range. Without a tool, or if it cannot be loaded, nothing happens.
//! The tool is called under locks of the pool and must not call back. RMM has a macro for ranges that
//! it uses nowhere.
//!
//! ## The memory extension
//!
//! For a tool that takes NVTX's memory extension, as compute-sanitizer documents to,
//! [`PoolResource`](crate::PoolResource) and the resources made of one register their blocks. Build with
//! the feature and run
//!
//! ```text
//! $ compute-sanitizer --tool memcheck --nvtx yes ./program
//! ```
//!
//! Each block that a pool has of upstream is a heap of the usage *sub-allocator*, named
//! `aquifer pool 17, chunk`. Each block that a user has is a region of it, named
//! `aquifer pool 17, stream 16`. The rest of a heap is forbidden to such a tool. So it reports an access that
//! leaves its block at the end, or that comes after the free. Without the extension it does not. A mock
//! tool in the tests shows which calls are made, and when. A pool over a
//! [`VirtualResource`](crate::mr::VirtualResource) registers nothing, since compute-sanitizer refuses heaps in mapped
//! memory. Over an adaptor around one, or over such a pool, a pool registers
//! heaps, and the tool warns. By its manual, compute-sanitizer prints
//! names with leaks and unused memory alone. Its option `--nvtx` is on by default since CUDA 12.
//!
//! The crate looks for the tool once, when the program's first pool is built. compute-sanitizer is
//! ready when CUDA has started, as it has for a pool on a GPU. A first pool on a simulated device may
//! find no tool yet. With such a tool a pool is slow, for these reasons:
//!
//! - Threads have no magazines, whatever [`PoolOptions`](crate::mr::PoolOptions) says,
//!   since each block is registered.
//! - A free waits until the device has done the work that the stream was given. Work that still runs may
//!   access the block, and must not be reported. A program in which such work waits for something that the
//!   freeing thread does later stands still. A capture that another thread begins on the stream at the
//!   very moment of the wait may be lost.
//! - A block that was allocated or freed while its stream was in capture stays a region after
//!   its free, since each launch of the graph may use it. It does so until its memory goes back
//!   upstream, or is allocated again outside of a capture. The pool waits for that, too. A
//!   block whose stream could not be waited for stays a region in the same way. Accesses to
//!   those after the free are not reported.
//!
//! A region has the size of [`DeviceBlock::bytes`](crate::DeviceBlock::bytes), which is just the
//! size that was asked of such a pool. For a bin it is the whole block, so an overrun inside of
//! that is not reported either. In a pool over a pool, the blocks of the upper one are regions of
//! the lower one's heap. Its blocks of upstream are not registered, since tools know regions by
//! address, and those would share theirs. Memory whose heap the tool refuses is not checked. By
//! its manual, compute-sanitizer takes memory that was a heap for forbidden until the driver
//! frees it. If a resource of yours below a pool keeps such memory, and serves it to others than
//! pools, their accesses would be reported falsely. In the child of a fork the tool is not
//! called. A tool without the extension, and none at all, leave pools as they are. Tools are called
//! under a lock of all pools, too, and must not call back. RMM registers nothing.
//!
//! The crate uses neither cudarc's `nvtx` nor NVIDIA's crate `nvtx`. The former loads a
//! library that CUDA 13 has no more, and panics without it. The latter asks for libclang
//! and a C compiler when it is built.
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

#[cfg(feature = "debug-log")]
pub use file::DebugLog;
