//! The current resources: one for the memory of each device, one for page-locked memory.
//!
//! Only what is made from now on sees a change. Containers hold a handle of their own on the
//! resource that they took memory from, so nothing dangles.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use super::{CudaResource, DeviceResource, PoolResource, handle, scope};
use crate::backend::{BackendKind, not_forked};
use crate::device::Device;
use crate::error::Result;
use crate::host::{CurrentPinned, default_pinned};
use crate::sync::trusted;
use crate::sync::{Arc, LazyLock, Mutex, Weak};
use std::collections::HashMap;

/// What is current: what was set, or a default that is made when it is first asked for.
pub struct Current<R: ?Sized> {
    state: Mutex<State<R>>,
}

struct State<R: ?Sized> {
    set: Option<Arc<R>>,
    default: Option<Default<R>>,
}

enum Default<R: ?Sized> {
    Kept(Arc<R>),
    WhileUsed(Weak<R>),
}

impl<R: ?Sized> Default<R> {
    /// Without taking a handle, which might turn out to be the last.
    fn is_alive(&self) -> bool {
        match self {
            Self::Kept(_) => true,
            Self::WhileUsed(resource) => resource.strong_count() > 0,
        }
    }

    fn get(&self) -> Option<Arc<R>> {
        match self {
            Self::Kept(resource) => Some(resource.clone()),
            Self::WhileUsed(resource) => resource.upgrade(),
        }
    }
}

impl<R: ?Sized> std::fmt::Debug for Current<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

impl<R: ?Sized> Current<R> {
    /// Nothing set and no default made.
    pub fn new() -> Self {
        Self { state: Mutex::new(State { set: None, default: None }) }
    }

    /// What is current. `make` makes the default, outside the lock, where there is none; if two
    /// threads do so at once, both get the one that came first. `keep` it for good, or only while
    /// someone uses it.
    pub fn get<E>(
        &self,
        keep: bool,
        make: impl FnOnce() -> Result<Arc<R>, E>,
    ) -> Result<Arc<R>, E> {
        let known = {
            let state = self.state.lock();
            state.set.clone().or_else(|| state.default.as_ref().and_then(Default::get))
        };
        if let Some(resource) = known {
            return Ok(resource);
        }
        let made = {
            #[cfg(aquifer_fault = "made_under_lock")]
            let _held = self.state.lock();
            make()?
        };
        let mut state = self.state.lock();
        #[cfg(not(aquifer_fault = "second_default"))]
        if let Some(resource) =
            state.set.clone().or_else(|| state.default.as_ref().and_then(Default::get))
        {
            #[cfg(aquifer_fault = "loser_dropped_under_lock")]
            drop(made);
            drop(state);
            return Ok(resource);
        }
        state.default = Some(if keep {
            Default::Kept(made.clone())
        } else {
            Default::WhileUsed(Arc::downgrade(&made))
        });
        Ok(made)
    }

    /// Whether the process keeps what is current, as of some moment.
    pub fn is_kept(&self) -> bool {
        let state = self.state.lock();
        state.set.is_some() || matches!(state.default, Some(Default::Kept(_)))
    }

    /// Whether nothing is set and no default is alive.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.set.is_none() && state.default.as_ref().is_none_or(|default| !default.is_alive())
    }

    /// Makes `resource` current, or the default again; gives what was set before.
    pub fn replace(&self, resource: Option<Arc<R>>) -> Option<Arc<R>> {
        std::mem::replace(&mut self.state.lock().set, resource)
    }
}

type Devices = HashMap<(BackendKind, u64), Arc<Current<dyn DeviceResource>>>;

static DEVICES: LazyLock<trusted::Mutex<Devices>> = LazyLock::new(trusted::Mutex::default);
static PINNED: LazyLock<Current<CurrentPinned>> = LazyLock::new(Current::new);

/// Changes whenever something else becomes current for page-locked memory.
static PINNED_GENERATION: trusted::AtomicU64 = trusted::AtomicU64::new(1);

/// What a thread compares to know that what it knew is still current. Never 0.
#[inline(always)]
pub(crate) fn pinned_generation() -> u64 {
    // Relaxed: who was told of a change sees it; for others it comes when it comes.
    PINNED_GENERATION.load(trusted::Ordering::Relaxed)
}

fn replace_pinned(resource: Option<CurrentPinned>) -> Option<CurrentPinned> {
    let before = PINNED.replace(resource.map(Arc::new));
    // After the change: a thread that read the number before it looks again.
    PINNED_GENERATION.fetch_add(1, trusted::Ordering::Relaxed);
    before.map(|before| (*before).clone())
}

fn of(device: &Device) -> Arc<Current<dyn DeviceResource>> {
    let mut devices = DEVICES.lock();
    if let Some(current) = devices.get(&device.key()) {
        return current.clone();
    }
    // Simulated devices come and go; what nobody set or uses of them goes when the next one comes.
    devices.retain(|_, current| Arc::strong_count(current) > 1 || !current.is_empty());
    devices.entry(device.key()).or_insert_with(|| Arc::new(Current::new())).clone()
}

/// The resource that containers on `device` use when none is named: that of the calling thread's
/// innermost [scope](crate::with_device_resource) on this device, or else what was
/// [set](set_current_device_resource), or else a [`PoolResource`] over [`CudaResource`], made at the
/// first use.
///
/// RMM: `get_per_device_resource`.
///
/// # Errors
///
/// Those of making the default.
pub fn current_device_resource(device: &Device) -> Result<Arc<dyn DeviceResource>> {
    not_forked("the current resource")?;
    if let Some(local) = scope::innermost(device.key()) {
        return Ok(local.resource().clone());
    }
    current(device).map(|(resource, _)| resource)
}

/// What is current for the process, and whether the process keeps it.
pub(super) fn current(device: &Device) -> Result<(Arc<dyn DeviceResource>, bool)> {
    // A simulated device would live for good through a default that the process keeps.
    let keep = device.kind() != BackendKind::Simulated;
    not_forked("the current resource")?;
    let current = of(device);
    let resource = current.get(keep, || {
        PoolResource::new(CudaResource::new(device)).map(|pool| Arc::new(pool) as Arc<_>)
    })?;
    Ok((resource, current.is_kept()))
}

/// Makes `resource` the current one of its device, and gives what was set before, if anything was.
/// The process keeps it until it is replaced or [reset](reset_current_device_resource).
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec};
/// use aquifer::{reset_current_device_resource, set_current_device_resource, sim::SimConfig};
/// use std::sync::Arc;
///
/// let device = Device::simulated(SimConfig::default());
/// let before = set_current_device_resource(Arc::new(CudaResource::new(&device)));
/// assert!(before.is_none());
/// let vec = DeviceVec::<u8>::zeroed(&device.new_stream()?, 10)?; // from the plain resource
/// reset_current_device_resource(&device); // the vector keeps its own handle
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn set_current_device_resource(
    resource: Arc<dyn DeviceResource>,
) -> Option<Arc<dyn DeviceResource>> {
    not_forked("the current resource").ok()?;
    let device = resource.device().clone();
    let before = of(&device).replace(Some(resource));
    handle::forget(&device);
    before
}

/// Makes the default current again on `device`, and gives what was set, if anything was.
pub fn reset_current_device_resource(device: &Device) -> Option<Arc<dyn DeviceResource>> {
    not_forked("the current resource").ok()?;
    let before = of(device).replace(None);
    handle::forget(device);
    before
}

/// What [`PinnedAlloc`](crate::PinnedAlloc) takes new blocks from: what was
/// [set](set_current_pinned_resource), or else a [`PinnedPool`](crate::PinnedPool) over page-locked
/// memory of the [detected device](Device::detect), portable, and mapped where the device can.
///
/// # Errors
///
/// Those of [`Device::detect`].
pub fn current_pinned_resource() -> Result<CurrentPinned> {
    not_forked("the current pinned resource")?;
    PINNED.get(true, || default_pinned().map(Arc::new)).map(|current| (*current).clone())
}

/// Makes a [`PinnedPool`](crate::PinnedPool) or a [`PinnedResource`](crate::PinnedResource) the one
/// that [`PinnedAlloc`](crate::PinnedAlloc) takes new blocks from, and gives what was set before, if
/// anything was. Blocks that live go back to where they came from.
pub fn set_current_pinned_resource(resource: impl Into<CurrentPinned>) -> Option<CurrentPinned> {
    not_forked("the current pinned resource").ok()?;
    replace_pinned(Some(resource.into()))
}

/// Makes the default current again for page-locked memory, and gives what was set, if anything was.
pub fn reset_current_pinned_resource() -> Option<CurrentPinned> {
    not_forked("the current pinned resource").ok()?;
    replace_pinned(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::sim::SimConfig;

    #[test]
    fn devices_that_are_gone_leave_nothing() {
        let keys: Vec<_> = (0..10)
            .map(|_| {
                let device = Device::simulated(SimConfig::default());
                let _default = current_device_resource(&device).unwrap();
                device.key()
            })
            .collect();
        let living = Device::simulated(SimConfig::default());
        let set = Arc::new(CudaResource::new(&living));
        set_current_device_resource(set.clone());
        let _another = current_device_resource(&Device::simulated(SimConfig::default()));
        let devices = DEVICES.lock();
        assert!(keys.iter().all(|key| !devices.contains_key(key)));
        assert!(devices.contains_key(&living.key()), "what was set stays");
    }
}
