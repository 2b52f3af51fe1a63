//! The pools of a device. Before one of them refuses a request for want of the device's memory, the others give back
//! their free memory.

use crate::device::Device;
use crate::driver::BackendKind;
use crate::resource::external;
use crate::stream::deferred::holds_buffers;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;

/// A pool that may be gone.
pub(super) trait Sibling: Send + Sync {
    fn is_gone(&self) -> bool;

    /// The bytes that it has of its upstream.
    fn reserved(&self) -> usize;

    /// The bytes of these that are free.
    fn free(&self) -> usize;

    /// Gives free memory back that the device is past. Returns how many bytes went.
    fn trim(&self) -> usize;

    /// The time since when free memory is pending, as a number that is comparable between pools. `None` if none is.
    fn pending_since(&self) -> Option<u64>;

    /// Waits for the streams that freed memory, one after the other, and gives it back, until `is_served`. That is
    /// asked each time that some memory went. Returns its last answer.
    fn wait_and_trim_until(&self, is_served: &mut dyn FnMut() -> bool) -> bool;
}

struct Entry {
    device: (BackendKind, u64),
    number: u64,
    pool: Arc<dyn Sibling>,
}

static POOLS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Registers the pool of a number, to be trimmed when another pool of its device would refuse a request.
pub(super) fn register(device: &Device, number: u64, pool: Arc<dyn Sibling>) {
    let mut pools = POOLS.lock();
    let gone: Vec<Entry> = pools.extract_if(.., |other| other.pool.is_gone()).collect();
    pools.push(Entry { device: device.key(), number, pool });
    drop(pools);
    // Without the lock: the last shares of the pools' own memory.
    drop(gone);
}

/// Whether the thread is in a call of a memory manager, or of a resource around a pool. It may have their locks then.
/// The outermost pool asks others, and the callback.
pub(super) fn is_nested() -> bool {
    holds_buffers() || external::is_inside()
}

/// The pools of a device, with their numbers.
fn pools_of(device: &Device) -> Vec<(u64, Arc<dyn Sibling>)> {
    let key = device.key();
    let pools = POOLS.lock();
    let of_device = pools.iter().filter(|other| other.device == key);
    of_device.map(|other| (other.number, other.pool.clone())).collect()
}

/// The memory of the other pools of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    pub(super) reserved: usize,
    pub(super) free: usize,
}

/// The memory of all pools of a device, but for the pool of a number.
pub(super) fn others(device: &Device, number: u64) -> Others {
    let mut sums = Others::default();
    for (_, pool) in pools_of(device).into_iter().filter(|other| other.0 != number) {
        sums.reserved = sums.reserved.saturating_add(pool.reserved());
        sums.free = sums.free.saturating_add(pool.free());
    }
    sums
}

/// Makes the other pools of a device give back free memory, for a request of so many bytes. Without `waits`, they give
/// the memory that the device is past. With it, they give all of it behind waits. The pool whose memory is pending for
/// longest begins. The call ends when the request `is_served`, which is asked each time that some memory went. A
/// request that is too large for the device costs the others nothing.
pub(super) fn trim_others(
    device: &Device,
    number: u64,
    (bytes, waits): (usize, bool),
    is_served: &mut dyn FnMut() -> bool,
) {
    let mut pools = pools_of(device);
    // With what the pool itself has: it may be free, and in the way.
    let reserved: usize = pools.iter().map(|(_, pool)| pool.reserved()).sum();
    let is_possible = |free: usize| free.saturating_add(reserved) >= bytes;
    if !device.memory_info().is_ok_and(|info| is_possible(info.free)) {
        return;
    }
    pools.retain(|other| other.0 != number);
    if !waits {
        if pools.iter().map(|(_, pool)| pool.trim()).sum::<usize>() > 0 {
            is_served();
        }
        return;
    }
    pools.sort_by_cached_key(|(_, pool)| pool.pending_since());
    for (_, pool) in pools {
        if pool.wait_and_trim_until(is_served) {
            return;
        }
    }
}
