//! Events of the crates: never under a lock of a pool, never from within another event, and whatever a subscriber does.
//! Ranges for a tool that is injected into the program.

mod catch;
mod emit;
#[cfg(feature = "nvtx")]
mod nvtx;

pub use catch::{catch_panic, catch_panic_text};
pub use emit::{
    DeferEvents, LEVEL, POOL, defer_events, defer_events_under_lock, emit, emit_deferred,
    is_deferring, is_enabled,
};
pub use nvtx::range;
#[cfg(feature = "nvtx")]
pub use nvtx::{HeapHandle, MemoryExtension, memory_extension};
pub use tracing;

use std::ffi::OsString;

#[cfg(not(feature = "nvtx"))]
mod nvtx {
    /// No range, without the feature.
    pub struct Range;

    pub fn range(_name: &'static std::ffi::CStr, _bytes: usize) -> Range {
        Range
    }
}

/// What a variable of the environment says. One that is empty says nothing.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
