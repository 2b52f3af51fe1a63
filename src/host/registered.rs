//! Page-locking memory that someone else allocated.

use super::source::{Yard, no_capture, take_back_registered, trim, yard};
use crate::backend::{HostFlags, Wanted, not_forked};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Arc;
use allocator_api2::alloc::Allocator;
use bytemuck::Pod;
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Memory on the host that can be page-locked where it lies.
///
/// # Safety
///
/// [`parts`](Self::parts) is valid for reads and writes as a `[Item]`, does not move or change in
/// length while the owner is only moved (not otherwise used), and stays allocated until the owner
/// is dropped. It is `'static`: a borrowed slice may end before the device is done with it.
pub unsafe trait HostBuffer: Send + 'static {
    /// The type of the elements.
    type Item: Pod + Send;

    /// Address and length, in elements.
    fn parts(&mut self) -> (NonNull<Self::Item>, usize);
}

macro_rules! standard_buffers {
    ([$($generics:tt)*] $vec:ty, $boxed:ty) => {
        // SAFETY: a vector's elements lie in its allocation, which moving the vector leaves in
        // place; an allocator that is `'static` keeps its blocks while the vector lives.
        unsafe impl<T: Pod + Send, $($generics)*> HostBuffer for $vec {
            type Item = T;

            fn parts(&mut self) -> (NonNull<T>, usize) {
                (NonNull::from(self.as_mut_slice()).cast(), self.len())
            }
        }

        // SAFETY: as for `Vec`.
        unsafe impl<T: Pod + Send, $($generics)*> HostBuffer for $boxed {
            type Item = T;

            fn parts(&mut self) -> (NonNull<T>, usize) {
                (NonNull::from(&mut **self).cast(), self.len())
            }
        }
    };
}
#[cfg(not(aquifer_std_allocator))]
standard_buffers!([] Vec<T>, Box<[T]>);
#[cfg(aquifer_std_allocator)]
standard_buffers!([A: std::alloc::Allocator + Send + 'static] Vec<T, A>, Box<[T], A>);

// SAFETY: as for `Vec`; an allocator that is `'static` keeps its blocks while the vector lives.
unsafe impl<T: Pod + Send, A: Allocator + Send + 'static> HostBuffer
    for allocator_api2::vec::Vec<T, A>
{
    type Item = T;

    fn parts(&mut self) -> (NonNull<T>, usize) {
        (NonNull::from(self.as_mut_slice()).cast(), self.len())
    }
}

// SAFETY: as for `Vec`.
unsafe impl<T: Pod + Send, A: Allocator + Send + 'static> HostBuffer
    for allocator_api2::boxed::Box<[T], A>
{
    type Item = T;

    fn parts(&mut self) -> (NonNull<T>, usize) {
        (NonNull::from(&mut **self).cast(), self.len())
    }
}

// SAFETY: the owner's slice, which moving the owner leaves in place and its drop alone frees.
unsafe impl<B: HostBuffer> HostBuffer for Registered<B> {
    type Item = B::Item;

    fn parts(&mut self) -> (NonNull<B::Item>, usize) {
        (self.pointer, self.length)
    }
}

/// Memory that was allocated by someone else, page-locked where it lies: NBEP 7's `mempin`,
/// `cuMemHostRegister`.
///
/// It owns the buffer, and derefs to its slice. Dropped, it keeps the owner until the device is
/// past all that may use the memory, then unregisters, then drops it: no drop blocks.
///
/// ```
/// use aquifer::{Device, Registered};
///
/// let device = Device::detect()?;
/// let mut samples = Registered::new(&device, vec![0_f32; 10_000])?;
/// samples[0] = 1.0;
/// let back: Vec<f32> = samples.into_inner().map_err(|failed| failed.error)?;
/// assert_eq!(back[0], 1.0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct Registered<B: HostBuffer> {
    device: Device,
    /// Not touched as a `B` while it is locked: a `Box` that moves is a promise that nobody uses its
    /// memory by another pointer, as the device does.
    owner: MaybeUninit<B>,
    pointer: NonNull<B::Item>,
    length: usize,
    yard: Arc<Yard>,
}

// SAFETY: the pointer is the owner's, which is `Send`, as its items are.
unsafe impl<B: HostBuffer> Send for Registered<B> {}
// SAFETY: `&self` gives out `&[Item]` alone.
unsafe impl<B: HostBuffer> Sync for Registered<B> where B::Item: Sync {}

/// A buffer that could not be registered or unregistered, given back with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RegisterError<B> {
    /// What went wrong.
    #[source]
    pub error: Error,
    /// The buffer, if it can be given back: not where it may still be page-locked.
    pub buffer: Option<B>,
}

impl<B> From<RegisterError<B>> for Error {
    fn from(failed: RegisterError<B>) -> Self {
        failed.error
    }
}

impl<B: HostBuffer> Registered<B> {
    /// Page-locks `owner`'s memory for every context, mapped where the device can map.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the device cannot register host memory;
    /// [`ErrorKind::InvalidArgument`] if the buffer is empty; those of the driver, for memory that
    /// is registered already among others. The buffer comes back in the error.
    pub fn new(device: &Device, owner: B) -> Result<Self, RegisterError<B>> {
        let refuse = |error: Error, owner: B| Err(RegisterError { error, buffer: Some(owner) });
        if let Err(error) = not_forked("cuMemHostRegister") {
            return refuse(error.into(), owner);
        }
        let properties = device.properties();
        if !properties.host_register {
            let error = Error::new(
                ErrorKind::Unsupported,
                format!("{device} cannot page-lock memory that someone else allocated"),
            );
            return refuse(error.advise("allocate it with PinnedAlloc"), owner);
        }
        let mut owner = MaybeUninit::new(owner);
        // SAFETY: initialised in the line above.
        let (pointer, length) = unsafe { owner.assume_init_mut() }.parts();
        // SAFETY: as above; taken once, since each use of this returns.
        let refuse =
            |error: Error, owner: MaybeUninit<B>| refuse(error, unsafe { owner.assume_init() });
        let bytes = length * size_of::<B::Item>();
        if bytes == 0 {
            let error = Error::new(ErrorKind::InvalidArgument, "an empty buffer was to be locked");
            return refuse(error, owner);
        }
        let flags =
            HostFlags { portable: true, mapped: properties.map_host_memory, write_combined: false };
        // SAFETY: the owner keeps the range allocated and in place while we hold it, by the
        // contract of `HostBuffer`, and we hold it until it is unregistered.
        let registered = unsafe { device.driver().host_register(pointer.cast(), bytes, flags) };
        if let Err(error) = registered.wanted(|| format!("page-locking {bytes} bytes for {device}"))
        {
            return refuse(error, owner);
        }
        Ok(Self { device: device.clone(), owner, pointer, length, yard: yard(device) })
    }

    /// The device that it was registered with.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until the device is past all its work, unlocks the memory and gives the buffer back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] while a stream is in capture, which waiting would invalidate; those of
    /// the driver. Then the memory stays locked, and the buffer is dropped when the device can say
    /// that it is past it.
    pub fn into_inner(self) -> Result<B, RegisterError<B>> {
        if let Err(error) = not_forked("cuMemHostUnregister") {
            return Err(RegisterError { error: error.into(), buffer: None });
        }
        // Other libraries may have given work to any context.
        for device in self.device.sharing_host_memory() {
            let waited = no_capture(&device).and_then(|()| device.synchronize());
            if let Err(error) = waited {
                return Err(RegisterError { error, buffer: None });
            }
        }
        // SAFETY: registered in `new`, and the devices have just passed all their work.
        let unregistered = unsafe { self.device.driver().host_unregister(self.pointer.cast()) };
        match unregistered.wanted(|| "unlocking a registered buffer") {
            Ok(()) => {
                let mut this = ManuallyDrop::new(self);
                // SAFETY: `this` is never dropped or used again, so owner, device and yard are each
                // moved or dropped once; the owner was initialised in `new`.
                unsafe {
                    let owner = this.owner.assume_init_read();
                    std::ptr::drop_in_place(&mut this.device);
                    std::ptr::drop_in_place(&mut this.yard);
                    Ok(owner)
                }
            }
            Err(error) => Err(RegisterError { error, buffer: None }),
        }
    }

    /// Unlocks what was dropped before, waiting for the device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`] while a stream is in capture; [`ErrorKind::Forked`] in the child of a
    /// fork.
    pub fn trim(device: &Device) -> Result<()> {
        trim(device, &yard(device))
    }
}

impl<B: HostBuffer> Deref for Registered<B> {
    type Target = [B::Item];

    fn deref(&self) -> &[B::Item] {
        // SAFETY: the owner's slice, valid and in place by the contract of `HostBuffer`.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl<B: HostBuffer> DerefMut for Registered<B> {
    fn deref_mut(&mut self) -> &mut [B::Item] {
        // SAFETY: as in `deref`, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

impl<B: HostBuffer> Drop for Registered<B> {
    fn drop(&mut self) {
        if crate::backend::is_forked_child() {
            return;
        }
        let bytes = self.length * size_of::<B::Item>();
        let owner = Box::new(Owner(std::mem::replace(&mut self.owner, MaybeUninit::uninit())));
        take_back_registered(&self.device, &self.yard, self.pointer.cast(), bytes, owner);
    }
}

/// An owner that waits for the device, to be dropped when its memory is unlocked.
struct Owner<B>(MaybeUninit<B>);

impl<B> Drop for Owner<B> {
    fn drop(&mut self) {
        // SAFETY: initialised in `Registered::new`, taken from there once, and dropped once.
        unsafe { self.0.assume_init_drop() }
    }
}

impl<B: HostBuffer> fmt::Debug for Registered<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("device", &self.device)
            .field("pointer", &self.pointer)
            .field("length", &self.length)
            .finish()
    }
}
