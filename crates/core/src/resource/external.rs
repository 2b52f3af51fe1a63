//! Whether memory for which no resource was named comes from an external memory manager (NBEP 7).
//!
//! The choice is made at the first use of such memory, and stands for the process.
//!
//! | state | `set` | first use | next state |
//! |---|---|---|---|
//! | open, nothing set | sets | the variable's manager; without the variable, none | chosen |
//! | open, a manager set | replaces it | the variable's manager; without the variable, the one that was set | chosen |
//! | chosen | error | what was chosen | the same |
//!
//! A variable that names a manager which is not registered, or whose options it refuses, is an error at each
//! first use, and leaves the state open.
//!
//! This crate knows only the memory of a manager. `aquifer-plug` has the interface that users implement.

use super::device_resource::DeviceResource;
use crate::debug_log::event;
use crate::device::Device;
use crate::driver::HostFlags;
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::variable;
use crate::sync::trusted::{Mutex, thread_local};
use crate::sync::{Arc, OnceLock};
use std::any::Any;
use std::cell::Cell;
use std::ffi::OsStr;
use std::fmt;
use std::ptr::NonNull;

/// The variable of the environment that names a memory manager.
const VARIABLE: &str = "AQUIFER_MEMORY_MANAGER";

/// The variable's value for the crate's own memory.
pub const OWN: &str = "default";

/// The memory of one device, by a manager.
pub trait ExternalMemory: DeviceResource + ExternalHostMemory {
    /// The manager, as messages name it.
    fn name(&self) -> &str;

    /// The value itself, for the layer that made it.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// Page-locked memory from elsewhere than the driver.
///
/// # Safety
///
/// An allocation is memory of the caller's alone until it is freed, as large as was asked, and page-locked.
pub unsafe trait ExternalHostMemory: fmt::Debug + Send + Sync {
    /// At least `bytes` bytes, which are not 0.
    fn host_alloc(&self, bytes: usize, flags: HostFlags) -> Result<NonNull<u8>>;

    /// # Safety
    ///
    /// `base` came from [`host_alloc`](Self::host_alloc), is freed once, and neither host nor device uses it any
    /// more.
    unsafe fn host_free(&self, base: NonNull<u8>);

    /// # Safety
    ///
    /// The range is memory of this process and stays so until it is unregistered.
    unsafe fn host_register(&self, memory: NonNull<[u8]>, flags: HostFlags) -> Result<()>;

    /// # Safety
    ///
    /// The range was registered here, and no device work uses it any more.
    unsafe fn host_unregister(&self, base: NonNull<u8>);
}

/// Makes a manager's memory of a device.
pub type OpenMemory = Arc<dyn Fn(&Device) -> Result<Arc<dyn ExternalMemory>> + Send + Sync>;

/// Makes a manager of the options that follow its name.
pub(crate) type ManagerFactory = Arc<dyn Fn(&str) -> Result<OpenMemory> + Send + Sync>;

/// The choice. `None` is the crate's own memory.
static CHOSEN: OnceLock<Option<OpenMemory>> = OnceLock::new();

static OPEN: Mutex<OpenChoice> = Mutex::new(OpenChoice { set: None, registered: Vec::new() });

struct OpenChoice {
    set: Option<OpenMemory>,
    registered: Vec<(String, ManagerFactory)>,
}

impl OpenChoice {
    fn factory(&self, name: &str) -> Option<ManagerFactory> {
        let found = self.registered.iter().find(|(registered, _)| registered == name);
        found.map(|(_, factory)| factory.clone())
    }

    fn unknown(&self, name: &str) -> Error {
        let known: Vec<&str> = self.registered.iter().map(|(name, _)| name.as_str()).collect();
        let known = match known.is_empty() {
            true => String::from("none is registered"),
            false => format!("registered are {}", known.join(", ")),
        };
        let what = format!(
            "{VARIABLE} names the memory manager {name:?}, which is not registered: {known}"
        );
        Error::new(ErrorKind::Environment, what).with_advice(
            "call register_memory_manager before the first use of memory, or unset the variable",
        )
    }
}

/// Makes a manager known by a name. A later one of the same name takes its place.
pub fn register(name: &str, factory: ManagerFactory) {
    let mut open = OPEN.lock();
    let before = open.registered.iter().position(|(registered, _)| registered == name);
    let entry = (String::from(name), factory);
    let replaced = match before {
        Some(place) => Some(std::mem::replace(&mut open.registered[place], entry)),
        None => {
            open.registered.push(entry);
            None
        }
    };
    // Not under the lock: it drops what users gave.
    drop(open);
    drop(replaced);
}

/// Chooses a manager, unless the variable does.
pub fn set(manager: OpenMemory) -> Result<()> {
    if let Some(value) = variable(VARIABLE) {
        event!(warn, ?value, "set_memory_manager was ignored: AQUIFER_MEMORY_MANAGER is set");
        return Ok(());
    }
    let mut open = OPEN.lock();
    if CHOSEN.get().is_some() {
        let what = "a memory manager was to be set after memory was used, or its manager asked for";
        return Err(Error::new(ErrorKind::InvalidArgument, what)
            .with_advice("call set_memory_manager at the start of the program"));
    }
    let replaced = open.set.replace(manager);
    drop(open);
    drop(replaced);
    Ok(())
}

/// The memory manager of the process, if there is one. From the first call on it stays.
fn chosen() -> Result<Option<OpenMemory>> {
    if let Some(chosen) = CHOSEN.get() {
        return Ok(chosen.clone());
    }
    let by_variable = match variable(VARIABLE) {
        None => None,
        Some(value) => Some(by_variable(&value)?),
    };
    let mut open = OPEN.lock();
    let set = open.set.take();
    let chosen = by_variable.unwrap_or_else(|| set.clone());
    // The lock is held: `set` sees the choice, or the choice sees what was set.
    let chosen = CHOSEN.get_or_init(|| chosen).clone();
    drop(open);
    drop(set);
    Ok(chosen)
}

fn by_variable(value: &OsStr) -> Result<Option<OpenMemory>> {
    let Some(value) = value.to_str() else {
        let what = format!("{VARIABLE} is {value:?}, which is no UTF-8");
        return Err(Error::new(ErrorKind::Environment, what)
            .with_advice("name a registered manager, or unset the variable"));
    };
    if value == OWN {
        return Ok(None);
    }
    let (name, options) = value.split_once(':').unwrap_or((value, ""));
    ensure!(
        name != OWN,
        Environment,
        "write `default` alone, or name a registered manager",
        "{VARIABLE} is {value:?}, where `default` takes no options"
    );
    let open = OPEN.lock();
    let factory = open.factory(name).ok_or_else(|| open.unknown(name));
    drop(open);
    factory?(options).map(Some).map_err(|error| error.within(format_args!("{VARIABLE}={value}")))
}

/// The calling thread's way into a device's manager. `None` where there is none, and in a call of the
/// manager itself, whose page-locked memory is the driver's.
pub(super) fn open(
    device: &Device,
) -> Result<Option<impl FnOnce() -> Result<Arc<dyn ExternalMemory>>>> {
    if is_inside() {
        return Ok(None);
    }
    let device = device.clone();
    Ok(chosen()?.map(|open| move || inside(|| open(&device))))
}

/// The error of a call of a manager that asks for memory without a resource's name, since that would be its own.
pub fn reentered() -> Error {
    let what = "a memory manager asked for memory that would come from itself";
    Error::new(ErrorKind::Reentered, what).with_advice(
        "name a resource inside of a memory manager's calls: by *_in, or by with_device_resource",
    )
}

thread_local! {
    /// The number of calls of managers that the thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling thread is in a call of a memory manager.
pub fn is_inside() -> bool {
    DEPTH.with(Cell::get) > 0
}

/// Runs a call of a manager.
pub fn inside<T>(call: impl FnOnce() -> T) -> T {
    struct Leave;

    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.with(|depth| depth.set(depth.get() - 1));
        }
    }

    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let _leave = Leave;
    call()
}
