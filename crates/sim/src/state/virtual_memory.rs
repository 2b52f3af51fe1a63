//! Reserved addresses, and handles of memory that are mapped there.
//!
//! The bytes of all handles of a device lie in one file without a name, of which a block of reserved addresses shows the
//! parts that are mapped. So a range over several handles is one range of host memory, and a handle that is mapped
//! twice has the same bytes in both places.

use super::backing::Backing;
use crate::check::{OpName, ShadowMemory};
use aquifer_driver::HandleSpec;
use aquifer_sync::Arc;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Memory of a device that may have addresses.
#[derive(Debug)]
pub(crate) struct SimHandle {
    pub(crate) device: u64,
    pub(crate) bytes: u64,
    /// Where its bytes begin in the file of its device.
    pub(crate) offset: u64,
    /// The shadow of its bytes while no mapping of it is the newest one.
    pub(crate) shadow: ShadowMemory,
    /// The address of its newest mapping, if that is still there.
    pub(crate) newest: Option<u64>,
    pub(crate) mappings: usize,
    /// How often it was created, retained or imported and not released. At 0 it is gone when it is unmapped.
    pub(crate) references: usize,
    pub(crate) spec: HandleSpec,
    /// Other handles may be of the same bytes, as a process that imports them has its own.
    pub(crate) is_exported: bool,
}

impl SimHandle {
    fn is_of_the_bytes_of(&self, other: &Self) -> bool {
        (self.device, self.offset) == (other.device, other.offset)
    }
}

/// The state of a range of reserved addresses.
///
/// # State table
///
/// | state | operations | next |
/// | --- | --- | --- |
/// | `Mapped` | are refused | `Accessible`, by `cuMemSetAccess`; `Moved`, `Unmapped` |
/// | `Accessible` | find its bytes | `Moved`, when the handle is mapped elsewhere; `Unmapped`, by `cuMemUnmap` |
/// | `Moved` | that were given before find its bytes, new ones are refused: the device would not order the two addresses inside of one kernel, and nothing here needs both | `Unmapped` |
/// | `Unmapped` | are refused | gone, when something is mapped there |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappingState {
    Mapped,
    Accessible,
    Moved,
    Unmapped(OpName),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) handle: u64,
    pub(crate) state: MappingState,
}

impl Mapping {
    fn is_there(&self) -> bool {
        !matches!(self.state, MappingState::Unmapped(_))
    }
}

/// The mappings in a block of reserved addresses, by where they begin. Other blocks have none.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    by_start: BTreeMap<u64, Mapping>,
    /// Other devices that reach a mapping, by where it begins.
    peers: BTreeSet<(u64, u64)>,
}

impl Mappings {
    /// Where the mapping around a place begins.
    pub(crate) fn around(&self, at: u64) -> Option<(u64, Mapping)> {
        let found = self.overlapping((at, at + 1)).find(|(_, mapping)| mapping.is_there());
        found.map(|(start, mapping)| (start, *mapping))
    }

    /// The mappings that make up a range, whole ones without a hole.
    pub(crate) fn whole(&self, (start, end): (u64, u64)) -> Option<Vec<(u64, Mapping)>> {
        let (mut at, mut found) = (start, Vec::new());
        while at < end {
            let mapping = self.by_start.get(&at).filter(|mapping| mapping.is_there())?;
            found.push((at, *mapping));
            at += mapping.bytes;
        }
        (at == end && start < end).then_some(found)
    }

    fn overlapping(&self, (start, end): (u64, u64)) -> impl Iterator<Item = (u64, &Mapping)> {
        let before = self.by_start.range(..start).next_back();
        let all = before.into_iter().chain(self.by_start.range(start..end));
        all.map(|(&at, mapping)| (at, mapping)).filter(move |(at, it)| at + it.bytes > start)
    }

    /// Whether something is mapped in a range.
    pub(crate) fn is_taken(&self, range: (u64, u64)) -> bool {
        self.overlapping(range).any(|(_, mapping)| mapping.is_there())
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.by_start.values().any(Mapping::is_there)
    }

    pub(crate) fn insert(&mut self, at: u64, mapping: Mapping) {
        let range = (at, at + mapping.bytes);
        let gone: Vec<u64> = self.overlapping(range).map(|(start, _)| start).collect();
        for start in gone {
            self.by_start.remove(&start);
        }
        self.by_start.insert(at, mapping);
    }

    /// Lets another device reach a mapping.
    pub(crate) fn share(&mut self, at: u64, peer: u64) {
        self.peers.insert((at, peer));
    }

    /// Whether another device reaches any mapping.
    pub(crate) fn is_shared_with(&self, peer: u64) -> bool {
        self.peers.iter().any(|&(_, known)| known == peer)
    }

    pub(crate) fn set_state(&mut self, at: u64, state: MappingState) {
        if let Some(mapping) = self.by_start.get_mut(&at) {
            mapping.state = state;
        }
        if matches!(state, MappingState::Unmapped(_)) {
            self.peers.retain(|&(start, _)| start != at);
        }
    }

    /// Whether operations of the device, or of `peer`, find bytes in the whole range. The error is the call that
    /// unmapped some of it, if there is one.
    pub(crate) fn check(
        &self,
        (start, end): (u64, u64),
        peer: Option<u64>,
    ) -> Result<(), Option<OpName>> {
        let is_reached = |at| peer.is_none_or(|peer| self.peers.contains(&(at, peer)));
        let mut at = start;
        for (from, mapping) in self.overlapping((start, end)) {
            match mapping.state {
                _ if from > at => return Err(None),
                MappingState::Accessible if is_reached(from) => at = from + mapping.bytes,
                MappingState::Unmapped(by) => return Err(Some(by)),
                _ => return Err(None),
            }
        }
        if at >= end { Ok(()) } else { Err(None) }
    }
}

/// The bytes of the handles of one device.
#[derive(Debug, Default)]
struct SharedBytes {
    #[cfg(target_os = "linux")]
    file: Option<std::fs::File>,
    /// The place of the next handle. No part of the file is used twice.
    next: u64,
}

/// All handles, and where their bytes are.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    pub(crate) handles: HashMap<u64, SimHandle>,
    /// What is known of memory that a pool has put aside, by device and address.
    pub(crate) aside: HashMap<(u64, u64), ShadowMemory>,
    /// By device.
    bytes: HashMap<u64, SharedBytes>,
}

impl VirtualMemory {
    pub(crate) fn remove_device(&mut self, device: u64) {
        self.handles.retain(|_, handle| handle.device != device);
        self.aside.retain(|(of, _), _| *of != device);
        self.bytes.remove(&device);
    }

    /// Whether another handle is of the same bytes.
    pub(crate) fn is_shared(&self, handle: &SimHandle) -> bool {
        let is_other = |other: &SimHandle| other.is_of_the_bytes_of(handle);
        handle.is_exported && self.handles.values().any(is_other)
    }

    /// The handles of a device, and their bytes.
    pub(crate) fn totals(&self, device: u64) -> (usize, u64) {
        let own = self.handles.values().filter(|handle| handle.device == device);
        own.fold((0, 0), |(count, bytes), handle| (count + 1, bytes + handle.bytes))
    }
}

#[cfg(target_os = "linux")]
impl VirtualMemory {
    /// Room for a handle's bytes in the file of a device, filled with `poison`. `None` if the host has too little.
    pub(crate) fn add_bytes(&mut self, device: u64, bytes: u64, poison: Option<u8>) -> Option<u64> {
        let shared = self.bytes.entry(device).or_default();
        if shared.file.is_none() {
            shared.file = Some(file_in_memory()?);
        }
        let offset = shared.next;
        shared.next = offset.checked_add(bytes)?;
        let file = shared.file.as_ref()?;
        file.set_len(shared.next).ok()?;
        if let Some(poison) = poison {
            let all = Backing::addresses(usize::try_from(bytes).ok()?, device as usize)?;
            all.show(0, bytes as usize, Some((file, offset))).ok()?;
            // SAFETY: all of it was just mapped, and nobody else knows of it.
            unsafe { all.pointer().as_ptr().write_bytes(poison, bytes as usize) };
        }
        Some(offset)
    }

    /// Gives the bytes of a handle back.
    pub(crate) fn remove_bytes(&mut self, handle: &SimHandle) {
        use std::os::fd::AsRawFd;
        let file = self.bytes.get(&handle.device).and_then(|shared| shared.file.as_ref());
        let (offset, bytes) = (handle.offset.try_into(), handle.bytes.try_into());
        if let (Some(file), Ok(offset), Ok(bytes)) = (file, offset, bytes) {
            let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the file is open, and no mapping shows this part of it any more.
            unsafe { libc::fallocate(file.as_raw_fd(), how, offset, bytes) };
        }
    }

    /// Has a part of a block of reserved addresses show a handle's bytes. Without a handle it shows none.
    pub(crate) fn show(
        &self,
        backing: &Arc<Backing>,
        (start, end): (u64, u64),
        handle: Option<u64>,
    ) -> bool {
        let of_handle = |handle: u64| {
            let handle = self.handles.get(&handle)?;
            Some((self.bytes.get(&handle.device)?.file.as_ref()?, handle.offset))
        };
        let part = handle.and_then(of_handle);
        let is_known = handle.is_none() || part.is_some();
        is_known && backing.show(start as usize, (end - start) as usize, part).is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
impl VirtualMemory {
    pub(crate) fn add_bytes(&mut self, _: u64, _: u64, _: Option<u8>) -> Option<u64> {
        None
    }

    pub(crate) fn remove_bytes(&mut self, _: &SimHandle) {}

    pub(crate) fn show(&self, _: &Arc<Backing>, _: (u64, u64), _: Option<u64>) -> bool {
        false
    }
}

#[cfg(target_os = "linux")]
fn file_in_memory() -> Option<std::fs::File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a string that ends with a zero.
    let file = unsafe { libc::memfd_create(c"simulated device".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a new file, which nothing else closes.
    (file >= 0).then(|| unsafe { std::fs::File::from_raw_fd(file) })
}
