//! Allocating and freeing device memory: capacity, addresses, and the checks of a free.

use super::call::Call;
use crate::driver::sim::check::{AccessStamp, OpName, Violation};
use crate::driver::sim::run::advance;
use crate::driver::sim::state::{
    ADDRESS_RANGE, Backing, BlockKind, OpRange, OpWork, SimBlock, SimContext, SimOp, is_seen,
    wait_changed,
};
use crate::driver::{DeviceAddress, DriverResult, RawPool, RawStream};
use crate::error::DriverError;
use crate::sync::Arc;
use std::ptr::NonNull;

/// Device memory is aligned to this, as a GPU's is.
const ALIGNMENT: usize = 256;
/// Page-locked host memory and managed memory are aligned to a page.
pub(super) const PAGE: usize = 4096;
/// The largest alignment of a Rust type.
const MAX_ALIGNMENT: u64 = 1 << 29;
/// Between two blocks, so that one byte past the end of one is not in the next.
const GAP: u64 = 256;

impl Call<'_> {
    pub(super) fn out_of_memory<T>(&self) -> DriverResult<T> {
        self.refuse(DriverError::OUT_OF_MEMORY)
    }

    /// Takes `bytes` of the device's capacity. As a driver does, it waits for frees in stream order
    /// before it fails, since their bytes are in use until they have run.
    fn reserve(&mut self, bytes: u64) -> DriverResult<()> {
        loop {
            self.context.check_alive(self.name)?;
            let capacity = self.context.config.capacity;
            let Some(device) = self.device() else { return self.refuse(SimContext::UNKNOWN) };
            if let Some(used) = device.used.checked_add(bytes).filter(|&used| used <= capacity) {
                device.used = used;
                return Ok(());
            }
            let can_wait = device.pending_frees > 0 && bytes <= capacity;
            if !can_wait || !advance(self.state, self.context.id) {
                return self.out_of_memory();
            }
        }
    }

    fn unreserve(&mut self, bytes: u64) {
        if let Some(device) = self.device() {
            device.used = device.used.saturating_sub(bytes);
        }
    }

    /// The next free address of the device. It has the alignment of the memory at `pointer`, up to the
    /// largest of a Rust type, since a host form gets slices of that memory. No address is used again.
    fn next_address(&mut self, bytes: u64, pointer: NonNull<u8>) -> Option<u64> {
        let own = self.state.devices.get(&self.context.id)?;
        let (mut next, mut last) = (own.next_address, own.last_address);
        let needed = bytes.checked_add(GAP + MAX_ALIGNMENT)?;
        if needed > last - next {
            if needed > ADDRESS_RANGE {
                return None;
            }
            next = self.state.blocks.address_range()?;
            last = next + ADDRESS_RANGE;
        }
        let address = next + (pointer.as_ptr() as u64).wrapping_sub(next) % MAX_ALIGNMENT;
        let own = self.device()?;
        (own.next_address, own.last_address) = (address + bytes + GAP, last);
        Some(address)
    }

    /// Allocates device memory of any kind.
    pub(crate) fn allocate(
        &mut self,
        bytes: usize,
        kind: BlockKind,
    ) -> DriverResult<DeviceAddress> {
        if bytes == 0 {
            return self.invalid();
        }
        let size = bytes as u64;
        self.reserve(size)?;
        let alignment = if kind == BlockKind::Managed { PAGE } else { ALIGNMENT };
        let placed =
            Backing::allocate(bytes, alignment, self.context.config.poison).and_then(|backing| {
                match kind {
                    BlockKind::Managed => Some((backing.pointer().as_ptr() as u64, backing)),
                    _ => Some((self.next_address(size, backing.pointer())?, backing)),
                }
            });
        let Some((address, backing)) = placed else {
            self.unreserve(size);
            return self.out_of_memory();
        };
        let block = SimBlock::new(self.context.id, bytes, kind, backing);
        self.state.blocks.insert(address, block);
        Ok(address)
    }

    pub(crate) fn allocate_managed(&mut self, bytes: usize) -> DriverResult<DeviceAddress> {
        self.require(self.context.config.properties.managed_memory)?;
        self.allocate(bytes, BlockKind::Managed)
    }

    /// Allocates in stream order.
    pub(crate) fn allocate_async(
        &mut self,
        pool: RawPool,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<DeviceAddress> {
        self.require_pools()?;
        let id = self.stream(stream)?;
        // In a capture this would be a node of the graph, and the memory the graph's.
        self.forbid_in_capture(id)?;
        self.pool(pool)?;
        let address = self.allocate(bytes, BlockKind::Pool(pool.0))?;
        if let Some(pool) = self.state.pools.get_mut(&pool.0) {
            pool.allocate(bytes as u64);
        }
        // Enqueued after the capacity is taken: to wait for that lets others use this stream.
        let name = OpName::on(self.name, id);
        let tick = self.state.push(id, SimOp::new(name, OpWork::Nothing));
        if let Some(block) = self.state.blocks.get_mut(address) {
            block.allocation = Some(AccessStamp { stream: id, tick, name });
        }
        Ok(address)
    }

    /// Reports that no live block begins at `address`. The error that the call returns.
    pub(super) fn report_not_live(&self, name: OpName, address: u64) -> DriverError {
        match self.state.blocks.freed_by(address) {
            Some(by) => {
                let (kind, range) = (Violation::DoubleFree, (address, 0));
                let report = self.context.report(kind, name, Some(by), range, None);
                DriverError::with_detail(self.name, DriverError::INVALID_VALUE, report)
            }
            None => self.report_unmapped(name, (address, 0)),
        }
    }

    /// Checks the block to be freed: it must be this device's, and of a kind that is freed so.
    fn check_free(
        &self,
        name: OpName,
        address: u64,
        is_right: impl Fn(BlockKind) -> bool,
    ) -> DriverResult<()> {
        match self.state.blocks.get(address) {
            None => Err(self.report_not_live(name, address)),
            Some(block) if block.device == self.context.id && is_right(block.kind) => Ok(()),
            Some(_) => self.invalid(),
        }
    }

    /// Waits until no operation touches a block, which is out of the table.
    fn wait_unused(&mut self, backing: &Arc<Backing>) {
        while Arc::strong_count(backing) > 1 {
            let user = self.state.streams.values().find(|stream| {
                let mut ranges = stream.queue.iter().flat_map(|op| &op.ranges);
                ranges.any(|range| Arc::ptr_eq(&range.backing, backing))
            });
            match user.map(|stream| stream.device) {
                Some(device) if !advance(self.state, device) => return,
                Some(_) => {}
                None => wait_changed(self.state),
            }
        }
    }

    /// Frees at once a block of a kind that is freed so. Operations that the host has not seen
    /// complete may still use it, which is reported.
    pub(super) fn free_now(
        &mut self,
        address: u64,
        is_right: impl Fn(BlockKind) -> bool,
    ) -> DriverResult<SimBlock> {
        let name = OpName::call(self.name);
        self.check_free(name, address, is_right)?;
        let complete = |former: &AccessStamp| self.state.is_seen(former);
        if let Some(block) = self.state.blocks.get(address) {
            let allocation = block.allocation.filter(|allocation| !complete(allocation));
            let found = block.shadow.unordered(&complete);
            let other = found.and_then(|found| found.other);
            if let Some(other) = other.or(allocation.map(|allocation| allocation.name)) {
                let (start, end) = found.map_or((0, block.bytes), |found| (found.start, found.end));
                let range = (address + start, end - start);
                self.context.report(Violation::FreeWhileInUse, name, Some(other), range, None);
            }
        }
        // Out of the table before the wait, so that no later operation uses it.
        let Some(block) = self.state.blocks.free(address, name) else { return self.invalid() };
        self.wait_unused(&block.backing);
        Ok(block)
    }

    /// Frees device memory at once.
    pub(crate) fn free(&mut self, address: u64) -> DriverResult<()> {
        let block = self.free_now(address, BlockKind::is_device_memory)?;
        self.unreserve(block.bytes);
        if let BlockKind::Pool(pool) = block.kind
            && let Some(pool) = self.state.pools.get_mut(&pool)
        {
            pool.deallocate(block.bytes);
        }
        Ok(())
    }

    /// Frees in stream order: all uses have to be ordered before.
    pub(crate) fn free_async(&mut self, address: u64, stream: RawStream) -> DriverResult<()> {
        self.require_pools()?;
        let id = self.stream(stream)?;
        self.forbid_in_capture(id)?;
        let name = OpName::on(self.name, id);
        self.check_free(name, address, |kind| matches!(kind, BlockKind::Pool(_)))?;
        let Some(block) = self.state.blocks.free(address, name) else { return self.invalid() };
        if let Some(stream) = self.state.streams.get(&id) {
            let streams = &self.state.streams;
            let ordered = |former: &AccessStamp| {
                stream.follows(id, former) || is_seen(streams, former.stream, former.tick)
            };
            if let Some(allocation) = block.allocation.filter(|it| !ordered(it)) {
                let (kind, range) = (Violation::UseBeforeAllocation, (address, block.bytes));
                self.context.report(kind, name, Some(allocation.name), range, None);
            }
            if let Some(found) = block.shadow.unordered(&ordered) {
                let range = (address + found.start, found.end - found.start);
                self.context.report(found.violation, name, found.other, range, None);
            }
        }
        let range = OpRange {
            block: address,
            offset: 0,
            pointer: block.backing.pointer().as_ptr(),
            backing: block.backing,
            bytes: block.bytes as usize,
            writes: true,
            host_visible: false,
        };
        let pool = if let BlockKind::Pool(pool) = block.kind { pool } else { 0 };
        let work = OpWork::Free { bytes: block.bytes, pool };
        self.state.push(id, SimOp { ranges: vec![range], ..SimOp::new(name, work) });
        Ok(())
    }
}
