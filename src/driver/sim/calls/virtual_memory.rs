//! Addresses apart from memory. The memory of a handle is a block while it is mapped, with what the device knows of its
//! bytes; it keeps that over an unmapping. The device maps a handle at one address at a time.

use super::call::Call;
use crate::driver::sim::check::{OpName, ShadowMemory};
use crate::driver::sim::driver::SimDriver;
use crate::driver::sim::state::{Backing, BlockKind, PeerMemory, Reservation, SimBlock, SimHandle};
use crate::driver::{DeviceAddress, DeviceRange, DriverResult, RawHandle, VirtualCalls};
use crate::sync::Arc;
use crate::sync::trusted::unique;

/// A GPU's.
const GRANULARITY: u64 = 2 << 20;

impl VirtualCalls for SimDriver {
    fn granularity(&self) -> DriverResult<usize> {
        let call = self.call("cuMemGetAllocationGranularity")?;
        call.require(call.context.config.properties.virtual_memory)?;
        Ok(GRANULARITY as usize)
    }

    fn address_reserve(&self, bytes: usize, alignment: usize) -> DriverResult<DeviceAddress> {
        let mut call = self.call("cuMemAddressReserve")?;
        call.require(call.context.config.properties.virtual_memory)?;
        let bytes = call.whole(bytes)?;
        if !alignment.is_power_of_two() {
            return call.invalid();
        }
        let alignment = (alignment as u64).max(GRANULARITY);
        let Some(address) = call.next_aligned_address(bytes, alignment) else {
            return call.out_of_memory();
        };
        let reservation = Reservation { device: call.context.id, bytes };
        call.state.virtual_memory.reservations.insert(address, reservation);
        Ok(address)
    }

    unsafe fn address_free(&self, range: DeviceRange) -> DriverResult<()> {
        let mut call = self.call("cuMemAddressFree")?;
        let (address, bytes) = (range.address, range.bytes as u64);
        let found = call.state.virtual_memory.reservations.get(&address);
        let is_whole = found.is_some_and(|it| it.device == call.context.id && it.bytes == bytes);
        if !is_whole || call.state.blocks.is_taken(address, bytes) {
            return call.invalid();
        }
        call.state.virtual_memory.reservations.remove(&address);
        Ok(())
    }

    fn handle_create(&self, bytes: usize) -> DriverResult<RawHandle> {
        let mut call = self.call("cuMemCreate")?;
        call.require(call.context.config.properties.virtual_memory)?;
        let size = call.whole(bytes)?;
        let id = unique();
        call.reserve(BlockKind::Mapped(id), size)?;
        let poison = call.context.config.poison;
        // Aligned as the address that it gets will be.
        let Some(backing) = Backing::allocate(bytes, GRANULARITY as usize, poison) else {
            call.unreserve(BlockKind::Mapped(id), size);
            return Err(call.no_room_at_host());
        };
        let memory = Some((Arc::new(backing), ShadowMemory::new(size, false)));
        let handle = SimHandle { device: call.context.id, bytes: size, memory, released: false };
        call.state.virtual_memory.handles.insert(id, handle);
        Ok(RawHandle(id))
    }

    unsafe fn handle_release(&self, handle: RawHandle) -> DriverResult<()> {
        let mut call = self.call("cuMemRelease")?;
        let device = call.context.id;
        let found = call.state.virtual_memory.handles.get_mut(&handle.0);
        match found.filter(|found| found.device == device && !found.released) {
            Some(found) => found.released = true,
            None => return call.invalid(),
        }
        call.remove_if_over(handle.0);
        Ok(())
    }

    unsafe fn map(&self, range: DeviceRange, handle: RawHandle) -> DriverResult<()> {
        let mut call = self.call("cuMemMap")?;
        let (device, address) = (call.context.id, range.address);
        let bytes = call.whole(range.bytes)?;
        let is_free = address.is_multiple_of(GRANULARITY)
            && call.state.virtual_memory.is_reserved(device, address, bytes)
            && !call.state.blocks.is_taken(address, bytes);
        let found = call.state.virtual_memory.handles.get_mut(&handle.0);
        let found = found
            .filter(|it| is_free && (it.device, it.bytes, it.released) == (device, bytes, false));
        let Some((backing, shadow)) = found.and_then(|found| found.memory.take()) else {
            return call.invalid();
        };
        let (kind, by) = (BlockKind::Mapped(handle.0), OpName::call(call.name));
        let block = SimBlock::of_memory(device, bytes, kind, (backing, shadow), by);
        call.state.blocks.insert(address, block);
        Ok(())
    }

    unsafe fn set_access(&self, range: DeviceRange) -> DriverResult<()> {
        let mut call = self.call("cuMemSetAccess")?;
        let bytes = call.whole(range.bytes)?;
        let mapped = call.state.blocks.mapped_in(range.address, bytes);
        let Some(mapped) = mapped.filter(|_| {
            call.state.virtual_memory.is_reserved(call.context.id, range.address, bytes)
        }) else {
            return call.invalid();
        };
        for (_, handle) in mapped {
            let device = call.context.id;
            call.state.blocks.allow(device, PeerMemory::Mapped(handle));
        }
        Ok(())
    }

    /// Operations that the host has not seen complete may still use it, which is reported.
    unsafe fn unmap(&self, range: DeviceRange) -> DriverResult<()> {
        let mut call = self.call("cuMemUnmap")?;
        let bytes = call.whole(range.bytes)?;
        let mapped = call.state.blocks.mapped_in(range.address, bytes);
        let is_own = call.state.virtual_memory.is_reserved(call.context.id, range.address, bytes);
        let Some(mapped) = mapped.filter(|_| is_own) else { return call.invalid() };
        for (address, handle) in mapped {
            let block = call.free_now(address, |kind| kind == BlockKind::Mapped(handle))?;
            call.state.blocks.forbid(PeerMemory::Mapped(handle));
            if let Some(found) = call.state.virtual_memory.handles.get_mut(&handle) {
                found.memory = Some((block.backing, block.shadow));
            }
            call.remove_if_over(handle);
        }
        Ok(())
    }
}

impl Call<'_> {
    /// A size that is a multiple of the granularity.
    fn whole(&self, bytes: usize) -> DriverResult<u64> {
        let bytes = bytes as u64;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) { self.invalid() } else { Ok(bytes) }
    }

    /// The memory of a handle that is released and not mapped goes back.
    fn remove_if_over(&mut self, handle: u64) {
        let handles = &mut self.state.virtual_memory.handles;
        let is_over = |handle: &SimHandle| handle.released && handle.memory.is_some();
        if handles.get(&handle).is_some_and(is_over)
            && let Some(over) = handles.remove(&handle)
        {
            self.unreserve(BlockKind::Mapped(handle), over.bytes);
        }
    }
}
