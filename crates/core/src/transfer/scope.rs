//! Transfers of borrowed memory, bounded by a scope.

use crate::container::host_copy::{to_device, to_host};
use crate::container::launch::Launch;
use crate::container::stopped::{HostAccess, outlives_its_call, synchronize_or_abort};
use crate::container::{DeviceRead, DeviceSlice, DeviceWrite, lengths};
use crate::driver::{Access, CallSite, DeviceCopy};
use crate::error::{Error, Result, ensure};
use crate::pinned::device_address;
use crate::stream::{Stream, deferred};
use bytemuck::{AnyBitPattern, NoUninit};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;

/// A scope of [`Stream::scope`], for copies of host memory that is borrowed until the scope ends.
pub struct Scope<'scope, 'env: 'scope> {
    stream: &'env Stream,
    /// How the device may use the borrowed host memory until the stream has passed.
    access: Cell<HostAccess>,
    /// The lifetime is invariant, as in `std::thread::Scope`. So the scope can be neither longer nor shorter.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl Stream {
    /// Runs `body`, in which copies and kernels on this stream can borrow host memory. Waits for the stream when `body`
    /// ends or unwinds, as [`std::thread::scope`] does for its threads.
    ///
    /// Host slices are borrowed until the scope ends. Device memory is borrowed for each call alone, since stream order
    /// protects it.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let input = [1_u32, 2, 3];
    /// let mut output = [0_u32; 3];
    /// let mut vec = DeviceVec::zeroed(&stream, 3)?;
    /// stream.scope(|s| {
    ///     s.upload(&input, &mut vec)?;
    ///     s.download(&vec, &mut output)
    /// })?;
    /// assert_eq!(output, input);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// Borrowed memory must outlive the scope. This does not compile, since the array ends before the scope waits for
    /// the copy of it:
    ///
    /// ```compile_fail
    /// # let stream = aquifer::Device::detect_or_simulate().unwrap().new_stream().unwrap();
    /// # let mut vec = aquifer::DeviceVec::<u32>::zeroed(&stream, 3).unwrap();
    /// stream.scope(|s| {
    ///     let short_lived = [1_u32, 2, 3];
    ///     s.upload(&short_lived, &mut vec)
    /// });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`](crate::ErrorKind::Capture) on a stream in capture, and `body` is not run. Otherwise the
    /// error of `body`, or else that of waiting.
    ///
    /// # Aborts
    ///
    /// If waiting fails and the device cannot be proven to have stopped using borrowed memory. Two cases are known:
    ///
    /// - A kernel has faulted on one stream, and copies of other streams go on writing page-locked memory.
    /// - The stream is in a capture that Aquifer was not told of, begun inside the scope, and cannot be waited for.
    #[track_caller]
    pub fn scope<'env, R, F>(&'env self, body: F) -> Result<R>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
    {
        self.try_scope(body)
    }

    /// Like [`scope`](Self::scope), with an error of the caller's own.
    ///
    /// # Errors
    ///
    /// The error of `body`, or else that of waiting.
    ///
    /// # Aborts
    ///
    /// In the cases of [`scope`](Self::scope).
    #[track_caller]
    pub fn try_scope<'env, R, E, F>(&'env self, body: F) -> Result<R, E>
    where
        E: From<Error>,
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, E>,
    {
        let site = CallSite::enter();
        deferred::collect();
        // Waiting at the end would cost a capture its graph.
        self.refuse_capture("a scope")?;
        drop(site);
        let scope = Scope {
            stream: self,
            access: Cell::new(HostAccess::None),
            scope: PhantomData,
            env: PhantomData,
        };
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        let site = CallSite::enter();
        let ended = synchronize_or_abort(self, || scope.access.get());
        drop(site);
        match result {
            Err(panic) => resume_unwind(panic),
            Ok(Ok(value)) => ended.map(|()| value).map_err(E::from),
            Ok(Err(error)) => Err(error),
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// The stream that the scope is on.
    pub fn stream(&self) -> &'env Stream {
        self.stream
    }

    /// Copies `host` to `device`, of the same length, on the scope's stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch),
    /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice), [`ErrorKind::Capture`](crate::ErrorKind::Capture),
    /// and the errors of the driver.
    #[track_caller]
    pub fn upload<T: DeviceCopy + NoUninit>(
        &'scope self,
        host: &'scope [T],
        device: &mut impl DeviceWrite<T>,
    ) -> Result<()> {
        let _site = CallSite::enter();
        let mut device = device.as_device_slice_mut();
        let access = HostAccess::Read.only_if(outlives_its_call(self.stream, host));
        // SAFETY: `host` is borrowed for the scope, which does not end before the device has stopped
        // reading, or reads for a dead context alone.
        unsafe { to_device(self.stream, &mut device, host).map(drop)? };
        self.note_access(access);
        Ok(())
    }

    /// Copies `device` to `host`, of the same length, on the scope's stream. The host sees it when
    /// the scope has ended.
    ///
    /// # Errors
    ///
    /// The errors of [`upload`](Self::upload).
    #[track_caller]
    pub fn download<T: DeviceCopy + AnyBitPattern>(
        &'scope self,
        device: &impl DeviceRead<T>,
        host: &'scope mut [T],
    ) -> Result<()> {
        let _site = CallSite::enter();
        // SAFETY: the copy writes values alone, all of which are a `T`.
        let host = unsafe { &mut *(std::ptr::from_mut(host) as *mut [MaybeUninit<T>]) };
        self.enqueue_download(&device.as_device_slice(), host)
    }

    /// Like [`download`](Self::download), for elements that not every bit pattern is a value of. When the scope has ended,
    /// `host` has the bytes of the device.
    ///
    /// # Errors
    ///
    /// The errors of [`download`](Self::download).
    #[track_caller]
    pub fn download_uninit<T: DeviceCopy>(
        &'scope self,
        device: &impl DeviceRead<T>,
        host: &'scope mut [MaybeUninit<T>],
    ) -> Result<()> {
        let _site = CallSite::enter();
        self.enqueue_download(&device.as_device_slice(), host)
    }

    fn enqueue_download<T: DeviceCopy>(
        &'scope self,
        device: &DeviceSlice<'_, T>,
        host: &'scope mut [MaybeUninit<T>],
    ) -> Result<()> {
        let access = HostAccess::Write.only_if(outlives_its_call(self.stream, host));
        // SAFETY: `host` is borrowed exclusively for the scope, which does not end before the device
        // has stopped writing.
        unsafe { to_host(self.stream, device, std::ptr::from_mut(host) as *mut [T]).map(drop)? };
        // A copy that was refused does not run: the scope need not abort for it.
        self.note_access(access);
        Ok(())
    }

    /// Makes mapped host memory a kernel argument to read, which kernels reach without a copy. The host may read it too
    /// meanwhile. A slice without elements has the address 0, wherever it lies.
    ///
    /// # Errors
    ///
    /// The errors of [`MappedAlloc::device_address`](crate::MappedAlloc::device_address) for a slice with elements, and
    /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice).
    pub fn map<T: DeviceCopy + NoUninit>(
        &'scope self,
        host: &'scope [T],
    ) -> Result<Mapped<'scope, T>> {
        let address = self.address(NonNull::from(host), HostAccess::Read)?;
        Ok(Mapped { address, length: host.len(), stream: self.stream, host: PhantomData })
    }

    /// Makes mapped host memory a kernel argument to read and write. The host cannot touch it before
    /// the scope has ended.
    ///
    /// ```
    /// use allocator_api2::vec::Vec;
    /// use aquifer::{Device, MappedAlloc};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let mut vec: Vec<u32, MappedAlloc> = Vec::with_capacity_in(4, MappedAlloc);
    /// vec.extend([1, 2, 3, 4]);
    /// stream.scope(|s| {
    ///     let argument = s.map_mut(&mut vec)?;
    ///     assert_eq!(argument.len(), 4);
    ///     Ok(()) // launch with `Launch::mapped_in_out(&mut argument)`
    /// })?;
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`map`](Self::map).
    pub fn map_mut<T: DeviceCopy + NoUninit + AnyBitPattern>(
        &'scope self,
        host: &'scope mut [T],
    ) -> Result<MappedMut<'scope, T>> {
        let length = host.len();
        let address = self.address(NonNull::from(host), HostAccess::Write)?;
        Ok(MappedMut { address, length, stream: self.stream, host: PhantomData })
    }

    fn note_access(&self, access: HostAccess) {
        self.access.set(self.access.get().max(access));
    }

    /// The device's address of mapped memory, which kernels may use so from here on.
    fn address<T>(&self, host: NonNull<[T]>, access: HostAccess) -> Result<u64> {
        let mut address = 0;
        if host.len() * size_of::<T>() != 0 {
            let device;
            (address, device) = device_address(host.cast())?;
            self.stream.device().require(&device, "the mapped memory").map_err(|error| {
                error.with_advice(
                    "use memory of a PinnedResource of the stream's device, or set that with \
                     set_current_pinned_resource: otherwise MappedAlloc and PinnedAlloc take the device \
                     that Device::detect finds",
                )
            })?;
        }
        self.note_access(access);
        Ok(address)
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("stream", self.stream).finish_non_exhaustive()
    }
}

macro_rules! mapped {
    ($(#[$doc:meta])* $name:ident, $host:ty) => {
        $(#[$doc])*
        pub struct $name<'scope, T: DeviceCopy> {
            address: u64,
            length: usize,
            stream: &'scope Stream,
            host: PhantomData<$host>,
        }

        impl<T: DeviceCopy> $name<'_, T> {
            /// The device's address of the first element, for the scope's stream.
            pub fn as_device_ptr(&self) -> u64 {
                self.address
            }

        }

        lengths!([T: DeviceCopy] $name<'_, T>, T, length);

        impl<T: DeviceCopy> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("address", &format_args!("{:#x}", self.address))
                    .field("length", &self.length)
                    .finish()
            }
        }
    };
}
mapped! {
    /// Mapped host memory as a kernel argument to read, until its scope ends. From [`Scope::map`].
    Mapped, &'scope [T]
}
mapped! {
    /// Mapped host memory as a kernel argument to read and write, until its scope ends. From
    /// [`Scope::map_mut`].
    MappedMut, &'scope mut [T]
}

impl<'a> Launch<'a> {
    /// Mapped host memory that the kernel reads where it lies.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the launch is on another
    /// stream than the scope, which would not wait for it.
    pub fn mapped_input<T: DeviceCopy>(self, data: &'a Mapped<'_, T>) -> Result<Self> {
        self.on_scope(data.stream)?;
        Ok(self.host(data.address, data.size_in_bytes(), Access::Read))
    }

    /// Mapped host memory that the kernel reads and writes where it lies.
    ///
    /// # Errors
    ///
    /// The errors of [`mapped_input`](Self::mapped_input).
    pub fn mapped_in_out<T: DeviceCopy>(self, data: &'a mut MappedMut<'_, T>) -> Result<Self> {
        self.on_scope(data.stream)?;
        Ok(self.host(data.address, data.size_in_bytes(), Access::ReadWrite))
    }

    fn on_scope(&self, stream: &Stream) -> Result<()> {
        let own = self.stream();
        ensure!(
            own == stream,
            InvalidArgument,
            "launch on the scope's stream",
            "mapped memory of a scope on {stream} was given to a launch on {own}"
        );
        Ok(())
    }
}
