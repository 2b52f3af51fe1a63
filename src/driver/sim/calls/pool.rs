//! The driver's memory pools.

use super::call::Call;
use crate::driver::sim::state::SimPool;
use crate::driver::{DriverResult, PoolAttribute, PoolSpec, RawPool};
use crate::sync::trusted::unique;

impl Call<'_> {
    /// A new pool. The simulated device has no shareable pools, and none of managed memory.
    pub(crate) fn create_pool(&mut self, spec: PoolSpec) -> DriverResult<RawPool> {
        self.require_pools()?;
        self.require(!spec.shareable && !spec.managed)?;
        let id = unique();
        self.state.pools.insert(id, SimPool::new(self.context.id, spec.release_threshold));
        Ok(RawPool(id))
    }

    /// The device's own pool, made on first use.
    pub(crate) fn default_pool(&mut self) -> DriverResult<RawPool> {
        self.require_pools()?;
        if let Some(pool) = self.device().and_then(|device| device.default_pool) {
            return Ok(RawPool(pool));
        }
        let pool = self.create_pool(PoolSpec::default())?;
        if let Some(device) = self.device() {
            device.default_pool = Some(pool.0);
        }
        Ok(pool)
    }

    pub(crate) fn get_pool(
        &mut self,
        pool: RawPool,
        attribute: PoolAttribute,
    ) -> DriverResult<u64> {
        self.pool(pool).map(|pool| pool.get(attribute))
    }

    pub(crate) fn set_pool(
        &mut self,
        pool: RawPool,
        attribute: PoolAttribute,
        value: u64,
    ) -> DriverResult<()> {
        match self.pool(pool)?.setting_mut(attribute) {
            Some(setting) => {
                *setting = value;
                Ok(())
            }
            None => self.invalid(),
        }
    }

    /// Nothing to do on a pool of the device: it caches nothing, so a free returns its bytes when it
    /// runs.
    pub(crate) fn trim_pool(&mut self, pool: RawPool) -> DriverResult<()> {
        self.require_pools()?;
        self.pool(pool).map(|_| ())
    }

    pub(crate) fn destroy_pool(&mut self, pool: RawPool) -> DriverResult<()> {
        self.trim_pool(pool)?;
        self.state.pools.remove(&pool.0);
        Ok(())
    }
}
