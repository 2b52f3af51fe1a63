//! Kernels in two forms, with the grid of a launch. One form is PTX or machine code for a GPU, and the other a host
//! function for the simulated device.

use crate::arguments::HostArgs;
use crate::error::Result;
use crate::impls::Count;
use crate::sync::{OnceLock, trusted};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The host form of a kernel. It runs on the simulated device in stream order, once for the whole
/// grid, and may access only its arguments.
pub type HostForm = fn(&LaunchConfig, HostArgs<'_>) -> Result<()>;

/// A kernel that launches on a GPU and on the simulated device alike.
///
/// It has a PTX text, the name of an entry in it, and a host function that does the same. The driver loads the PTX on
/// first use on each device, and needs no toolkit and no NVRTC. The PTX stays loaded, since graphs may use it. Kernels
/// of equal text and entry are loaded once.
///
/// The simulated device does not run the PTX. It reads the parts that a launch needs, and refuses what a driver would.
/// It refuses a text that is no PTX or is cut, an entry that is not there, and arguments that are not those of the
/// entry. It also refuses a grid, a block or shared memory above the limits of CUDA or of the entry.
///
/// [`from_cubin`](Self::from_cubin) takes machine code instead of PTX. With the feature `nvrtc`,
/// `kernel::compile_cuda` takes CUDA C++.
///
/// Make a kernel a `static`. A `const`, or a kernel that is made for each launch, is compared with all
/// known texts at each launch.
///
/// ```
/// use aquifer::{HostArgs, Kernel, LaunchConfig, Result};
///
/// static DOUBLE: Kernel = Kernel::new(
///     "double",
///     r#"
///     .version 6.4
///     .target sm_50
///     .address_size 64
///     .visible .entry double(.param .u64 data, .param .u32 n) {
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
///         shl.b32 %r3, %r3, 1;
///         st.global.u32 [%rd1], %r3;
///     done:
///         ret;
///     }"#,
///     |_config: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
///         let data = args.in_out::<u32>()?;
///         let n = args.scalar::<u32>()? as usize;
///         data[..n].iter_mut().for_each(|value| *value *= 2);
///         Ok(())
///     },
/// );
/// assert_eq!(DOUBLE.entry(), "double");
/// ```
///
/// # Testing that both forms do the same
///
/// The simulated device shows that a program is right with the host form. A GPU has to show that the PTX does the same.
/// So write a run as a function of the device that returns its results. Make it on a simulated device in every test,
/// and on a GPU where there is one. Compare integers bit by bit, and floats with a tolerance, since a GPU contracts
/// `a * b + c` and sums in another order.
///
/// ```
/// use aquifer::{CheckedDevice, Device, DeviceVec, ErrorKind, Result, sim::SimConfig};
/// # use aquifer::{HostArgs, Kernel, LaunchConfig};
/// # static DOUBLE: Kernel = Kernel::new(
/// #     "double",
/// #     include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kernels/double.ptx")),
/// #     |_: &LaunchConfig, mut args: HostArgs<'_>| {
/// #         args.in_out::<u32>()?.iter_mut().for_each(|value| *value *= 2);
/// #         Ok(())
/// #     },
/// # );
///
/// fn doubled(device: &Device, input: &[u32]) -> Result<Vec<u32>> {
///     let stream = device.new_stream()?;
///     let mut data = DeviceVec::from_slice(&stream, input)?;
///     let n = input.len();
///     let launch = stream.launch(&DOUBLE).in_out(&mut data)?.scalar(n as u32)?;
///     // SAFETY: the kernel touches the first `n` elements of `data` alone.
///     unsafe { launch.launch(LaunchConfig::for_elements(n))? };
///     data.to_vec()
/// }
///
/// // A `#[test]`.
/// fn both_forms_double() -> Result<()> {
///     // Around the 256 threads of a block.
///     for n in [1, 255, 256, 257, 1000] {
///         let input: Vec<u32> = (0..n).collect();
///         let device = CheckedDevice::simulated(SimConfig::default());
///         let by_host_form = doubled(&device, &input)?;
///         match Device::open(0) {
///             Ok(gpu) => assert_eq!(doubled(&gpu, &input)?, by_host_form),
///             // No GPU here: a machine with one has to run this, too.
///             Err(error) if matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) => {}
///             Err(error) => return Err(error),
///         }
///     }
///     Ok(())
/// }
/// # both_forms_double()?;
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Debug)]
pub struct Kernel {
    entry: &'static str,
    image: KernelImage,
    host: HostForm,
    id: OnceLock<u64>,
}

/// The image that a driver loads.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelImage {
    /// A text, which the driver compiles.
    Ptx(Cow<'static, str>),
    /// A cubin, or a fatbin of several.
    Cubin(Cow<'static, [u8]>),
    /// None: a function of the program enqueues the work.
    Function,
}

impl fmt::Debug for KernelImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ptx(text) => f.debug_tuple("Ptx").field(text).finish(),
            Self::Cubin(image) => write!(f, "Cubin({})", Count(image.len(), "byte")),
            Self::Function => f.write_str("Function"),
        }
    }
}

impl Kernel {
    /// A kernel from its entry's name, its PTX text and its host form. Nothing is loaded yet.
    pub const fn new(entry: &'static str, ptx: &'static str, host: HostForm) -> Self {
        Self::from_image(entry, KernelImage::Ptx(Cow::Borrowed(ptx)), host)
    }

    /// A kernel from its entry's name, a cubin, as `nvcc --cubin` makes it, and its host form. The cubin may also be a
    /// fatbin of cubins for several GPUs (`nvcc --fatbin`). Nothing is loaded yet.
    ///
    /// A cubin runs on GPUs of its own major compute capability and of the same minor one or a later. Other GPUs refuse
    /// it (`CUDA_ERROR_NO_BINARY_FOR_GPU`).
    ///
    /// The cubin is checked before a driver gets it, and on the simulated device. A cubin that is none or is cut is
    /// refused, and so is an entry that it lacks. The simulated device compares the arguments and the block of a launch
    /// with the parameters and limits that the cubin states for the entry. Of a fatbin only the length is checked.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, HostArgs, Kernel, LaunchConfig, sim::SimConfig};
    /// use std::borrow::Cow;
    ///
    /// static ADD_ONE: Kernel = Kernel::from_cubin(
    ///     "add_one",
    ///     // Or `Cow::Owned`, of a file that is read when the program runs.
    ///     Cow::Borrowed(include_bytes!(concat!(
    ///         env!("CARGO_MANIFEST_DIR"),
    ///         "/../../docs/kernels/add_one.sm_90.cubin"
    ///     ))),
    ///     |_: &LaunchConfig, mut args: HostArgs<'_>| {
    ///         let data = args.in_out::<u32>()?;
    ///         let n = args.scalar::<u32>()? as usize;
    ///         data[..n].iter_mut().for_each(|value| *value += 1);
    ///         Ok(())
    ///     },
    /// );
    ///
    /// let stream = Device::simulated(SimConfig::default()).new_stream()?;
    /// let mut vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3])?;
    /// let launch = stream.launch(&ADD_ONE).in_out(&mut vec)?.scalar(3_u32)?;
    /// // SAFETY: the kernel touches the first 3 elements of `vec` alone.
    /// unsafe { launch.launch(LaunchConfig::for_elements(3))? };
    /// assert_eq!(vec.to_vec()?, [2, 3, 4]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub const fn from_cubin(
        entry: &'static str,
        cubin: Cow<'static, [u8]>,
        host: HostForm,
    ) -> Self {
        Self::from_image(entry, KernelImage::Cubin(cubin), host)
    }

    /// A kernel behind a function of the program, such as a C function of a `.cu` file that a build script compiles. It has
    /// the function's name, for messages, and its host form. `Launch::launch_with` calls the function on a GPU.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, HostArgs, Kernel, LaunchConfig};
    /// use std::ffi::{c_int, c_void};
    ///
    /// # mod ffi {
    /// #     use std::ffi::{c_int, c_void};
    /// #     pub unsafe fn saxpy(_: *mut c_void, _: u32, _: f32, _: *const f32, _: *mut f32) -> c_int {
    /// #         0
    /// #     }
    /// # }
    /// // In a module `ffi`: unsafe extern "C" {
    /// //     fn saxpy(stream: *mut c_void, n: u32, a: f32, x: *const f32, y: *mut f32) -> c_int;
    /// // }
    /// static SAXPY: Kernel = Kernel::from_function("saxpy", |_: &LaunchConfig, mut args: HostArgs<'_>| {
    ///     let (a, x, y) = (args.scalar::<f32>()?, args.input::<f32>()?, args.in_out::<f32>()?);
    ///     y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    ///     Ok(())
    /// });
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let x = DeviceVec::from_slice(&stream, &[1.0_f32, 2.0])?;
    /// let mut y = DeviceVec::from_slice(&stream, &[10.0_f32, 20.0])?;
    /// let launch = stream.launch(&SAXPY).scalar(0.5_f32)?.input(&x)?.in_out(&mut y)?;
    /// // SAFETY: `saxpy` enqueues on the stream that it is given, and touches `n` elements of `x` and `y` as declared.
    /// unsafe {
    ///     launch.launch_with(|mut args| {
    ///         let a = args.scalar::<f32>()?;
    ///         let ((x, n), (y, _)) = (args.input::<f32>()?, args.in_out::<f32>()?);
    ///         args.check(ffi::saxpy(args.stream(), n as u32, a, x, y))
    ///     })?;
    /// }
    /// assert_eq!(y.to_vec()?, [10.5, 21.0]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub const fn from_function(name: &'static str, host: HostForm) -> Self {
        Self::from_image(name, KernelImage::Function, host)
    }

    #[doc(hidden)]
    pub const fn from_image(entry: &'static str, image: KernelImage, host: HostForm) -> Self {
        Self { entry, image, host, id: OnceLock::new() }
    }

    /// The name of the entry in the PTX text or the cubin, or of the function.
    pub const fn entry(&self) -> &'static str {
        self.entry
    }

    /// The PTX text, of a kernel that has one.
    pub const fn ptx(&self) -> Option<&str> {
        match &self.image {
            KernelImage::Ptx(Cow::Borrowed(text)) => Some(text),
            KernelImage::Ptx(Cow::Owned(text)) => Some(text.as_str()),
            KernelImage::Cubin(_) | KernelImage::Function => None,
        }
    }

    #[doc(hidden)]
    pub fn image(&self) -> &KernelImage {
        &self.image
    }

    #[doc(hidden)]
    pub fn host(&self) -> HostForm {
        self.host
    }

    /// The key of this kernel in the tables of loaded functions. Kernels of equal entry, and of equal
    /// text or cubin, have one number.
    #[doc(hidden)]
    pub fn id(&self) -> u64 {
        // Ordered, since comparing two texts is faster than hashing one.
        static KNOWN: trusted::Mutex<BTreeMap<(&str, KernelImage), u64>> =
            trusted::Mutex::new(BTreeMap::new());
        *self.id.get_or_init(|| {
            let key = (self.entry, self.image.clone());
            *KNOWN.lock().entry(key).or_insert_with(trusted::unique)
        })
    }
}

/// The grid of a launch, with blocks, threads of a block, and dynamic shared memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads of each block in x, y and z.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory of each block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// One thread for each element, in blocks of 256 threads. At least one block, and at most
    /// `2^31 - 1`, the limit of a grid.
    pub fn for_elements(elements: usize) -> Self {
        let blocks = elements.div_ceil(256).clamp(1, i32::MAX as usize);
        Self { grid: (blocks as u32, 1, 1), block: (256, 1, 1), shared_bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_cover_their_elements() {
        assert_eq!(LaunchConfig::for_elements(0).grid.0, 1);
        assert_eq!(LaunchConfig::for_elements(257).grid.0, 2);
        assert_eq!(LaunchConfig::for_elements(usize::MAX).grid.0, i32::MAX as u32);
    }
}
