//! A vector where cudarc takes device memory, such as copies, cuBLAS, NCCL, cuRAND and kernel arguments.

use crate::container::{DeviceSlice, DeviceSliceMut, DeviceVec, On, OnMut, StreamRef};
use crate::device::Device;
use crate::driver::{DeviceCopy, RawStream};
use crate::error::Result;
use crate::order::{MemoryUse, UnknownStream};
use crate::stream::Stream;
use crate::sync::Arc;
use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceSlice as CudarcSlice, LaunchArgs, PushKernelArg,
    SyncOnDrop,
};
use std::fmt;

/// Device memory to read, for cudarc. From [`DeviceVec::cuda`].
///
/// It is a `DevicePtr`, so cudarc's functions name the stream on which they use it. That stream waits for the vector's
/// home stream, and the home stream waits for it, as with [`DeviceVec::on`]. The launch builder of cudarc names no
/// stream, so this is no kernel argument. Give the launch a guard from [`DeviceVec::on`] for its stream instead, also
/// where that is the home stream.
/// This does not compile, since the launch would come after no use of the vector elsewhere:
///
/// ```compile_fail
/// use aquifer::cudarc::driver::{LaunchArgs, PushKernelArg};
///
/// fn launch_at_home<'a>(launch: &mut LaunchArgs<'a>, argument: &'a aquifer::interop::CudaRef<'a, f32>) {
///     launch.arg(argument);
/// }
/// ```
pub struct CudaRef<'a, T: DeviceCopy> {
    slice: DeviceSlice<'a, T>,
    home: &'a Arc<CudaStream>,
}

/// Device memory to read and write, for cudarc. From [`DeviceVec::cuda_mut`].
///
/// It is like [`CudaRef`], and a `DevicePtrMut`.
pub struct CudaMut<'a, T: DeviceCopy> {
    slice: DeviceSliceMut<'a, T>,
    home: &'a Arc<CudaStream>,
}

impl<T: DeviceCopy> DeviceVec<T> {
    /// The vector, to read, for cudarc's functions.
    ///
    /// ```no_run
    /// use aquifer::{Device, DeviceVec};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = Device::open(0)?.new_stream()?;
    /// let source = DeviceVec::from_slice(&stream, &[1.0_f32, 2.0])?;
    /// let mut target = DeviceVec::<f32>::zeroed(&stream, 2)?;
    /// stream.cuda_stream()?.memcpy_dtod(&source.cuda()?, &mut target.cuda_mut()?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a simulated device.
    pub fn cuda(&self) -> Result<CudaRef<'_, T>> {
        self.as_slice().cuda()
    }

    /// The vector, to read and write, for cudarc's functions. [`cuda`](Self::cuda) has an example.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a simulated device.
    pub fn cuda_mut(&mut self) -> Result<CudaMut<'_, T>> {
        self.as_mut_slice().cuda_mut()
    }
}

/// Orders a stream of cudarc after home, and home's next conflicting use after it.
///
/// cudarc's traits have no way to return an error. Where events cannot make the order, the host waits for home now, and
/// home waits for the whole context later.
fn order<'s>(memory: MemoryUse<'_>, stream: &'s CudaStream) -> SyncOnDrop<'s> {
    let home = memory.home.device();
    let raw = match stream.cu_stream() as u64 {
        1 => RawStream(0),
        handle => RawStream(handle),
    };
    let same =
        home.context_of_cudarc().is_some_and(|own| own.cu_ctx() == stream.context().cu_ctx());
    let device = if same { Some(home.clone()) } else { Device::from_cudarc(stream.context()).ok() };
    let device = device.unwrap_or_else(|| home.clone());
    let at = memory.home;
    if at.is_handle(&device, raw) {
        memory.order_or_block(at);
    } else if raw.0 == 2
        && let Ok(own) = device.per_thread_stream()
    {
        memory.order_or_block(&own);
    } else if raw.0 == 0 {
        memory.order_or_block(&device.default_stream());
    } else if let Some(known) = Stream::by_handle(&device, raw) {
        memory.order_or_block(&known);
    } else {
        // Aquifer does not keep it alive, so home will wait for its whole context: that covers the work
        // of streams that were destroyed since, too.
        memory.order_or_block(&UnknownStream { device, raw });
    }
    // The use is recorded, and home records an event when it has to wait for it: nothing is left to do
    // when cudarc's guard ends, or is forgotten.
    SyncOnDrop::Record(None)
}

macro_rules! cudarc_slice {
    ($name:ident, $slice:ident, $make:ident) => {
        impl<'a, T: DeviceCopy> $slice<'a, T> {
            /// The view, for cudarc's functions.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a simulated device.
            pub fn $make(self) -> Result<$name<'a, T>> {
                Ok($name { home: self.home().cuda_stream()?, slice: self })
            }
        }

        impl<T: DeviceCopy> CudarcSlice<T> for $name<'_, T> {
            fn len(&self) -> usize {
                self.slice.len()
            }

            fn stream(&self) -> &Arc<CudaStream> {
                self.home
            }
        }

        impl<T: DeviceCopy> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.slice).finish()
            }
        }
    };
}
cudarc_slice!(CudaRef, DeviceSlice, cuda);
cudarc_slice!(CudaMut, DeviceSliceMut, cuda_mut);

impl<T: DeviceCopy> DevicePtr<T> for CudaRef<'_, T> {
    fn device_ptr<'s>(&'s self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        (self.slice.as_device_ptr(), order(self.slice.memory_use(), stream))
    }
}

impl<T: DeviceCopy> DevicePtr<T> for CudaMut<'_, T> {
    fn device_ptr<'s>(&'s self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        (self.slice.as_device_ptr(), order(self.slice.as_slice().memory_use(), stream))
    }
}

impl<T: DeviceCopy> DevicePtrMut<T> for CudaMut<'_, T> {
    fn device_ptr_mut<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        (self.slice.as_device_ptr(), order(self.slice.memory_use(), stream))
    }
}

// SAFETY: pushes the address of the memory, which the guard keeps alive for the launch.
unsafe impl<'a, 'b: 'a, 'c: 'b, T: DeviceCopy, S: StreamRef> PushKernelArg<&'b On<'c, T, S>>
    for LaunchArgs<'a>
{
    fn arg(&mut self, guard: &'b On<'c, T, S>) -> &mut Self {
        PushKernelArg::<&'b u64>::arg(self, guard.address())
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, 'c: 'b, T: DeviceCopy, S: StreamRef> PushKernelArg<&'b mut OnMut<'c, T, S>>
    for LaunchArgs<'a>
{
    fn arg(&mut self, guard: &'b mut OnMut<'c, T, S>) -> &mut Self {
        PushKernelArg::<&'b u64>::arg(self, guard.address())
    }
}
