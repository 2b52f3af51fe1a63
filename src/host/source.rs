//! Page-locked memory from the driver, and its way back.

use super::blocks;
use super::pending::{Pending, Unfenced};
use crate::backend::{BackendKind, HostFlags, Wanted};
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
use std::ptr::NonNull;

/// Driver allocations come in pages; what is asked is rounded up, so that small growth stays in
/// place.
const PAGE: usize = 4096;

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
    /// Unregister, then let the owner free its memory.
    Registered(#[allow(dead_code, reason = "held for its drop")] Box<dyn Any + Send>),
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
        if crate::backend::is_forked_child() {
            return Err(DriverError::new("cuMemHostAlloc", DriverError::FORKED).into());
        }
        sweep();
        // The driver aligns to pages; a larger alignment is found inside a larger block.
        let padding = if layout.align() > PAGE { layout.align() } else { 0 };
        let bytes = layout
            .size()
            .checked_add(padding)
            .and_then(|sum| align_up(sum, PAGE))
            .filter(|rounded| *rounded <= isize::MAX as usize)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "{} bytes aligned to {} are more than an address space holds",
                        layout.size(),
                        layout.align()
                    ),
                )
            })?;
        let driver = self.device.driver();
        let base = match driver.host_alloc(bytes, self.flags) {
            // What waits for its fence may be all that is missing.
            Err(error) if error.code() == DriverError::OUT_OF_MEMORY && self.yard.len() > 0 => {
                self.trim()?;
                driver.host_alloc(bytes, self.flags)
            }
            answer => answer,
        }
        .wanted(|| format!("allocating {bytes} bytes of page-locked memory for {}", self.device))?;
        blocks::insert(base, bytes, self);
        let address = base.addr().get();
        let aligned = align_up(address, layout.align()).unwrap_or(address);
        // SAFETY: `aligned - address < padding`, so it lies in the block with `layout.size()` after.
        let pointer = unsafe { base.add(aligned - address) };
        Ok(NonNull::slice_from_raw_parts(pointer, layout.size()))
    }

    /// Waits for the device, and unpins all that was freed here.
    pub(crate) fn trim(&self) -> Result<()> {
        trim(&self.device, &self.yard)
    }

    /// Takes a freed block in. No driver call.
    pub(super) fn take_back(&self, pointer: NonNull<u8>, bytes: usize) {
        let device = self.device.clone();
        self.yard.push(Freed { device, pointer, bytes, how: HowToFree::Allocated });
    }
}

/// Takes memory in that is to be unregistered before its owner frees it.
pub(super) fn take_back_registered(
    device: &Device,
    yard: &Yard,
    pointer: NonNull<u8>,
    bytes: usize,
    owner: Box<dyn Any + Send>,
) {
    let how = HowToFree::Registered(owner);
    yard.push(Freed { device: device.clone(), pointer, bytes, how });
}

/// Unpins what the devices have passed, without waiting.
pub(super) fn sweep() {
    let yards: Vec<Arc<Yard>> = {
        let mut yards = YARDS.lock();
        // An empty yard that only the table holds has no source and no block left.
        yards.retain(|_, yard| yard.len() > 0 || Arc::strong_count(yard) > 1);
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
        freed.free();
    }
    for freed in collected.lost {
        tracing::error!(
            device = %freed.device,
            bytes = freed.bytes,
            "leaked page-locked memory: the device can no longer say whether it uses it"
        );
        std::mem::forget(freed);
    }
}

pub(super) fn trim(device: &Device, yard: &Yard) -> Result<()> {
    if yard.len() == 0 {
        return Ok(());
    }
    for device in device.sharing_host_memory() {
        if Stream::any_capturing(&device) {
            return Err(Error::new(
                ErrorKind::Capture,
                format!("freed page-locked memory waits for a capture on {device}"),
            )
            .advise("trim when the capture has ended"));
        }
        // A broken context is reported by `collect`, which leaks what it can say nothing about.
        let _ = device.synchronize();
    }
    collect(yard);
    Ok(())
}

/// One event on every context whose work may use the memory; none while one may be in capture.
fn fence(device: &Device) -> Result<Fence, Unfenced> {
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

fn passed(fence: &Fence) -> Result<bool, Unfenced> {
    for event in &fence.0 {
        if Stream::any_capturing(event.device()) {
            return Err(Unfenced::Later);
        }
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
        if let Err(error) = freed {
            if !error.is_gone() {
                let (device, bytes) = (&self.device, self.bytes);
                tracing::error!(%device, bytes, %error, "leaked page-locked memory");
            }
            // Its owner must not free pages that are still locked.
            std::mem::forget(self);
        }
    }
}
