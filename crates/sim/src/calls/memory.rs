//! Memory of the device, and page-locked, registered, pageable and managed memory of the host that it reaches. Here are
//! its capacity, its addresses, and the checks of a free.

use super::call::Call;
use crate::check::{AccessStamp, OpName, Violation};
use crate::driver::SimDriver;
use crate::run::advance;
use crate::state::{
    ADDRESS_RANGE, Backing, BlockKind, OpWork, SimBlock, SimOp, is_mapped, is_seen,
    is_seen_by_pools, physical_memory, wait_changed,
};
use aquifer_driver::error::DriverError;
use aquifer_driver::{
    DefaultPoolEnd, DeviceAddress, DeviceRange, DriverResult, HostFlags, MemoryCalls, MemoryInfo,
    MemoryLocation, PreferredLocation, RawStream,
};
use aquifer_sync::Arc;
use std::ptr::NonNull;

/// The alignment of device memory, which is a GPU's.
const ALIGNMENT: usize = 256;
/// The alignment of page-locked host memory and managed memory, which is a page.
const PAGE: usize = 4096;
/// The largest alignment of a Rust type.
const MAX_ALIGNMENT: u64 = 1 << 29;
/// The gap between two blocks, so that one byte past the end of one is not in the next.
const GAP: u64 = 256;

impl MemoryCalls for SimDriver {
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        let mut call = self.call("cuMemGetInfo")?;
        let used = call.device().map_or(0, |device| device.used) as usize;
        let total = call.context.config.capacity;
        Ok(MemoryInfo::new(total.saturating_sub(used), total))
    }

    fn mem_alloc(&self, bytes: usize) -> DriverResult<DeviceAddress> {
        self.call("cuMemAlloc")?.allocate(bytes, BlockKind::Device)
    }

    unsafe fn mem_free(&self, address: DeviceAddress) -> DriverResult<()> {
        let mut call = self.call("cuMemFree")?;
        let block = call.free_now(address, BlockKind::is_device_memory)?;
        call.unreserve(block.kind, block.bytes);
        if let BlockKind::Pool(pool) = block.kind
            && let Some(pool) = call.state.pools.get_mut(&pool)
        {
            pool.deallocate(block.bytes);
        }
        Ok(())
    }

    fn mem_alloc_managed(&self, bytes: usize) -> DriverResult<DeviceAddress> {
        let mut call = self.call("cuMemAllocManaged")?;
        call.require(call.context.config.properties.managed_memory)?;
        call.allocate(bytes, BlockKind::Managed)
    }

    fn is_known(&self, address: DeviceAddress) -> DriverResult<bool> {
        Ok(self.call("cuPointerGetAttributes")?.state.blocks.is_taken(address, 1))
    }

    /// Takes advice as [`advise`](Self::advise) does, at a place in the stream's order.
    unsafe fn prefetch(
        &self,
        range: DeviceRange,
        _to: MemoryLocation,
        stream: RawStream,
    ) -> DriverResult<()> {
        let mut call = self.call("cuMemPrefetchAsync")?;
        let (id, name) = call.on_stream(stream)?;
        call.forbid_in_capture(id)?;
        call.check_movable(range)?;
        call.state.push(id, SimOp::new(name, OpWork::Nothing));
        Ok(())
    }

    /// Takes advice about managed or pageable memory, and does nothing, since that never migrates here.
    unsafe fn advise(&self, range: DeviceRange, _preferred: PreferredLocation) -> DriverResult<()> {
        self.call("cuMemAdvise")?.check_movable(range)
    }

    /// The device reaches the memory at its own address.
    unsafe fn pageable_attach(&self, pointer: NonNull<u8>, bytes: usize) -> DriverResult<()> {
        let mut call = Call::uncounted(&self.context, "pageable memory")?;
        call.require(call.context.config.properties.pageable_memory_access)?;
        let is_memory = bytes > 0 && is_mapped(pointer, bytes);
        if !is_memory || call.state.blocks.is_taken(address_of(pointer), bytes as u64) {
            return call.invalid();
        }
        call.insert(pointer, bytes, BlockKind::Pageable, Backing::registered(pointer));
        Ok(())
    }

    /// All operations that use the memory have to be complete.
    unsafe fn pageable_detach(&self, pointer: NonNull<u8>) -> DriverResult<()> {
        let mut call = Call::uncounted(&self.context, "pageable memory")?;
        call.free_now(address_of(pointer), |kind| kind == BlockKind::Pageable).map(|_| ())
    }

    fn host_alloc(&self, bytes: usize, flags: HostFlags) -> DriverResult<NonNull<u8>> {
        let mut call = self.call("cuMemHostAlloc")?;
        if bytes == 0 {
            return call.invalid();
        }
        call.require(!flags.mapped || call.context.config.properties.map_host_memory)?;
        let poison = call.context.config.poison;
        let has_room = call.state.blocks.has_room_to_lock(bytes);
        let backing = if has_room { Backing::allocate(bytes, PAGE, poison) } else { None };
        let Some(backing) = backing else { return call.out_of_memory() };
        let pointer = backing.pointer();
        call.insert(pointer, bytes, BlockKind::Host(flags), backing);
        Ok(pointer)
    }

    unsafe fn host_free(&self, pointer: NonNull<u8>) -> DriverResult<()> {
        let is_host = |kind| matches!(kind, BlockKind::Host(_));
        self.call("cuMemFreeHost")?.free_now(address_of(pointer), is_host).map(|_| ())
    }

    unsafe fn host_register(&self, memory: NonNull<[u8]>, flags: HostFlags) -> DriverResult<()> {
        let mut call = self.call("cuMemHostRegister")?;
        let (pointer, bytes) = (memory.cast(), memory.len());
        let properties = &call.context.config.properties;
        call.require(properties.host_register)?;
        call.require(!flags.mapped || properties.map_host_memory)?;
        call.require(!flags.read_only || properties.read_only_host_register)?;
        if bytes == 0 || !is_mapped(pointer, bytes) {
            return call.invalid();
        }
        if call.state.blocks.is_taken(address_of(pointer), bytes as u64) {
            return call.refuse(DriverError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        call.insert(pointer, bytes, BlockKind::Registered(flags), Backing::registered(pointer));
        Ok(())
    }

    unsafe fn host_unregister(&self, pointer: NonNull<u8>) -> DriverResult<()> {
        let mut call = self.call("cuMemHostUnregister")?;
        let (address, blocks) = (address_of(pointer), &call.state.blocks);
        if blocks.get(address).is_none() && blocks.freed_by(address).is_none() {
            return call.refuse(DriverError::HOST_MEMORY_NOT_REGISTERED);
        }
        call.free_now(address, |kind| matches!(kind, BlockKind::Registered(_))).map(|_| ())
    }

    /// The address by which kernels reach a mapped host block, which is the pointer itself.
    fn host_device_address(&self, pointer: NonNull<u8>) -> DriverResult<DeviceAddress> {
        let call = self.call("cuMemHostGetDevicePointer")?;
        call.require(call.context.config.properties.map_host_memory)?;
        let address = address_of(pointer);
        match call.state.blocks.around(address) {
            Some((_, block))
                if block.kind.is_host_visible()
                    && call.state.blocks.is_reached(block, call.context.id) =>
            {
                Ok(address)
            }
            _ => call.invalid(),
        }
    }
}

fn address_of(pointer: NonNull<u8>) -> u64 {
    pointer.as_ptr() as u64
}

impl Call<'_> {
    pub(super) fn out_of_memory<T>(&self) -> DriverResult<T> {
        self.refuse(DriverError::OUT_OF_MEMORY)
    }

    pub(super) fn no_room_at_host(&self) -> DriverError {
        let error = self.error(DriverError::OUT_OF_MEMORY);
        error.with_log("the host behind the simulated device has no room for it")
    }

    /// Whether managed memory may lie at the host while the device uses it, as on Linux. Then it may be more than the
    /// device has, and takes none of the capacity. A driver counts a page where it lies, and none migrates here.
    fn may_oversubscribe(&self, kind: BlockKind) -> bool {
        kind == BlockKind::Managed && self.context.config.properties.concurrent_managed_access
    }

    /// Takes `bytes` of the device's capacity. As a driver does, it waits for frees in stream order
    /// before it fails, since their bytes are in use until they have run. Managed memory that may oversubscribe
    /// takes as much as the device and the machine have together.
    pub(super) fn reserve(&mut self, kind: BlockKind, bytes: u64) -> DriverResult<()> {
        if self.may_oversubscribe(kind) {
            let host = physical_memory().unwrap_or(u64::MAX);
            let most = (self.context.config.capacity as u64).saturating_add(host);
            let Some(device) = self.device() else { return self.refuse(DriverError::UNKNOWN) };
            let managed = device.managed.checked_add(bytes).filter(|&managed| managed <= most);
            let Some(managed) = managed else { return self.out_of_memory() };
            device.managed = managed;
            return Ok(());
        }
        loop {
            self.context.check_alive(self.name)?;
            let capacity = self.context.config.capacity as u64;
            let Some(device) = self.device() else { return self.refuse(DriverError::UNKNOWN) };
            if let Some(used) = device.used.checked_add(bytes).filter(|&used| used <= capacity) {
                device.used = used;
                return Ok(());
            }
            let can_wait = device.pending_frees > 0 && bytes <= capacity;
            if !can_wait || !advance(&mut self.state, self.context.id) {
                return self.out_of_memory();
            }
        }
    }

    pub(super) fn unreserve(&mut self, kind: BlockKind, bytes: u64) {
        let is_managed = self.may_oversubscribe(kind);
        if let Some(device) = self.device() {
            let taken = if is_managed { &mut device.managed } else { &mut device.used };
            *taken = taken.saturating_sub(bytes);
        }
    }

    /// The next free address of the device. It has the alignment of the memory at `pointer`, up to the
    /// largest of a Rust type, since a host form gets slices of that memory. No address is used again.
    pub(super) fn next_address(&mut self, bytes: u64, pointer: NonNull<u8>) -> Option<u64> {
        self.place_address(bytes, pointer.as_ptr() as u64, MAX_ALIGNMENT)
    }

    /// The next free address that is a multiple of `alignment`. No address is used again.
    pub(super) fn next_aligned_address(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        self.place_address(bytes, 0, alignment)
    }

    /// The next free address that differs from `like` by a multiple of `modulus`, a power of two.
    fn place_address(&mut self, bytes: u64, like: u64, modulus: u64) -> Option<u64> {
        let own = self.state.devices.get(&self.context.id)?;
        let (mut next, mut last) = (own.next_address, own.last_address);
        let needed = bytes.checked_add(GAP)?.checked_add(modulus)?;
        if needed > last - next {
            if needed > ADDRESS_RANGE {
                return None;
            }
            next = self.state.blocks.address_range()?;
            last = next + ADDRESS_RANGE;
        }
        let address = next + like.wrapping_sub(next) % modulus;
        let own = self.device()?;
        (own.next_address, own.last_address) = (address + bytes + GAP, last);
        Some(address)
    }

    /// Allocates device memory of any kind.
    pub(super) fn allocate(
        &mut self,
        bytes: usize,
        kind: BlockKind,
    ) -> DriverResult<DeviceAddress> {
        if bytes == 0 {
            return self.invalid();
        }
        let size = bytes as u64;
        self.reserve(kind, size)?;
        let alignment = if kind == BlockKind::Managed { PAGE } else { ALIGNMENT };
        let placed =
            Backing::allocate(bytes, alignment, self.context.config.poison).and_then(|backing| {
                match kind {
                    BlockKind::Managed => Some((backing.pointer().as_ptr() as u64, backing)),
                    _ => Some((self.next_address(size, backing.pointer())?, backing)),
                }
            });
        let Some((address, backing)) = placed else {
            self.unreserve(kind, size);
            return Err(self.no_room_at_host());
        };
        let block = SimBlock::new(self.context.id, bytes, kind, backing, OpName::call(self.name));
        self.state.blocks.insert(address, block);
        Ok(address)
    }

    /// Reports that no live block begins at `address`. Returns the error of the call.
    fn report_not_live(&self, name: OpName, address: u64) -> DriverError {
        let by = self.state.blocks.freed_by(address);
        let kind = if by.is_some() { Violation::DoubleFree } else { Violation::UnmappedAddress };
        let memory = self.state.blocks.reported(address, 0);
        self.context.report_address(kind, name, by, memory, None)
    }

    /// Checks the block to be freed. It must be this device's, of a kind that is freed so, and not open in another
    /// place.
    pub(super) fn check_free(
        &self,
        name: OpName,
        address: u64,
        is_right: impl Fn(BlockKind) -> bool,
    ) -> DriverResult<()> {
        match self.state.blocks.get(address) {
            None => Err(self.report_not_live(name, address)),
            Some(block) if block.device == self.context.id && is_right(block.kind) => {
                if let Some(import) = self.state.blocks.imports.of_block(address) {
                    let memory = self.state.blocks.reported(address, block.bytes);
                    let (kind, other) = (Violation::FreeWhileInUse, Some(import.by));
                    self.context.report(kind, name, other, memory, None);
                }
                Ok(())
            }
            Some(_) => self.invalid(),
        }
    }

    /// Names the free of a block, which is a vector's drop if it is one vector.
    pub(super) fn freeing(&self, name: OpName, address: u64) -> OpName {
        let vector = self.state.blocks.get(address).and_then(|block| block.vectors.at(0));
        name.freeing(vector.is_some_and(|vector| vector.is_live()))
    }

    /// Waits until no operation touches a block, which is out of the table.
    fn wait_unused(&mut self, backing: &Arc<Backing>) {
        while Arc::strong_count(backing) > 1 {
            let user = self.state.streams.values().find(|stream| {
                let mut ranges = stream.queue.iter().flat_map(|op| &op.ranges);
                ranges.any(|range| Arc::ptr_eq(&range.backing, backing))
            });
            match user.map(|stream| stream.device) {
                Some(device) if !advance(&mut self.state, device) => return,
                Some(_) => {}
                None => wait_changed(&mut self.state),
            }
        }
    }

    /// Frees at once a block of a kind that is freed so. Operations that the host has not seen complete may still use
    /// it, which is reported. At the end of a default pool, operations that
    /// pools have seen complete do not count.
    pub(super) fn free_now(
        &mut self,
        address: u64,
        is_right: impl Fn(BlockKind) -> bool,
    ) -> DriverResult<SimBlock> {
        let name = self.freeing(OpName::call(self.name), address);
        self.check_free(name, address, is_right)?;
        let streams = &self.state.streams;
        let is_seen = if DefaultPoolEnd::is_here() { is_seen_by_pools } else { is_seen };
        let complete = |former: &AccessStamp| is_seen(streams, former.stream, former.tick);
        if let Some(block) = self.state.blocks.get(address) {
            let allocation = block.allocation.filter(|allocation| !complete(allocation));
            let found = block.shadow.unordered(&complete);
            let other = found.and_then(|found| found.other);
            if let Some(other) = other.or(allocation.map(|allocation| allocation.name)) {
                let (start, end) = found.map_or((0, block.bytes), |found| (found.start, found.end));
                let memory = self.state.blocks.reported(address + start, end - start);
                self.context.report(Violation::FreeWhileInUse, name, Some(other), memory, None);
            }
        }
        // Out of the table before the wait, so that no later operation uses it.
        let Some(block) = self.state.blocks.free(address, name) else { return self.invalid() };
        self.wait_unused(&block.backing);
        Ok(block)
    }

    /// Adds a block of host memory at its own address.
    fn insert(&mut self, pointer: NonNull<u8>, bytes: usize, kind: BlockKind, backing: Backing) {
        let block = SimBlock::new(self.context.id, bytes, kind, backing, OpName::call(self.name));
        self.state.blocks.insert(address_of(pointer), block);
    }

    /// Checks a range that may migrate, which is managed or pageable memory that the device reaches.
    fn check_movable(&self, range: DeviceRange) -> DriverResult<()> {
        let DeviceRange { address, bytes } = range;
        let is_inside = self.state.blocks.around(address).is_some_and(|(start, block)| {
            matches!(block.kind, BlockKind::Managed | BlockKind::Pageable)
                && self.state.blocks.is_reached(block, self.context.id)
                && bytes > 0
                && bytes as u64 <= block.bytes - (address - start)
        });
        if is_inside { Ok(()) } else { self.invalid() }
    }
}
