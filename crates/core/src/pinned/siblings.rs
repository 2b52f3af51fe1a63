//! The pools of page-locked memory. Before one of them refuses a request for want of the machine's memory, the others
//! give back their free memory.

use crate::device::Device;
use crate::sync::trusted::Mutex;
use crate::sync::{Arc, Weak};

/// A pool that is open, and stays so while somebody has a share of it.
pub(super) trait Sibling: Send + Sync {
    fn device(&self) -> &Device;

    /// Its number.
    fn number(&self) -> u64;

    /// The bytes that it has of its upstream, and how many of them no user holds.
    fn reserved_and_free(&self) -> (usize, usize);

    /// Unpins its free memory, behind a wait for the devices or without. Returns how many bytes went.
    fn give_back(&self, waits: bool) -> usize;
}

static POOLS: Mutex<Vec<Weak<dyn Sibling>>> = Mutex::new(Vec::new());

/// Registers a pool, to be asked when another one would refuse a request.
pub(super) fn register(pool: Weak<dyn Sibling>) {
    let mut pools = POOLS.lock();
    pools.retain(|other| other.strong_count() > 0);
    pools.push(pool);
}

/// The pools of the machine of a device, but for the pool of a number.
pub(super) fn others(device: &Device, number: u64) -> Vec<Arc<dyn Sibling>> {
    let pools: Vec<Arc<dyn Sibling>> = POOLS.lock().iter().filter_map(Weak::upgrade).collect();
    let sharing = device.sharing_host_memory();
    // Without the lock: the last share of a pool may be among those that are dropped here.
    let is_other = |pool: &Arc<dyn Sibling>| {
        pool.number() != number && sharing.iter().any(|device| device == pool.device())
    };
    pools.into_iter().filter(is_other).collect()
}
