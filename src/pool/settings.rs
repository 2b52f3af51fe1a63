//! What a pool is built with.

use super::miss_step::MissStep;

/// Checked values.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Never more bytes of upstream than this.
    pub maximum: usize,
    /// `MissStep::Grow` stays under this.
    pub soft_limit: usize,
    /// Bytes to grow by; by a part of what is live, if 0.
    pub growth_step: usize,
    /// What every block is aligned to and a multiple of: 256 bytes at least.
    pub alignment: u64,
    pub steps: Vec<MissStep>,
    pub entries: u8,
    pub cached_bytes: usize,
    /// Magazines are in the threads' lists alone, not in their tables: each block passes the slow way.
    pub listed: bool,
}

impl Settings {
    /// Whether a user set a maximum. Without one it is the most that a size can be, or a little less.
    pub fn has_maximum(&self) -> bool {
        self.maximum <= isize::MAX as usize / 2
    }
}
