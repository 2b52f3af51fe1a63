//! The table of blocks by address, live and freed, of all simulated devices.

use super::backing::{Backing, physical_memory};
use super::imports::Imports;
use super::op::{AddressSpace, OpRange, TouchedRange};
use super::parts::{AccessBy, PartError, Parts, Region};
use super::virtual_memory::Mappings;
use crate::check::{AccessStamp, OpName, ReportedMemory, ShadowMemory, Vector, Vectors};
use aquifer_driver::{Access, DeviceRange, HostFlags};
use aquifer_sync::Arc;
use std::collections::{BTreeMap, HashSet, VecDeque};

/// Freed blocks that are remembered, to tell a use after free from a wild address.
const FREED_LIMIT: usize = 1 << 16;

/// The first device address, which is above every address that a process can have.
const FIRST_ADDRESS: u64 = 1 << 60;

/// Each device takes its addresses from ranges of this size.
pub(crate) const ADDRESS_RANGE: u64 = 1 << 42;

/// How a block was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Device,
    /// From the pool with this number.
    Pool(u64),
    /// Reserved addresses, where memory of handles is mapped.
    Reserved,
    Managed,
    Host(HostFlags),
    Registered(HostFlags),
    /// Ordinary memory of the host, which its device reaches.
    Pageable,
}

impl BlockKind {
    /// Whether the host can access it without a call.
    pub(crate) fn is_host_visible(self) -> bool {
        !matches!(self, Self::Device | Self::Pool(_) | Self::Reserved)
    }

    /// Whether it is allocated and freed as memory of the device.
    pub(crate) fn is_device_memory(self) -> bool {
        matches!(self, Self::Device | Self::Pool(_) | Self::Managed)
    }
}

/// Memory of a device that another one can be allowed to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerMemory {
    /// The plain memory of this device.
    Device(u64),
    /// The memory of this pool.
    Pool(u64),
}

/// A live block.
#[derive(Debug)]
pub(crate) struct SimBlock {
    pub(crate) device: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: BlockKind,
    /// The allocation.
    pub(crate) by: OpName,
    /// The allocation in stream order. `None` if the host has seen it complete.
    pub(crate) allocation: Option<AccessStamp>,
    pub(crate) backing: Arc<Backing>,
    pub(crate) shadow: ShadowMemory,
    /// The parts that pools have made of it.
    pub(crate) parts: Parts,
    /// The vectors that containers have made of it.
    pub(crate) vectors: Vectors,
    /// The mappings of reserved addresses.
    pub(crate) mappings: Mappings,
}

impl SimBlock {
    /// A block that is complete when the call `by` returns.
    pub(crate) fn new(
        device: u64,
        bytes: usize,
        kind: BlockKind,
        backing: Backing,
        by: OpName,
    ) -> Self {
        let bytes = bytes as u64;
        Self {
            device,
            bytes,
            kind,
            by,
            allocation: None,
            backing: Arc::new(backing),
            shadow: ShadowMemory::new(bytes, kind.is_host_visible()),
            parts: Parts::default(),
            vectors: Vectors::default(),
            mappings: Mappings::default(),
        }
    }

    /// Whether operations of `device` can reach it by address, whatever it was allowed to.
    fn is_reached_by(&self, device: u64) -> bool {
        match self.kind {
            BlockKind::Device | BlockKind::Pool(_) | BlockKind::Pageable => self.device == device,
            // What is mapped there each device is let in to by itself.
            BlockKind::Reserved => self.device == device || self.mappings.is_shared_with(device),
            BlockKind::Managed => true,
            BlockKind::Host(flags) | BlockKind::Registered(flags) => {
                flags.mapped && (flags.portable || self.device == device)
            }
        }
    }

    /// The memory as which other devices can be allowed to reach it.
    fn peer_memory(&self) -> Option<PeerMemory> {
        match self.kind {
            BlockKind::Device => Some(PeerMemory::Device(self.device)),
            BlockKind::Pool(pool) => Some(PeerMemory::Pool(pool)),
            _ => None,
        }
    }
}

/// Why a range was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupError {
    /// This operation freed the range.
    Freed(OpName),
    /// The range begins in a block of so many bytes, and ends so many bytes past it.
    Outside {
        by: OpName,
        bytes: u64,
        past: u64,
    },
    Unmapped,
}

impl LookupError {
    /// A range that ends at `end` begins in what `by` allocated, from `start` on.
    fn outside(by: OpName, (start, block_end): (u64, u64), end: u64) -> Self {
        match end.saturating_sub(block_end) {
            0 => Self::Unmapped,
            past => Self::Outside { by, bytes: block_end - start, past },
        }
    }
}

#[derive(Debug)]
struct FreedBlock {
    end: u64,
    freed_by: OpName,
    /// The vectors that it was when it was freed.
    vectors: Vectors,
}

/// All blocks of all simulated devices, by address.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    blocks: BTreeMap<u64, SimBlock>,
    freed: BTreeMap<u64, FreedBlock>,
    /// The addresses in `freed`, the oldest first.
    freed_order: VecDeque<u64>,
    /// Address ranges given out.
    ranges: u64,
    /// Other addresses of blocks.
    pub(crate) imports: Imports,
    /// Bytes of page-locked memory that was allocated and is not freed.
    page_locked: u64,
    /// The memory of other devices that each device was allowed to reach.
    allowed: HashSet<(u64, PeerMemory)>,
}

/// The bytes of a block that count as page-locked.
fn page_locked_bytes(block: &SimBlock) -> u64 {
    if matches!(block.kind, BlockKind::Host(_)) { block.bytes } else { 0 }
}

impl BlockTable {
    /// A range of addresses that no other call returns.
    pub(crate) fn address_range(&mut self) -> Option<u64> {
        let start = self.ranges.checked_mul(ADDRESS_RANGE)?.checked_add(FIRST_ADDRESS)?;
        start.checked_add(ADDRESS_RANGE)?;
        self.ranges += 1;
        Some(start)
    }

    pub(crate) fn insert(&mut self, address: u64, block: SimBlock) {
        if block.kind.is_host_visible() {
            // The addresses may have been others': freed blocks in this range are forgotten.
            let end = address.saturating_add(block.bytes);
            while let Some((&freed, _)) =
                self.freed.range(..end).next_back().filter(|(_, freed)| freed.end > address)
            {
                self.freed.remove(&freed);
            }
        }
        self.page_locked += page_locked_bytes(&block);
        self.blocks.insert(address, block);
    }

    /// Has operations of `device` reach memory of another one.
    pub(crate) fn allow(&mut self, device: u64, memory: PeerMemory) {
        self.allowed.insert((device, memory));
    }

    pub(crate) fn is_allowed(&self, device: u64, memory: PeerMemory) -> bool {
        self.allowed.contains(&(device, memory))
    }

    /// Whether operations of `device` can reach a block by address.
    pub(crate) fn is_reached(&self, block: &SimBlock, device: u64) -> bool {
        let is_allowed = |memory| self.is_allowed(device, memory);
        block.is_reached_by(device) || block.peer_memory().is_some_and(is_allowed)
    }

    /// Whether the machine has room for so many bytes of page-locked memory beside those of all devices.
    pub(crate) fn has_room_to_lock(&self, bytes: usize) -> bool {
        let locked = self.page_locked.saturating_add(bytes as u64);
        physical_memory().is_none_or(|memory| locked <= memory)
    }

    pub(crate) fn get(&self, address: u64) -> Option<&SimBlock> {
        self.blocks.get(&address)
    }

    pub(crate) fn get_mut(&mut self, address: u64) -> Option<&mut SimBlock> {
        self.blocks.get_mut(&address)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &SimBlock> {
        self.blocks.values()
    }

    /// Removes a block, and remembers the operation that freed it.
    pub(crate) fn free(&mut self, address: u64, freed_by: OpName) -> Option<SimBlock> {
        let mut block = self.blocks.remove(&address)?;
        self.page_locked -= page_locked_bytes(&block);
        let end = address.saturating_add(block.bytes);
        let vectors = std::mem::take(&mut block.vectors);
        self.remember_freed(address, FreedBlock { end, freed_by, vectors });
        Some(block)
    }

    /// Remembers that memory which was opened at `address` was closed.
    pub(crate) fn forget_import(&mut self, address: u64, bytes: u64, closed_by: OpName) {
        let (end, vectors) = (address.saturating_add(bytes), Vectors::default());
        self.remember_freed(address, FreedBlock { end, freed_by: closed_by, vectors });
    }

    fn remember_freed(&mut self, address: u64, freed: FreedBlock) {
        self.freed.insert(address, freed);
        self.freed_order.push_back(address);
        if self.freed_order.len() > FREED_LIMIT
            && let Some(oldest) = self.freed_order.pop_front()
        {
            self.freed.remove(&oldest);
        }
    }

    /// Removes the blocks of a device that is closed.
    pub(crate) fn remove_device(&mut self, device: u64) -> impl Iterator<Item = SimBlock> {
        self.imports.remove_device(device);
        self.allowed.retain(|&(by, memory)| by != device && memory != PeerMemory::Device(device));
        let page_locked = &mut self.page_locked;
        self.blocks.extract_if(.., move |_, block| block.device == device).map(|(_, block)| {
            *page_locked -= page_locked_bytes(&block);
            block
        })
    }

    /// The block that holds `address`, and where it begins.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, &SimBlock)> {
        let (&start, block) = self.blocks.range(..=address).next_back()?;
        (address - start < block.bytes).then_some((start, block))
    }

    /// The block that holds a range as a whole, and where in it the range begins and ends.
    pub(crate) fn around_mut(&mut self, range: DeviceRange) -> Option<(&mut SimBlock, (u64, u64))> {
        let DeviceRange { address, bytes } = range;
        let (&start, block) = self.blocks.range_mut(..=address).next_back()?;
        let offset = address - start;
        let end = offset.checked_add(bytes as u64)?;
        (bytes > 0 && end <= block.bytes).then_some((block, (offset, end)))
    }

    /// Whether a live block overlaps the range.
    pub(crate) fn is_taken(&self, start: u64, bytes: u64) -> bool {
        let end = start.saturating_add(bytes);
        self.blocks
            .range(..end)
            .next_back()
            .is_some_and(|(&other, block)| other.saturating_add(block.bytes) > start)
    }

    /// The block around `address` that was freed, and where it began.
    fn freed(&self, address: u64) -> Option<(u64, &FreedBlock)> {
        let (&start, freed) = self.freed.range(..=address).next_back()?;
        (address < freed.end).then_some((start, freed))
    }

    /// The operation that freed the block at `address`.
    pub(crate) fn freed_by(&self, address: u64) -> Option<OpName> {
        self.freed(address).map(|(_, freed)| freed.freed_by)
    }

    /// The vector that an address is part of, or was before it was freed.
    fn vector(&self, address: u64) -> Option<Vector> {
        let address = self.imports.resolve(address);
        let freed = || self.freed(address).map(|(start, freed)| (start, &freed.vectors));
        let live = self.around(address).map(|(start, block)| (start, &block.vectors));
        let (start, vectors) = live.or_else(freed)?;
        vectors.at(address - start)
    }

    /// Memory from `address` on, for a report.
    pub(crate) fn reported(&self, address: u64, bytes: u64) -> ReportedMemory {
        ReportedMemory::new((address, bytes), self.vector(address))
    }

    /// Whether a range of host memory is page-locked (or managed) as a whole.
    pub(crate) fn is_page_locked(&self, start: u64, bytes: usize) -> bool {
        self.around(start).is_some_and(|(at, block)| {
            block.kind.is_host_visible() && bytes as u64 <= block.bytes - (start - at)
        })
    }

    /// The region of a pool that a range lies in.
    pub(crate) fn region_of(&self, touched: &TouchedRange) -> Option<Region> {
        let address = self.imports.resolve(touched.address);
        let (start, block) = self.around(address)?;
        let offset = address - start;
        block.parts.region_of((offset, offset.saturating_add(touched.span())))
    }

    /// Finds the block of a touched range. `by_graph` says that a launch of a graph touches it.
    pub(crate) fn find(
        &self,
        touched: &TouchedRange,
        by_graph: bool,
    ) -> Result<OpRange, LookupError> {
        let address = self.imports.resolve(touched.address);
        let Some((start, block)) = self.around(address) else {
            let freed = self.freed_by(address);
            return Err(freed.map_or(LookupError::Unmapped, LookupError::Freed));
        };
        let offset = address - start;
        let is_reached = match touched.space {
            AddressSpace::Device(device) => self.is_reached(block, device),
            AddressSpace::Host => block.kind.is_host_visible(),
        };
        if !is_reached {
            return Err(LookupError::Unmapped);
        }
        let end = offset.saturating_add(touched.span());
        let by = match by_graph {
            true => AccessBy::Launch(touched.captured_in.as_ref()),
            false => AccessBy::Stream,
        };
        // A part ends in its block: what leaves both is told of the part.
        block.parts.check((offset, end), by).map_err(|error| match error {
            PartError::Freed(by) => LookupError::Freed(by),
            PartError::Outside { by, range } => LookupError::outside(by, range, end),
            PartError::Unmapped => LookupError::Unmapped,
        })?;
        if end > block.bytes {
            return Err(LookupError::outside(block.by, (0, block.bytes), end));
        }
        if block.kind == BlockKind::Reserved {
            let unmapped =
                |by: Option<OpName>| by.map_or(LookupError::Unmapped, LookupError::Freed);
            let peer = match touched.space {
                AddressSpace::Device(device) => Some(device).filter(|it| *it != block.device),
                AddressSpace::Host => None,
            };
            block.mappings.check((offset, end), peer).map_err(unmapped)?;
        }
        Ok(OpRange {
            backing: Arc::clone(&block.backing),
            block: start,
            offset,
            // Wrapping is a formality: `offset` lies inside the block, checked above.
            pointer: block.backing.pointer().as_ptr().wrapping_add(offset as usize),
            bytes: touched.span() as usize,
            writes: touched.access != Access::Read,
            host_visible: block.kind.is_host_visible(),
        })
    }
}
