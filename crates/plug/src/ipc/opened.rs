//! The allocations of other processes that are open in this one, each opened once and counted.
//!
//! | lock | guards | taken under |
//! | --- | --- | --- |
//! | the table | which allocations are open, and where | an entry's; a leaf |
//! | an entry's | its count; held while the driver opens or closes this allocation, for which others that want the same allocation wait | none |

use super::ipc_handle::IpcKind;
use crate::debug_log::defer_events;
use crate::device::Device;
use crate::driver::{BackendKind, DeviceAddress, DeviceRange, DriverResult, IpcBytes, RawPool};
use crate::inside::DeviceInside;
use crate::sync::trusted::Mutex;
use crate::sync::{Arc, LazyLock};
use std::any::Any;
use std::collections::HashMap;

/// An allocation as one device of this process opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    device: (BackendKind, u64),
    kind: IpcKind,
    /// The imported pool, 0 without one.
    pool: u64,
    exported: IpcBytes,
}

#[derive(Default)]
struct Slot {
    entry: Arc<Mutex<Entry>>,
    /// The place of the allocation in this process, while it is open.
    range: Option<DeviceRange>,
}

#[derive(Default)]
struct Entry {
    /// Openings that are not closed. Not zero while `open` is there.
    count: usize,
    open: Option<Open>,
}

#[derive(Clone, Copy)]
struct Open {
    base: DeviceAddress,
    range: DeviceRange,
}

static OPENED: LazyLock<Mutex<HashMap<Key, Slot>>> = LazyLock::new(Mutex::default);

/// The way in which an allocation is opened.
pub(super) enum Source<'a> {
    Plain,
    /// By an imported pool, which is kept until the opening is closed.
    #[cfg_attr(not(unix), allow(dead_code, reason = "pools come by descriptors of Unix"))]
    Pool(RawPool, &'a Arc<dyn Any + Send + Sync>),
}

/// One opening of an allocation, to be given to [`close`](Self::close). One that is forgotten stays
/// open. It must not be dropped, which would give up its pool alone.
pub(super) struct Opening {
    key: Key,
    device: Device,
    entry: Arc<Mutex<Entry>>,
    /// The allocation, in this process.
    pub(super) range: DeviceRange,
    /// The address where the driver put the memory that the handle names.
    pub(super) base: DeviceAddress,
    _pool: Option<Arc<dyn Any + Send + Sync>>,
}

impl Opening {
    /// Opens an allocation, or counts another opening of it.
    pub(super) fn new(
        device: &Device,
        source: Source<'_>,
        exported: &IpcBytes,
    ) -> DriverResult<Self> {
        // Before the lock: a subscriber may open memory.
        let _events = defer_events();
        let (kind, pool, keep) = match source {
            Source::Plain => (IpcKind::Plain, RawPool(0), None),
            Source::Pool(pool, keep) => (IpcKind::Pool, pool, Some(keep.clone())),
        };
        let key = Key { device: device.key(), kind, pool: pool.0, exported: *exported };
        let entry = OPENED.lock().entry(key).or_default().entry.clone();
        let mut held = entry.lock();
        let opened = match held.open {
            Some(open) => Ok(open),
            None => open(device, pool, &key),
        };
        let Open { base, range } = match opened {
            Ok(open) => open,
            Err(error) => {
                drop(held);
                forget_unused(&key, entry);
                return Err(error);
            }
        };
        held.open = Some(Open { base, range });
        held.count += 1;
        if let Some(slot) = OPENED.lock().get_mut(&key) {
            slot.range = Some(range);
        }
        drop(held);
        Ok(Self { key, device: device.clone(), entry, range, base, _pool: keep })
    }

    /// Closes it. The last one closes the allocation.
    ///
    /// # Safety
    ///
    /// No work that uses the memory by this opening is pending.
    pub(super) unsafe fn close(self) -> DriverResult<()> {
        let _events = defer_events();
        let mut held = self.entry.lock();
        held.count = held.count.saturating_sub(1);
        if held.count > 0 {
            return Ok(());
        }
        let Some(open) = held.open.take() else { return Ok(()) };
        // No longer another process's: an address that is closed may be this process's next allocation.
        if let Some(slot) = OPENED.lock().get_mut(&self.key) {
            slot.range = None;
        }
        // SAFETY: the driver gave `base` for this entry, which has it no more; the caller and those of all
        // other openings vouch for the work.
        let closed = unsafe { close(&self.device, self.key.kind, open.base) };
        drop(held);
        forget_unused(&self.key, self.entry);
        closed
    }
}

fn open(device: &Device, pool: RawPool, key: &Key) -> DriverResult<Open> {
    let driver = device.driver();
    let base = match key.kind {
        IpcKind::Plain => driver.ipc_open(&key.exported),
        IpcKind::Pool => driver.pool_import_pointer(pool, &key.exported),
    }?;
    match driver.allocation_range(base) {
        Ok(range) => Ok(Open { base, range }),
        Err(error) => {
            // SAFETY: opened above, and no work knows of it.
            let _ = unsafe { close(device, key.kind, base) };
            Err(error)
        }
    }
}

/// # Safety
///
/// `base` was opened in this way, is closed once, and no work that uses it is pending.
unsafe fn close(device: &Device, kind: IpcKind, base: DeviceAddress) -> DriverResult<()> {
    let driver = device.driver();
    match kind {
        // SAFETY: the caller's contract.
        IpcKind::Plain => unsafe { driver.ipc_close(base) },
        // SAFETY: the caller's contract.
        IpcKind::Pool => unsafe { driver.pool_close_pointer(base) },
    }
}

/// Gives up an entry, and takes it out of the table unless someone else has it.
fn forget_unused(key: &Key, entry: Arc<Mutex<Entry>>) {
    let mut table = OPENED.lock();
    drop(entry);
    // Others get the entry under the lock of the table alone, so one that is the table's alone stays so.
    let is_unused = |slot: &Slot| slot.range.is_none() && Arc::strong_count(&slot.entry) == 1;
    if table.get(key).is_some_and(is_unused) {
        table.remove(key);
    }
}

/// Whether an address of this process lies in an allocation of another one.
pub(super) fn is_inside(device: &Device, address: DeviceAddress) -> bool {
    let key = device.key();
    OPENED.lock().iter().any(|(opened, slot)| {
        let inside = |range: DeviceRange| {
            address.checked_sub(range.address).is_some_and(|at| at < range.bytes as u64)
        };
        opened.device == key && slot.range.is_some_and(inside)
    })
}

/// The number of openings of an allocation that `device` has.
pub(super) fn count(device: &Device, kind: IpcKind, exported: &IpcBytes) -> usize {
    let key = device.key();
    let is_it =
        |opened: &Key| (opened.device, opened.kind, opened.exported) == (key, kind, *exported);
    let entries: Vec<_> = OPENED
        .lock()
        .iter()
        .filter(|(opened, _)| is_it(opened))
        .map(|(opened, slot)| (*opened, slot.entry.clone()))
        .collect();
    let mut all = 0;
    for (opened, entry) in entries {
        all += entry.lock().count;
        forget_unused(&opened, entry);
    }
    all
}
