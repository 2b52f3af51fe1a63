//! Kernels of CUDA C++, which NVRTC compiles when the program runs.

use crate::library::{self, NvrtcError};
use aquifer_driver::error::{Error, ErrorKind, Result};
use aquifer_driver::{DeviceProperties, HostForm, Kernel, KernelImage};
use aquifer_ptx::{PtxError, text as ptx};
use aquifer_sync::trusted::Mutex;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;

/// How [`compile_cuda`] compiles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileOptions {
    arch: Arch,
    options: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Arch {
    /// The compiler's own choice, which is the lowest that it knows.
    #[default]
    Lowest,
    /// The architecture of a device, as 90 for 9.0, or the highest below it that the compiler knows.
    UpTo(u32),
    Named(String),
}

impl CompileOptions {
    /// Options for the compute capability of a GPU. A simulated device has the compiler's own choice.
    pub fn for_device(device: &impl AsRef<DeviceProperties>) -> Self {
        let arch = match device.as_ref().compute_capability {
            (0, _) => Arch::Lowest,
            (major, minor) => Arch::UpTo(10 * major + minor),
        };
        Self { arch, options: Vec::new() }
    }

    /// Options for a virtual architecture by its name, such as `compute_90`.
    pub fn arch(mut self, name: impl Into<String>) -> Self {
        self.arch = Arch::Named(name.into());
        self
    }

    /// Adds a folder in which headers are looked for, behind those that were added before.
    pub fn include_path(self, folder: impl AsRef<Path>) -> Self {
        self.option(format!("--include-path={}", folder.as_ref().display()))
    }

    /// Defines a macro.
    pub fn define(self, name: &str, value: &str) -> Self {
        self.option(format!("--define-macro={name}={value}"))
    }

    /// Adds an option by the compiler's own name, such as `--use_fast_math`.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    fn arguments(&self) -> Result<Vec<String>, NvrtcError> {
        let arch = match &self.arch {
            Arch::Lowest => None,
            Arch::Named(name) => Some(name.clone()),
            Arch::UpTo(most) => {
                let known = library::supported_archs()?;
                let arch = known.iter().filter(|arch| *arch <= most).max().unwrap_or(most);
                Some(format!("compute_{arch}"))
            }
        };
        let arch = arch.map(|arch| format!("--gpu-architecture={arch}"));
        Ok(arch.into_iter().chain(self.options.iter().cloned()).collect())
    }
}

/// A kernel from its entry's name, a source in CUDA C++ and its host form. NVRTC compiles the source to
/// PTX, once for each source with the same options, however many entries are taken of it.
///
/// Declare the entry `extern "C"`, or its name is another one in the PTX. Keep the kernel in a
/// [`LazyLock`](std::sync::LazyLock) or beside the device, since it stays loaded like any kernel.
///
/// The library is NVRTC of a CUDA toolkit, `libnvrtc`. It is looked for when the first source is
/// compiled. It needs no GPU, since the simulated device launches the compiled kernel by its host
/// form.
///
/// ```
/// use aquifer::{
///     Device, DeviceVec, ErrorKind, HostArgs, LaunchConfig, kernel::{CompileOptions, compile_cuda},
/// };
///
/// let device = Device::detect_or_simulate()?;
/// let compiled = compile_cuda(
///     "scale",
///     r#"
///     extern "C" __global__ void scale(float *data, float by, unsigned n) {
///         unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
///         if (index < n) data[index] *= by;
///     }"#,
///     &CompileOptions::for_device(&device),
///     |_: &LaunchConfig, mut args: HostArgs<'_>| {
///         let (data, by) = (args.in_out::<f32>()?, args.scalar::<f32>()?);
///         let n = args.scalar::<u32>()? as usize;
///         data[..n].iter_mut().for_each(|value| *value *= by);
///         Ok(())
///     },
/// );
/// let scale = match compiled {
///     Ok(kernel) => kernel,
///     // Says where NVRTC was missed.
///     Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(eprintln!("{error}")),
///     Err(error) => return Err(error),
/// };
/// let stream = device.new_stream()?;
/// let mut data = DeviceVec::from_slice(&stream, &[1.0_f32, 2.0])?;
/// let launch = stream.launch(&scale).in_out(&mut data)?.scalar(3.0_f32)?.scalar(2_u32)?;
/// // SAFETY: the kernel touches the first 2 elements of `data` alone.
/// unsafe { launch.launch(LaunchConfig::for_elements(2))? };
/// assert_eq!(data.to_vec()?, [3.0, 6.0]);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// # Errors
///
/// - [`ErrorKind::Unsupported`] where NVRTC is not installed, or lacks a function
/// - [`ErrorKind::InvalidArgument`] where it does not take the source or an option, with the compiler's own text
/// - [`ErrorKind::InvalidArgument`] for a source without such an entry
pub fn compile_cuda(
    entry: &'static str,
    source: &str,
    options: &CompileOptions,
    host: HostForm,
) -> Result<Kernel> {
    let failed = |error: NvrtcError| failed(entry, &error);
    let arguments = options.arguments().map_err(failed)?;
    let text = compile_once(source, arguments, failed)?;
    if let Err(error @ PtxError::NoEntry(_)) = ptx::read(&text, entry) {
        let what = format!("a source in CUDA C++ was compiled for its entry {entry}: {error}");
        return Err(Error::new(ErrorKind::InvalidArgument, what)
            .with_advice("declare the entry extern \"C\" __global__"));
    }
    Ok(Kernel::from_image(entry, KernelImage::Ptx(Cow::Owned(text)), host))
}

/// The PTX of a source and of options. Equal ones are compiled at most once, unless two threads begin at once.
fn compile_once(
    source: &str,
    arguments: Vec<String>,
    failed: impl Fn(NvrtcError) -> Error,
) -> Result<String> {
    static COMPILED: Mutex<BTreeMap<(String, Vec<String>), String>> = Mutex::new(BTreeMap::new());
    let key = (source.to_owned(), arguments);
    if let Some(text) = COMPILED.lock().get(&key) {
        return Ok(text.clone());
    }
    let zero = |_| {
        let what = "a source in CUDA C++ or an option of its compiler has a zero byte";
        Error::new(ErrorKind::InvalidArgument, what).with_advice("take it out of the text")
    };
    let options = key.1.iter().map(|option| CString::new(option.as_str()));
    let options = options.collect::<Result<Vec<_>, _>>().map_err(zero)?;
    // Not under the lock: a compilation takes milliseconds to seconds.
    let text = library::compile(&CString::new(source).map_err(zero)?, c"kernel.cu", &options);
    let text = text.map_err(failed)?;
    Ok(COMPILED.lock().entry(key).or_insert(text).clone())
}

fn failed(entry: &str, error: &NvrtcError) -> Error {
    let what = format!("compiling CUDA C++ for the kernel {entry}: {error}");
    match error {
        NvrtcError::NoLibrary => Error::new(ErrorKind::Unsupported, what).with_advice(
            "install NVRTC of a CUDA toolkit no newer than the driver and put its folder on the library \
             path, or give the kernel PTX or a cubin",
        ),
        NvrtcError::MissingSymbol(_) => Error::new(ErrorKind::Unsupported, what)
            .with_advice("install NVRTC of a newer CUDA toolkit"),
        NvrtcError::Failed { .. } => Error::new(ErrorKind::InvalidArgument, what)
            .with_advice("mend the source or the options as the compiler says, which take no byte 0"),
    }
}
