//! Pools of the driver that other processes share.

use super::ipc_handle::{IpcHandle, IpcKind};
use super::memory::{copy, open, require_uuid};
use super::opened::Source;
use super::socket::{Payload, receive_descriptor, send_descriptor};
use crate::container::DeviceVec;
use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{ErrorContext, RawPool, is_in_host_function, not_forked};
use crate::error::{DriverError, Error, ErrorKind, Result, ensure};
use crate::impls::debug_struct;
use crate::inside::DeviceInside;
use crate::inside::deferred;
use crate::stream::Stream;
use crate::sync::Arc;
use aquifer_mr::AsyncResource;
use bytemuck::Pod;
use std::any::Any;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// The length of the message that goes with the descriptor of a pool. It has eight bytes that mark it,
/// the device's UUID, the process and its handle of the pool.
const MESSAGE: usize = 40;
const MAGIC: &[u8; 8] = b"AQ-POOL\x01";
const POOL: Payload = Payload { what: "a pool of the driver", sender: "IpcPool::send" };

/// A pool of the driver that another process shares. Its memory can be opened, but
/// nothing can be allocated from it.
///
/// The pool comes once, as a descriptor over a Unix socket. Then each [`IpcHandle`] of its
/// memory opens a vector. Clones are the same pool, and vectors keep it. [`IpcHandle`] says
/// what the two processes owe each other.
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use aquifer::{Device, DeviceVec, ipc::{IpcExport, IpcHandle, IpcPool}, mr::AsyncResource, sim::SimConfig};
/// use std::os::unix::net::UnixStream;
/// use std::sync::Arc;
///
/// let (here, there) = UnixStream::pair().unwrap();
/// let device = Device::simulated(SimConfig::default());
/// let stream = device.new_stream()?;
/// let pool = Arc::new(AsyncResource::builder(&device).shareable(true).build()?);
/// IpcPool::send(&pool, &here)?;
/// let vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2, 3], pool)?;
/// let handle = vec.ipc_handle()?;
///
/// // The other process, which gets the bytes of the handle as well:
/// let imported = IpcPool::receive(&device, &there)?;
/// // SAFETY: the exporter keeps its vector, and does not write.
/// let shared = unsafe { imported.open::<u32>(&stream, &handle)? };
/// assert_eq!(shared.to_vec()?, [1, 2, 3]);
/// # }
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct IpcPool {
    imported: Arc<ImportedPool>,
}

debug_struct!(IpcPool { device(), .. });

struct ImportedPool {
    device: Device,
    raw: RawPool,
    /// The process that it came from, and its handle there. `None` if nobody said.
    exporter: Option<(u32, u64)>,
}

impl Drop for ImportedPool {
    fn drop(&mut self) {
        let (device, raw) = (self.device.clone(), self.raw);
        let destroy = move || {
            // SAFETY: nothing is allocated from an imported pool, and each opening of its memory kept the value that is gone.
            if let Err(error) = unsafe { device.driver().pool_destroy(raw) }
                && !error.is_gone()
            {
                let (device, error) = (device.to_string(), error.to_string());
                deferred_event!(error, target: "aquifer::ipc", %device, %error, "a pool of another process stays open");
            }
        };
        if is_in_host_function() { deferred::defer_to_program(destroy) } else { destroy() }
    }
}

impl IpcPool {
    /// Sends a [shareable](crate::mr::AsyncOptions::shareable) pool to the process at the other end of a socket, which
    /// takes it by [`receive`](Self::receive). Send it before any handle of the pool's memory.
    /// [`IpcPool`] has an example.
    ///
    /// # Errors
    ///
    /// The errors of [`AsyncResource::export`], and
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the socket fails.
    pub fn send(pool: &AsyncResource, socket: &UnixStream) -> Result<()> {
        not_forked("a pool for another process")?;
        let descriptor = pool.export()?;
        let device = crate::resource::DeviceResource::device(pool);
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(MAGIC);
        message[8..24].copy_from_slice(&device.uuid()?);
        message[24..28].copy_from_slice(&std::process::id().to_le_bytes());
        message[32..].copy_from_slice(&pool.as_raw_pool().to_le_bytes());
        send_descriptor(socket, &message, descriptor.as_fd(), &POOL)
    }

    /// Waits for a pool that another process sends by `AsyncResource::send_to`, and imports it. `device` is the
    /// pool's, in this process. [`IpcPool`] has an example.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Io`](crate::ErrorKind::Io) if the socket fails or something else comes.
    /// - [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) if the pool is of another device.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a simulated
    ///   device of another process.
    /// - The errors of the driver.
    pub fn receive(device: &Device, socket: &UnixStream) -> Result<Self> {
        not_forked("a pool of another process")?;
        let (message, descriptor) = receive_descriptor::<MESSAGE>(socket, MAGIC, &POOL)?;
        let (mut uuid, mut process, mut pool) = ([0; 16], [0; 4], [0; 8]);
        uuid.copy_from_slice(&message[8..24]);
        process.copy_from_slice(&message[24..28]);
        pool.copy_from_slice(&message[32..]);
        let process = u32::from_le_bytes(process);
        require_uuid(&uuid, device, || format!("a pool of process {process}"))?;
        Self::import_from(device, &descriptor, Some((process, u64::from_le_bytes(pool))))
    }

    /// Imports a pool by a descriptor that came in another way, of [`AsyncResource::export`] or of another library.
    /// The descriptor stays the caller's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a descriptor that is no
    /// pool's, and the errors of the driver.
    ///
    /// ```
    /// use aquifer::{Device, ErrorKind, ipc::IpcPool, sim::SimConfig};
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let refused = IpcPool::import(&device, &std::fs::File::open("/dev/null").unwrap());
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// ```
    pub fn import(device: &Device, descriptor: &impl AsFd) -> Result<Self> {
        not_forked("a pool of another process")?;
        Self::import_from(device, descriptor, None)
    }

    fn import_from(
        device: &Device,
        descriptor: &impl AsFd,
        exporter: Option<(u32, u64)>,
    ) -> Result<Self> {
        let imported = device.driver().pool_import(descriptor.as_fd());
        let is_no_pool = |error: &DriverError| error.code() == DriverError::INVALID_VALUE;
        let raw = match imported {
            Err(error) if is_no_pool(&error) => {
                let what = format!(
                    "importing a pool on {device}: the descriptor is of no pool of that device"
                );
                return Err(Error::new(ErrorKind::InvalidArgument, what)
                    .with_driver(error)
                    .with_advice("give it what AsyncResource::export gave, on the same device"));
            }
            imported => imported.with_context(|| format!("importing a pool on {device}"))?,
        };
        Ok(Self { imported: Arc::new(ImportedPool { device: device.clone(), raw, exporter }) })
    }

    /// The device of the pool.
    pub fn device(&self) -> &Device {
        &self.imported.device
    }

    /// A vector in the memory of another process, at home on `stream`. Its drop waits for `stream` and
    /// closes the memory. The rest is as for [`IpcHandle::open`]. [`IpcPool`] has an example.
    ///
    /// # Errors
    ///
    /// The errors of [`IpcHandle::open`], and
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a handle of
    /// another pool, and of plain memory.
    ///
    /// # Safety
    ///
    /// The conditions of [`IpcHandle::open`] hold. By CUDA's manual the exporter may not free the memory
    /// before this vector is dropped.
    #[track_caller]
    pub unsafe fn open<T: Pod>(&self, stream: &Stream, handle: &IpcHandle) -> Result<DeviceVec<T>> {
        let _site = CallSite::enter();
        let keep = self.check(handle)?;
        self.device().require(stream.device(), "the stream")?;
        // SAFETY: the caller's promise.
        unsafe { open(handle, stream, Source::Pool(self.imported.raw, &keep)) }
    }

    /// Copies the memory of another process to `stream`'s device, which may be another one than the pool's, and waits
    /// for the copy. As [`IpcHandle::copy_to`].
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open), and of an allocation and a copy.
    ///
    /// # Safety
    ///
    /// The conditions of [`open`](Self::open) hold until this returns.
    #[track_caller]
    pub unsafe fn copy_to<T: Pod>(
        &self,
        stream: &Stream,
        handle: &IpcHandle,
    ) -> Result<DeviceVec<T>> {
        let _site = CallSite::enter();
        let keep = self.check(handle)?;
        // SAFETY: the caller's promise.
        unsafe { copy(handle, self.device(), stream, Source::Pool(self.imported.raw, &keep)) }
    }

    /// An error unless a handle is of this pool, as far as that is known. Returns the
    /// pool, to be kept by an opening.
    fn check(&self, handle: &IpcHandle) -> Result<Arc<dyn Any + Send + Sync>> {
        handle.require_kind(IpcKind::Pool)?;
        let is_ours =
            self.imported.exporter.is_none_or(|pool| pool == (handle.process, handle.pool));
        let advice = "open it by the IpcPool that its process sent for it";
        ensure!(is_ours, InvalidArgument, advice, "{handle} is of another pool");
        Ok(self.imported.clone())
    }
}
