//! The driver's memory pools, with their settings and their counts.
//!
//! A pool of a simulated device caches nothing, so its reserved bytes are those in use.

use aquifer_driver::PoolAttribute;

#[derive(Debug)]
pub(crate) struct SimPool {
    pub(crate) device: u64,
    pub(crate) shareable: bool,
    /// The first four [`PoolAttribute`]s, in the order of their numbers.
    settings: [u64; 4],
    used: u64,
    high: u64,
}

impl SimPool {
    /// A pool as a driver makes it, with every way of reuse allowed.
    pub(crate) fn new(device: u64, release_threshold: u64, shareable: bool) -> Self {
        Self { device, shareable, settings: [1, 1, 1, release_threshold], used: 0, high: 0 }
    }

    pub(crate) fn get(&self, attribute: PoolAttribute) -> u64 {
        match attribute {
            PoolAttribute::FollowEventDependencies
            | PoolAttribute::AllowOpportunistic
            | PoolAttribute::AllowInternalDependencies
            | PoolAttribute::ReleaseThreshold => self.settings[attribute as usize - 1],
            PoolAttribute::ReservedCurrent | PoolAttribute::UsedCurrent => self.used,
            PoolAttribute::ReservedHigh | PoolAttribute::UsedHigh => self.high,
        }
    }

    /// A setting that can be changed. `None` for a count.
    pub(crate) fn setting_mut(&mut self, attribute: PoolAttribute) -> Option<&mut u64> {
        self.settings.get_mut(attribute as usize - 1)
    }

    pub(crate) fn allocate(&mut self, bytes: u64) {
        self.used = self.used.saturating_add(bytes);
        self.high = self.high.max(self.used);
    }

    pub(crate) fn deallocate(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}
