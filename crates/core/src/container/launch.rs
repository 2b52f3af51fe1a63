//! Launching a kernel on vectors.

use super::view::{DeviceRead, DeviceWrite};
use crate::driver::{
    Access, BackendKind, CallSite, DeviceCopy, ErrorContext, FunctionArgs, Kernel, KernelImage,
    LaunchConfig, RawArg, RawLaunch,
};
use crate::error::{Error, Result, ensure};
use crate::order::CapturePolicy;
use crate::resource::asleep::require_awake;
use crate::stream::{Stream, StreamCall};
use bytemuck::NoUninit;

/// A kernel with its arguments, about to be launched on a stream. From [`Stream::launch`].
///
/// Arguments are given in the order of the kernel's parameters, each with the access that the kernel makes to
/// it. This stream waits for the home of each, and each home for this stream, as with
/// [`DeviceVec::on`](crate::DeviceVec::on).
#[derive(Debug)]
#[must_use = "nothing runs before `launch`"]
pub struct Launch<'a> {
    stream: &'a Stream,
    kernel: &'a Kernel,
    arguments: Vec<RawArg>,
    /// Whether one of them is host memory, which a scope borrows.
    borrows_host: bool,
}

impl Stream {
    /// Begins a launch of `kernel` on this stream.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, HostArgs, Kernel, LaunchConfig, Result};
    ///
    /// static ADD_ONE: Kernel = Kernel::new(
    ///     "add_one",
    ///     r#"
    ///     .version 6.4
    ///     .target sm_50
    ///     .address_size 64
    ///     .visible .entry add_one(.param .u64 data, .param .u32 n) {
    ///         .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %rd<3>;
    ///         ld.param.u64 %rd1, [data];
    ///         ld.param.u32 %r1, [n];
    ///         mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    ///         mad.lo.u32 %r2, %r2, %r3, %r4;
    ///         setp.ge.u32 %p, %r2, %r1;
    ///         @%p bra done;
    ///         cvta.to.global.u64 %rd1, %rd1;
    ///         mul.wide.u32 %rd2, %r2, 4;
    ///         add.u64 %rd1, %rd1, %rd2;
    ///         ld.global.u32 %r3, [%rd1];
    ///         add.u32 %r3, %r3, 1;
    ///         st.global.u32 [%rd1], %r3;
    ///     done:
    ///         ret;
    ///     }"#,
    ///     |_config: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
    ///         let data = args.in_out::<u32>()?;
    ///         let n = args.scalar::<u32>()? as usize;
    ///         data[..n].iter_mut().for_each(|value| *value += 1);
    ///         Ok(())
    ///     },
    /// );
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let mut vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3])?;
    /// let launch = stream.launch(&ADD_ONE).in_out(&mut vec)?.scalar(3_u32)?;
    /// // SAFETY: the kernel touches the first 3 elements of `vec` alone.
    /// unsafe { launch.launch(LaunchConfig::for_elements(3))? };
    /// assert_eq!(vec.to_vec()?, [2, 3, 4]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn launch<'a>(&'a self, kernel: &'a Kernel) -> Launch<'a> {
        let arguments = Vec::with_capacity(8);
        Launch { stream: self, kernel, arguments, borrows_host: false }
    }
}

impl<'a> Launch<'a> {
    fn buffer(mut self, address: u64, bytes: usize, access: Access) -> Self {
        self.arguments.push(RawArg::Buffer { address, bytes, access });
        self
    }

    /// Device memory that the kernel reads.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) if it is of another device, to which its resource
    ///   gave no [access](crate::DeviceResource::enable_peer_access).
    /// - [`ErrorKind::Capture`](crate::ErrorKind::Capture) while a capture on another thread has this stream or the
    ///   memory's home stream, or where one of the two is in a capture that the other cannot join.
    /// - The errors of the driver.
    #[track_caller]
    pub fn input<T: DeviceCopy>(self, data: &'a impl DeviceRead<T>) -> Result<Self> {
        let _site = CallSite::enter();
        let slice = data.as_device_slice();
        slice.memory_use().order_on(self.stream, CapturePolicy::Join)?;
        Ok(self.buffer(slice.as_device_ptr(), slice.size_in_bytes(), Access::Read))
    }

    /// Device memory that the kernel writes whole, without reading it.
    ///
    /// # Errors
    ///
    /// The errors of [`input`](Self::input).
    #[track_caller]
    pub fn output<T: DeviceCopy>(self, data: &'a mut impl DeviceWrite<T>) -> Result<Self> {
        let _site = CallSite::enter();
        self.arg_mut(data, Access::Write)
    }

    /// Device memory that the kernel reads and writes, or writes in parts.
    ///
    /// # Errors
    ///
    /// The errors of [`input`](Self::input).
    #[track_caller]
    pub fn in_out<T: DeviceCopy>(self, data: &'a mut impl DeviceWrite<T>) -> Result<Self> {
        let _site = CallSite::enter();
        self.arg_mut(data, Access::ReadWrite)
    }

    fn arg_mut<T: DeviceCopy>(
        self,
        data: &'a mut impl DeviceWrite<T>,
        access: Access,
    ) -> Result<Self> {
        let slice = data.as_device_slice_mut();
        slice.memory_use().order_on(self.stream, CapturePolicy::Join)?;
        Ok(self.buffer(slice.as_device_ptr(), slice.size_in_bytes(), access))
    }

    /// A number or a structure without padding, which the kernel gets by value. The host form takes it by
    /// [`HostArgs::scalar`](crate::HostArgs::scalar), as any type of its size of which any bit pattern is a value. A type that
    /// is less goes by [`param`](Self::param). A driver takes 4,096 bytes of arguments in all, and 32,764 from CUDA 12.1 on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if it is larger.
    pub fn scalar<T: NoUninit>(mut self, value: T) -> Result<Self> {
        self.arguments.push(RawArg::scalar(value)?);
        Ok(self)
    }

    /// A structure that may have padding, which the kernel gets by value. The host form takes it by
    /// [`HostArgs::param`](crate::HostArgs::param), as the same type.
    ///
    /// ```
    /// use aquifer::{Device, DeviceCopy, DeviceVec, HostArgs, Kernel, LaunchConfig};
    ///
    /// #[derive(Clone, Copy)]
    /// #[repr(C)]
    /// struct Params {
    ///     count: u32, // and four bytes of padding
    ///     factor: f64,
    /// }
    /// // SAFETY: two numbers, without pointers.
    /// unsafe impl DeviceCopy for Params {}
    ///
    /// static SCALE: Kernel = Kernel::new(
    ///     "scale",
    ///     // With `struct Params { unsigned count; double factor; }` in CUDA C++.
    ///     include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kernels/scale.ptx")),
    ///     |_: &LaunchConfig, mut args: HostArgs<'_>| {
    ///         let (data, params) = (args.in_out::<f64>()?, args.param::<Params>()?);
    ///         data[..params.count as usize].iter_mut().for_each(|value| *value *= params.factor);
    ///         Ok(())
    ///     },
    /// );
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let mut data = DeviceVec::from_slice(&stream, &[1.0, 2.0, 3.0])?;
    /// let launch = stream.launch(&SCALE).in_out(&mut data)?;
    /// let launch = launch.param(Params { count: 2, factor: 0.5 })?;
    /// // SAFETY: the kernel touches the first 2 elements of `data` alone.
    /// unsafe { launch.launch(LaunchConfig::for_elements(2))? };
    /// assert_eq!(data.to_vec()?, [0.5, 1.0, 3.0]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`scalar`](Self::scalar).
    pub fn param<T: DeviceCopy + Send + Sync>(mut self, value: T) -> Result<Self> {
        self.arguments.push(RawArg::param(value)?);
        Ok(self)
    }

    /// Mapped host memory inside a scope, by the device's address.
    pub(crate) fn host(mut self, address: u64, bytes: usize, access: Access) -> Self {
        self.borrows_host = true;
        self.buffer(address, bytes, access)
    }

    pub(crate) fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// Launches the kernel with a grid of `config`, of this crate or of cudarc. It runs in the stream's order, and
    /// nothing waits.
    ///
    /// # Errors
    ///
    /// - The errors of loading the PTX and of the launch. The simulated device refuses what a driver refuses, and
    ///   arguments that are not of the number and the sizes of the entry's parameters.
    /// - [`ErrorKind::Capture`](crate::ErrorKind::Capture) for host memory that a scope borrows on a stream in capture,
    ///   since the graph would run with it when the scope is long over.
    ///
    /// A kernel that faults shows in the next synchronising call.
    ///
    /// # Safety
    ///
    /// The entry takes these arguments, in this order and of these sizes, and with this grid it
    /// touches only the memory that it is given here, in the way that was declared.
    #[track_caller]
    pub unsafe fn launch(self, config: impl Into<LaunchConfig>) -> Result<()> {
        let config = config.into();
        let _site = CallSite::enter();
        self.require_image()?;
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.enqueue(config) }
    }

    /// Launches by a function of the program. On a GPU it is called at once, with the device current, and enqueues work on
    /// the stream that it is given. On the simulated device, the kernel's host form runs in the stream's order in its place,
    /// with the checks of every launch. [`Kernel::from_function`] has an example.
    ///
    /// The function is inside of the stream's gate, so that a capture of the stream is refused meanwhile. It gives work, and
    /// calls and drops nothing of this crate.
    ///
    /// # Errors
    ///
    /// The error of `function`, and those of [`launch`](Self::launch). Work that the function gave before it failed is in the
    /// stream's order, as all work is.
    ///
    /// # Safety
    ///
    /// - What `function` enqueues is on the stream that it is given, or later work on that stream comes after it.
    /// - That work touches only the memory that the launch was given, in the way that was declared.
    /// - The stream's handle is not used after the function has returned, and no capture begins or ends on it before.
    /// - While the function has the stream wait for another one, no other thread launches a graph on it. The driver loses
    ///   such a wait.
    #[track_caller]
    pub unsafe fn launch_with<E: From<Error>>(
        self,
        function: impl FnOnce(FunctionArgs<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let _site = CallSite::enter();
        if self.stream.device().kind() == BackendKind::Simulated {
            let config = LaunchConfig { grid: (1, 1, 1), block: (1, 1, 1), shared_bytes: 0 };
            // SAFETY: the caller's promise; the host form accesses its arguments alone.
            return unsafe { self.enqueue(config) }.map_err(E::from);
        }
        let call = self.begin()?;
        // It may wait for the device, and a capture does not wait for that.
        call.mark_blocking();
        let mut function = Some(function);
        let mut done = Ok(());
        let entered = self.stream.device().driver().with_current(&mut || {
            if let Some(function) = function.take() {
                let (entry, stream) = (self.kernel.entry(), call.raw().0);
                done = function(FunctionArgs::new(entry, stream, &self.arguments, &mut Vec::new()));
            }
        });
        entered.with_context(|| format!("calling {} for {}", self.kernel.entry(), self.stream))?;
        done
    }

    fn require_image(&self) -> Result<()> {
        ensure!(
            !matches!(self.kernel.image(), KernelImage::Function),
            InvalidArgument,
            "launch it by launch_with",
            "the kernel {} is behind a function, which nothing calls",
            self.kernel.entry()
        );
        Ok(())
    }

    /// Enters the stream's gate for the launch.
    fn begin(&self) -> Result<StreamCall<'a>> {
        let call = self.stream.begin_call()?;
        if self.borrows_host {
            call.refuse_capture("a kernel on borrowed host memory")?;
        }
        // The order stays, but a pool may sleep since.
        self.arguments.iter().filter_map(RawArg::address).try_for_each(require_awake)?;
        Ok(call)
    }

    /// Enqueues the launch. An error names the place in the crate, not the caller's.
    ///
    /// # Safety
    ///
    /// The conditions of [`launch`](Self::launch).
    unsafe fn enqueue(self, config: LaunchConfig) -> Result<()> {
        let call = self.begin()?;
        let launch = RawLaunch { kernel: self.kernel, config: &config, arguments: &self.arguments };
        // SAFETY: the caller vouches for the kernel; the uses of the buffers on this stream are pending,
        // so none is freed or reused before the stream has passed this launch.
        let launched = unsafe { self.stream.device().driver().launch(launch, call.raw()) };
        launched.with_context(|| match self.kernel.entry() {
            "" => format!("launching a kernel without a name on {}", self.stream),
            entry => format!("launching {entry} on {}", self.stream),
        })
    }
}
