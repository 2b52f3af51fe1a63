//! Reserved addresses, and handles of memory that are mapped there.

use super::backing::Backing;
use crate::driver::sim::check::ShadowMemory;
use crate::sync::Arc;
use std::collections::{BTreeMap, HashMap};

/// Addresses without memory.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) device: u64,
    pub(crate) bytes: u64,
}

/// Memory of a device that may have an address.
#[derive(Debug)]
pub(crate) struct SimHandle {
    pub(crate) device: u64,
    pub(crate) bytes: u64,
    /// Where it is not mapped. The block of the mapping has it else.
    pub(crate) memory: Option<(Arc<Backing>, ShadowMemory)>,
    /// Its owner has given it up: it is gone when it is unmapped.
    pub(crate) released: bool,
}

/// All reservations by address, and all handles.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    pub(crate) reservations: BTreeMap<u64, Reservation>,
    pub(crate) handles: HashMap<u64, SimHandle>,
}

impl VirtualMemory {
    /// Whether a reservation of `device` has the whole range.
    pub(crate) fn is_reserved(&self, device: u64, start: u64, bytes: u64) -> bool {
        let around = self.reservations.range(..=start).next_back();
        around.is_some_and(|(&first, reservation)| {
            let end = first + reservation.bytes;
            reservation.device == device && end.checked_sub(start).is_some_and(|left| bytes <= left)
        })
    }

    pub(crate) fn remove_device(&mut self, device: u64) {
        self.reservations.retain(|_, reservation| reservation.device != device);
        self.handles.retain(|_, handle| handle.device != device);
    }
}
