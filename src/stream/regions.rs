//! What a device that follows pools is told in the order of a stream.
//!
//! It passes no gate: nothing is asked of the driver, so no capture is disturbed, and what is freed by a
//! thread that a gate refuses is told too.

use super::handle::Stream;
use crate::driver::DeviceRange;

impl Stream {
    /// A pool hands out a block, for work on this stream.
    pub(crate) fn region_register(&self, pool: u64, region: DeviceRange) {
        if let Some(regions) = self.device().driver().regions() {
            regions.region_register(pool, region, self.raw());
        }
    }

    /// A pool takes a block back, after what this stream was given so far.
    pub(crate) fn region_unregister(&self, pool: u64, region: DeviceRange, kept_for_graph: bool) {
        if let Some(regions) = self.device().driver().regions() {
            regions.region_unregister(pool, region, self.raw(), kept_for_graph);
        }
    }
}
