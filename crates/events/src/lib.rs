//! Events of the crates: never under a lock of a pool, never from within another event, and whatever a subscriber does.
//! Ranges for a tool that is injected into the program.

mod catch;
mod emit;
mod environment;
mod target;

#[cfg(feature = "nvtx")]
pub use aquifer_nvtx::{MemoryExtension, REGISTRATIONS, Registrations, memory_extension, range};
pub use catch::{catch_panic, catch_panic_text};
pub use emit::{
    DeferEvents, LEVEL, POOL, defer_events, defer_events_under_lock, emit, emit_deferred,
    is_deferring, is_enabled,
};
pub use environment::variable;
#[cfg(not(feature = "nvtx"))]
pub use nvtx::range;
pub use target::{target_bytes, target_length, target_text};
pub use tracing;

#[cfg(not(feature = "nvtx"))]
mod nvtx {
    /// No range, without the feature.
    pub struct Range;

    pub fn range(_name: &'static std::ffi::CStr, _bytes: usize) -> Range {
        Range
    }
}
