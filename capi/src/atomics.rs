//! The atomics, the lock and the fences of what loom explores: `loom_tests/c_library.rs` has its own in this place.

pub(crate) use aquifer_rs::barrier;
pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{
    AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
