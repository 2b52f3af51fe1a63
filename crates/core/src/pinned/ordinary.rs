//! Ordinary memory for [`PinnedAlloc`](crate::PinnedAlloc) where there is no GPU, or where its driver may not be called.
//! A simulated device copies from it as from any memory that is not page-locked.

use crate::debug_log::deferred_event;
use crate::device::asks_for_gpu;
use crate::driver::fork::install_handler;
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::sync::LazyLock;
use crate::sync::trusted::{AtomicBool, Mutex, Ordering};
use allocator_api2::alloc::{Allocator, Global};
use std::alloc::Layout;
use std::collections::HashMap;
use std::io::Write;
use std::ptr::NonNull;
use tracing::dispatcher;
use tracing::subscriber::NoSubscriber;

/// The blocks that are live, by their addresses.
static BLOCKS: LazyLock<Mutex<HashMap<usize, Layout>>> = LazyLock::new(Mutex::default);

/// Whether the warning was given.
static WAS_SAID: AtomicBool = AtomicBool::new(false);

/// A block in place of a page-locked one, which `missing` refuses for the lack of a GPU alone. Any other error stays.
pub(super) fn allocate_without_gpu(missing: Error, layout: Layout) -> Result<NonNull<[u8]>> {
    if !matches!(missing.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) || asks_for_gpu() {
        return Err(missing);
    }
    // A child of a fork is to know: another thread may have the table's lock.
    let _ = install_handler();
    if !WAS_SAID.swap(true, Ordering::Relaxed) {
        let error = missing.to_string();
        // Where no subscriber listens, the event is lost. What cannot be written is no reason to fail.
        if dispatcher::get_default(|subscriber| subscriber.is::<NoSubscriber>()) {
            let text = "aquifer: no GPU: PinnedAlloc uses ordinary memory";
            let _ = writeln!(std::io::stderr(), "{text}: {error}");
        }
        deferred_event!(warn, error, "no GPU: PinnedAlloc uses ordinary memory");
    }
    allocate(layout)
}

/// A block in place of a page-locked one that no driver can be asked for.
pub(super) fn allocate_in_host_function(layout: Layout) -> Result<NonNull<[u8]>> {
    deferred_event!(debug, bytes = layout.size(), "ordinary memory, inside of a host function");
    allocate(layout)
}

fn allocate(layout: Layout) -> Result<NonNull<[u8]>> {
    let block = Global.allocate(layout).map_err(|_| {
        let what = format!("the system has no {} of ordinary memory", Count(layout.size(), "byte"));
        Error::new(ErrorKind::OutOfMemory, what).with_advice("ask for less")
    })?;
    BLOCKS.lock().insert(block.cast::<u8>().expose_provenance().get(), layout);
    Ok(block)
}

/// Frees the block at an address, if there is one. The caller is no child of a fork.
///
/// # Safety
///
/// The block is given up.
pub(super) unsafe fn free(pointer: NonNull<u8>) -> bool {
    let layout = BLOCKS.lock().remove(&pointer.addr().get());
    if let Some(layout) = layout {
        // SAFETY: `allocate_without_gpu` made the block by this layout, and the table had it once.
        unsafe { Global.deallocate(pointer, layout) };
    }
    layout.is_some()
}
