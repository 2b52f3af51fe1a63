//! The other devices that reach a device's mapped memory, both the memory that is mapped when one is let in, and the
//! memory that is mapped later.

use crate::device::Device;
use crate::driver::{BackendKind, DeviceRange, Driver, DriverResult, HandleSpec};
use crate::error::DriverError;
use crate::sync::trusted::Mutex;
use crate::sync::{Arc, LazyLock, OnceLock, Weak};
use std::collections::{BTreeMap, HashMap};

/// The peers of one device, and the ranges that it has mapped. No lock is held over a call of the driver.
#[derive(Debug, Default)]
pub(super) struct MappedPeers {
    inside: Mutex<Inside>,
    tried: OnceLock<HandleSpec>,
}

#[derive(Debug, Default)]
struct Inside {
    peers: Vec<Peer>,
    /// The sizes by address.
    ranges: BTreeMap<u64, usize>,
}

/// A device that reaches all memory that is mapped from now on.
#[derive(Debug)]
struct Peer {
    device: Device,
    /// Whether it reaches the memory that was mapped before, too.
    is_ready: bool,
    /// The number of threads that let it reach that. It stays in the list as long as one does, though another one
    /// fails.
    enabling: usize,
}

impl Inside {
    /// A thread begins to let a peer in. Returns the ranges that it has to let the peer reach.
    fn begin(&mut self, device: &Device) -> Vec<DeviceRange> {
        // First, so that what is mapped meanwhile is not missed.
        match self.peers.iter_mut().find(|peer| peer.device == *device) {
            Some(peer) => peer.enabling += 1,
            None => {
                self.peers.push(Peer { device: device.clone(), is_ready: false, enabling: 1 });
            }
        }
        let ranges = self.ranges.iter();
        ranges.map(|(&address, &bytes)| DeviceRange { address, bytes }).collect()
    }

    /// The thread has let it reach all of them, or failed.
    fn end(&mut self, device: &Device, is_ready: bool) {
        for peer in self.peers.iter_mut().filter(|peer| peer.device == *device) {
            peer.enabling -= 1;
            peer.is_ready |= is_ready;
        }
        self.peers.retain(|peer| peer.is_ready || peer.enabling > 0);
    }

    /// A range is mapped. Returns the peers that have to reach it.
    fn add(&mut self, range: DeviceRange) -> Vec<Device> {
        self.ranges.insert(range.address, range.bytes);
        self.peers.iter().map(|peer| peer.device.clone()).collect()
    }
}

/// The peers by device.
type All = HashMap<(BackendKind, u64), Weak<MappedPeers>>;

static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);

impl MappedPeers {
    /// The peers of all mapped memory of a device.
    pub(super) fn of(device: &Device) -> Arc<Self> {
        let mut all = ALL.lock();
        if let Some(known) = all.get(&device.key()).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Self::default());
        all.insert(device.key(), Arc::downgrade(&new));
        new
    }

    /// The handles that the device was seen to map.
    pub(super) fn tried(&self) -> Option<HandleSpec> {
        self.tried.get().copied()
    }

    /// Notes the handles that work. The first answer stays, since all memory of a device is made alike.
    pub(super) fn set_tried(&self, spec: HandleSpec) {
        let _ = self.tried.set(spec);
    }

    pub(super) fn has(&self, device: &Device) -> bool {
        self.inside.lock().peers.iter().any(|peer| peer.device == *device && peer.is_ready)
    }

    /// Lets a peer reach all memory that is mapped, and that will be.
    pub(super) fn enable(&self, driver: &dyn Driver, peer: &Device) -> DriverResult<()> {
        let ranges = self.inside.lock().begin(peer);
        let mut enabled = Ok(());
        for range in ranges {
            let answer = let_reach(driver, range, peer);
            let is_there = || self.inside.lock().ranges.get(&range.address) == Some(&range.bytes);
            if answer.is_err() && is_there() {
                enabled = answer;
                break;
            }
        }
        self.inside.lock().end(peer, enabled.is_ok());
        enabled
    }

    /// A range is mapped, and its device reaches it. From now on its peers do, too.
    ///
    /// # Safety
    ///
    /// The conditions of [`set_access`](crate::driver::VirtualCalls::set_access).
    pub(super) unsafe fn add(&self, driver: &dyn Driver, range: DeviceRange) -> DriverResult<()> {
        let peers = self.inside.lock().add(range);
        peers.iter().try_for_each(|peer| let_reach(driver, range, peer))
    }

    /// A range is about to be unmapped.
    pub(super) fn remove(&self, range: DeviceRange) {
        self.inside.lock().ranges.remove(&range.address);
    }
}

fn let_reach(driver: &dyn Driver, range: DeviceRange, peer: &Device) -> DriverResult<()> {
    // SAFETY: mapped by the crate, as it was listed; the driver refuses what is not mapped any more.
    patiently(|| unsafe { driver.set_peer_access(range, peer.driver().as_any()) })
}

/// The number of calls at most, if the answer is that the driver is not ready.
const CALLS: usize = 4;

/// Repeats a call with that answer. `cuMemSetAccess` gives it at times, under WSL 2, though it waits for nothing.
pub(super) fn patiently(call: impl Fn() -> DriverResult<()>) -> DriverResult<()> {
    let mut answer = call();
    for _ in 1..CALLS {
        match &answer {
            Err(error) if error.code() == DriverError::NOT_READY => answer = call(),
            _ => break,
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimConfig;

    /// Two threads let one peer in, and one of them fails. The peer reaches the memory that is mapped before the other
    /// is through all the same.
    #[test]
    fn a_peer_stays_while_any_thread_lets_it_in() {
        let peer = Device::simulated(SimConfig::default());
        let range = |address| DeviceRange { address, bytes: 1 };
        let mut inside = Inside::default();
        assert!(inside.add(range(1)).is_empty());
        assert_eq!([inside.begin(&peer).len(), inside.begin(&peer).len()], [1, 1]);
        inside.end(&peer, false);
        assert_eq!(inside.add(range(2)), std::slice::from_ref(&peer));
        inside.end(&peer, true);
        assert!(inside.peers[0].is_ready);
        // A failure of one that comes later takes nothing back; of the only one, all.
        inside.begin(&peer);
        inside.end(&peer, false);
        assert_eq!(inside.add(range(3)), std::slice::from_ref(&peer));
        let mut inside = Inside::default();
        inside.begin(&peer);
        inside.end(&peer, false);
        assert!(inside.peers.is_empty());
    }
}
