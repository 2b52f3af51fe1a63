//! The followers of a pool's memory, which are a tool of NVTX's memory extension, the simulated device, or both.
//!
//! A pool that is followed has no magazine in a thread's table (`Settings::listed`), so each block passes the slow way,
//! where the hooks are. Its blocks have exactly the requested bytes, so that an access to the rest of a unit is past
//! the block's end.

#[cfg(feature = "nvtx")]
use super::sanitizer::SanitizerHooks;
use crate::device::Device;
use crate::driver::DeviceRange;
use crate::stream::Stream;
use crate::sync::OnceLock;

/// The hooks of a pool that is followed.
pub(super) struct MemoryHooks {
    #[cfg(feature = "nvtx")]
    tool: Option<SanitizerHooks>,
    /// The pool's device, if it follows pools.
    device: Option<Device>,
    /// The pool's number, which it gets after its driver is made.
    pool: OnceLock<u64>,
}

impl MemoryHooks {
    /// `None` if nothing follows pools of this device. A tool follows no pool over mapped memory (`is_mapped`), in which
    /// compute-sanitizer of CUDA 13.0 refused each heap on an H200.
    pub(super) fn find(device: &Device, is_mapped: bool) -> Option<Self> {
        #[cfg(not(feature = "nvtx"))]
        let _ = is_mapped;
        let hooks = Self {
            #[cfg(feature = "nvtx")]
            tool: SanitizerHooks::find(device).filter(|_| !is_mapped),
            device: device.driver().regions().map(|_| device.clone()),
            pool: OnceLock::new(),
        };
        (hooks.has_tool() || hooks.device.is_some()).then_some(hooks)
    }

    /// Whether a tool takes the memory extension. The pool has no magazines at all then, since a free waits for its
    /// stream.
    pub(super) fn has_tool(&self) -> bool {
        #[cfg(feature = "nvtx")]
        return self.tool.is_some();
        #[cfg(not(feature = "nvtx"))]
        false
    }

    /// Sets the pool's number.
    pub(super) fn set_pool(&self, number: u64) {
        let _ = self.pool.set(number);
    }

    fn pool(&self) -> u64 {
        self.pool.get().copied().unwrap_or(0)
    }

    /// A block of upstream is the pool's from now on.
    pub(super) fn heap_register(&self, address: u64, bytes: usize) {
        #[cfg(feature = "nvtx")]
        if let Some(tool) = &self.tool {
            tool.heap_register(self.pool(), address, bytes);
        }
        if let Some(regions) = self.device.as_ref().and_then(|device| device.driver().regions()) {
            regions.heap_register(self.pool(), DeviceRange { address, bytes });
        }
    }

    /// A block of upstream is about to go back, in the order of `stream`.
    pub(super) fn heap_unregister(&self, stream: Option<&Stream>, address: u64, bytes: usize) {
        #[cfg(feature = "nvtx")]
        if let Some(tool) = &self.tool {
            tool.heap_unregister(self.pool(), stream, address, bytes);
        }
        #[cfg(not(feature = "nvtx"))]
        let _ = stream;
        if let Some(regions) = self.device.as_ref().and_then(|device| device.driver().regions()) {
            regions.heap_unregister(self.pool(), DeviceRange { address, bytes });
        }
    }

    /// A block is about to be a user's, for work on `stream`.
    pub(super) fn region_register(&self, stream: &Stream, address: u64, bytes: usize) {
        #[cfg(feature = "nvtx")]
        if let Some(tool) = &self.tool {
            tool.region_register(self.pool(), stream, address, bytes);
        }
        if self.follows(stream) {
            stream.region_register(self.pool(), DeviceRange { address, bytes });
        }
    }

    /// A block is freed, after what `stream` was given so far.
    pub(super) fn region_unregister(
        &self,
        stream: &Stream,
        address: u64,
        bytes: usize,
        kept_for_graph: bool,
    ) {
        #[cfg(feature = "nvtx")]
        if let Some(tool) = &self.tool {
            tool.region_unregister(self.pool(), stream, address);
        }
        if self.follows(stream) {
            let region = DeviceRange { address, bytes };
            stream.region_unregister(self.pool(), region, kept_for_graph);
        }
    }

    /// A block has another size now, for work on `stream`. The bytes that it loses are free after all that the stream
    /// was given so far.
    pub(super) fn region_resize(&self, stream: &Stream, address: u64, bytes: usize, new: usize) {
        if self.follows(stream) {
            stream.region_resize(self.pool(), DeviceRange { address, bytes }, new);
        }
    }

    /// Whether the device follows the pool.
    pub(super) fn follow_device(&self) -> bool {
        self.device.is_some()
    }

    /// Whether the device follows the pool, and the stream is of that device.
    fn follows(&self, stream: &Stream) -> bool {
        self.device.as_ref() == Some(stream.device())
    }
}
