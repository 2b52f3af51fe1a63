//! NVRTC, the compiler of CUDA C++, where it is installed.
//!
//! NVRTC is called through a table of its own, like the driver. cudarc's bindings panic where the
//! library or a function of it is missing, and take its result for a Rust enum.

use aquifer_driver::cuda::candidates;
use aquifer_driver::symbols;
use aquifer_sync::OnceLock;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::{fmt, ptr};

/// Why a source was not compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NvrtcError {
    /// The library is not installed, or not where libraries are looked for.
    NoLibrary,
    /// The library has no such function.
    MissingSymbol(&'static str),
    /// A call failed. `log` is the compiler's own text, if it wrote one.
    Failed { call: &'static str, code: u32, log: String },
}

impl fmt::Display for NvrtcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary => f.write_str("NVRTC's library, libnvrtc, was not found"),
            Self::MissingSymbol(symbol) => write!(f, "NVRTC's library has no {symbol}"),
            Self::Failed { call, code, log } => {
                write!(f, "{call} returned {code}, {}", name_of(*code))?;
                if log.is_empty() { Ok(()) } else { write!(f, ":\n{log}") }
            }
        }
    }
}

fn name_of(code: u32) -> &'static str {
    match code {
        1 => "NVRTC_ERROR_OUT_OF_MEMORY",
        2 => "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        3 => "NVRTC_ERROR_INVALID_INPUT",
        4 => "NVRTC_ERROR_INVALID_PROGRAM",
        5 => "NVRTC_ERROR_INVALID_OPTION",
        6 => "NVRTC_ERROR_COMPILATION",
        7 => "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        11 => "NVRTC_ERROR_INTERNAL_ERROR",
        _ => "a number without a name here, see nvrtcResult in nvrtc.h",
    }
}

/// A program of the compiler, which is a pointer that the compiler alone dereferences.
type Handle = *mut c_void;

symbols! {
    /// The library.
    struct Nvrtc: NvrtcError;

    create_program = nvrtcCreateProgram(
        program: *mut Handle, source: *const c_char, name: *const c_char, headers: c_int,
        texts: *const *const c_char, names: *const *const c_char);
    destroy_program = nvrtcDestroyProgram(program: *mut Handle);
    compile_program =
        nvrtcCompileProgram(program: Handle, count: c_int, options: *const *const c_char);
    get_ptx_size = nvrtcGetPTXSize(program: Handle, bytes: *mut usize);
    get_ptx = nvrtcGetPTX(program: Handle, text: *mut c_char);
    get_log_size = nvrtcGetProgramLogSize(program: Handle, bytes: *mut usize);
    get_log = nvrtcGetProgramLog(program: Handle, text: *mut c_char);
    get_arch_count = nvrtcGetNumSupportedArchs(count: *mut c_int);
    get_archs = nvrtcGetSupportedArchs(archs: *mut c_int);
}

impl Nvrtc {
    fn get() -> Result<&'static Self, NvrtcError> {
        static NVRTC: OnceLock<Option<Nvrtc>> = OnceLock::new();
        // cudarc's names, and those of toolkits that its bindings are not of.
        let versions = (11..=13).rev().map(|major| format!("libnvrtc.so.{major}"));
        let open = || Self::open(candidates("nvrtc").into_iter().chain(versions));
        NVRTC.get_or_init(open).as_ref().ok_or(NvrtcError::NoLibrary)
    }

    fn may_call<F>(&self, call: &'static str, function: Option<F>) -> Result<F, NvrtcError> {
        function.ok_or(NvrtcError::MissingSymbol(call))
    }

    fn failed(&self, call: &'static str, code: u32) -> NvrtcError {
        NvrtcError::Failed { call, code, log: String::new() }
    }

    /// The text of a program. The library tells its size, with a zero at its end included.
    fn text(
        &self,
        size: impl FnOnce(*mut usize) -> Result<(), NvrtcError>,
        get: impl FnOnce(*mut c_char) -> Result<(), NvrtcError>,
    ) -> Result<String, NvrtcError> {
        let mut bytes = 0;
        size(&raw mut bytes)?;
        let mut text = vec![0_u8; bytes];
        get(text.as_mut_ptr().cast())?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }
}

/// The compute capabilities that the compiler knows, as 90 for 9.0, the lowest first. The list is empty if the compiler
/// does not tell.
pub(crate) fn supported_archs() -> Result<Vec<u32>, NvrtcError> {
    let nvrtc = Nvrtc::get()?;
    let mut count = 0;
    // SAFETY: `count` is writable for the call.
    let counted = unsafe { nvrtc.get_arch_count(&raw mut count) };
    let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: as long as the library has just said.
    let told = counted.and_then(|()| unsafe { nvrtc.get_archs(archs.as_mut_ptr()) });
    let archs = if told.is_ok() { archs } else { Vec::new() };
    Ok(archs.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect())
}

/// Destroys a program when it is dropped.
struct Program {
    nvrtc: &'static Nvrtc,
    handle: Handle,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by this library, and not used after this.
        let _ = unsafe { self.nvrtc.destroy_program(&raw mut self.handle) };
    }
}

/// Compiles a source to PTX. The compiler's texts call its file `name`.
pub(crate) fn compile(
    source: &CStr,
    name: &CStr,
    options: &[CString],
) -> Result<String, NvrtcError> {
    let nvrtc = Nvrtc::get()?;
    let mut handle = ptr::null_mut();
    // SAFETY: two texts that end in a zero, and no headers.
    unsafe {
        nvrtc.create_program(
            &raw mut handle,
            source.as_ptr(),
            name.as_ptr(),
            0,
            ptr::null(),
            ptr::null(),
        )
    }?;
    let program = Program { nvrtc, handle };
    let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: the program lives; there are so many options, each of which ends in a zero.
    let compiled =
        unsafe { nvrtc.compile_program(program.handle, options.len() as c_int, options.as_ptr()) };
    if let Err(mut error) = compiled {
        if let NvrtcError::Failed { log, .. } = &mut error {
            let text = nvrtc.text(
                // SAFETY: the program lives; the size is writable.
                |bytes| unsafe { nvrtc.get_log_size(program.handle, bytes) },
                // SAFETY: the program lives; the text is as long as the library said.
                |text| unsafe { nvrtc.get_log(program.handle, text) },
            );
            *log = text.unwrap_or_default().trim().to_owned();
        }
        return Err(error);
    }
    nvrtc.text(
        // SAFETY: the program lives; the size is writable.
        |bytes| unsafe { nvrtc.get_ptx_size(program.handle, bytes) },
        // SAFETY: the program lives; the text is as long as the library said.
        |text| unsafe { nvrtc.get_ptx(program.handle, text) },
    )
}
