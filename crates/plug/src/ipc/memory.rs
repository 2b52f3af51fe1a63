//! Vectors in memory of another process.

#[cfg(unix)]
use super::imported::ImportedMemory;
use super::ipc_handle::{IpcHandle, IpcKind, shown_uuid};
use super::opened::{Opening, Source, count};
use crate::container::DeviceVec;
use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::{BackendKind, CallSite, DriverResult, ErrorContext, not_forked, process_of};
use crate::error::{DriverError, Error, ErrorKind, Result, ensure};
use crate::impls::{Count, debug_struct};
use crate::inside::StreamInside;
use crate::inside::refuse_zero_sized;
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::trusted::Mutex;
use bytemuck::Pod;
use std::fmt;
use std::mem::ManuallyDrop;

impl IpcHandle {
    /// A vector in the memory of another process, at home on `stream`. Its drop waits for
    /// `stream` and closes the memory.
    ///
    /// The allocation behind it is opened once for all handles into it, and closed with the last
    /// vector. [`openings`](Self::openings) counts the vectors. A vector cannot grow, and nothing can
    /// be allocated from its resource. To keep the elements, copy them ([`copy_to`](Self::copy_to)).
    /// CUDA opens no memory in the process that it is of. The simulated device opens it there alone.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::WrongDevice`] if `stream` is of another device than the memory.
    /// - [`ErrorKind::Unsupported`] for a simulated device of another process.
    /// - [`ErrorKind::InvalidArgument`] for memory of a driver pool, which
    ///   [`IpcPool::open`](crate::ipc::IpcPool::open) opens.
    /// - [`ErrorKind::InvalidArgument`] for a range that is not in the allocation, and for a `T`
    ///   that does not fit its place.
    /// - [`ErrorKind::LengthMismatch`] if the bytes are no whole number of `T`s.
    /// - The errors of the driver, for memory that is gone and in the process that exported it.
    ///
    /// # Safety
    ///
    /// The handle is one that its process made, unchanged. Until the vector is dropped the exporter
    /// keeps the memory that it exported. In that time no two accesses from different processes
    /// touch the same bytes at once if one of them writes. Each process waits for its own work
    /// before it tells the other to go on.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, ErrorKind, ipc::IpcExport, sim::SimConfig};
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let stream = device.new_stream()?;
    /// let vec = DeviceVec::from_slice_in(&stream, &[7_u16; 4], CudaResource::new(&device))?;
    /// let handle = vec.ipc_handle()?;
    /// // SAFETY: the vector outlives both, and nothing writes.
    /// let (one, two) = unsafe { (handle.open::<u16>(&stream)?, handle.open::<u8>(&stream)?) };
    /// assert_eq!((one.to_vec()?, two.len()), (vec![7; 4], 8));
    /// assert_eq!(handle.openings(&device), 2);
    /// drop((one, two));
    /// assert_eq!(handle.openings(&device), 0);
    ///
    /// let another = Device::simulated(SimConfig::default()).new_stream()?;
    /// // SAFETY: it is refused.
    /// let refused = unsafe { handle.open::<u16>(&another) };
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::WrongDevice);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    #[track_caller]
    pub unsafe fn open<T: Pod>(&self, stream: &Stream) -> Result<DeviceVec<T>> {
        let _site = CallSite::enter();
        self.require_kind(IpcKind::Plain)?;
        // SAFETY: the caller's promise.
        unsafe { open(self, stream, Source::Plain) }
    }

    /// Copies the memory of another process to `stream`'s device, and waits for the
    /// copy. The result is an owned vector of the device's current resource, which has
    /// nothing to do with the other process.
    ///
    /// `via` is the device of the memory, in this process, and may be `stream`'s own. The memory is
    /// open on it during the call alone.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open) on `via`, and of an allocation and a copy.
    ///
    /// # Safety
    ///
    /// The conditions of [`open`](Self::open) hold until this returns.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, ipc::IpcExport, sim::SimConfig};
    ///
    /// let [device, other] = [(); 2].map(|()| Device::simulated(SimConfig::default()));
    /// let plain = CudaResource::new(&device);
    /// let vec = DeviceVec::from_slice_in(&device.new_stream()?, &[1_u8, 2], plain)?;
    /// let handle = vec.ipc_handle()?;
    /// // SAFETY: the vector outlives the call, and nothing writes.
    /// let copy = unsafe { handle.copy_to::<u8>(&device, &other.new_stream()?)? };
    /// assert_eq!((copy.to_vec()?, handle.openings(&device)), (vec![1, 2], 0));
    /// assert_eq!(copy.device(), &other);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    #[track_caller]
    pub unsafe fn copy_to<T: Pod>(&self, via: &Device, stream: &Stream) -> Result<DeviceVec<T>> {
        let _site = CallSite::enter();
        self.require_kind(IpcKind::Plain)?;
        // SAFETY: the caller's promise.
        unsafe { copy(self, via, stream, Source::Plain) }
    }

    /// The number of vectors of this process in the allocation that the handle is of, on
    /// `device`. Leaked vectors count.
    pub fn openings(&self, device: &Device) -> usize {
        if not_forked("memory of another process").is_err() {
            return 0;
        }
        count(device, self.kind, &self.driver_bytes)
    }
}

/// Opens a handle, by a pool or without one.
///
/// # Safety
///
/// The conditions of [`IpcHandle::open`] hold.
pub(super) unsafe fn open<T: Pod>(
    handle: &IpcHandle,
    stream: &Stream,
    source: Source<'_>,
) -> Result<DeviceVec<T>> {
    not_forked("memory of another process")?;
    refuse_zero_sized::<T>()?;
    let device = stream.device();
    require_device(handle, device)?;
    require_whole::<T>(handle, handle.bytes)?;
    let opening = Opening::new(device, source, &handle.driver_bytes).map_err(|error| {
        let is_own = handle.process == std::process::id() && device.kind() == BackendKind::Cuda;
        let is_refused = error.kind() == ErrorKind::Driver;
        let opened = Error::driver_call(format!("opening {handle} on {device}"), error);
        match (is_refused, is_own) {
            (true, true) => opened.with_advice(
                "use the vector itself in its own process: CUDA opens it in others alone",
            ),
            (true, false) => opened.with_advice(
                "see that its process lives and has not freed it, and that the handle arrives as it was sent",
            ),
            (false, _) => opened,
        }
    })?;
    let address = match place(handle, &opening, align_of::<T>() as u64) {
        Ok(address) => address,
        Err(error) => {
            // SAFETY: no work knows of this opening.
            let _ = unsafe { opening.close() };
            return Err(error);
        }
    };
    // SAFETY: the range lies in the allocation that was opened.
    unsafe { vector(stream, (address, handle.bytes), handle.process, Opened::Counted(opening)) }
}

/// An error unless so many bytes of `what` are whole `T`s, which have a size.
pub(super) fn require_whole<T: Pod>(what: &dyn fmt::Display, bytes: u64) -> Result<()> {
    let (element, size) = (std::any::type_name::<T>(), size_of::<T>() as u64);
    let advice = "open it as `u8`, or as what it was exported as";
    ensure!(
        bytes.is_multiple_of(size),
        LengthMismatch,
        advice,
        "{what} was to be opened as `{element}`, of {} each",
        Count(size, "byte")
    );
    Ok(())
}

/// The vector of an address and a size in bytes, of whole `T`s, in memory of `process` that was opened.
///
/// # Safety
///
/// The range is in the opened memory, aligned for `T`. The conditions of [`IpcHandle::open`] hold.
pub(super) unsafe fn vector<T: Pod>(
    stream: &Stream,
    (address, bytes): (u64, u64),
    process: u32,
    opened: Opened,
) -> Result<DeviceVec<T>> {
    // The range lies in an allocation, whose size is a number of this machine.
    let bytes = bytes as usize;
    let (block, length) = (DeviceBlock::new(address, bytes, 0), bytes / size_of::<T>());
    let device = stream.device();
    let ordinal = device.ordinal();
    deferred_event!(debug, target: IPC, device = ordinal, bytes, process, "opened memory of another process");
    let opened = Mutex::new(Some(ManuallyDrop::new(opened)));
    let resource = IpcMemory { device: device.clone(), process, opened };
    // SAFETY: the block is the new resource's only one, and nothing of this process used it so far.
    unsafe { DeviceVec::from_raw_parts(stream.clone(), block, length, resource) }
}

/// Copies the memory that a handle names to `stream`'s device, and closes it.
///
/// # Safety
///
/// The conditions of [`IpcHandle::copy_to`] hold.
pub(super) unsafe fn copy<T: Pod>(
    handle: &IpcHandle,
    via: &Device,
    stream: &Stream,
    source: Source<'_>,
) -> Result<DeviceVec<T>> {
    stream.refuse_capture("copying memory of another process")?;
    // SAFETY: the caller's promise.
    let shared: DeviceVec<T> = unsafe { open(handle, &via.new_stream()?, source)? };
    // SAFETY: written as a whole by the copy below, or dropped.
    let mut own = unsafe { DeviceVec::uninit(stream, shared.len())? };
    own.copy_from(&shared)?;
    stream.synchronize()?;
    Ok(own)
}

/// The target of the events.
const IPC: &str = "aquifer::ipc";

/// The address of the memory that a handle names, in an allocation that was opened for it.
fn place(handle: &IpcHandle, opening: &Opening, alignment: u64) -> Result<u64> {
    let range = opening.range;
    // The driver says where the allocation begins, which may be before what it opened.
    let before = opening.base.checked_sub(range.address);
    let end =
        before.and_then(|before| before.checked_add(handle.offset)?.checked_add(handle.bytes));
    ensure!(
        end.is_some_and(|end| end <= range.bytes as u64),
        InvalidArgument,
        "send the handle as its process made it",
        "{handle} is {} into an allocation of {}",
        Count(handle.offset, "byte"),
        Count(range.bytes, "byte")
    );
    let address = opening.base + handle.offset;
    ensure!(
        address.is_multiple_of(alignment),
        InvalidArgument,
        "open it as `u8`, or as what it was exported as",
        "{handle}, opened at {address:#x}, was to have an alignment of {}",
        Count(alignment, "byte")
    );
    Ok(address)
}

/// An error unless the memory of a handle is `device`'s.
fn require_device(handle: &IpcHandle, device: &Device) -> Result<()> {
    require_uuid(&handle.device_uuid, device, || handle.to_string())
}

/// An error unless `device` has a UUID. `what` is of the device that has it.
pub(super) fn require_uuid(
    uuid: &[u8; 16],
    device: &Device,
    what: impl FnOnce() -> String,
) -> Result<()> {
    let own = device.uuid()?;
    if *uuid == own {
        return Ok(());
    }
    let what = what();
    match process_of(uuid) {
        Some(process) if process != std::process::id() => Err(Error::new(
            ErrorKind::Unsupported,
            format!("{what} is of a simulated device, which is in that process alone"),
        )
        .with_advice("share memory of a GPU, or send the data")),
        _ => {
            let (other, own) = (shown_uuid(uuid), shown_uuid(&own));
            let what = format!(
                "{what} is of the device with UUID {other}, and was to be opened on {device}, with UUID {own}"
            );
            Err(Error::new(ErrorKind::WrongDevice, what)
                .with_advice("open it on the device with that UUID, by Device::uuid; copy_to takes the data to another one"))
        }
    }
}

/// Memory of another process, as this one has it.
pub(super) enum Opened {
    /// An opening that all handles into one allocation share.
    Counted(Opening),
    /// Memory that is mapped for one vector.
    #[cfg(unix)]
    Mapped(ImportedMemory),
}

impl Opened {
    /// # Safety
    ///
    /// No work is pending that uses the memory by this opening.
    unsafe fn close(self) -> DriverResult<()> {
        match self {
            // SAFETY: the caller's contract.
            Self::Counted(opening) => unsafe { opening.close() },
            #[cfg(unix)]
            // SAFETY: as above.
            Self::Mapped(memory) => unsafe { memory.close() },
        }
    }
}

/// The resource of a vector in another process's memory, of its one block.
struct IpcMemory {
    device: Device,
    /// The exporter, for events.
    process: u32,
    /// The opened memory, until the block comes back. A block that never does leaves the memory
    /// open, since work may use it.
    opened: Mutex<Option<ManuallyDrop<Opened>>>,
}

debug_struct!(IpcMemory { device, process, .. });

// SAFETY: it has one block, which is memory of its device until that comes back.
unsafe impl DeviceResource for IpcMemory {
    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate(&self, _stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let bytes = Count(layout.bytes(), "byte");
        let advice =
            "copy the elements to a vector of your own, by copy_from or IpcHandle::copy_to";
        ensure!(
            layout.bytes() == 0,
            Unsupported,
            advice,
            "{bytes} were asked of the resource of a vector in another process's memory, which cannot grow"
        );
        Ok(DeviceBlock::empty(layout))
    }

    /// Waits for the stream. On one in capture, a later call of the crate does.
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if block.is_empty() {
            return;
        }
        let Some(opened) = self.opened.lock().take() else { return };
        let (device, process, bytes) = (self.device.clone(), self.process, block.bytes());
        let close = move |passed: Result<()>| {
            let closed = passed.and_then(|()| {
                let opened = ManuallyDrop::into_inner(opened);
                // SAFETY: the stream has passed every use of the block, by the caller's promise.
                unsafe { opened.close() }.with_context(|| format!("closing memory on {device}"))
            });
            match closed {
                Ok(()) => {
                    let device = device.ordinal();
                    deferred_event!(debug, target: IPC, device, bytes, process, "closed memory of another process");
                }
                Err(error) => report_open(&device, &error),
            }
        };
        match stream.is_capturing().unwrap_or(false) {
            true => stream.free_block_later(close),
            false => close(stream.synchronize_uncaptured()),
        }
    }
}

/// Reports memory that stays open. Silent where the driver or the context is gone, and the memory with it.
fn report_open(device: &Device, error: &Error) {
    if !error.driver().is_some_and(DriverError::is_gone) {
        let (device, error) = (device.to_string(), error.to_string());
        deferred_event!(error, target: IPC, %device, %error, "memory of another process stays open");
    }
}
