//! Handles of memory of this process, for others.

use super::handle::{IpcHandle, IpcKind};
#[cfg(unix)]
use super::mapped;
use super::opened;
use crate::container::{CapturePolicy, DeviceBuffer, DeviceSlice, DeviceVec, MemoryUse};
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{AllocationKind, DeviceRange, ErrorContext, RawPool, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::resource::DeviceBlock;
use crate::stream::{Stream, StreamCall};
use bytemuck::Pod;
#[cfg(unix)]
use std::os::unix::net::UnixStream;

/// The advice for memory that no other process can open.
const SHAREABLE: &str = "take it from CudaResource, or from a PoolResource over it that was built with \
                         handles(Handles::Off); or from an AsyncResource that was built with shareable(true)";

/// Memory that another process can open, which is a [`DeviceVec`], a part of one, or a [`DeviceBuffer`].
pub trait IpcExport: Shared {
    /// Waits for the home stream and for every other use of this memory, and makes a handle by which another
    /// process opens it.
    ///
    /// For a vector in a pool this exposes the whole allocation that the pool has cut it from.
    /// [`IpcHandle`] says which memory can be shared, and what the processes owe each other.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unsupported`] for memory that no other process can open. The error names
    ///   the resources that have such.
    /// - [`ErrorKind::InvalidArgument`] for no elements.
    /// - [`ErrorKind::Capture`] while home is in capture.
    /// - The errors of the driver.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, ipc::IpcExport, sim::SimConfig};
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let plain = CudaResource::new(&device);
    /// let vec = DeviceVec::<u32>::zeroed_in(&device.new_stream()?, 100, plain)?;
    /// let handle = vec.slice(10..30)?.ipc_handle()?;
    /// assert_eq!((handle.offset(), handle.size_in_bytes()), (40, 80));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    #[track_caller]
    fn ipc_handle(&self) -> Result<IpcHandle> {
        let _site = CallSite::enter();
        let (range, memory) = self.shared();
        export(memory.home.device(), range, || order_to_share(memory))
    }

    /// Waits for the home stream and for every other use of this memory. Then sends it to the process
    /// at the other end of a socket, which takes it by [`receive`](crate::ipc::receive). Both
    /// processes then have the memory, without a copy.
    ///
    /// The call waits until the other end has taken most of the message, so let the
    /// other process receive meanwhile. One vector at a time goes over a
    /// socket.
    ///
    /// This is for mapped memory of a [`VirtualResource`](crate::mr::VirtualResource), and of a pool
    /// on [handles](crate::mr::Handles). Other memory goes by [`ipc_handle`](Self::ipc_handle). The
    /// other process gets the whole handles, whose rest may be other vectors'.
    /// [`IpcHandle`](crate::ipc::IpcHandle) says what the processes owe each other. But here the
    /// memory stays whole when its own process dies. The other process keeps the device from getting
    /// it back, and cannot send it on, since CUDA refuses that.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unsupported`] for memory that is not mapped, and where the device
    ///   shares none by descriptors.
    /// - [`ErrorKind::InvalidArgument`] for no elements.
    /// - [`ErrorKind::Capture`] while home is in capture.
    /// - [`ErrorKind::Io`] if the socket fails.
    /// - The errors of the driver.
    ///
    /// After an error a part may have been sent, so close the socket.
    ///
    /// ```
    /// # #[cfg(target_os = "linux")] {
    /// use aquifer::ipc::{self, IpcExport};
    /// use aquifer::{Device, DeviceVec, PoolResource, mr::VirtualResource, sim::SimConfig};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let (here, there) = UnixStream::pair().unwrap();
    /// let device = Device::simulated(SimConfig::default());
    /// let stream = device.new_stream()?;
    /// let pool = PoolResource::new(VirtualResource::new(&device)?)?;
    /// let vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2, 3], pool)?;
    /// vec.send_to(&here)?; // waits for the vector's home stream
    ///
    /// // The other process:
    /// let other_stream = device.new_stream()?;
    /// // SAFETY: the sender keeps its vector, and touches it when this is over.
    /// let mut shared = unsafe { ipc::receive::<u32>(&other_stream, &there)? };
    /// assert_eq!(shared.to_vec()?, [1, 2, 3]);
    /// shared.set(0, 10)?;
    /// drop(shared); // waits for its stream
    ///
    /// // The first process again:
    /// assert_eq!(vec.to_vec()?, [10, 2, 3]);
    /// # }
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    #[cfg(unix)]
    #[track_caller]
    fn send_to(&self, socket: &UnixStream) -> Result<()> {
        let _site = CallSite::enter();
        let (range, memory) = self.shared();
        mapped::send(memory.home.device(), range, || order_to_share(memory), socket)
    }
}

/// The home stream, which is behind all uses of this memory then.
fn order_to_share(memory: MemoryUse<'_>) -> Result<StreamCall<'_>> {
    // The other process may write: after the reads of streams, too.
    let home = memory.home;
    MemoryUse { writes: true, ..memory }
        .order_on(home, CapturePolicy::Refuse("work of another process"))
}

mod sealed {
    use super::{DeviceRange, MemoryUse};

    /// The facts that sharing needs about memory. No type of another crate has this trait.
    pub trait Shared {
        fn shared(&self) -> (DeviceRange, MemoryUse<'_>);
    }
}
use sealed::Shared;

impl<T: Pod> IpcExport for DeviceSlice<'_, T> {}

impl<T: Pod> Shared for DeviceSlice<'_, T> {
    fn shared(&self) -> (DeviceRange, MemoryUse<'_>) {
        let range = DeviceRange { address: self.as_device_ptr(), bytes: self.size_in_bytes() };
        (range, self.memory_use())
    }
}

impl<T: Pod> IpcExport for DeviceVec<T> {}

impl<T: Pod> Shared for DeviceVec<T> {
    fn shared(&self) -> (DeviceRange, MemoryUse<'_>) {
        let range = DeviceRange { address: self.as_device_ptr(), bytes: self.size_in_bytes() };
        (range, self.as_slice().memory_use())
    }
}

impl IpcExport for DeviceBuffer {}

impl Shared for DeviceBuffer {
    fn shared(&self) -> (DeviceRange, MemoryUse<'_>) {
        let range =
            DeviceRange { address: self.as_device_ptr(), bytes: self.as_slice().size_in_bytes() };
        (range, self.as_slice().memory_use())
    }
}

impl IpcHandle {
    /// Waits for `stream`, and makes the handle of a block of a resource. It is for
    /// memory that is in no container.
    ///
    /// All work on the block was given to `stream`, or is ordered before the work that the stream
    /// was given. Otherwise the other process finds memory that is still written. The rest is as
    /// for [`IpcExport::ipc_handle`].
    ///
    /// ```
    /// use aquifer::{
    ///     CudaResource, Device, DeviceLayout, DeviceResource, ipc::IpcHandle, sim::SimConfig,
    /// };
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let (stream, plain) = (device.new_stream()?, CudaResource::new(&device));
    /// let block = plain.allocate(&stream, DeviceLayout::new(1024)?)?;
    /// let handle = IpcHandle::of_block(&stream, &block)?;
    /// assert_eq!(handle.size_in_bytes(), 1024);
    /// // SAFETY: the block is the resource's, and no work uses it.
    /// unsafe { plain.deallocate(&stream, block) };
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`IpcExport::ipc_handle`].
    #[track_caller]
    pub fn of_block(stream: &Stream, block: &DeviceBlock) -> Result<Self> {
        let _site = CallSite::enter();
        let range = DeviceRange { address: block.address(), bytes: block.bytes() };
        export(stream.device(), range, || stream.begin_call())
    }
}

/// The handle of a range of memory of `device`. `order` gives the stream that is ordered after all its uses.
fn export<'s>(
    device: &Device,
    range: DeviceRange,
    order: impl FnOnce() -> Result<StreamCall<'s>>,
) -> Result<IpcHandle> {
    let DeviceRange { address, bytes } = range;
    let wanted = sharing(device, bytes);
    let stream = begin(device, range, order)?;
    let (kind, pool) = shareable_kind(device, range)?;
    stream.synchronize()?;
    drop(stream);
    let driver = device.driver();
    let whole = driver.allocation_range(address).with_context(&wanted)?;
    let exported = match kind {
        IpcKind::Plain => driver.ipc_export(whole.address),
        IpcKind::Pool => driver.pool_export_pointer(whole.address),
    };
    let driver_bytes = match exported {
        Err(error) if kind == IpcKind::Pool && error.is_not_shareable() => {
            let what = "memory of a driver pool that is not shareable";
            return Err(refused(device, bytes, what).with_driver(error));
        }
        exported => exported.with_context(&wanted)?,
    };
    let device_uuid = device.uuid()?;
    let offset = address.wrapping_sub(whole.address);
    let (process, bytes) = (std::process::id(), bytes as u64);
    let pool = pool.map_or(0, |pool| pool.0);
    Ok(IpcHandle { kind, device_uuid, process, driver_bytes, pool, offset, bytes })
}

/// A stream on which everything has come that uses the range, unless that cannot be shared.
pub(super) fn begin<'s>(
    device: &Device,
    range: DeviceRange,
    order: impl FnOnce() -> Result<StreamCall<'s>>,
) -> Result<StreamCall<'s>> {
    not_forked("memory for another process")?;
    let advice = "share memory that has elements";
    ensure!(range.bytes > 0, InvalidArgument, advice, "no bytes of {device} were to be shared");
    let stream = order()?;
    // First: of a capture's memory the driver tells no kind.
    stream.refuse_capture("sharing memory with another process")?;
    Ok(stream)
}

/// The words for the call, for messages.
pub(super) fn sharing(device: &Device, bytes: usize) -> impl Fn() -> String {
    move || format!("sharing {} of {device} with other processes", Count(bytes, "byte"))
}

/// The way in which other processes can open memory of this one, and the pool of the driver that it is of.
fn shareable_kind(device: &Device, range: DeviceRange) -> Result<(IpcKind, Option<RawPool>)> {
    let DeviceRange { address, bytes } = range;
    let asking = || format!("asking {device} for the kind of {}", Count(bytes, "byte"));
    if opened::is_inside(device, address) {
        let error = refused(device, bytes, "memory of another process");
        return Err(error.with_advice("have its own process send the handle"));
    }
    let what = match device.driver().allocation_kind(address).with_context(asking)? {
        AllocationKind::Plain => return Ok((IpcKind::Plain, None)),
        AllocationKind::Pool(pool) => return Ok((IpcKind::Pool, Some(pool))),
        AllocationKind::Managed => "managed memory",
        AllocationKind::Host => "memory of the host",
        AllocationKind::Other => {
            let what = "memory that is neither of cuMemAlloc nor of a driver pool";
            let advice =
                format!("send mapped memory over a socket, by DeviceVec::send_to; or {SHAREABLE}");
            return Err(refused(device, bytes, what).with_advice(advice));
        }
    };
    Err(refused(device, bytes, what))
}

fn refused(device: &Device, bytes: usize, what: &str) -> Error {
    let bytes = Count(bytes, "byte");
    let what = format!("{bytes} of {device} cannot be shared with other processes: {what}");
    Error::new(ErrorKind::Unsupported, what).with_advice(SHAREABLE)
}
