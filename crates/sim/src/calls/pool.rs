//! The driver's memory pools, and their memory in stream order.

use super::call::Call;
use crate::check::{AccessStamp, Violation};
use crate::driver::SimDriver;
use crate::state::{BlockKind, OpRange, OpWork, SimOp, SimPool, is_seen};
use aquifer_driver::error::DriverError;
use aquifer_driver::{
    DeviceAddress, DriverResult, PoolAttribute, PoolCalls, PoolSpec, RawPool, RawStream,
};
use aquifer_sync::trusted::unique;

impl PoolCalls for SimDriver {
    /// Makes a pool, but none of managed memory, which the simulated device lacks. The handles of shareable pools are
    /// descriptors of Linux.
    fn pool_create(&self, spec: PoolSpec) -> DriverResult<RawPool> {
        let mut call = self.call("cuMemPoolCreate")?;
        call.require_pools()?;
        call.require(
            !spec.managed && !spec.fabric && (!spec.shareable || cfg!(target_os = "linux")),
        )?;
        Ok(call.add_pool(spec))
    }

    /// The device's own pool, made on first use.
    fn pool_default(&self) -> DriverResult<RawPool> {
        let mut call = self.call("cuDeviceGetDefaultMemPool")?;
        call.require_pools()?;
        if let Some(pool) = call.device().and_then(|device| device.default_pool) {
            return Ok(RawPool(pool));
        }
        let pool = call.add_pool(PoolSpec::default());
        if let Some(device) = call.device() {
            device.default_pool = Some(pool.0);
        }
        Ok(pool)
    }

    fn pool_get(&self, pool: RawPool, attribute: PoolAttribute) -> DriverResult<u64> {
        self.call("cuMemPoolGetAttribute")?.pool(pool).map(|pool| pool.get(attribute))
    }

    fn pool_set(&self, pool: RawPool, attribute: PoolAttribute, value: u64) -> DriverResult<()> {
        let mut call = self.call("cuMemPoolSetAttribute")?;
        match call.pool(pool)?.setting_mut(attribute) {
            Some(setting) => {
                *setting = value;
                Ok(())
            }
            None => call.invalid(),
        }
    }

    #[cfg(unix)]
    fn pool_export(&self, pool: RawPool) -> DriverResult<i32> {
        let mut call = self.call("cuMemPoolExportToShareableHandle")?;
        let shareable = call.pool(pool)?.shareable;
        call.require(shareable)?;
        call.pool_descriptor(pool)
    }

    unsafe fn pool_destroy(&self, pool: RawPool) -> DriverResult<()> {
        let mut call = self.call("cuMemPoolDestroy")?;
        call.require_pools()?;
        if call.forget_imported_pool(pool) {
            return Ok(());
        }
        call.pool(pool)?;
        call.state.pools.remove(&pool.0);
        Ok(())
    }

    /// Does nothing on a pool of the device. The pool caches nothing, so a free returns its bytes when
    /// it runs.
    fn pool_trim(&self, pool: RawPool, _keep: usize) -> DriverResult<()> {
        let mut call = self.call("cuMemPoolTrimTo")?;
        call.require_pools()?;
        call.pool(pool).map(|_| ())
    }

    fn mem_alloc_async(
        &self,
        pool: RawPool,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<DeviceAddress> {
        let mut call = self.call("cuMemAllocFromPoolAsync")?;
        call.require_pools()?;
        let (id, name) = call.on_stream(stream)?;
        // In a capture this would be a node of the graph, and the memory the graph's.
        call.forbid_in_capture(id)?;
        call.pool(pool)?;
        let address = call.allocate(bytes, BlockKind::Pool(pool.0))?;
        if let Some(pool) = call.state.pools.get_mut(&pool.0) {
            pool.allocate(bytes as u64);
        }
        // Enqueued after the capacity is taken: to wait for that lets others use this stream.
        let tick = call.state.push(id, SimOp::new(name, OpWork::Nothing));
        if let Some(block) = call.state.blocks.get_mut(address) {
            (block.by, block.allocation) = (name, Some(AccessStamp { stream: id, tick, name }));
        }
        Ok(address)
    }

    /// All uses have to be ordered before.
    unsafe fn mem_free_async(&self, address: DeviceAddress, stream: RawStream) -> DriverResult<()> {
        let mut call = self.call("cuMemFreeAsync")?;
        call.require_pools()?;
        let (id, name) = call.on_stream(stream)?;
        let name = call.freeing(name, address);
        call.forbid_in_capture(id)?;
        call.check_free(name, address, |kind| matches!(kind, BlockKind::Pool(_)))?;
        let Some(block) = call.state.blocks.free(address, name) else { return call.invalid() };
        if let Some(stream) = call.state.streams.get(&id) {
            let streams = &call.state.streams;
            let ordered = |former: &AccessStamp| {
                stream.follows(id, former) || is_seen(streams, former.stream, former.tick)
            };
            if let Some(allocation) = block.allocation.filter(|it| !ordered(it)) {
                let kind = Violation::UseBeforeAllocation;
                let memory = call.state.blocks.reported(address, block.bytes);
                call.context.report(kind, name, Some(allocation.name), memory, None);
            }
            if let Some(found) = block.shadow.unordered(&ordered) {
                let (start, bytes) = (address + found.start, found.end - found.start);
                let memory = call.state.blocks.reported(start, bytes);
                call.context.report(found.violation, name, found.other, memory, None);
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
        call.state.push(id, SimOp { ranges: vec![range], ..SimOp::new(name, work) });
        Ok(())
    }
}

impl Call<'_> {
    fn require_pools(&self) -> DriverResult<()> {
        self.require(self.context.config.properties.memory_pools)
    }

    /// Checks a pool that the call names.
    pub(super) fn pool(&mut self, pool: RawPool) -> DriverResult<&mut SimPool> {
        let error = self.error(DriverError::INVALID_HANDLE);
        let id = self.context.id;
        self.state.pools.get_mut(&pool.0).filter(|pool| pool.device == id).ok_or(error)
    }

    fn add_pool(&mut self, spec: PoolSpec) -> RawPool {
        let id = unique();
        let PoolSpec { release_threshold, shareable, .. } = spec;
        self.state.pools.insert(id, SimPool::new(self.context.id, release_threshold, shareable));
        RawPool(id)
    }
}
