//! Page-locked memory of the driver, or of a memory manager in its place, with its allocation, and how it is unpinned
//! after it was freed.
//!
//! The unpinning of memory waits for all kernels of the device, and so does each launch of any thread meanwhile. Beside
//! a kernel of 1.5 s, on an H100 with driver 580, `cuMemFreeHost` and `cuMemHostUnregister` took 1.5 s each, and the
//! launch 1.45 s. So an allocation unpins freed memory only if the device has nothing to do. `trim` waits.

use super::fence::{Fence, synchronize_sharing_contexts};
#[cfg(target_os = "linux")]
use super::huge_pages::{self, HugePages, Placement};
#[cfg(target_os = "linux")]
use super::memory_limit;
use super::quarantine::{FenceError, Quarantine};
use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::{BackendKind, ErrorContext, HostFlags, not_forked};
use crate::error::{Error, ErrorKind, Result, catch_panic};
use crate::impls::Count;
use crate::layout::{Requested, align_up, impossible};
use crate::resource::external::{self, ExternalHostMemory};
use crate::resource::external_memory;
use crate::sync::trusted::{AtomicUsize, Mutex, Ordering};
use crate::sync::{Arc, LazyLock, OnceLock};
use std::alloc::Layout;
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The size of a page. Driver allocations come in pages. Requests are rounded up to them, so that small growth stays in
/// place.
pub(super) const PAGE: usize = 4096;

/// A source that allocates page-locked memory of one kind, by a device and the driver's flags.
#[derive(Debug)]
pub(super) struct HostSource {
    pub(super) device: Device,
    pub(super) flags: HostFlags,
    quarantine: Arc<HostQuarantine>,
    /// The origin of all of its memory, where `None` is the driver. It is found out at the first allocation.
    origin: OnceLock<Origin>,
    /// Whether it is the default of all threads. The origin that is found inside of a memory manager's call, the
    /// driver, is not for them.
    pub(super) is_of_process: bool,
    /// The threads that touch fresh memory before it is registered. With 0 all memory is the driver's.
    pub(super) touch_threads: AtomicUsize,
    /// The NUMA node of fresh memory, in place of the device's.
    pub(super) numa_node: Option<u32>,
    /// The memory that was registered, by its address, while it is in use.
    #[cfg(target_os = "linux")]
    registered: Mutex<BTreeMap<usize, HugePages>>,
}

/// The origin of page-locked memory that is not the driver's.
pub(super) type Origin = Option<Arc<dyn ExternalHostMemory>>;

/// The memory manager of the process, if it has one.
pub(super) fn origin_of(device: &Device) -> Result<Origin> {
    Ok(external_memory(device)?.map(|memory| memory as _))
}

/// The quarantine of one device, for memory that goes back to the driver.
pub(super) type HostQuarantine = Quarantine<FreedMemory, Fence>;

/// Memory that a [`HostSource`] allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostMemory {
    /// The address and the size that the driver has it by.
    pub(super) base: NonNull<u8>,
    pub(super) bytes: usize,
    /// The first byte that is aligned as was asked.
    pub(super) start: NonNull<u8>,
}

/// Page-locked memory on its way back to the driver.
#[derive(Debug)]
pub(super) struct FreedMemory {
    pub(super) device: Device,
    pub(super) base: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) origin: Origin,
    /// The owner of registered memory. It is dropped when that is unregistered, which frees it. It is leaked unless it
    /// is dropped on purpose, so that a panic on the way frees nothing that is still locked.
    pub(super) owner: Option<ManuallyDrop<Box<dyn Any + Send>>>,
}

// SAFETY: this value owns the freed memory behind the pointer; nothing reads through it.
unsafe impl Send for FreedMemory {}

type Quarantines = HashMap<(BackendKind, u64), Arc<HostQuarantine>>;

/// The quarantine of each device. One that the table alone holds has memory of sources that are gone. It is collected
/// with the others, and dropped when it is empty.
static QUARANTINES: LazyLock<Mutex<Quarantines>> = LazyLock::new(Mutex::default);

pub(super) fn quarantine_of(device: &Device) -> Arc<HostQuarantine> {
    QUARANTINES.lock().entry(device.key()).or_default().clone()
}

#[cfg(target_os = "linux")]
fn not_placed(device: &Device, requested: Requested, node: u32, step: &str) -> Error {
    let what = format!(
        "allocating {requested} of page-locked memory for {device} on NUMA node {node}: {step}"
    );
    Error::new(ErrorKind::OutOfMemory, what).with_advice(
        "free host memory, raise the limit of locked memory (ulimit -l), or leave numa_node out",
    )
}

impl PartialEq for HostSource {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device && self.flags == other.flags
    }
}

impl Eq for HostSource {}

impl HostSource {
    /// A source of the driver's memory alone.
    pub(super) fn new(device: &Device, flags: HostFlags) -> Self {
        Self {
            device: device.clone(),
            flags,
            quarantine: quarantine_of(device),
            origin: OnceLock::new(),
            is_of_process: false,
            touch_threads: AtomicUsize::new(0),
            numa_node: None,
            #[cfg(target_os = "linux")]
            registered: Mutex::default(),
        }
    }

    /// Allocates memory with at least `layout.size()` bytes, which is not 0, from an address at its
    /// alignment, whatever that is.
    pub(super) fn allocate(&self, layout: Layout) -> Result<HostMemory> {
        not_forked("page-locked memory")?;
        unpin_if_idle();
        let requested = Requested { bytes: layout.size(), alignment: layout.align(), usual: PAGE };
        let too_large = || impossible(layout.size(), layout.align());
        // An alignment above the page's is found inside of a larger block.
        let padding = if layout.align() > PAGE { layout.align() } else { 0 };
        let mut bytes = padded(layout.size(), padding).ok_or_else(too_large)?;
        let mut base = self.host_alloc_or_advise(bytes, requested)?;
        if first_fit(base, bytes, layout).is_none() {
            // Drivers are said to align to pages, and promise nothing: once more, with room.
            let more = padded(layout.size(), layout.align()).ok_or_else(too_large)?;
            let larger = self.host_alloc_or_advise(more, requested);
            self.freed(base, bytes).free_to_driver();
            (base, bytes) = (larger?, more);
        }
        Ok(HostMemory { base, bytes, start: first_fit(base, bytes, layout).unwrap_or(base) })
    }

    /// `bytes` of pinned memory of the driver, for a request. `allocate` has unpinned all that it may.
    fn host_alloc_or_advise(&self, bytes: usize, requested: Requested) -> Result<NonNull<u8>> {
        self.host_alloc(bytes, requested).map_err(|error| {
            match error.kind() == ErrorKind::OutOfMemory && self.quarantine.len() > 0 {
                true => error.with_advice(
                    "freed page-locked memory waits for the device: call trim, which waits for it, and ask again",
                ),
                false => error,
            }
        })
    }

    fn host_alloc(&self, bytes: usize, requested: Requested) -> Result<NonNull<u8>> {
        if let Some(memory) = self.origin()? {
            return memory.host_alloc(bytes, self.flags);
        }
        #[cfg(target_os = "linux")]
        self.within_limit(bytes)?;
        #[cfg(target_os = "linux")]
        if self.touches(bytes) {
            match self.register_fresh(bytes) {
                Ok(base) => return Ok(base),
                Err(step) => {
                    if let Some(node) = self.numa_node {
                        return Err(not_placed(&self.device, requested, node, &step));
                    }
                    let device = self.device.to_string();
                    // Deferred: the caller may hold the locks of a pool above.
                    deferred_event!(debug, %device, bytes, %step, "page-locked memory comes from the driver");
                }
            }
        }
        self.device
            .driver()
            .host_alloc(bytes, self.flags)
            .with_context(|| {
                format!("allocating {requested} of page-locked memory for {}", self.device)
            })
            .map_err(|error| requested.advise(error))
    }

    /// Refuses what would cross a limit of memory: the system ends a process that touches such pages, whether they are the
    /// driver's or this crate's. Memory of a simulated device is not touched by being allocated.
    #[cfg(target_os = "linux")]
    fn within_limit(&self, bytes: usize) -> Result<()> {
        // To read it costs little beside the touching of so much, and small blocks say nothing of a limit.
        let is_large = bytes >= huge_pages::LEAST;
        let is_touched = self.device.kind() != BackendKind::Simulated || self.touches(bytes);
        if !is_large || !is_touched {
            return Ok(());
        }
        let what = format_args!(
            "allocating {} of page-locked memory for {}",
            Count(bytes, "byte"),
            self.device
        );
        memory_limit::require(bytes as u64, what)
    }

    /// Whether fresh memory of this size is touched here and registered. The driver makes what cannot be, or is not worth
    /// it: small blocks that may be on any node, and memory that is write-combined.
    #[cfg(target_os = "linux")]
    fn touches(&self, bytes: usize) -> bool {
        let is_worth_it =
            self.touch_threads.load(Ordering::Relaxed) > 0 && bytes >= huge_pages::LEAST;
        (is_worth_it || self.numa_node.is_some())
            && !self.flags.write_combined
            && self.device.properties().host_register
    }

    /// Fresh huge pages that are registered with the driver. The error names the step that failed.
    #[cfg(target_os = "linux")]
    fn register_fresh(&self, bytes: usize) -> Result<NonNull<u8>, String> {
        let placement = match (self.numa_node, self.device.properties().host_numa_node) {
            (Some(named), _) => Placement::Named(named),
            (None, Some(near)) => Placement::Near(near),
            (None, None) => Placement::Anywhere,
        };
        let threads = self.touch_threads.load(Ordering::Relaxed);
        let pages = HugePages::map(bytes, threads, placement).map_err(|step| step.to_string())?;
        let base = pages.memory().cast();
        // SAFETY: the pages stay mapped until `registered` gives them up, behind an unregistration.
        unsafe { self.device.driver().host_register(pages.memory(), self.flags) }
            .map_err(|error| format!("registering: {error}"))?;
        self.registered.lock().insert(base.addr().get(), pages);
        Ok(base)
    }

    fn origin(&self) -> Result<&Origin> {
        if let Some(origin) = self.origin.get() {
            return Ok(origin);
        }
        if self.is_of_process && external::is_inside() {
            return Err(external::reentered());
        }
        let found = origin_of(&self.device)?;
        Ok(self.origin.get_or_init(|| found))
    }

    /// Asks the driver for the device's address of memory that was allocated here.
    pub(super) fn device_address(&self, base: NonNull<u8>) -> Result<u64> {
        if !self.flags.mapped {
            return Err(not_mapped());
        }
        let address = self.device.driver().host_device_address(base);
        address.with_context(|| format!("asking {} for its address of a mapped block", self.device))
    }

    /// Waits for the device, and unpins all memory in quarantine.
    pub(super) fn trim(&self) -> Result<()> {
        trim(&self.device, &self.quarantine)
    }

    fn freed(&self, base: NonNull<u8>, bytes: usize) -> FreedMemory {
        let origin = self.origin.get().cloned().flatten();
        #[cfg(target_os = "linux")]
        let owner = self.registered.lock().remove(&base.addr().get());
        #[cfg(not(target_os = "linux"))]
        let owner = None::<()>;
        let owner = owner.map(|pages| ManuallyDrop::new(Box::new(pages) as Box<dyn Any + Send>));
        FreedMemory { device: self.device.clone(), base, bytes, origin, owner }
    }

    /// Unpins memory that neither side uses any more.
    ///
    /// # Safety
    ///
    /// The memory came from [`allocate`](Self::allocate) and left the address map, and the devices have passed all work
    /// that uses it.
    pub(super) unsafe fn free_to_driver(&self, base: NonNull<u8>, bytes: usize) {
        self.freed(base, bytes).free_to_driver();
    }

    /// Takes freed memory, to be unpinned when the devices have passed a fence. No driver call.
    pub(super) fn quarantine(&self, base: NonNull<u8>, bytes: usize) {
        self.quarantine.push(self.freed(base, bytes));
    }
}

/// The error of page-locked memory that no kernel reaches.
pub(super) fn not_mapped() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the page-locked memory is not mapped, so that no kernel reaches it",
    )
    .with_advice("use MappedAlloc, or a PinnedResource built with mapped(true)")
}

/// Whole pages with room for `size` bytes and `padding` more. `None` if no address space has that.
pub(super) fn padded(size: usize, padding: usize) -> Option<usize> {
    let rounded = align_up(size.checked_add(padding)?, PAGE)?;
    (rounded <= isize::MAX as usize).then_some(rounded)
}

/// The first address in a block of `bytes` bytes at which `layout` fits.
fn first_fit(base: NonNull<u8>, bytes: usize, layout: Layout) -> Option<NonNull<u8>> {
    let address = base.addr().get();
    let offset = align_up(address, layout.align())? - address;
    if offset.checked_add(layout.size())? > bytes {
        return None;
    }
    // SAFETY: the offset lies in the block, as does all of the layout after it.
    Some(unsafe { base.add(offset) })
}

/// Unpins the freed memory of each device that has nothing to do. Waits for no kernel.
pub(super) fn unpin_if_idle() {
    let quarantines: Vec<Arc<HostQuarantine>> = {
        let mut quarantines = QUARANTINES.lock();
        // A quarantine that only the table holds has no source that could free into it: if it is empty
        // too, it goes. Asked in this order: while another handle lives, a block may just come in.
        quarantines
            .retain(|_, quarantine| Arc::get_mut(quarantine).is_none_or(|only| only.len() > 0));
        quarantines.values().filter(|quarantine| quarantine.len() > 0).cloned().collect()
    };
    for quarantine in quarantines {
        let Some(device) = quarantine.peek(|freed| freed.device.clone()) else { continue };
        let mut idle = Ok(false);
        let freed = quarantine.collect_all(|| {
            idle = is_idle(&device);
            matches!(idle, Ok(true))
        });
        unpin(&device, freed);
        if idle == Err(FenceError::DeviceLost) {
            // All of it is leaked, and reported.
            collect(&quarantine);
        }
    }
}

/// Whether the device, and those that share host memory with it, have nothing to do, or will have in a moment.
pub(super) fn is_idle(device: &Device) -> Result<bool, FenceError> {
    Fence::record_sharing_contexts(device)?.passes_soon()
}

/// Unpins the memory whose fence has passed. Waits for the kernels of the device.
fn collect(quarantine: &HostQuarantine) {
    let Some(device) = quarantine.peek(|freed| freed.device.clone()) else { return };
    let collected = quarantine.collect(|| Fence::record_sharing_contexts(&device), Fence::query);
    unpin(&device, collected.free);
    for freed in collected.lost {
        report_lost(&freed.device, freed.bytes);
    }
}

/// Gives memory back that no device uses any more.
fn unpin(device: &Device, memory: Vec<FreedMemory>) {
    for freed in memory {
        // The destructor of one owner must not leak the others' memory, nor fail the caller.
        if catch_panic(|| freed.free_to_driver()).is_none() {
            let device = device.to_string();
            deferred_event!(error, %device, "the owner of registered memory panicked when it was dropped");
        }
    }
}

/// Logs that memory is leaked, since its device is lost and no fence can pass.
pub(super) fn report_lost(device: &Device, bytes: usize) {
    let device = device.to_string();
    // Deferred: the caller may hold the locks of a pool above.
    deferred_event!(
        error, %device, bytes,
        "leaked page-locked memory: the device can no longer say whether it uses it"
    );
}

pub(super) fn trim(device: &Device, quarantine: &HostQuarantine) -> Result<()> {
    not_forked("page-locked memory")?;
    if quarantine.len() == 0 {
        return Ok(());
    }
    // The fence is recorded before the wait and queried after it: right after its record it has not
    // passed yet.
    collect(quarantine);
    let lost = synchronize_sharing_contexts(device)?;
    collect(quarantine);
    lost.map_or(Ok(()), Err)
}

impl FreedMemory {
    fn free_to_driver(self) {
        let driver = self.device.driver();
        // SAFETY: a fence after the free has passed, so no device work uses the memory; it was
        // allocated or registered with this driver, or with its origin, and `self` is its only trace.
        let unpinned = unsafe {
            match (&self.owner, &self.origin) {
                (None, None) => driver.host_free(self.base),
                (Some(_), None) => driver.host_unregister(self.base),
                (None, Some(memory)) => {
                    memory.host_free(self.base);
                    Ok(())
                }
                (Some(_), Some(memory)) => {
                    memory.host_unregister(self.base);
                    Ok(())
                }
            }
        };
        match unpinned {
            Ok(()) => drop(self.owner.map(ManuallyDrop::into_inner)),
            // Its owner must not free pages that are still locked.
            Err(error) if error.is_gone() => {}
            Err(error) => {
                let (device, bytes) = (self.device.to_string(), self.bytes);
                deferred_event!(error, %device, bytes, %error, "leaked page-locked memory");
            }
        }
    }
}

#[cfg(test)]
mod tests;
