//! Reports to a device that follows pools, in the order of a stream.
//!
//! A report is no call that a gate refuses. It asks nothing of the driver, so it disturbs no capture. Memory that is
//! freed by a thread that a gate refuses is reported, too. A report keeps the stream's handle from being replaced,
//! since a report on the former stream would lie behind the point that the latter one waits for.

use super::handle::Stream;
use crate::debug_log::defer_events;
use crate::driver::DeviceRange;

impl Stream {
    /// A pool hands out a block, for work on this stream.
    pub(crate) fn region_register(&self, pool: u64, region: DeviceRange) {
        if let Some(regions) = self.device().driver().regions() {
            let _events = defer_events();
            self.gate().with_handle(|raw| regions.region_register(pool, region, raw));
        }
    }

    /// A block has another size now, for work on this stream.
    pub(crate) fn region_resize(&self, pool: u64, region: DeviceRange, bytes: usize) {
        if let Some(regions) = self.device().driver().regions() {
            let _events = defer_events();
            self.gate().with_handle(|raw| regions.region_resize(pool, region, bytes, raw));
        }
    }

    /// A pool takes a block back, after what this stream was given so far.
    pub(crate) fn region_unregister(&self, pool: u64, region: DeviceRange, kept_for_graph: bool) {
        if let Some(regions) = self.device().driver().regions() {
            let _events = defer_events();
            self.gate()
                .with_handle(|raw| regions.region_unregister(pool, region, raw, kept_for_graph));
        }
    }
}
