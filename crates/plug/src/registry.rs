//! The choice of the memory manager of the process.

use super::external::ManagerMemory;
use super::memory_manager::MemoryManager;
use super::options::ManagerOptions;
use crate::device::Device;
use crate::driver::not_forked;
use crate::error::{Error, ErrorKind, Result, catch_panic_text, ensure};
use crate::impls::short_name;
use crate::resource::external::{self, ExternalMemory, OpenMemory};
use crate::resource::external_memory;
use crate::sync::Arc;

fn open_by<M: MemoryManager + 'static>(
    name: &str,
    device: &Device,
    make: impl FnOnce() -> Result<M>,
) -> Result<Arc<dyn ExternalMemory>> {
    let made = catch_panic_text(make).unwrap_or_else(|text| {
        let what = format!("it panicked: {}", text.as_deref().unwrap_or("it threw no text"));
        Err(Error::new(ErrorKind::Unsupported, what)
            .with_advice("have what makes the memory manager return an Error"))
    });
    let manager = made.map_err(|error| {
        error.within(format_args!("making the memory manager {name} for {device}"))
    })?;
    ManagerMemory::open(name, device, Arc::new(manager))
}

/// Chooses the memory manager of the process, as NBEP 7's `set_memory_manager` does. `make` is
/// called once for each device that is used. A second thread that is first at the same moment may
/// call it, too, and drops its manager.
///
/// Call it before any memory is used. All devices use the manager then, until the process ends:
///
/// | what | takes memory from |
/// |---|---|
/// | a container that names a resource (`*_in`) | that resource |
/// | inside of [`with_device_resource`](crate::mr::with_device_resource), or of a future of [`with_device_resource_async`](crate::mr::with_device_resource_async) | the scope's resource |
/// | after [`set_current_device_resource`](crate::mr::set_current_device_resource) | that resource |
/// | any other container | the manager; without one the device's [default pool](crate::mr::default_device_pool) |
/// | [`PinnedResource`](crate::pinned::PinnedResource), and [`PinnedPool`](crate::pinned::PinnedPool), [`PinnedAlloc`](crate::PinnedAlloc), [`MappedAlloc`](crate::MappedAlloc) over it | the manager's `memhostalloc`; pools by slabs |
/// | [`Registered`](crate::pinned::Registered) | the manager's `mempin` |
/// | [`CudaResource`](crate::CudaResource), [`AsyncResource`](crate::mr::AsyncResource), [`ManagedResource`](crate::mr::ManagedResource), and pools of them by name | the driver: managers are made of them |
///
/// The first line that fits holds. A manager of pools of its own may want `PinnedAlloc` to ask it for
/// each block. Call `set_current_pinned_resource(PinnedResource::new(&device)?)` for that.
///
/// With `AQUIFER_MEMORY_MANAGER` set, the call is ignored, with a [`tracing`](https://docs.rs/tracing) warning.
///
/// # Errors
///
/// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) after the first use of memory,
///   from the manager or without one, and after a call of [`memory_manager`].
/// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
///
/// Errors and panics of `make` come at the first use on each device. So do errors of
/// [`initialize`](MemoryManager::initialize) and of a wrong
/// [version](MemoryManager::interface_version).
pub fn set_memory_manager<M: MemoryManager + 'static>(
    make: impl Fn(&Device) -> Result<M> + Send + Sync + 'static,
) -> Result<()> {
    not_forked("a memory manager")?;
    let name = short_name(std::any::type_name::<M>());
    external::set(Arc::new(move |device| open_by(name, device, || make(device))))
}

/// Makes a manager known by a name, for `AQUIFER_MEMORY_MANAGER=name` or `name:key=value,key=value`. A later
/// registration of the same name takes the place of the former. `default` is the name of Aquifer's own memory.
///
/// The variable is read at the first use of memory. A name that is not registered by then is an error there, and
/// so are options that `make` refuses.
///
/// ```
/// use aquifer::{
///     CudaResource, PoolResource,
///     nbep7::{HostOnly, ResourceMemoryManager, register_memory_manager},
/// };
///
/// register_memory_manager("small-pool", |device, options| {
///     options.allow(&["mib"])?;
///     let most = options.parse("mib")?.unwrap_or(64_usize);
///     let pool = PoolResource::builder(CudaResource::new(device)).maximum_size(most << 20).build()?;
///     HostOnly::new(device, ResourceMemoryManager::new(pool))
/// })?;
/// // AQUIFER_MEMORY_MANAGER=small-pool:mib=128 chooses it.
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a name that the variable could not hold.
pub fn register_memory_manager<M: MemoryManager + 'static>(
    name: &str,
    make: impl Fn(&Device, &ManagerOptions) -> Result<M> + Send + Sync + 'static,
) -> Result<()> {
    not_forked("a memory manager")?;
    let is_word = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c))
    };
    ensure!(
        is_word(name) && name != external::OWN,
        InvalidArgument,
        "give a name of letters, digits, hyphens, underscores and full stops, which is not `default`",
        "a memory manager was to be registered as {name:?}"
    );
    let (owned, make) = (String::from(name), Arc::new(make));
    external::register(
        name,
        Arc::new(move |options: &str| {
            let (name, options, make) =
                (owned.clone(), options.parse::<ManagerOptions>()?, make.clone());
            let open: OpenMemory =
                Arc::new(move |device| open_by(&name, device, || make(device, &options)));
            Ok(open)
        }),
    );
    Ok(())
}

/// The process's memory manager for `device`. A program asks it for its memory, defers
/// its cleanup or resets it. `None` if the process has none, and in a call of the
/// manager itself. The choice is made by this call, if it was not made
/// before.
///
/// The manager of a GPU stays until the process ends. The manager of a simulated device goes with the
/// last of this `Arc` and of the memory in use. The next use makes another one.
///
/// # Errors
///
/// The errors of choosing the manager and of making it ready, and
/// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
pub fn memory_manager(device: &Device) -> Result<Option<Arc<dyn MemoryManager>>> {
    let Some(memory) = external_memory(device)? else { return Ok(None) };
    // Nothing else is one.
    Ok(memory.into_any().downcast::<ManagerMemory>().ok().map(|manager| manager as _))
}
