//! What a pool is built with.

use super::miss_step::MissStep;
use crate::sync::trusted::{AtomicUsize, Ordering};
use std::borrow::Cow;

/// Checked values.
#[derive(Debug)]
pub struct Settings {
    pub limits: SizeLimits,
    /// Bytes to grow by; by a part of what is live, if 0.
    pub growth_step: usize,
    /// What every block is aligned to and a multiple of: 256 bytes at least.
    pub alignment: u64,
    pub steps: Cow<'static, [MissStep]>,
    pub entries: u8,
    pub cached_bytes: usize,
    /// Magazines are in the threads' lists alone, not in their tables: each block passes the slow way.
    pub listed: bool,
}

/// How much a pool may hold. May change while the pool is used, for the misses that begin later.
///
/// Relaxed throughout: nothing else depends on the numbers.
#[derive(Debug)]
pub struct SizeLimits {
    maximum: AtomicUsize,
    soft_limit: AtomicUsize,
    release_threshold: AtomicUsize,
}

impl SizeLimits {
    pub fn new(maximum: usize, soft_limit: usize) -> Self {
        Self {
            maximum: AtomicUsize::new(maximum),
            soft_limit: AtomicUsize::new(soft_limit),
            release_threshold: AtomicUsize::new(usize::MAX),
        }
    }

    /// Never more bytes of upstream than this, but for what a larger maximum allowed before.
    pub fn maximum(&self) -> usize {
        self.maximum.load(Ordering::Relaxed)
    }

    /// Whether a user set a maximum. Without one it is the most that a size can be, or a little less.
    pub fn has_maximum(&self) -> bool {
        is_limit(self.maximum())
    }

    pub fn set_maximum(&self, bytes: usize) {
        self.maximum.store(bytes, Ordering::Relaxed);
    }

    /// `MissStep::Grow` stays under this.
    pub fn soft_limit(&self) -> usize {
        self.soft_limit.load(Ordering::Relaxed).min(self.maximum())
    }

    pub fn set_soft_limit(&self, bytes: usize) {
        self.soft_limit.store(bytes, Ordering::Relaxed);
    }

    /// Free memory above this goes back where the program has waited for the device.
    pub fn release_threshold(&self) -> usize {
        self.release_threshold.load(Ordering::Relaxed)
    }

    pub fn set_release_threshold(&self, bytes: usize) {
        self.release_threshold.store(bytes, Ordering::Relaxed);
    }
}

/// Whether a number of bytes limits anything.
pub fn is_limit(bytes: usize) -> bool {
    bytes <= isize::MAX as usize / 2
}
