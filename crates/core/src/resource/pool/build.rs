//! A pool that is made of its options.

use super::driver::PoolDriver;
use super::handle::PoolHandle;
use super::memory_hooks::MemoryHooks;
use super::options::PoolOptions;
use super::{Asked, PoolResource};
use crate::debug_log::{POOL, deferred_event};
use crate::driver::not_forked;
use crate::error::{Result, ensure};
use crate::impls::Count;
use crate::pool::{MappedMemory, Pool, Upstream};
use crate::resource::device_resource::DeviceResource;
use crate::resource::mapped::Mappable;

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// A pool with default options. It starts empty, grows as it needs to, and has no maximum size but the upstream's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn new(upstream: U) -> Result<Self> {
        Self::builder(upstream).build()
    }

    /// The options.
    pub fn builder(upstream: U) -> PoolOptions<U> {
        PoolOptions::new(upstream)
    }
}

impl<U: DeviceResource + 'static> PoolOptions<U> {
    /// Builds the pool.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for an option that makes no sense, or not
    ///   with another.
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if upstream has not the initial size.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn build(self) -> Result<PoolResource<U>> {
        not_forked("a pool")?;
        let mut settings = self.check()?;
        let initial = self.initial_size;
        let maximum = settings.limits.has_maximum().then(|| settings.limits.maximum());
        let is_mapped = matches!(self.upstream.mappable(), Mappable::Mapped(_));
        let hooks = MemoryHooks::find(self.upstream.device(), is_mapped);
        let memory = self.mapped_memory(hooks.as_ref().is_some_and(MemoryHooks::has_tool))?;
        let driver = PoolDriver::new(self.upstream, self.alignment, self.owner, memory, hooks);
        let granule = driver.mapped().map_or(0, MappedMemory::granularity) as usize;
        ensure!(
            maximum.is_none_or(|maximum| maximum >= granule),
            InvalidArgument,
            "make the maximum size larger, or have the pool take blocks, by Handles::Off",
            "a pool's maximum size, {}, is less than the least that it maps, {}",
            Count(maximum.unwrap_or(0), "byte"),
            Count(granule, "byte")
        );
        if let Some(maximum) = maximum.filter(|_| granule > 0) {
            settings.limits.set_maximum(maximum & !(granule - 1));
        }
        if let Some(hooks) = &driver.hooks {
            settings.listed = true;
            if hooks.has_tool() {
                settings.entries = 0;
            }
        }
        // One that cannot grow again keeps all.
        let grows = settings.steps.iter().any(|step| step.asks_upstream());
        let keep = if grows { initial } else { usize::MAX };
        let pool = PoolResource { pool: PoolHandle::new(Pool::new(driver, settings), keep) };
        let (number, device) = (pool.pool.id(), pool.device().ordinal());
        if let Some(hooks) = &pool.pool.upstream().hooks {
            hooks.set_pool(number);
        }
        if let Some(callback) = self.failure_callback {
            pool.set_callback(callback);
        }
        if pool.release_threshold().is_some() {
            pool.pool.release_after_waits();
        }
        let handles = pool.maps_handles();
        deferred_event!(
            debug, target: POOL, pool = number, device, initial, maximum, handles, "pool made"
        );
        if initial > 0 {
            let prepared = pool.pool.prepare(initial);
            prepared.map_err(|failure| pool.explain(failure, Asked::Initial(initial)))?;
        }
        Ok(pool)
    }
}
