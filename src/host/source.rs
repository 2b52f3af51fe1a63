//! Page-locked memory from the driver, and its way back.

use super::blocks;
use super::pending::{Pending, Unfenced};
use crate::backend::{BackendKind, HostFlags, Wanted, not_forked};
use crate::device::Device;
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::event::Event;
use crate::layout::align_up;
use crate::stream::Stream;
use crate::sync::trusted::Mutex;
use crate::sync::{Arc, LazyLock};
use std::alloc::Layout;
use std::any::Any;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// Driver allocations come in pages; what is asked is rounded up, so that small growth stays in
/// place.
pub(super) const PAGE: usize = 4096;

/// Where blocks of one kind come from: a device and the driver's flags.
#[derive(Debug)]
pub(crate) struct HostSource {
    device: Device,
    flags: HostFlags,
    yard: Arc<Yard>,
}

/// Freed page-locked memory of one device, waiting for a fence.
pub(super) type Yard = Pending<Freed, Fence>;

/// One freed piece of page-locked memory.
#[derive(Debug)]
pub(super) struct Freed {
    device: Device,
    pointer: NonNull<u8>,
    bytes: usize,
    how: HowToFree,
}

enum HowToFree {
    Allocated,
    /// Unregister, then let the owner free its memory. Leaked unless it is dropped on purpose: a
    /// panic on the way must free nothing that is still locked.
    Registered(ManuallyDrop<Box<dyn Any + Send>>),
}

impl std::fmt::Debug for HowToFree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Allocated => "Allocated",
            Self::Registered(_) => "Registered",
        })
    }
}

// SAFETY: the pointer is the freed block's alone, which this value owns; nothing reads through it.
unsafe impl Send for Freed {}

/// One event for each context whose work may use the memory.
#[derive(Debug)]
pub(super) struct Fence(Vec<Event>);

impl Fence {
    /// The fence of what nobody waits for: it has always passed.
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }
}

type Yards = HashMap<(BackendKind, u64), Arc<Yard>>;

/// A yard a device. One that nobody else holds still has blocks of sources that are gone; it is
/// swept with the others and dropped when it is empty.
static YARDS: LazyLock<Mutex<Yards>> = LazyLock::new(Mutex::default);

pub(super) fn yard(device: &Device) -> Arc<Yard> {
    YARDS.lock().entry(device.key()).or_default().clone()
}

impl HostSource {
    pub(crate) fn new(device: &Device, flags: HostFlags) -> Arc<Self> {
        Arc::new(Self { device: device.clone(), flags, yard: yard(device) })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn flags(&self) -> HostFlags {
        self.flags
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        self.device == other.device && self.flags == other.flags
    }

    /// A block of at least `layout.size()` bytes at its alignment, whatever that is. Zero bytes
    /// give a dangling pointer and touch no driver.
    pub(crate) fn allocate(self: &Arc<Self>, layout: Layout) -> Result<NonNull<[u8]>> {
        if layout.size() == 0 {
            return Ok(NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0));
        }
        not_forked("page-locked memory")?;
        sweep();
        let too_large = || too_large(layout.size(), layout.align());
        // A larger alignment than a page is found inside a larger block.
        let padding = if layout.align() > PAGE { layout.align() } else { 0 };
        let bytes = padded(layout.size(), padding).ok_or_else(too_large)?;
        let (mut base, mut bytes) = (self.host_alloc(bytes)?, bytes);
        if place(base, bytes, layout).is_none() {
            // Drivers are said to align to pages, and promise nothing: once more, with room.
            bytes = padded(layout.size(), layout.align()).ok_or_else(too_large)?;
            let larger = self.host_alloc(bytes);
            // SAFETY: allocated above and given to nobody.
            let _ = unsafe { self.device.driver().host_free(base) };
            base = larger?;
        }
        let pointer = place(base, bytes, layout).unwrap_or(base);
        blocks::insert(base, bytes, self);
        Ok(NonNull::slice_from_raw_parts(pointer, layout.size()))
    }

    fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>> {
        let driver = self.device.driver();
        match driver.host_alloc(bytes, self.flags) {
            // What waits for its fence may be all that is missing. Where it has to go on waiting,
            // the memory is still what the caller lacks.
            Err(error) if error.code() == DriverError::OUT_OF_MEMORY && self.yard.len() > 0 => {
                let _ = self.trim();
                driver.host_alloc(bytes, self.flags)
            }
            answer => answer,
        }
        .wanted(|| format!("allocating {bytes} bytes of page-locked memory for {}", self.device))
    }

    /// Waits for the device, and unpins all that was freed here.
    pub(crate) fn trim(&self) -> Result<()> {
        trim(&self.device, &self.yard)
    }

    /// Unpins memory that neither side uses any more.
    ///
    /// # Safety
    ///
    /// It came from [`allocate`](Self::allocate) and left the map; the devices have passed all work
    /// that uses it.
    pub(super) unsafe fn free_complete(&self, pointer: NonNull<u8>, bytes: usize) {
        let device = self.device.clone();
        Freed { device, pointer, bytes, how: HowToFree::Allocated }.free();
    }

    /// Takes a freed block in. No driver call.
    pub(super) fn take_back(&self, pointer: NonNull<u8>, bytes: usize) {
        let device = self.device.clone();
        self.yard.push(Freed { device, pointer, bytes, how: HowToFree::Allocated });
    }
}

/// The error of a layout that can never be met.
pub(super) fn too_large(size: usize, align: usize) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{size} bytes aligned to {align} are more than an address space holds"),
    )
}

/// Whole pages with room for `size` bytes and `padding` more; `None` if no address space has that.
pub(super) fn padded(size: usize, padding: usize) -> Option<usize> {
    let rounded = align_up(size.checked_add(padding)?, PAGE)?;
    (rounded <= isize::MAX as usize).then_some(rounded)
}

/// Where `layout` fits in a block of `bytes` bytes, if it does.
fn place(base: NonNull<u8>, bytes: usize, layout: Layout) -> Option<NonNull<u8>> {
    let address = base.addr().get();
    let offset = align_up(address, layout.align())? - address;
    if offset.checked_add(layout.size())? > bytes {
        return None;
    }
    // SAFETY: the offset lies in the block, as does all of the layout after it.
    Some(unsafe { base.add(offset) })
}

/// Takes memory in that is to be unregistered before its owner frees it.
pub(super) fn take_back_registered(
    device: &Device,
    yard: &Yard,
    pointer: NonNull<u8>,
    bytes: usize,
    owner: Box<dyn Any + Send>,
) {
    let how = HowToFree::Registered(ManuallyDrop::new(owner));
    yard.push(Freed { device: device.clone(), pointer, bytes, how });
}

/// Unpins what the devices have passed, without waiting.
pub(super) fn sweep() {
    let yards: Vec<Arc<Yard>> = {
        let mut yards = YARDS.lock();
        // A yard that only the table holds has no source that could free into it: if it is empty too,
        // it goes. Asked in this order: while another handle lives, a block may just be coming in.
        yards.retain(|_, yard| Arc::get_mut(yard).is_none_or(|alone| alone.len() > 0));
        yards.values().filter(|yard| yard.len() > 0).cloned().collect()
    };
    for yard in yards {
        collect(&yard);
    }
}

fn collect(yard: &Yard) {
    let Some(device) = yard.peek(|freed| freed.device.clone()) else { return };
    let collected = yard.collect(|| fence(&device), passed);
    for freed in collected.free {
        // One owner's destructor must not leak the others' memory, nor fail whoever sweeps.
        if let Err(thrown) = catch_unwind(AssertUnwindSafe(|| freed.free())) {
            std::mem::forget(thrown);
            crate::debug_log::event!(error, %device, "the owner of registered memory panicked when it was dropped");
        }
    }
    for freed in collected.lost {
        report_lost(&freed.device, freed.bytes);
    }
}

/// Says that memory is leaked whose fence nobody can answer for any more.
pub(super) fn report_lost(device: &Device, bytes: usize) {
    crate::debug_log::event!(error,
        %device,
        bytes,
        "leaked page-locked memory: the device can no longer say whether it uses it"
    );
}

pub(super) fn trim(device: &Device, yard: &Yard) -> Result<()> {
    not_forked("page-locked memory")?;
    if yard.len() == 0 {
        return Ok(());
    }
    // The fence goes before the wait: one that is asked right after its record is not passed yet.
    collect(yard);
    for device in device.sharing_host_memory() {
        no_capture(&device)?;
        // A broken context is reported by `collect`, which leaks what it can say nothing about.
        let _ = device.synchronize();
    }
    collect(yard);
    Ok(())
}

/// The error of waiting for a device that may be in capture, which the wait would invalidate.
pub(super) fn no_capture(device: &Device) -> Result<()> {
    if Stream::any_capturing(device) {
        return Err(Error::new(
            ErrorKind::Capture,
            format!("page-locked memory waits for a capture on {device}"),
        )
        .advise("call again when the capture has ended"));
    }
    Ok(())
}

/// One event on every context whose work may use the memory; none while one may be in capture.
pub(super) fn fence(device: &Device) -> Result<Fence, Unfenced> {
    let devices = device.sharing_host_memory();
    if devices.iter().any(Stream::any_capturing) {
        return Err(Unfenced::Later);
    }
    let mut events = Vec::with_capacity(devices.len());
    for device in &devices {
        if device.properties().context_events {
            events.push(Event::of_context(device).map_err(|error| unfenced(&error))?);
        } else {
            // An old driver has no such event: the host waits instead.
            device.driver().context_synchronize().map_err(|error| unfenced(&error))?;
        }
    }
    Ok(Fence(events))
}

/// Waits until the devices have passed a fence.
pub(super) fn wait(fence: &Fence) -> Result<bool, Unfenced> {
    for event in &fence.0 {
        let waited = event.device().driver().event_synchronize(event.raw());
        waited.map_err(|error| unfenced(&error))?;
    }
    Ok(true)
}

pub(super) fn passed(fence: &Fence) -> Result<bool, Unfenced> {
    for event in &fence.0 {
        let complete = event.device().driver().event_query(event.raw());
        if !complete.map_err(|error| unfenced(&error))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn unfenced(error: &DriverError) -> Unfenced {
    match error.kind() {
        ErrorKind::ContextLost | ErrorKind::Forked => Unfenced::Never,
        _ => Unfenced::Later,
    }
}

impl Freed {
    fn free(self) {
        let driver = self.device.driver();
        // SAFETY: a fence after the free is complete, so no device work uses the memory; it was
        // allocated or registered with this driver, and `self` is its only trace.
        let freed = unsafe {
            match &self.how {
                HowToFree::Allocated => driver.host_free(self.pointer),
                HowToFree::Registered(_) => driver.host_unregister(self.pointer),
            }
        };
        match freed {
            Ok(()) => {
                if let HowToFree::Registered(owner) = self.how {
                    drop(ManuallyDrop::into_inner(owner));
                }
            }
            // Its owner must not free pages that are still locked.
            Err(error) if error.is_gone() => {}
            Err(error) => {
                let (device, bytes) = (&self.device, self.bytes);
                crate::debug_log::event!(error, %device, bytes, %error, "leaked page-locked memory");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_placed_inside_its_block_or_not_at_all() {
        let block = vec![0_u8; 1 << 15];
        let start = NonNull::from(block.as_slice()).cast::<u8>();
        for shift in [0, 512, 4096] {
            // SAFETY: a few bytes into a vector of many more.
            let base = unsafe { start.add(shift) };
            for (size, align) in [(1, 1), (4096, 512), (4096, 4096), (100, 8192)] {
                let layout = Layout::from_size_align(size, align).unwrap();
                let padded = padded(size, align).unwrap();
                let pointer = place(base, padded, layout).unwrap().addr().get();
                assert!(pointer.is_multiple_of(align));
                let from = base.addr().get();
                assert!(pointer >= from && pointer + size <= from + padded);
                // Without padding it fits only where the driver happens to align as asked.
                let tight = place(base, size, layout);
                assert_eq!(tight.is_some(), base.addr().get().is_multiple_of(align));
            }
        }
        assert_eq!(padded(isize::MAX as usize, 0), None);
        assert_eq!(padded(usize::MAX, 4096), None);
    }

    /// The control of every test that finds no `FreeWhileInUse`: the simulated device sees a block
    /// that is unpinned under a copy, and does not where the block went through the yard.
    #[test]
    fn unpinning_at_once_would_be_seen() {
        use crate::sim::{SimConfig, Violation};
        for at_once in [true, false] {
            let device = Device::simulated(SimConfig::default());
            let (driver, simulator) = (device.driver(), device.simulator().unwrap());
            let flags = HostFlags { portable: true, mapped: false, write_combined: false };
            let source = HostSource::new(&device, flags);
            let block = source.allocate(Layout::new::<[u8; 4096]>()).unwrap().cast::<u8>();
            let stream = device.new_stream().unwrap();
            let target = driver.mem_alloc(4096).unwrap();
            // SAFETY: the block is written, both are large enough, and the copy is waited for below
            // (where it is not, the simulated device keeps the memory until the copy has run).
            unsafe {
                block.write_bytes(1, 4096);
                driver.copy_to_device(target, block.as_ptr(), 4096, stream.raw()).unwrap();
                if at_once {
                    driver.host_free(block).unwrap();
                } else {
                    blocks::release(block);
                    source.trim().unwrap();
                }
            }
            assert_eq!(simulator.host_blocks(), 0);
            let reports = simulator.take_reports();
            let kinds = reports.iter().map(crate::sim::Report::kind).collect::<Vec<_>>();
            assert_eq!(kinds, if at_once { vec![Violation::FreeWhileInUse] } else { vec![] });
            stream.synchronize().unwrap();
            // SAFETY: allocated above, and complete.
            unsafe { driver.mem_free(target).unwrap() };
        }
    }
}
