//! Memory of a device that is apart from its addresses, by the calls of CUDA's virtual memory management.

use super::asleep;
use super::mapped_peers::{MappedPeers, patiently};
use crate::device::Device;
use crate::driver::{
    DeviceAddress, DeviceRange, Driver, DriverResult, ErrorContext, HandleSpec, RawHandle,
    is_forked_child, not_forked,
};
use crate::error::{DriverError, Result, ensure};
use crate::impls::Count;
use crate::pool::MapFailure;
use crate::sync::Arc;
use std::fmt::Display;

/// A device that has virtual memory management.
#[derive(Clone, Debug)]
pub struct VirtualMemory {
    device: Device,
    granularity: usize,
    /// The properties of the handles that are created, as long as nobody has tried which work.
    spec: HandleSpec,
    peers: Arc<MappedPeers>,
}

/// All virtual memory of one device is equal.
impl PartialEq for VirtualMemory {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device
    }
}

impl Eq for VirtualMemory {}

/// The memory that a pool may map in place of a resource's blocks.
#[derive(Clone, Copy, Debug)]
pub enum Mappable<'a> {
    /// The pool may map nothing.
    No,
    /// Any memory of the device, since the resource is a call of the driver for each block, and nothing else.
    Plain,
    /// The memory of which the resource is.
    Mapped(&'a VirtualMemory),
}

impl VirtualMemory {
    pub(super) fn new(device: &Device) -> Result<Self> {
        ensure!(
            device.properties().virtual_memory,
            Unsupported,
            "use CudaResource",
            "{device} has no virtual memory management"
        );
        let (peers, properties) = (MappedPeers::of(device), device.properties());
        let claimed = HandleSpec {
            shareable: properties.virtual_memory_descriptors,
            rdma: properties.virtual_memory_rdma,
        };
        let granularity = device.driver().granularity(claimed);
        let granularity =
            granularity.with_context(|| format!("asking {device} for its granularity"))?;
        Ok(Self { device: device.clone(), granularity, spec: claimed, peers })
    }

    /// Whether mapping was seen to work.
    pub(super) fn is_tried(&self) -> bool {
        self.peers.tried().is_some()
    }

    /// Notes that such handles were seen to work.
    pub(super) fn set_tried(&self, spec: HandleSpec) {
        self.peers.set_tried(spec);
    }

    /// The properties of handles that are made.
    pub(super) fn spec(&self) -> HandleSpec {
        self.peers.tried().unwrap_or(self.spec)
    }

    /// The same memory, with handles that are made for something else.
    pub(super) fn with_spec(&self, spec: HandleSpec) -> Self {
        Self { spec, ..self.clone() }
    }

    /// Memory of the device, without an address.
    pub(super) fn create(&self, bytes: usize) -> DriverResult<RawHandle> {
        self.driver().handle_create(bytes, self.spec())
    }

    #[doc(hidden)]
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn driver(&self) -> &dyn Driver {
        self.device.driver()
    }

    /// The granularity of the device alone. Its peers are not asked, since all known GPUs have 2 MiB.
    #[doc(hidden)]
    pub fn granularity(&self) -> usize {
        self.granularity
    }

    /// A range of whole granules.
    pub(super) fn range(&self, address: DeviceAddress, bytes: usize) -> DeviceRange {
        // A size is at most `isize::MAX`: the next multiple is a number.
        DeviceRange { address, bytes: bytes.next_multiple_of(self.granularity) }
    }

    /// The result of a call for this memory, whose error names the call.
    #[doc(hidden)]
    pub fn in_context<T>(&self, what: impl Display, made: DriverResult<T>) -> Result<T> {
        made.with_context(|| match self.device.memory_info() {
            Ok(info) => format!(
                "mapping {what} on {}, which has {} free of its {}",
                self.device,
                Count(info.free, "byte"),
                Count(info.total, "byte")
            ),
            Err(_) => format!("mapping {what} on {}", self.device),
        })
    }

    /// Makes a range the memory of a handle, which the device reaches there. If that fails, nothing is mapped, unless
    /// the error says so.
    ///
    /// # Safety
    ///
    /// The range is reserved, of the handle's size, and nothing is mapped there.
    #[doc(hidden)]
    pub unsafe fn map(
        &self,
        range: DeviceRange,
        handle: RawHandle,
    ) -> Result<(), MapFailure<DriverError>> {
        let driver = self.driver();
        // SAFETY: the caller's promise.
        let mapped = unsafe { driver.map(range, handle) };
        mapped.map_err(|error| MapFailure { error, is_mapped: false })?;
        // SAFETY: mapped above.
        let reached = patiently(|| unsafe { driver.set_access(range) });
        // SAFETY: as above.
        let reached = reached.and_then(|()| unsafe { self.peers.add(driver, range) });
        reached.map_err(|error| {
            // SAFETY: as above; nothing has used it.
            let is_mapped = unsafe { self.unmap(range) }.is_err();
            MapFailure { error, is_mapped }
        })
    }

    /// Unmaps a range of [`map`](Self::map).
    ///
    /// # Safety
    ///
    /// It is mapped, and no work uses it.
    #[doc(hidden)]
    pub unsafe fn unmap(&self, range: DeviceRange) -> DriverResult<()> {
        self.peers.remove(range);
        // SAFETY: the caller's promise.
        let unmapped = unsafe { self.driver().unmap(range) };
        if unmapped.is_ok() {
            asleep::note_unmapped(&self.device, range);
        } else {
            // It stays mapped, for peers to come, and those that came meanwhile.
            // SAFETY: the caller's promise: it was mapped, and is.
            let _ = unsafe { self.peers.add(self.driver(), range) };
        }
        unmapped
    }

    /// Makes each range the memory of a handle, as [`map`](Self::map), with one call for what adjoins. The error says how
    /// many of them are mapped, the first ones.
    ///
    /// # Safety
    ///
    /// As [`map`](Self::map), for each. All of them are of one reservation.
    pub(super) unsafe fn map_all(
        &self,
        ranges: &[(DeviceRange, RawHandle)],
    ) -> Result<(), (usize, DriverError)> {
        let driver = self.driver();
        for (number, &(range, handle)) in ranges.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { driver.map(range, handle) }.map_err(|error| (number, error))?;
        }
        let mapped: Vec<_> = ranges.iter().map(|(range, _)| *range).collect();
        // SAFETY: mapped above.
        unsafe { self.reach_all(&mapped) }.map_err(|error| (ranges.len(), error))
    }

    /// Has the device and its peers reach each range, with one call for what adjoins.
    ///
    /// # Safety
    ///
    /// The ranges are mapped, by [`map_all`](Self::map_all).
    pub(super) unsafe fn reach_all(&self, ranges: &[DeviceRange]) -> DriverResult<()> {
        let driver = self.driver();
        for range in adjoining(ranges.iter().copied()) {
            // SAFETY: the caller's promise.
            patiently(|| unsafe { driver.set_access(range) })?;
        }
        // SAFETY: the same.
        ranges.iter().try_for_each(|range| unsafe { self.peers.add(driver, *range) })
    }

    /// Unmaps ranges of [`map`](Self::map), with one call for what adjoins. Returns the error of each of those calls that
    /// failed, with its range, all of which is still mapped.
    ///
    /// # Safety
    ///
    /// As [`unmap`](Self::unmap), for each. All of them are of one reservation.
    pub(super) unsafe fn unmap_all(
        &self,
        ranges: &[DeviceRange],
    ) -> Vec<(DeviceRange, DriverError)> {
        let mut failed = Vec::new();
        ranges.iter().for_each(|range| self.peers.remove(*range));
        for all in adjoining(ranges.iter().copied()) {
            // SAFETY: the caller's promise.
            let Err(error) = (unsafe { self.driver().unmap(all) }) else {
                asleep::note_unmapped(&self.device, all);
                continue;
            };
            let is_part =
                |range: &&DeviceRange| range.address.wrapping_sub(all.address) < all.bytes as u64;
            for range in ranges.iter().filter(is_part) {
                // SAFETY: it was mapped, and is.
                let _ = unsafe { self.peers.add(self.driver(), *range) };
            }
            failed.push((all, error));
        }
        failed
    }

    /// Lets kernels of another device reach all memory that is mapped, and that will be.
    pub(super) fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        not_forked("mapped memory")?;
        if self.has_peer_access(peer) {
            return Ok(());
        }
        peer.require_peer(&self.device)?;
        self.peers.enable(self.driver(), peer).with_context(|| {
            let own = peer.name_of_other(&self.device);
            format!("giving {peer} access to mapped memory of {own}")
        })
    }

    pub(super) fn has_peer_access(&self, peer: &Device) -> bool {
        *peer == self.device || !is_forked_child() && self.peers.has(peer)
    }
}

/// Ranges in order, with those that adjoin as one.
fn adjoining(ranges: impl Iterator<Item = DeviceRange>) -> Vec<DeviceRange> {
    let mut all: Vec<DeviceRange> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.address + last.bytes as u64 == range.address => {
                last.bytes += range.bytes;
            }
            _ => all.push(range),
        }
    }
    all
}
