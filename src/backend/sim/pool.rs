//! The driver's memory pools: their switches and their counts. A pool of a simulated device keeps
//! nothing: what it has reserved is what is in use.

use super::ledger::Ledger;
use super::memory::own_pool;
use super::world::State;
use crate::backend::{DriverResult, PoolAttribute, PoolSpec, RawPool};
use crate::error::DriverError;

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) device: u64,
    /// The three switches, then the threshold, in the order of their numbers.
    settings: [u64; 4],
    used: u64,
    high: u64,
}

impl Pool {
    /// As a driver makes it: every reuse is allowed.
    fn new(device: u64, spec: PoolSpec) -> Self {
        Self { device, settings: [1, 1, 1, spec.release_threshold], used: 0, high: 0 }
    }

    pub(super) fn hand_out(&mut self, bytes: u64) {
        self.used = self.used.saturating_add(bytes);
        self.high = self.high.max(self.used);
    }

    pub(super) fn take_back(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}

/// A new pool. Nothing here could share one, or move its memory.
pub(super) fn create(
    state: &mut State,
    ledger: &Ledger,
    call: &'static str,
    spec: PoolSpec,
) -> DriverResult<RawPool> {
    if spec.shareable || spec.managed {
        return Err(DriverError::new(call, DriverError::NOT_SUPPORTED));
    }
    let id = state.handle();
    state.pools.insert(id, Pool::new(ledger.device, spec));
    Ok(RawPool(id))
}

/// The device's own pool, made when it is first asked for.
pub(super) fn default(
    state: &mut State,
    ledger: &Ledger,
    call: &'static str,
) -> DriverResult<RawPool> {
    let known = state.devices.get(&ledger.device).and_then(|device| device.default_pool);
    if let Some(pool) = known {
        return Ok(RawPool(pool));
    }
    let pool = create(state, ledger, call, PoolSpec::default())?;
    if let Some(device) = state.devices.get_mut(&ledger.device) {
        device.default_pool = Some(pool.0);
    }
    Ok(pool)
}

pub(super) fn get(
    state: &State,
    ledger: &Ledger,
    call: &'static str,
    pool: RawPool,
    attribute: PoolAttribute,
) -> DriverResult<u64> {
    own_pool(state, ledger, call, pool)?;
    let Some(pool) = state.pools.get(&pool.0) else {
        return Err(DriverError::new(call, DriverError::INVALID_HANDLE));
    };
    Ok(match attribute {
        PoolAttribute::FollowEventDependencies
        | PoolAttribute::AllowOpportunistic
        | PoolAttribute::AllowInternalDependencies
        | PoolAttribute::ReleaseThreshold => pool.settings[attribute as usize - 1],
        PoolAttribute::ReservedCurrent | PoolAttribute::UsedCurrent => pool.used,
        PoolAttribute::ReservedHigh | PoolAttribute::UsedHigh => pool.high,
    })
}

pub(super) fn set(
    state: &mut State,
    ledger: &Ledger,
    call: &'static str,
    pool: RawPool,
    attribute: PoolAttribute,
    value: u64,
) -> DriverResult<()> {
    own_pool(state, ledger, call, pool)?;
    let index = attribute as usize - 1;
    match state.pools.get_mut(&pool.0).and_then(|pool| pool.settings.get_mut(index)) {
        Some(setting) => {
            *setting = value;
            Ok(())
        }
        None => Err(DriverError::new(call, DriverError::INVALID_VALUE)),
    }
}
