//! The amount of managed memory that the process may have of a device.
//!
//! The driver counts a managed page where it lies, and an untouched page lies nowhere. So free memory
//! does not tell how much has been promised already. All resources of one device share a quota, with
//! the sizes of their live blocks and a limit on the sum.
//!
//! | event | `used` | `live` | `freeing` | `freed` | `limit` |
//! |---|---|---|---|---|---|
//! | [`begin_allocate`](ManagedQuota::begin_allocate), before the driver's allocation | + bytes | + bytes | | | |
//! | [`end_allocate`](ManagedQuota::end_allocate), after it | | - bytes | | | |
//! | [`insert`](ManagedQuota::insert), of the block that it gave | | + bytes | | | |
//! | [`begin_free`](ManagedQuota::begin_free), before the driver's free | | - bytes | + bytes | | |
//! | [`end_free`](ManagedQuota::end_free), after it | | | - bytes | + bytes | |
//! | [`update`](ManagedQuota::update), with the free memory | 0 | | | 0 | what the device has for managed memory |

use crate::device::Device;
use crate::driver::BackendKind;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use std::collections::{BTreeMap, HashMap};

/// The managed memory of one device, in bytes.
#[derive(Debug, Default)]
pub(super) struct ManagedQuota {
    /// Sizes of the live blocks, by the driver's address.
    blocks: HashMap<u64, u64>,
    /// The sum of `blocks`, and of what the driver is allocating.
    live: u64,
    /// The most that `live` may become. It is the memory that was free when `live` was 0, plus the
    /// memory that other users of the device have freed since.
    limit: u64,
    /// Free memory at the last update.
    last_free: u64,
    /// Bytes that were freed since the last update.
    freed: u64,
    /// Bytes that the driver is freeing.
    freeing: u64,
    /// Bytes that were asked for since the last update.
    used: u64,
}

type QuotaMap = BTreeMap<(bool, u64), Arc<Mutex<ManagedQuota>>>;

static QUOTAS: Mutex<QuotaMap> = Mutex::new(BTreeMap::new());

impl ManagedQuota {
    /// The process's quota of a device.
    pub(super) fn of_device(device: &Device) -> Arc<Mutex<Self>> {
        let (backend, context_id) = device.key();
        let mut quotas = QUOTAS.lock();
        // A program may make any number of simulated devices.
        quotas.retain(|_, quota| Arc::strong_count(quota) > 1 || quota.lock().live > 0);
        quotas.entry((backend == BackendKind::Simulated, context_id)).or_default().clone()
    }

    /// Updates the limit by the memory that is free now. The caller has the lock of the quota since
    /// before it asked the driver.
    pub(super) fn update(&mut self, free: u64) {
        if self.live == 0 && self.freeing == 0 {
            self.limit = free;
        } else {
            // A rise that is not ours comes from other users. It may or may not include what the
            // driver is just freeing for us: that is not counted as theirs.
            let rise = free.saturating_sub(self.last_free);
            let by_others = rise.saturating_sub(self.freed).saturating_sub(self.freeing);
            let limit = self.limit.saturating_add(by_others).max(free);
            // All of ours may lie on the device, but no more than that.
            let ours = self.live.saturating_add(self.freeing);
            self.limit = limit.min(free.saturating_add(ours));
        }
        (self.last_free, self.freed, self.used) = (free, 0, 0);
    }

    /// Whether `bytes` more fit, as of the last update.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let sum = self.live.checked_add(bytes);
        bytes <= self.last_free && sum.is_some_and(|sum| sum <= self.limit)
    }

    /// Whether the last update suffices to say that `bytes` more fit. It does while no more than a
    /// sixteenth of the memory that was free then has been asked for since.
    pub(super) fn has_room_surely(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes) <= self.last_free / 16 && self.has_room(bytes)
    }

    /// Counts a block that the driver is about to allocate.
    pub(super) fn begin_allocate(&mut self, bytes: u64) {
        self.used = self.used.saturating_add(bytes);
        self.live = self.live.saturating_add(bytes);
    }

    /// Notes that the driver's allocation has returned.
    pub(super) fn end_allocate(&mut self, bytes: u64) {
        self.live = self.live.saturating_sub(bytes);
    }

    /// Bytes in live blocks.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Adds a block that the driver has allocated.
    pub(super) fn insert(&mut self, address: u64, bytes: u64) {
        let before = self.blocks.insert(address, bytes).unwrap_or(0);
        self.live = self.live.saturating_sub(before).saturating_add(bytes);
    }

    /// Removes a block that the driver is about to free, since the address may be allocated again
    /// before the call returns. Returns the size, for [`end_free`](Self::end_free).
    pub(super) fn begin_free(&mut self, address: u64) -> u64 {
        let bytes = self.blocks.remove(&address).unwrap_or(0);
        self.live = self.live.saturating_sub(bytes);
        self.freeing = self.freeing.saturating_add(bytes);
        bytes
    }

    /// Notes that the driver's free has returned.
    pub(super) fn end_free(&mut self, bytes: u64) {
        self.freeing = self.freeing.saturating_sub(bytes);
        self.freed = self.freed.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests;
