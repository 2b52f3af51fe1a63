//! Which other devices reach a device's mapped memory: what is mapped when one is let in, and what is mapped later.

use crate::device::Device;
use crate::driver::{BackendKind, DeviceRange, Driver, DriverResult};
use crate::sync::trusted::Mutex;
use crate::sync::{Arc, LazyLock, Weak};
use std::collections::{BTreeMap, HashMap};

/// The peers of one device, and what it has mapped. No lock is held over a call of the driver.
#[derive(Debug, Default)]
pub(super) struct MappedPeers(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    /// Each reaches what is mapped from now on; and what was mapped before, if it is `true`.
    peers: Vec<(Device, bool)>,
    /// By address.
    ranges: BTreeMap<u64, usize>,
}

/// By device.
type All = HashMap<(BackendKind, u64), Weak<MappedPeers>>;

static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);

impl MappedPeers {
    /// Those of all mapped memory of a device.
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

    pub(super) fn has(&self, peer: &Device) -> bool {
        self.0.lock().peers.iter().any(|(known, is_ready)| known == peer && *is_ready)
    }

    /// Lets a peer reach what is mapped, and what will be.
    pub(super) fn enable(&self, driver: &dyn Driver, peer: &Device) -> DriverResult<()> {
        let ranges: Vec<DeviceRange> = {
            let mut inside = self.0.lock();
            // First, so that what is mapped meanwhile is not missed.
            if !inside.peers.iter().any(|(known, _)| known == peer) {
                inside.peers.push((peer.clone(), false));
            }
            let ranges = inside.ranges.iter();
            ranges.map(|(&address, &bytes)| DeviceRange { address, bytes }).collect()
        };
        let mut enabled = Ok(());
        for range in ranges {
            // SAFETY: mapped by the crate, as it was listed; the driver refuses what is not mapped any more.
            let answer = unsafe { driver.set_peer_access(range, peer.driver().as_any()) };
            let is_there = || self.0.lock().ranges.get(&range.address) == Some(&range.bytes);
            if answer.is_err() && is_there() {
                enabled = answer;
                break;
            }
        }
        let mut inside = self.0.lock();
        match enabled {
            Ok(()) => {
                // Another thread that failed may have taken it out.
                inside.peers.retain(|(known, _)| known != peer);
                inside.peers.push((peer.clone(), true));
            }
            Err(_) => inside.peers.retain(|(known, is_ready)| known != peer || *is_ready),
        }
        enabled
    }

    /// A range is mapped, and its device reaches it: now its peers do, too.
    ///
    /// # Safety
    ///
    /// As [`set_access`](crate::driver::VirtualCalls::set_access).
    pub(super) unsafe fn add(&self, driver: &dyn Driver, range: DeviceRange) -> DriverResult<()> {
        let peers: Vec<Device> = {
            let mut inside = self.0.lock();
            inside.ranges.insert(range.address, range.bytes);
            inside.peers.iter().map(|(peer, _)| peer.clone()).collect()
        };
        let mut each = peers.iter();
        // SAFETY: the caller's promise.
        each.try_for_each(|peer| unsafe { driver.set_peer_access(range, peer.driver().as_any()) })
    }

    /// A range is about to be unmapped.
    pub(super) fn remove(&self, range: DeviceRange) {
        self.0.lock().ranges.remove(&range.address);
    }
}
