//! The process-wide table of blocks by address, live and dead.

use super::backing::Backing;
use super::clock::Stamp;
use super::report::OpName;
use super::shadow::Shadow;
use crate::backend::{Access, HostFlags};
use crate::sync::Arc;
use std::collections::{BTreeMap, VecDeque};

/// So many dead blocks are remembered, to tell a use after free from a wild address.
const GRAVES: usize = 1 << 16;

/// Device addresses begin here: above every address that a process can have.
const FIRST_ADDRESS: u64 = 1 << 60;

/// Each device takes its addresses from ranges of this size.
pub(super) const ADDRESS_RANGE: u64 = 1 << 42;

/// Where a block came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    /// Of the pool with this number.
    Pool(u64),
    Managed,
    Host(HostFlags),
    Registered(HostFlags),
    /// Ordinary memory of the host, which its device reaches.
    Pageable,
}

impl Kind {
    /// The host can touch it without saying so.
    pub(super) fn is_host_visible(self) -> bool {
        !matches!(self, Self::Device | Self::Pool(_))
    }

    /// It counts against the device's capacity.
    pub(super) fn is_device_memory(self) -> bool {
        matches!(self, Self::Device | Self::Pool(_) | Self::Managed)
    }
}

/// A live block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) device: u64,
    pub(super) bytes: u64,
    pub(super) kind: Kind,
    /// The allocation in stream order; `None` if it was complete when the call returned.
    pub(super) born: Option<Stamp>,
    pub(super) backing: Arc<Backing>,
    pub(super) shadow: Shadow,
}

impl Block {
    /// Whether operations of `device` can reach it by address.
    pub(super) fn reaches(&self, device: u64) -> bool {
        match self.kind {
            Kind::Device | Kind::Pool(_) | Kind::Pageable => self.device == device,
            Kind::Managed => true,
            Kind::Host(flags) | Kind::Registered(flags) => {
                flags.mapped && (flags.portable || self.device == device)
            }
        }
    }
}

/// How an operation came by an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// As an address in the space of this device.
    Device(u64),
    /// As a pointer of the host, in a copy between host and device.
    Host,
}

/// A range that an operation touches: `count` rows of `bytes` bytes, one each `stride` bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stride: u64,
    pub(super) count: u64,
    pub(super) access: Access,
    pub(super) reach: Reach,
}

impl Touch {
    pub(super) fn new(address: u64, bytes: usize, access: Access, reach: Reach) -> Self {
        let bytes = bytes as u64;
        Self { address, bytes, stride: bytes, count: 1, access, reach }
    }

    /// Bytes from the first to the last that it touches. The caller has checked that this fits.
    pub(super) fn span(&self) -> u64 {
        self.count.saturating_sub(1).saturating_mul(self.stride).saturating_add(self.bytes)
    }
}

/// Where a touched range lies.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) key: u64,
    pub(super) offset: u64,
    pub(super) pointer: *mut u8,
    pub(super) backing: Arc<Backing>,
    pub(super) host_visible: bool,
}

/// Why a range is nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    Freed(OpName),
    Unmapped,
}

#[derive(Debug)]
struct Grave {
    end: u64,
    by: OpName,
}

/// All blocks of all simulated devices, by address.
#[derive(Debug, Default)]
pub(super) struct Table {
    blocks: BTreeMap<u64, Block>,
    graves: BTreeMap<u64, Grave>,
    buried: VecDeque<u64>,
    ranges: u64,
}

impl Table {
    /// A range of addresses that no other call returns.
    pub(super) fn address_range(&mut self) -> Option<u64> {
        let start = self.ranges.checked_mul(ADDRESS_RANGE)?.checked_add(FIRST_ADDRESS)?;
        start.checked_add(ADDRESS_RANGE)?;
        self.ranges += 1;
        Some(start)
    }

    pub(super) fn insert(&mut self, address: u64, block: Block) {
        if block.kind.is_host_visible() {
            // The system hands out addresses again: what died here is forgotten.
            let end = address.saturating_add(block.bytes);
            while let Some((&grave, _)) =
                self.graves.range(..end).next_back().filter(|(_, grave)| grave.end > address)
            {
                self.graves.remove(&grave);
            }
        }
        self.blocks.insert(address, block);
    }

    pub(super) fn get(&self, address: u64) -> Option<&Block> {
        self.blocks.get(&address)
    }

    pub(super) fn get_mut(&mut self, address: u64) -> Option<&mut Block> {
        self.blocks.get_mut(&address)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&u64, &Block)> {
        self.blocks.iter()
    }

    /// Takes a block out, and remembers who freed it.
    pub(super) fn bury(&mut self, address: u64, by: OpName) -> Option<Block> {
        let block = self.blocks.remove(&address)?;
        self.graves.insert(address, Grave { end: address.saturating_add(block.bytes), by });
        self.buried.push_back(address);
        if self.buried.len() > GRAVES
            && let Some(oldest) = self.buried.pop_front()
        {
            self.graves.remove(&oldest);
        }
        Some(block)
    }

    /// Takes out the blocks of a device that is closed.
    pub(super) fn remove_device(&mut self, device: u64) -> Vec<Block> {
        let keys: Vec<u64> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.device == device)
            .map(|(&key, _)| key)
            .collect();
        keys.iter().filter_map(|key| self.blocks.remove(key)).collect()
    }

    /// The block that holds `address`.
    pub(super) fn around(&self, address: u64) -> Option<(u64, &Block)> {
        let (&start, block) = self.blocks.range(..=address).next_back()?;
        (address - start < block.bytes).then_some((start, block))
    }

    /// Whether any live block overlaps the range.
    pub(super) fn is_taken(&self, start: u64, bytes: u64) -> bool {
        let end = start.saturating_add(bytes);
        self.blocks
            .range(..end)
            .next_back()
            .is_some_and(|(&other, block)| other.saturating_add(block.bytes) > start)
    }

    /// Who freed what lay at `address`.
    pub(super) fn freed_by(&self, address: u64) -> Option<OpName> {
        let (_, grave) = self.graves.range(..=address).next_back()?;
        (address < grave.end).then_some(grave.by)
    }

    /// Whether a range of host memory is page-locked (or managed) as a whole.
    pub(super) fn is_locked(&self, start: u64, bytes: usize) -> bool {
        self.around(start).is_some_and(|(at, block)| {
            block.kind.is_host_visible() && bytes as u64 <= block.bytes - (start - at)
        })
    }

    pub(super) fn find(&self, touch: &Touch) -> Result<Place, Miss> {
        let Some((key, block)) = self.around(touch.address) else {
            return Err(self.freed_by(touch.address).map_or(Miss::Unmapped, Miss::Freed));
        };
        let offset = touch.address - key;
        let reaches = match touch.reach {
            Reach::Device(device) => block.reaches(device),
            Reach::Host => block.kind.is_host_visible(),
        };
        if !reaches || touch.span() > block.bytes - offset {
            return Err(Miss::Unmapped);
        }
        // Wrapping, since it is made of numbers: `offset` lies inside the block, checked above.
        let pointer = block.backing.pointer().as_ptr().wrapping_add(offset as usize);
        Ok(Place {
            key,
            offset,
            pointer,
            backing: Arc::clone(&block.backing),
            host_visible: block.kind.is_host_visible(),
        })
    }
}
