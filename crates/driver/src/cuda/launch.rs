//! Kernels on a GPU, with the table of loaded functions and launches.

use super::context::Relaxed;
use super::library::{Handle, Library};
use crate::error::DriverError;
use crate::sync::trusted::RwLock;
use crate::{DriverResult, Kernel, KernelImage, RawLaunch};
use aquifer_ptx::cubin;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;

/// The functions that were loaded into one context, by the kernel's number.
///
/// None is unloaded before the context is, since a launch may be pending at any time.
#[derive(Debug, Default)]
pub(super) struct Functions {
    loaded: RwLock<HashMap<u64, Handle>>,
}

impl Functions {
    /// The function of a kernel, loaded on first use. The context is current.
    pub(super) fn get(&self, library: &Library, kernel: &Kernel) -> DriverResult<Handle> {
        let id = kernel.id();
        if let Some(function) = self.loaded.read().get(&id) {
            return Ok(*function);
        }
        // Not under the lock: a compilation takes milliseconds to seconds.
        let (module, function) = load(library, kernel)?;
        let first = *self.loaded.write().entry(id).or_insert(function);
        if first != function {
            // SAFETY: another thread was faster, and no function of this module was ever launched.
            let _ = unsafe { library.module_unload(module) };
        }
        Ok(first)
    }
}

/// Loads a kernel's cubin, or compiles its PTX text. The error of a text that the compiler refuses has its log.
fn load(library: &Library, kernel: &Kernel) -> DriverResult<(Handle, Handle)> {
    const ERROR_LOG_BUFFER: u32 = 5;
    const ERROR_LOG_BUFFER_SIZE_BYTES: u32 = 6;
    const LOG: usize = 8192;

    // The driver would silently cut a text at a zero byte.
    let invalid = |call| DriverError::new(call, DriverError::INVALID_VALUE);
    let text;
    let image: *const c_void = match kernel.image() {
        KernelImage::Ptx(ptx) => {
            text = CString::new(&**ptx).map_err(|_| invalid("cuModuleLoadDataEx"))?;
            text.as_ptr().cast()
        }
        KernelImage::Cubin(cubin) => {
            // The driver would read where a cubin that is cut points to.
            cubin::read(cubin, kernel.entry())?;
            cubin.as_ptr().cast()
        }
        // A launch of one calls the function, and no driver.
        KernelImage::Function => {
            return Err(DriverError::new("cuModuleLoadDataEx", DriverError::NOT_SUPPORTED));
        }
    };
    let entry = CString::new(kernel.entry()).map_err(|_| invalid("cuModuleGetFunction"))?;

    let _relaxed = Relaxed::new(library);
    let mut log = vec![0_u8; LOG];
    let mut names = [ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES];
    // The interface passes the size in place of a pointer.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(LOG)];
    let mut module = 0;
    // SAFETY: the text ends in a zero, or the cubin is as long as it says; two options have two values; the log is as long as it says.
    let loaded = unsafe {
        library.module_load(&raw mut module, image, 2, names.as_mut_ptr(), values.as_mut_ptr())
    };
    if let Err(error) = loaded {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(LOG);
        let reason = String::from_utf8_lossy(&log[..end]);
        return Err(match reason.trim() {
            "" => error,
            reason => error.with_log(reason),
        });
    }
    let mut function = 0;
    // SAFETY: the module was loaded above; the name ends in a zero.
    match unsafe { library.module_get_function(&raw mut function, module, entry.as_ptr()) } {
        Ok(()) => Ok((module, function)),
        Err(error) => {
            // SAFETY: no function of this module was looked up.
            let _ = unsafe { library.module_unload(module) };
            Err(error)
        }
    }
}

/// The number of parameters that stand on the stack. More are rare, and cost an allocation.
const ON_STACK: usize = 16;

/// Enqueues a launch on a stream. The context is current.
///
/// # Safety
///
/// The contract is that of [`WorkCalls::launch`](crate::WorkCalls::launch), and `function` is of this
/// context.
pub(super) unsafe fn enqueue(
    library: &Library,
    function: Handle,
    launch: RawLaunch<'_>,
    stream: Handle,
) -> DriverResult<()> {
    let RawLaunch { config, arguments, .. } = launch;
    let count = arguments.len();
    let mut few = [ptr::null_mut::<c_void>(); ON_STACK];
    let mut many;
    let parameters = if count <= ON_STACK {
        &mut few[..count]
    } else {
        many = vec![ptr::null_mut(); count];
        &mut many[..]
    };
    for (parameter, argument) in parameters.iter_mut().zip(arguments) {
        *parameter = argument.value().cast_mut().cast();
    }
    let (grid, block) = (config.grid, config.block);
    // SAFETY: the driver copies the values before it returns. The caller answers for their types and
    // for what the kernel accesses.
    unsafe {
        library.launch_kernel(
            function,
            grid.0,
            grid.1,
            grid.2,
            block.0,
            block.1,
            block.2,
            config.shared_bytes,
            stream,
            parameters.as_mut_ptr(),
            ptr::null_mut(),
        )
    }
}
