//! A vector where cudarc takes device memory: copies, cuBLAS, NCCL, cuRAND, kernel arguments.

use crate::backend::RawStream;
use crate::container::{
    Borrower, DeviceSlice, DeviceSliceMut, DeviceVec, On, OnMut, StreamRef, lend_loosely,
};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::Stream;
use crate::sync::Arc;
use bytemuck::Pod;
use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceSlice as CudarcSlice, LaunchArgs, PushKernelArg,
    SyncOnDrop,
};
use std::fmt;

/// Device memory to read, for cudarc. From [`DeviceVec::cuda`].
///
/// It is a `DevicePtr` and a kernel argument. cudarc's functions say on which stream they use it:
/// that stream waits for the vector's home, and home for it, as with [`DeviceVec::on`]. cudarc's
/// launch builder does not say: as a kernel argument this is for the home stream, which is part of
/// what an unsafe launch promises. For another stream, give the launch a guard from
/// [`DeviceVec::on`] for it.
pub struct CudaRef<'a, T: Pod> {
    slice: DeviceSlice<'a, T>,
    home: &'a Arc<CudaStream>,
    address: u64,
}

/// Device memory to read and write, for cudarc. From [`DeviceVec::cuda_mut`].
///
/// As [`CudaRef`], and a `DevicePtrMut`.
pub struct CudaMut<'a, T: Pod> {
    slice: DeviceSliceMut<'a, T>,
    home: &'a Arc<CudaStream>,
    address: u64,
}

fn cudarc_home(home: &Stream) -> Result<&Arc<CudaStream>> {
    home.cuda_stream().ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, format!("cudarc cannot use memory of {}", home.device()))
            .advise("use a CUDA device, or Aquifer's own copies and launches")
    })
}

impl<T: Pod> DeviceVec<T> {
    /// The vector, to read, for cudarc's functions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] on a simulated device.
    pub fn cuda(&self) -> Result<CudaRef<'_, T>> {
        self.as_slice().cuda()
    }

    /// The vector, to read and write, for cudarc's functions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] on a simulated device.
    pub fn cuda_mut(&mut self) -> Result<CudaMut<'_, T>> {
        self.as_mut_slice().cuda_mut()
    }
}

impl<'a, T: Pod> DeviceSlice<'a, T> {
    /// The view, for cudarc's functions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] on a simulated device.
    pub fn cuda(self) -> Result<CudaRef<'a, T>> {
        let home = cudarc_home(self.home())?;
        Ok(CudaRef { address: self.as_device_ptr(), slice: self, home })
    }
}

impl<'a, T: Pod> DeviceSliceMut<'a, T> {
    /// The view, for cudarc's functions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] on a simulated device.
    pub fn cuda_mut(self) -> Result<CudaMut<'a, T>> {
        let home = cudarc_home(self.home())?;
        Ok(CudaMut { address: self.as_device_ptr(), slice: self, home })
    }
}

/// Orders a stream of cudarc after home, and home's next conflicting use after it.
///
/// cudarc's traits have no room for an error: where the order cannot be made with events, the host
/// waits for home now and home for the whole context later.
fn order<'s, T: Pod>(
    slice: &DeviceSlice<'_, T>,
    stream: &'s CudaStream,
    writes: bool,
) -> SyncOnDrop<'s> {
    let home = slice.home();
    let handle = match stream.cu_stream() as u64 {
        1 => 0,
        handle => handle,
    };
    let device = if Some(stream.context().cu_ctx())
        == home.device().cuda_context().map(|context| context.cu_ctx())
    {
        Some(home.device().clone())
    } else {
        Device::from_cudarc(stream.context()).ok()
    };
    let borrower = match &device {
        Some(device) if device == home.device() && home.raw() == RawStream(handle) => {
            Borrower::Stream(home.clone())
        }
        Some(device) if handle == 2 => {
            Borrower::PerThread(device.clone(), std::thread::current().id())
        }
        Some(device) if handle == 0 => Borrower::Stream(device.default_stream()),
        Some(device) => match Stream::known(device, handle) {
            Some(known) => Borrower::Stream(known),
            // Nobody here keeps it alive, so home will wait for its whole context: that covers the
            // work of streams that were destroyed since, too.
            None => Borrower::Context(device.clone()),
        },
        None => Borrower::Context(home.device().clone()),
    };
    lend_loosely(home, slice.debts(), borrower, RawStream(handle), slice.byte_range(), writes);
    // The debt is entered, and paid by whatever event is recorded then: nothing is left to do when
    // cudarc's guard ends, or is forgotten.
    SyncOnDrop::Record(None)
}

impl<T: Pod> CudarcSlice<T> for CudaRef<'_, T> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.home
    }
}

impl<T: Pod> CudarcSlice<T> for CudaMut<'_, T> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.home
    }
}

impl<T: Pod> DevicePtr<T> for CudaRef<'_, T> {
    fn device_ptr<'s>(&'s self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        (self.address, order(&self.slice, stream, false))
    }
}

impl<T: Pod> DevicePtr<T> for CudaMut<'_, T> {
    fn device_ptr<'s>(&'s self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        (self.address, order(&self.slice.as_slice(), stream, false))
    }
}

impl<T: Pod> DevicePtrMut<T> for CudaMut<'_, T> {
    fn device_ptr_mut<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        (self.address, order(&self.slice.as_slice(), stream, true))
    }
}

// SAFETY: pushes the address of the memory, which the reference keeps alive for the launch.
unsafe impl<'a, 'b: 'a, 'c: 'b, T: Pod> PushKernelArg<&'b CudaRef<'c, T>> for LaunchArgs<'a> {
    fn arg(&mut self, argument: &'b CudaRef<'c, T>) -> &mut Self {
        PushKernelArg::<&'b u64>::arg(self, &argument.address)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, 'c: 'b, T: Pod> PushKernelArg<&'b mut CudaMut<'c, T>> for LaunchArgs<'a> {
    fn arg(&mut self, argument: &'b mut CudaMut<'c, T>) -> &mut Self {
        PushKernelArg::<&'b u64>::arg(self, &argument.address)
    }
}

// SAFETY: pushes the address of the memory, which the guard keeps alive for the launch.
unsafe impl<'a, 'b: 'a, 'c: 'b, T: Pod, S: StreamRef> PushKernelArg<&'b On<'c, T, S>>
    for LaunchArgs<'a>
{
    fn arg(&mut self, guard: &'b On<'c, T, S>) -> &mut Self {
        PushKernelArg::<&'b u64>::arg(self, guard.address())
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, 'c: 'b, T: Pod, S: StreamRef> PushKernelArg<&'b mut OnMut<'c, T, S>>
    for LaunchArgs<'a>
{
    fn arg(&mut self, guard: &'b mut OnMut<'c, T, S>) -> &mut Self {
        PushKernelArg::<&'b u64>::arg(self, guard.address())
    }
}

impl<T: Pod> fmt::Debug for CudaRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaRef").field(&self.slice).finish()
    }
}

impl<T: Pod> fmt::Debug for CudaMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaMut").field(&self.slice).finish()
    }
}
