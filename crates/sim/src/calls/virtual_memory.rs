//! Addresses apart from memory. Reserved addresses are a block, in which operations find what is mapped and has access.

use super::call::Call;
use crate::check::{AccessStamp, OpName, ReportedMemory, ShadowMemory, Violation};
use crate::driver::SimDriver;
use crate::state::{
    Backing, BlockKind, Mapping, MappingState, POISON, SimBlock, SimHandle, SimState, is_seen,
    is_seen_by_pools,
};
use aquifer_driver::error::DriverError;
use aquifer_driver::{
    DefaultPoolEnd, DeviceAddress, DeviceRange, DriverResult, HandleSpec, PeerCalls, RawHandle,
    VirtualCalls,
};
use aquifer_sync::trusted::unique;
use std::any::Any;
#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};

/// The size of a page of the host.
const PAGE: u64 = 4096;

/// The bytes of larger handles stay zero, so that the system provides their pages as they are touched.
const POISON_LIMIT: u64 = 16 << 20;

impl VirtualCalls for SimDriver {
    fn granularity(&self, _: HandleSpec) -> DriverResult<usize> {
        let call = self.call("cuMemGetAllocationGranularity")?;
        call.require(call.context.config.properties.virtual_memory)?;
        Ok(call.granularity() as usize)
    }

    fn address_reserve(&self, bytes: usize, alignment: usize) -> DriverResult<DeviceAddress> {
        let mut call = self.call("cuMemAddressReserve")?;
        call.require(call.context.config.properties.virtual_memory)?;
        let size = call.whole(bytes)?;
        if !alignment.is_power_of_two() {
            return call.invalid();
        }
        let alignment = (alignment as u64).max(call.granularity());
        let device = call.context.id;
        let backing = Backing::addresses(bytes, device as usize);
        let Some((backing, address)) = backing.zip(call.next_aligned_address(size, alignment))
        else {
            return call.out_of_memory();
        };
        let by = OpName::call(call.name);
        let block = SimBlock::new(device, bytes, BlockKind::Reserved, backing, by);
        call.state.blocks.insert(address, block);
        Ok(address)
    }

    unsafe fn address_free(&self, range: DeviceRange) -> DriverResult<()> {
        let mut call = self.call("cuMemAddressFree")?;
        let (is_all, block) = match call.reserved(range) {
            Ok((block, at)) => (at == (0, block.bytes) && block.mappings.is_empty(), range.address),
            Err(error) => return Err(error),
        };
        if !is_all {
            return call.invalid();
        }
        let by = OpName::call(call.name);
        call.state.blocks.free(block, by);
        Ok(())
    }

    fn handle_create(&self, bytes: usize, spec: HandleSpec) -> DriverResult<RawHandle> {
        let mut call = self.call("cuMemCreate")?;
        let properties = &call.context.config.properties;
        call.require(
            properties.virtual_memory
                && (properties.virtual_memory_descriptors || !spec.shareable)
                && (properties.virtual_memory_rdma || !spec.rdma),
        )?;
        let (size, device, id) = (call.whole(bytes)?, call.context.id, unique());
        call.reserve(BlockKind::Reserved, size)?;
        let poison = call.context.config.poison && size <= POISON_LIMIT;
        let poison = poison.then_some(POISON);
        let Some(offset) = call.state.virtual_memory.add_bytes(device, size, poison) else {
            call.unreserve(BlockKind::Reserved, size);
            return Err(call.no_room_at_host());
        };
        let shadow = ShadowMemory::new(size, false);
        let handle = SimHandle {
            device,
            bytes: size,
            offset,
            shadow,
            newest: None,
            mappings: 0,
            references: 1,
            spec,
            is_exported: false,
        };
        call.state.virtual_memory.handles.insert(id, handle);
        Ok(RawHandle(id))
    }

    fn handle_retain(&self, address: DeviceAddress) -> DriverResult<RawHandle> {
        let mut call = self.call("cuMemRetainAllocationHandle")?;
        let (block, (at, _)) = call.reserved(DeviceRange { address, bytes: 1 })?;
        let Some((_, mapping)) = block.mappings.around(at) else { return call.invalid() };
        match call.state.virtual_memory.handles.get_mut(&mapping.handle) {
            Some(found) => found.references += 1,
            None => return call.invalid(),
        }
        Ok(RawHandle(mapping.handle))
    }

    #[cfg(unix)]
    fn handle_export(&self, handle: RawHandle) -> DriverResult<OwnedFd> {
        let mut call = self.call("cuMemExportToShareableHandle")?;
        let device = call.context.id;
        let SimState { blocks, virtual_memory, .. } = &mut *call.state;
        let found = virtual_memory
            .handles
            .get_mut(&handle.0)
            .filter(|it| it.device == device && it.references > 0 && it.spec.shareable);
        let Some(found) = found else { return call.invalid() };
        found.is_exported = true;
        let bytes = found.bytes;
        // The other process may write, of which nothing is known here.
        match found.newest.map(|address| DeviceRange { address, bytes: bytes as usize }) {
            None => found.shadow.note_writes((0, bytes)),
            Some(range) => {
                if let Some((block, at)) = blocks.around_mut(range) {
                    block.shadow.note_writes(at);
                }
            }
        }
        call.handle_descriptor(handle)
    }

    /// A separate handle of the same bytes. Its accesses are not checked against those of the other, since the
    /// processes order them.
    #[cfg(unix)]
    fn handle_import(&self, descriptor: BorrowedFd<'_>) -> DriverResult<RawHandle> {
        let mut call = self.call("cuMemImportFromShareableHandle")?;
        let Some(handle) = call.handle_of(descriptor) else { return call.invalid() };
        let (handles, id) = (&mut call.state.virtual_memory.handles, unique());
        let Some(found) = handles.get(&handle.0) else { return call.invalid() };
        let &SimHandle { device, bytes, offset, .. } = found;
        let imported = SimHandle {
            device,
            bytes,
            offset,
            shadow: ShadowMemory::new(bytes, true),
            newest: None,
            mappings: 0,
            references: 1,
            // A GPU exports none that it has imported.
            spec: HandleSpec::default(),
            is_exported: true,
        };
        handles.insert(id, imported);
        Ok(RawHandle(id))
    }

    unsafe fn handle_release(&self, handle: RawHandle) -> DriverResult<()> {
        let mut call = self.call("cuMemRelease")?;
        let device = call.context.id;
        let found = call.state.virtual_memory.handles.get_mut(&handle.0);
        match found.filter(|found| found.device == device && found.references > 0) {
            Some(found) => found.references -= 1,
            None => return call.invalid(),
        }
        call.remove_if_over(handle.0);
        Ok(())
    }

    /// A second mapping takes over what is known of the bytes, so operations find them there from now on.
    unsafe fn map(&self, range: DeviceRange, handle: RawHandle) -> DriverResult<()> {
        let mut call = self.call("cuMemMap")?;
        let (device, bytes) = (call.context.id, call.whole(range.bytes)?);
        let is_aligned = range.address.is_multiple_of(call.granularity());
        let (block, at) = call.reserved(range)?;
        let is_free = is_aligned && !block.mappings.is_taken(at);
        let SimState { blocks, virtual_memory, .. } = &mut *call.state;
        let found = virtual_memory
            .handles
            .get(&handle.0)
            .filter(|it| is_free && (it.device, it.bytes) == (device, bytes) && it.references > 0);
        let backing = blocks.around(range.address).map(|(_, block)| &block.backing);
        let (Some(found), Some(backing)) = (found, backing) else { return call.invalid() };
        if !virtual_memory.show(backing, at, Some(handle.0)) {
            return Err(call.no_room_at_host());
        }
        let mut shadow = found.newest.and_then(|newest| {
            let last = DeviceRange { address: newest, bytes: range.bytes };
            let (block, at) = blocks.around_mut(last)?;
            block.mappings.set_state(at.0, MappingState::Moved);
            Some(block.shadow.copy_of(at))
        });
        let Some(found) = virtual_memory.handles.get_mut(&handle.0) else { return call.invalid() };
        found.newest = Some(range.address);
        found.mappings += 1;
        if let Some((block, at)) = blocks.around_mut(range) {
            block.shadow.replace(at, shadow.as_mut().unwrap_or(&mut found.shadow));
            let state = MappingState::Mapped;
            block.mappings.insert(at.0, Mapping { bytes, handle: handle.0, state });
        }
        Ok(())
    }

    unsafe fn set_access(&self, range: DeviceRange) -> DriverResult<()> {
        let mut call = self.call("cuMemSetAccess")?;
        call.whole(range.bytes)?;
        let (block, at) = call.reserved(range)?;
        let Some(mapped) = block.mappings.whole(at) else { return call.invalid() };
        if let Some((block, _)) = call.state.blocks.around_mut(range) {
            for (at, _) in mapped.iter().filter(|it| it.1.state == MappingState::Mapped) {
                block.mappings.set_state(*at, MappingState::Accessible);
            }
        }
        Ok(())
    }

    unsafe fn set_peer_access(&self, range: DeviceRange, peer: &dyn Any) -> DriverResult<()> {
        let mut call = self.call("cuMemSetAccess")?;
        call.whole(range.bytes)?;
        let refused = call.error(DriverError::INVALID_DEVICE);
        let reaches = self.can_access_peer(peer)?;
        let peer = peer.downcast_ref::<Self>().filter(|_| reaches).ok_or(refused)?;
        let (block, at) = call.reserved(range)?;
        let Some(mapped) = block.mappings.whole(at) else { return call.invalid() };
        if let Some((block, _)) = call.state.blocks.around_mut(range) {
            mapped.iter().for_each(|(at, _)| block.mappings.share(*at, peer.context.id));
        }
        Ok(())
    }

    /// Operations that the host has not seen complete may still use it, which is reported, unless it never had access.
    unsafe fn unmap(&self, range: DeviceRange) -> DriverResult<()> {
        let mut call = self.call("cuMemUnmap")?;
        call.whole(range.bytes)?;
        let (block, at) = call.reserved(range)?;
        let Some(mapped) = block.mappings.whole(at) else { return call.invalid() };
        // What nothing could use has the uses of its memory by another address, which go on there.
        if mapped.iter().any(|(_, mapping)| mapping.state != MappingState::Mapped) {
            call.report_uses(range);
        }
        let by = OpName::call(call.name);
        let SimState { blocks, virtual_memory, .. } = &mut *call.state;
        let Some((block, place)) = blocks.around_mut(range) else { return call.invalid() };
        virtual_memory.show(&block.backing, place, None);
        for (start, mapping) in &mapped {
            let part = (*start, start + mapping.bytes);
            block.mappings.set_state(*start, MappingState::Unmapped(by));
            if let Some(handle) = virtual_memory.handles.get_mut(&mapping.handle) {
                handle.mappings -= 1;
                if mapping.state != MappingState::Moved {
                    handle.newest = None;
                    handle.shadow = block.shadow.copy_of(part);
                }
            }
            block.shadow.replace(part, &mut ShadowMemory::new(mapping.bytes, false));
        }
        mapped.iter().for_each(|(_, mapping)| call.remove_if_over(mapping.handle));
        Ok(())
    }
}

impl Call<'_> {
    /// A size that is a multiple of the granularity.
    fn whole(&self, bytes: usize) -> DriverResult<u64> {
        let bytes = bytes as u64;
        let is_whole = bytes != 0 && bytes.is_multiple_of(self.granularity());
        if is_whole { Ok(bytes) } else { self.invalid() }
    }

    fn granularity(&self) -> u64 {
        let granularity = self.context.config.granularity as u64;
        granularity.checked_next_power_of_two().unwrap_or(1 << 63).max(PAGE)
    }

    /// The reserved addresses of this device that hold a range, and where in them it begins and ends.
    fn reserved(&self, range: DeviceRange) -> DriverResult<(&SimBlock, (u64, u64))> {
        let found = self.state.blocks.around(range.address).filter(|(_, block)| {
            block.kind == BlockKind::Reserved && block.device == self.context.id
        });
        let Some((start, block)) = found else { return self.invalid() };
        let at = range.address - start;
        match at.checked_add(range.bytes as u64).filter(|&end| end <= block.bytes) {
            Some(end) => Ok((block, (at, end))),
            None => self.invalid(),
        }
    }

    /// Reports that work which the host has not seen complete uses a range. At the end of a default pool, work
    /// that pools have seen complete does not count.
    fn report_uses(&mut self, range: DeviceRange) {
        let name = OpName::call(self.name);
        let SimState { streams, blocks, .. } = &mut *self.state;
        let is_seen = if DefaultPoolEnd::is_here() { is_seen_by_pools } else { is_seen };
        let complete = |former: &AccessStamp| is_seen(streams, former.stream, former.tick);
        let Some((block, at)) = blocks.around_mut(range) else { return };
        let Some(found) = block.shadow.unordered_in(at, &complete) else { return };
        let start = range.address + (found.start - at.0);
        let vector = block.vectors.at(found.start);
        let memory = ReportedMemory::new((start, found.end - found.start), vector);
        self.context.report(Violation::FreeWhileInUse, name, found.other, memory, None);
    }

    /// Gives back the memory of a handle that is released and not mapped, with the last handle of it.
    fn remove_if_over(&mut self, handle: u64) {
        let memory = &mut self.state.virtual_memory;
        let is_over = |handle: &SimHandle| handle.references == 0 && handle.mappings == 0;
        if memory.handles.get(&handle).is_some_and(is_over)
            && let Some(over) = memory.handles.remove(&handle)
            && !memory.is_shared(&over)
        {
            memory.remove_bytes(&over);
            self.unreserve(BlockKind::Reserved, over.bytes);
        }
    }
}
