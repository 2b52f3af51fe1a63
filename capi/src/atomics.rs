//! The atomics of what loom explores: `loom_tests/c_library.rs` has its own in this place.

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
