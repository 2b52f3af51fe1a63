//! The current resource of each device.
//!
//! [`current_handle`] looks in this order:
//!
//! | where | written by | cost of a look |
//! |---|---|---|
//! | the calling thread's scopes ([`scope`]) | its own thread | one load without a scope |
//! | the calling thread's cache ([`thread_cache`]) | its own thread; any change empties it | a search in a short list |
//! | `DEVICES` | any thread, under its lock | two locks |
//! | the memory manager, if the process has one ([`external`]) | the first use | as `DEVICES` |
//! | the device's default pool | the first use | as `DEVICES` |
//!
//! A change concerns later look-ups alone. Containers have a handle of their own on the resource that
//! they allocated from, so a change leaves no dangling resource.

use super::cuda::CudaResource;
use super::current_resource::CurrentResource;
use super::device_resource::DeviceResource;
use super::external::{self, ExternalMemory};
use super::handle::{ContextId, ResourceHandle};
use super::pool::{PoolOwner, PoolResource};
use super::{scope, thread_cache};
use crate::device::Device;
use crate::driver::{BackendKind, not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::trusted::Mutex;
use crate::sync::{Arc, LazyLock};
use std::collections::HashMap;

/// The current resource of a device, whose default is a pool.
type Current = CurrentResource<dyn DeviceResource, PoolResource>;
type DeviceMap = HashMap<ContextId, Arc<OfDevice>>;

struct OfDevice {
    current: Current,
    /// The memory of the process's memory manager.
    external: CurrentResource<dyn ExternalMemory>,
}

impl OfDevice {
    fn is_empty(&self) -> bool {
        self.current.is_empty() && self.external.is_empty()
    }
}

static DEVICES: LazyLock<Mutex<DeviceMap>> = LazyLock::new(Mutex::default);

/// The name in errors in the child of a fork.
const CURRENT: &str = "the current resource";

fn of_device(device: &Device) -> Arc<OfDevice> {
    let mut devices = DEVICES.lock();
    if let Some(current) = devices.get(&device.key()) {
        return current.clone();
    }
    // A program may make any number of simulated devices: each new device drops the empty entries.
    devices.retain(|_, current| Arc::strong_count(current) > 1 || !current.is_empty());
    let new = || {
        let current = Current::with_default(|pool| pool);
        Arc::new(OfDevice { current, external: CurrentResource::new() })
    };
    devices.entry(device.key()).or_insert_with(new).clone()
}

/// Whether the process keeps the default of a device. It would keep a simulated device for good with it.
fn keeps_default(device: &Device) -> bool {
    device.kind() != BackendKind::Simulated
}

fn make_default(device: &Device) -> Result<Arc<PoolResource>> {
    let options = PoolResource::builder(CudaResource::new(device));
    options.owner(PoolOwner::Default).build().map(Arc::new)
}

/// The process's current resource of `device`, and whether the process keeps it alive. The caller is in no child of a
/// fork.
fn of_process(device: &Device) -> Result<(Arc<dyn DeviceResource>, bool)> {
    let of_device = of_device(device);
    let keep = keeps_default(device);
    if external::is_inside() {
        let set = of_device.current.set().ok_or_else(external::reentered)?;
        // Not cached: outside of the manager's call, the manager may be what is current.
        return Ok((set, false));
    }
    // Asked first: the choice is made even where a resource is set.
    if let Some(open) = external::open(device)? {
        return match of_device.current.set() {
            Some(set) => Ok((set, true)),
            None => of_device.external.get(keep, open).map(|memory| (memory as _, keep)),
        };
    }
    let resource = of_device.current.get(keep, || make_default(device))?;
    Ok((resource, of_device.current.is_kept()))
}

/// The device's memory from the process's memory manager, if it has one. `None` in a call of the manager.
pub fn external_memory(device: &Device) -> Result<Option<Arc<dyn ExternalMemory>>> {
    not_forked("memory of a memory manager")?;
    external_of_process(device)
}

/// Like [`external_memory`], for a caller that is in no child of a fork.
fn external_of_process(device: &Device) -> Result<Option<Arc<dyn ExternalMemory>>> {
    let Some(open) = external::open(device)? else { return Ok(None) };
    of_device(device).external.get(keeps_default(device), open).map(Some)
}

/// The pool that is the [current resource](current_device_resource) of `device` if none was set. Look at its
/// [statistics](PoolResource::statistics), [trim](PoolResource::trim) it, or give it
/// [limits](PoolResource::set_maximum_size). It is the default also while another resource is set.
///
/// The process keeps the pool of a GPU. **On a simulated device** it is gone with the last of this `Arc` and of the
/// vectors in it. The next use makes another one by driver calls, whose counts are zero. So keep the `Arc` from the
/// start for a pool that stays warm, and to read statistics at the end.
///
/// ```
/// use aquifer::{Device, DeviceVec, mr::default_device_pool};
///
/// let device = Device::detect_or_simulate()?;
/// let pool = default_device_pool(&device)?;
/// pool.set_maximum_size(Some(1 << 30))?;
/// let vec = DeviceVec::<u8>::zeroed(&device.new_stream()?, 1000)?;
/// assert_eq!(pool.statistics().live, 1024);
/// drop(vec);
/// pool.wait_and_trim(0)?;
/// assert_eq!(pool.statistics().reserved, 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// # Errors
///
/// The errors of making the pool, and [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the process has a
/// memory manager (`set_memory_manager`), from which vectors come then.
pub fn default_device_pool(device: &Device) -> Result<Arc<PoolResource>> {
    not_forked(CURRENT)?;
    if let Some(memory) = external_of_process(device)? {
        let what = format!(
            "the default pool of {device} was asked for, where memory comes from the memory manager {}",
            memory.name()
        );
        return Err(Error::new(ErrorKind::Unsupported, what)
            .with_advice("ask the manager, by memory_manager, or make a pool and name it"));
    }
    of_device(device).current.get_default(keeps_default(device), || make_default(device))
}

/// The resource that containers on `device` use when the caller names none. It is the first of these that there is:
///
/// - the resource of the calling thread's innermost [scope](crate::mr::with_device_resource) on this device
/// - the resource that was [set](set_current_device_resource)
/// - the process's memory manager
/// - a [`PoolResource`] over [`CudaResource`], made at the first use
///
/// RMM has `get_per_device_resource`.
///
/// # Errors
///
/// The errors of making the default.
pub fn current_device_resource(device: &Device) -> Result<Arc<dyn DeviceResource>> {
    not_forked(CURRENT)?;
    match scope::innermost(device.key()) {
        Some(scoped) => Ok(scoped.resource.clone()),
        None => of_process(device).map(|(resource, _)| resource),
    }
}

/// [`current_device_resource`], as a container refers to it.
pub(crate) fn current_handle(device: &Device) -> Result<ResourceHandle> {
    let context_id = device.key();
    if let Some(scoped) = scope::innermost(context_id) {
        return Ok(ResourceHandle::Current(scoped));
    }
    let generation = thread_cache::generation();
    if let Some(cached) = thread_cache::lookup(context_id, generation) {
        return Ok(ResourceHandle::Current(cached));
    }
    not_forked(CURRENT)?;
    let (resource, is_kept) = of_process(device)?;
    // The cache would keep alive what the process does not.
    let cached = if is_kept { thread_cache::insert(&resource, generation) } else { None };
    Ok(cached.map_or(ResourceHandle::Named(resource), ResourceHandle::Current))
}

fn replace(
    device: &Device,
    resource: Option<Arc<dyn DeviceResource>>,
) -> Option<Arc<dyn DeviceResource>> {
    not_forked(CURRENT).ok()?;
    let before = of_device(device).current.replace(resource);
    thread_cache::invalidate(device.key());
    before
}

/// Makes `resource` the current one of its device, and returns the resource that was set before, if any.
/// The process keeps it until it is replaced or [reset](reset_current_device_resource).
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec};
/// use aquifer::{mr::{reset_current_device_resource, set_current_device_resource}, sim::SimConfig};
///
/// let device = Device::simulated(SimConfig::default());
/// let before = set_current_device_resource(CudaResource::new(&device));
/// assert!(before.is_none());
/// let vec = DeviceVec::<u8>::zeroed(&device.new_stream()?, 10)?; // from the plain resource
/// reset_current_device_resource(&device); // the vector keeps its own handle
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn set_current_device_resource(
    resource: impl DeviceResource + 'static,
) -> Option<Arc<dyn DeviceResource>> {
    let device = resource.device().clone();
    replace(&device, Some(resource.into_shared()))
}

/// Makes the default current again on `device`, and returns the resource that was set, if any.
pub fn reset_current_device_resource(device: &Device) -> Option<Arc<dyn DeviceResource>> {
    replace(device, None)
}

#[cfg(test)]
mod tests;
