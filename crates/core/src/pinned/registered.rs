//! Page-locking memory that was allocated elsewhere.

use super::address_map::{add_registered, remove_registered};
use super::fence::require_no_capture;
use super::host_buffer::HostBuffer;
use super::host_read::HostRead;
use super::source::{
    FreedMemory, HostQuarantine, HostSource, Origin, origin_of, quarantine_of, trim, unpin_if_idle,
};
#[cfg(target_os = "linux")]
use super::{huge_pages::LEAST, memory_limit};
use crate::device::Device;
#[cfg(target_os = "linux")]
use crate::driver::BackendKind;
use crate::driver::CallSite;
use crate::driver::{ErrorContext, HostFlags, is_forked_child, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure, error_with_value};
use crate::impls::{Count, debug_struct};
use crate::stream::collect_all_after;
use crate::sync::Arc;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

// SAFETY: the owner's slice, which moving the owner leaves in place and its drop alone frees.
unsafe impl<B: HostRead> HostRead for Registered<B> {
    type Item = B::Item;

    fn parts(&mut self) -> (NonNull<B::Item>, usize) {
        (self.pointer, self.length)
    }
}

// SAFETY: the owner's slice, which is writable and nobody else's.
unsafe impl<B: HostBuffer> HostBuffer for Registered<B> {}

/// Memory that was allocated elsewhere, page-locked where it lies. NBEP 7 calls it `mempin`, and the driver
/// `cuMemHostRegister`.
///
/// It owns the buffer, and derefs to its slice. No drop blocks. A drop keeps the owner until the device has nothing to
/// do, as a later call that page-locks memory finds, or until [`trim`](Self::trim). Then it unregisters the memory, and
/// then drops the owner.
///
/// ```
/// use aquifer::{Device, pinned::Registered};
///
/// let device = Device::detect_or_simulate()?;
/// let mut samples = Registered::new(&device, vec![0_f32; 10_000])?;
/// samples[0] = 1.0;
/// let back: Vec<f32> = samples.into_inner().map_err(|failed| failed.error)?;
/// assert_eq!(back[0], 1.0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct Registered<B: HostRead> {
    device: Device,
    /// The owner, which is not touched as a `B` while it is locked. A move of a `Box` promises that no other pointer to
    /// its memory is used, but the device uses one.
    owner: MaybeUninit<B>,
    pointer: NonNull<B::Item>,
    length: usize,
    quarantine: Arc<HostQuarantine>,
    /// The memory manager that has locked it. `None` is the driver.
    origin: Origin,
    /// True until [`into_inner`](Self::into_inner) has unlocked it and taken the owner.
    is_locked: bool,
}

// SAFETY: the pointer is the owner's, which is `Send`, as its items are.
unsafe impl<B: HostRead> Send for Registered<B> {}
// SAFETY: `&self` gives out `&[Item]` alone.
unsafe impl<B: HostRead> Sync for Registered<B> where B::Item: Sync {}

/// A buffer that could not be registered or unregistered, given back with the reason.
pub struct RegisterError<B> {
    /// The reason.
    pub error: Error,
    /// The buffer, if it can be given back. It cannot while it may still be page-locked.
    pub buffer: Option<B>,
}

error_with_value!(
    [B] RegisterError<B>,
    "the error has the buffer",
    "the buffer is leaked, since it may still be page-locked",
    |failed| failed.buffer.is_some()
);

impl<B: HostBuffer> Registered<B> {
    /// Page-locks `owner`'s memory for every context, mapped where the device can map. Kernels reach it then by
    /// [`Scope::map`](crate::transfer::Scope::map).
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unsupported`] if the device cannot register host memory.
    /// - [`ErrorKind::InvalidArgument`] if the buffer is empty.
    /// - The errors of the driver, for memory that is registered already among others.
    ///
    /// The buffer comes back in the error.
    #[track_caller]
    pub fn new(device: &Device, owner: B) -> Result<Self, RegisterError<B>> {
        let _site = CallSite::enter();
        Self::page_lock(device, owner, false)
    }
}

/// An owner of memory that is only read, by [`Registered::read_only`].
#[derive(Debug)]
pub struct ReadOnly<B>(B);

impl<B> ReadOnly<B> {
    /// The owner.
    pub fn into_inner(self) -> B {
        self.0
    }
}

// SAFETY: the owner's own promise. A device that writes such memory faults, so this is no `HostBuffer`.
unsafe impl<B: HostRead> HostRead for ReadOnly<B> {
    type Item = B::Item;

    fn parts(&mut self) -> (NonNull<B::Item>, usize) {
        self.0.parts()
    }
}

impl<B: HostRead> Registered<ReadOnly<B>> {
    /// Page-locks memory that is only read, such as a file that is mapped, where it lies. Uploads read it at the full
    /// rate then, and kernels reach it by [`Scope::map`](crate::transfer::Scope::map).
    ///
    /// ```
    /// use aquifer::{Device, pinned::Registered};
    /// use std::sync::Arc;
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let stream = device.new_stream()?;
    /// let table: Arc<[f32]> = Arc::from(vec![1.0; 10_000]);
    /// let table = Registered::read_only(&device, table)?;
    /// let (_table, vec) = stream.upload_new(table)?.wait()?;
    /// assert_eq!(vec.get(9_999)?, 1.0);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new), and [`ErrorKind::Unsupported`] if the device registers no memory that is only
    /// read, or a memory manager has taken that over. The owner comes back in the error.
    #[track_caller]
    pub fn read_only(device: &Device, owner: B) -> Result<Self, RegisterError<B>> {
        let _site = CallSite::enter();
        Self::page_lock(device, ReadOnly(owner), true).map_err(|RegisterError { error, buffer }| {
            RegisterError { error, buffer: buffer.map(ReadOnly::into_inner) }
        })
    }
}

impl<B: HostRead> Registered<B> {
    fn page_lock(device: &Device, owner: B, read_only: bool) -> Result<Self, RegisterError<B>> {
        let mut owner = MaybeUninit::new(owner);
        // SAFETY: initialised in the line above.
        let (pointer, length) = unsafe { owner.assume_init_mut() }.parts();
        // SAFETY: the owner keeps the range allocated and in place while it lives, by the contract of
        // `HostRead`, and `Registered` keeps the owner until the range is unregistered.
        match unsafe { register(device, pointer.cast(), length * size_of::<B::Item>(), read_only) }
        {
            Ok((flags, origin)) => {
                let bytes = length * size_of::<B::Item>();
                add_registered(&Arc::new(HostSource::new(device, flags)), pointer.cast(), bytes);
                let (device, quarantine) = (device.clone(), quarantine_of(device));
                Ok(Self { device, owner, pointer, length, quarantine, origin, is_locked: true })
            }
            Err(error) => {
                // SAFETY: initialised above, and not locked.
                let buffer = Some(unsafe { owner.assume_init() });
                Err(RegisterError { error, buffer })
            }
        }
    }

    /// The device that it was registered with.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until the device is past all its work, unlocks the memory and gives the buffer back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] while a stream is in capture, which waiting would invalidate, and the errors of the
    /// driver. The memory stays locked then, and the buffer is dropped when the device can say that it is past it.
    #[track_caller]
    pub fn into_inner(mut self) -> Result<B, RegisterError<B>> {
        let _site = CallSite::enter();
        if let Err(error) = self.unregister() {
            return Err(RegisterError { error, buffer: None });
        }
        self.is_locked = false;
        // SAFETY: initialised in `new`, and not locked any more; the drop of `self` leaves it alone.
        Ok(unsafe { self.owner.assume_init_read() })
    }

    fn unregister(&self) -> Result<()> {
        not_forked("page-locked memory")?;
        remove_registered(self.pointer.cast());
        // Other libraries may have given work to any context.
        for device in self.device.sharing_host_memory() {
            require_no_capture(&device)?;
            device.synchronize()?;
        }
        if let Some(memory) = &self.origin {
            // SAFETY: registered in `new`, and the devices have just passed all their work.
            unsafe { memory.host_unregister(self.pointer.cast()) };
            return Ok(());
        }
        // SAFETY: as above.
        let unregistered = unsafe { self.device.driver().host_unregister(self.pointer.cast()) };
        unregistered.with_context(|| format!("unlocking a registered buffer of {}", self.device))
    }

    /// Waits for the device, and unlocks the buffers that were dropped before.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Capture`] while a stream is in capture.
    /// - [`ErrorKind::ContextLost`] while dropped buffers wait for a device that is lost, which leaks them.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    #[track_caller]
    pub fn trim(device: &Device) -> Result<()> {
        let _site = CallSite::enter();
        collect_all_after(device);
        trim(device, &quarantine_of(device))
    }
}

/// # Safety
///
/// The range is valid, and stays allocated and in place until it is unregistered.
unsafe fn register(
    device: &Device,
    base: NonNull<u8>,
    bytes: usize,
    read_only: bool,
) -> Result<(HostFlags, Origin)> {
    not_forked("page-locked memory")?;
    // What was dropped may be part of the same shared memory.
    unpin_if_idle();
    let properties = device.properties();
    if !properties.host_register {
        let message = format!("{device} cannot page-lock memory that was allocated elsewhere");
        let error = Error::new(ErrorKind::Unsupported, message);
        return Err(error.with_advice("allocate it with PinnedAlloc"));
    }
    ensure!(
        !read_only || properties.read_only_host_register,
        Unsupported,
        "upload it as it is, or copy it into memory of PinnedAlloc",
        "{device} cannot page-lock memory that is only read"
    );
    if bytes == 0 {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "an empty buffer was to be page-locked",
        )
        .with_advice("use an empty buffer as it is"));
    }
    #[cfg(target_os = "linux")]
    require_pages(device, base, bytes)?;
    let mapped = properties.map_host_memory;
    let flags = HostFlags { portable: true, mapped, read_only, ..HostFlags::default() };
    let memory = NonNull::slice_from_raw_parts(base, bytes);
    let origin = origin_of(device)?;
    if let Some(external) = &origin {
        ensure!(
            !read_only,
            Unsupported,
            "upload it as it is, or copy it into memory of PinnedAlloc",
            "the memory manager of the process cannot page-lock memory that is only read"
        );
        // SAFETY: the caller's promise.
        unsafe { external.host_register(memory, flags)? };
        return Ok((flags, origin));
    }
    // SAFETY: the caller's promise.
    let registered = unsafe { device.driver().host_register(memory, flags) };
    registered.with_context(|| {
        format!("page-locking {} at {base:p} for {device}", Count(bytes, "byte"))
    })?;
    Ok((flags, None))
}

/// Refuses a large buffer whose pages come by being locked, and would cross a limit of memory: the system ends a process that
/// does. A simulated device touches none.
#[cfg(target_os = "linux")]
fn require_pages(device: &Device, base: NonNull<u8>, bytes: usize) -> Result<()> {
    if device.kind() == BackendKind::Simulated || bytes < LEAST {
        return Ok(());
    }
    let absent = memory_limit::absent(base, bytes);
    let missing = Count(usize::try_from(absent).unwrap_or(usize::MAX), "byte");
    let all = Count(bytes, "byte");
    let what = format_args!("page-locking {all} for {device}, {missing} of them not there yet");
    memory_limit::require(absent, what)
}

impl<B: HostRead> Deref for Registered<B> {
    type Target = [B::Item];

    fn deref(&self) -> &[B::Item] {
        // SAFETY: the owner's slice, valid and in place by the contract of `HostRead`.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl<B: HostBuffer> DerefMut for Registered<B> {
    fn deref_mut(&mut self) -> &mut [B::Item] {
        // SAFETY: as in `deref`, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

impl<B: HostRead> Drop for Registered<B> {
    fn drop(&mut self) {
        if !self.is_locked || is_forked_child() {
            return;
        }
        remove_registered(self.pointer.cast());
        let owner = QuarantinedOwner(std::mem::replace(&mut self.owner, MaybeUninit::uninit()));
        self.quarantine.push(FreedMemory {
            device: self.device.clone(),
            base: self.pointer.cast(),
            bytes: self.length * size_of::<B::Item>(),
            origin: self.origin.clone(),
            owner: Some(ManuallyDrop::new(Box::new(owner))),
        });
    }
}

/// The owner of memory in quarantine, dropped when that is unlocked.
struct QuarantinedOwner<B>(MaybeUninit<B>);

impl<B> Drop for QuarantinedOwner<B> {
    fn drop(&mut self) {
        // SAFETY: initialised in `Registered::new`, taken from there once, and dropped once.
        unsafe { self.0.assume_init_drop() }
    }
}

debug_struct!([B: HostRead] Registered<B> { device, pointer, length });
