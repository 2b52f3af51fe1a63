//! Memory that the host reaches: page-locked, registered, pageable and managed.

use super::call::Call;
use super::memory::PAGE;
use crate::driver::sim::check::OpName;
use crate::driver::sim::state::{Backing, BlockKind, OpWork, SimBlock, SimOp};
use crate::driver::{DeviceAddress, DriverResult, HostFlags, RawStream};
use std::ptr::NonNull;

/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
const ALREADY_REGISTERED: u32 = 712;
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
const NOT_REGISTERED: u32 = 713;

fn address_of(pointer: NonNull<u8>) -> u64 {
    pointer.as_ptr() as u64
}

impl Call<'_> {
    /// Allocates page-locked host memory.
    pub(crate) fn allocate_host(
        &mut self,
        bytes: usize,
        flags: HostFlags,
    ) -> DriverResult<NonNull<u8>> {
        if bytes == 0 {
            return self.invalid();
        }
        self.require(!flags.mapped || self.context.config.properties.map_host_memory)?;
        let Some(backing) = Backing::allocate(bytes, PAGE, self.context.config.poison) else {
            return self.out_of_memory();
        };
        let pointer = backing.pointer();
        self.insert(pointer, bytes, BlockKind::Host(flags), backing);
        Ok(pointer)
    }

    fn insert(&mut self, pointer: NonNull<u8>, bytes: usize, kind: BlockKind, backing: Backing) {
        let block = SimBlock::new(self.context.id, bytes, kind, backing);
        self.state.blocks.insert(address_of(pointer), block);
    }

    /// Frees page-locked host memory.
    pub(crate) fn free_host(&mut self, pointer: NonNull<u8>) -> DriverResult<()> {
        let is_host = |kind| matches!(kind, BlockKind::Host(_));
        self.free_now(address_of(pointer), is_host).map(|_| ())
    }

    /// Page-locks memory of the caller.
    pub(crate) fn register(
        &mut self,
        pointer: NonNull<u8>,
        bytes: usize,
        flags: HostFlags,
    ) -> DriverResult<()> {
        let properties = &self.context.config.properties;
        self.require(properties.host_register)?;
        self.require(!flags.mapped || properties.map_host_memory)?;
        if bytes == 0 {
            return self.invalid();
        }
        if self.state.blocks.is_taken(address_of(pointer), bytes as u64) {
            return self.refuse(ALREADY_REGISTERED);
        }
        self.insert(pointer, bytes, BlockKind::Registered(flags), Backing::registered(pointer));
        Ok(())
    }

    /// Ends a registration.
    pub(crate) fn unregister(&mut self, pointer: NonNull<u8>) -> DriverResult<()> {
        let (address, blocks) = (address_of(pointer), &self.state.blocks);
        if blocks.get(address).is_none() && blocks.freed_by(address).is_none() {
            return self.refuse(NOT_REGISTERED);
        }
        self.free_now(address, |kind| matches!(kind, BlockKind::Registered(_))).map(|_| ())
    }

    /// Makes ordinary memory of the host known to the device, at its own address.
    pub(crate) fn attach(&mut self, pointer: NonNull<u8>, bytes: usize) -> DriverResult<()> {
        self.require(self.context.config.properties.pageable_memory_access)?;
        if bytes == 0 || self.state.blocks.is_taken(address_of(pointer), bytes as u64) {
            return self.invalid();
        }
        self.insert(pointer, bytes, BlockKind::Pageable, Backing::registered(pointer));
        Ok(())
    }

    /// Ends what `attach` began. All operations that use the memory have to be complete.
    pub(crate) fn detach(&mut self, pointer: NonNull<u8>) -> DriverResult<()> {
        self.free_now(address_of(pointer), |kind| kind == BlockKind::Pageable).map(|_| ())
    }

    /// The address by which kernels reach a mapped host block: the pointer itself.
    pub(crate) fn mapped_address(&self, pointer: NonNull<u8>) -> DriverResult<DeviceAddress> {
        self.require(self.context.config.properties.map_host_memory)?;
        let address = address_of(pointer);
        match self.state.blocks.around(address) {
            Some((_, block))
                if block.kind.is_host_visible() && block.is_reached_by(self.context.id) =>
            {
                Ok(address)
            }
            _ => self.invalid(),
        }
    }

    /// Takes advice about managed or pageable memory, and does nothing: it never migrates here.
    pub(crate) fn advise(&self, address: DeviceAddress, bytes: usize) -> DriverResult<()> {
        let is_inside = self.state.blocks.around(address).is_some_and(|(start, block)| {
            matches!(block.kind, BlockKind::Managed | BlockKind::Pageable)
                && block.is_reached_by(self.context.id)
                && bytes > 0
                && bytes as u64 <= block.bytes - (address - start)
        });
        if is_inside { Ok(()) } else { self.invalid() }
    }

    /// As [`advise`](Self::advise), at a place in the stream's order.
    pub(crate) fn prefetch(
        &mut self,
        address: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        let id = self.stream(stream)?;
        self.forbid_in_capture(id)?;
        self.advise(address, bytes)?;
        self.state.push(id, SimOp::new(OpName::on(self.name, id), OpWork::Nothing));
        Ok(())
    }
}
