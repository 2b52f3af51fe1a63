//! The trait by which vectors and buffers go to other processes.

use super::export::export;
use super::ipc_handle::IpcHandle;
#[cfg(unix)]
use super::mapped;
use crate::container::{DeviceBuffer, DeviceSlice, DeviceVec};
use crate::driver::{CallSite, DeviceCopy, DeviceRange};
#[allow(unused_imports, reason = "for the documentation")]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::inside::StreamCall;
use crate::inside::ViewInside;
use crate::inside::{CapturePolicy, MemoryUse};
#[cfg(unix)]
use std::os::unix::net::UnixStream;

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
        let (range, memory) = self.shared(Token);
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
        let (range, memory) = self.shared(Token);
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

    /// Has no name elsewhere, so that no program calls what takes it.
    #[derive(Debug)]
    pub struct Token;

    /// The facts that sharing needs about memory. No type of another crate has this trait.
    pub trait Shared {
        fn shared(&self, _: Token) -> (DeviceRange, MemoryUse<'_>);
    }
}
use sealed::{Shared, Token};

impl<T: DeviceCopy> IpcExport for DeviceSlice<'_, T> {}

impl<T: DeviceCopy> Shared for DeviceSlice<'_, T> {
    fn shared(&self, _: Token) -> (DeviceRange, MemoryUse<'_>) {
        let range = DeviceRange { address: self.as_device_ptr(), bytes: self.size_in_bytes() };
        (range, self.memory_use())
    }
}

impl<T: DeviceCopy> IpcExport for DeviceVec<T> {}

impl<T: DeviceCopy> Shared for DeviceVec<T> {
    fn shared(&self, _: Token) -> (DeviceRange, MemoryUse<'_>) {
        let range = DeviceRange { address: self.as_device_ptr(), bytes: self.size_in_bytes() };
        (range, self.as_slice().memory_use())
    }
}

impl IpcExport for DeviceBuffer {}

impl Shared for DeviceBuffer {
    fn shared(&self, _: Token) -> (DeviceRange, MemoryUse<'_>) {
        let range =
            DeviceRange { address: self.as_device_ptr(), bytes: self.as_slice().size_in_bytes() };
        (range, self.as_slice().memory_use())
    }
}
