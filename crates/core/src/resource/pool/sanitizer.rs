//! Hooks that register a pool's memory with a tool that takes NVTX's memory extension, as compute-sanitizer does.
//! Blocks of upstream are *heaps*, and users' blocks are *regions* of them. To the tool all else in a heap is
//! forbidden.
//!
//! | event | hook | effect |
//! |---|---|---|
//! | the pool grows | `heap_register` | a heap begins, or a block of a pool below ceases to be a region |
//! | a block is allocated | `region_register` | old regions there end, the block's region begins |
//! | a block is freed | `region_unregister` | waits for the stream, then the region ends |
//! | the pool returns memory | `heap_unregister` | old regions there end, then the heap |
//!
//! - INV-1. A region covers its block from before the device's first access until after the last one. So each block
//!   takes the cold path in and out, and a free waits for its stream.
//! - INV-2. If INV-1 cannot be waited for, in a capture or after a driver's error, the region stays until its memory is
//!   allocated again or returned to upstream, since each launch of a graph may use it.
//! - INV-3. A pool over a pool has the addresses of the lower one. Where that one is followed, the upper one registers no
//!   heaps, and its blocks are regions of the lower one's.
//!
//! The table of heaps and regions is locked over calls of the tool, which so sees the events of an address in order. It is
//! never locked over calls of the driver.

use crate::debug_log::{MemoryExtension, REGISTRATIONS, Registrations, memory_extension};
use crate::device::Device;
use crate::driver::is_forked_child;
use crate::stream::Stream;

/// One pool's hooks.
pub(super) struct SanitizerHooks {
    tool: &'static MemoryExtension,
    device: Device,
}

/// Waits until the device has done all that the stream was given. `false` for a stream in capture, or
/// if the driver refuses.
fn wait_for(stream: &Stream) -> bool {
    // Not `synchronize`, which runs other owners' destructors: they may allocate from another pool,
    // whose locks the caller may have.
    matches!(stream.is_capturing(), Ok(false)) && stream.synchronize_uncaptured().is_ok()
}

impl SanitizerHooks {
    /// `None` if no tool takes the memory extension.
    pub(super) fn find(device: &Device) -> Option<Self> {
        memory_extension().map(|tool| Self { tool, device: device.clone() })
    }

    /// Runs `body` with the device's context current, without which the tool refuses memory. It does nothing in the
    /// child of a fork, where the lock may be held for good, and if the driver refuses.
    fn with_registrations(&self, body: impl FnOnce(&mut Registrations)) {
        if is_forked_child() {
            return;
        }
        let mut body = Some(body);
        let _ = self.device.driver().with_current(&mut || {
            if let Some(body) = body.take() {
                body(&mut REGISTRATIONS.lock());
            }
        });
    }

    /// A block of upstream is the pool's from now on.
    pub(super) fn heap_register(&self, pool: u64, address: u64, bytes: usize) {
        self.with_registrations(|table| table.heap_register(self.tool, address, bytes, pool));
    }

    /// A block of upstream is about to go back, in the order of `stream`.
    pub(super) fn heap_unregister(
        &self,
        pool: u64,
        stream: Option<&Stream>,
        address: u64,
        bytes: usize,
    ) {
        if is_forked_child() {
            return;
        }
        let has_regions = REGISTRATIONS.lock().has_regions(address, bytes);
        if has_regions {
            // Their last work is complete, or in the order of the stream. They end even if the wait
            // fails: the memory has another owner next.
            let _ = stream.is_some_and(wait_for);
        }
        self.with_registrations(|table| table.heap_unregister(self.tool, address, bytes, pool));
    }

    /// A block is about to be a user's, for work on `stream`.
    pub(super) fn region_register(&self, pool: u64, stream: &Stream, address: u64, bytes: usize) {
        if is_forked_child() {
            return;
        }
        let captured = !matches!(stream.is_capturing(), Ok(false));
        let name = format!("aquifer pool {pool}, stream {}", stream.id());
        let has_regions = REGISTRATIONS.lock().has_regions(address, bytes);
        // The stream is ordered after all that used this memory.
        let is_over = !has_regions || wait_for(stream);
        // Looked up again: another thread, with another part of the same old block, may have replaced
        // that one's region meanwhile.
        let block = (address, bytes);
        self.with_registrations(|table| match is_over {
            true => table.region_register(self.tool, block, &name, pool, captured),
            // INV-2: the former use may go on.
            false => table.region_share(self.tool, block, &name, pool),
        });
    }

    /// A block is freed, after what `stream` was given so far.
    pub(super) fn region_unregister(&self, pool: u64, stream: &Stream, address: u64) {
        let ends = REGISTRATIONS.lock().ends_by_free(address, pool);
        if ends && wait_for(stream) {
            self.with_registrations(|table| table.region_unregister(self.tool, address));
        }
    }
}
