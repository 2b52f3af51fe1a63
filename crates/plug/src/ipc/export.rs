//! Handles of memory of this process, for others.

use super::ipc_handle::{IpcHandle, IpcKind};
use super::opened;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{AllocationKind, DeviceRange, ErrorContext, RawPool, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::inside::StreamCall;
use crate::inside::{DeviceInside, StreamInside};
use crate::resource::DeviceBlock;
use crate::stream::Stream;

/// The advice for memory that no other process can open.
const SHAREABLE: &str = "take it from CudaResource, or from a PoolResource over it that was built with \
                         handles(Handles::Off); or from an AsyncResource that was built with shareable(true)";

impl IpcHandle {
    /// Waits for `stream`, and makes the handle of a block of a resource. It is for
    /// memory that is in no container.
    ///
    /// All work on the block was given to `stream`, or is ordered before the work that the stream
    /// was given. Otherwise the other process finds memory that is still written. The rest is as
    /// for [`IpcExport::ipc_handle`](crate::ipc::IpcExport::ipc_handle).
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
    /// The errors of [`IpcExport::ipc_handle`](crate::ipc::IpcExport::ipc_handle).
    #[track_caller]
    pub fn of_block(stream: &Stream, block: &DeviceBlock) -> Result<Self> {
        let _site = CallSite::enter();
        let range = DeviceRange { address: block.address(), bytes: block.bytes() };
        export(stream.device(), range, || stream.begin_call())
    }
}

/// The handle of a range of memory of `device`. `order` gives the stream that is ordered after all its uses.
pub(super) fn export<'s>(
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
