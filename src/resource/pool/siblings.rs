//! The pools of a device. Before one of them refuses a request for want of the device's memory, the others give back what
//! they have free.

use crate::device::Device;
use crate::driver::BackendKind;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;

/// A pool that may be gone.
pub(super) trait Sibling: Send + Sync {
    fn is_gone(&self) -> bool;

    /// The bytes that it has of its upstream.
    fn reserved(&self) -> usize;

    /// Gives free memory back, behind a wait or without. Returns how many bytes went.
    fn trim(&self, waits: bool) -> usize;
}

struct Entry {
    device: (BackendKind, u64),
    number: u64,
    pool: Arc<dyn Sibling>,
}

static POOLS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Has the pool of a number be trimmed where another pool of its device would refuse a request.
pub(super) fn register(device: &Device, number: u64, pool: Arc<dyn Sibling>) {
    let mut pools = POOLS.lock();
    let gone: Vec<Entry> = pools.extract_if(.., |other| other.pool.is_gone()).collect();
    pools.push(Entry { device: device.key(), number, pool });
    drop(pools);
    // Without the lock: the last shares of the pools' own memory.
    drop(gone);
}

/// Has the other pools of a device give back what they have free, for a request of so many bytes: all of it behind a wait for
/// their streams, what the device is past without. Returns whether any did. What is too much for the device costs them
/// nothing.
pub(super) fn trim_others(device: &Device, number: u64, bytes: usize, waits: bool) -> bool {
    let key = device.key();
    let all: Vec<(u64, Arc<dyn Sibling>)> = {
        let pools = POOLS.lock();
        let of_device = pools.iter().filter(|other| other.device == key);
        of_device.map(|other| (other.number, other.pool.clone())).collect()
    };
    // With what the pool itself has: it may be free, and in the way.
    let reserved: usize = all.iter().map(|(_, pool)| pool.reserved()).sum();
    let is_possible = |free: u64| free.saturating_add(reserved as u64) >= bytes as u64;
    if !device.memory_info().is_ok_and(|info| is_possible(info.free)) {
        return false;
    }
    let others = all.iter().filter(|other| other.0 != number);
    others.map(|(_, pool)| pool.trim(waits)).sum::<usize>() > 0
}
