//! Backtraces of addresses, which are looked up when they are printed.

use crate::impls::debug_struct;
use crate::sync::Arc;
use backtrace::{BacktraceFmt, BytesOrWideString, Frame, PrintFmt, SymbolName};
use std::ffi::c_void;
use std::path::Path;
use std::{env, fmt};

/// The most frames of a [`CallStack`].
const MAX_FRAMES: usize = 128;

/// The functions that were on the stack when a block was allocated, as
/// [`Allocation::backtrace`](crate::mr::Allocation::backtrace) has it.
///
/// It has the addresses of at most 128 frames, the innermost ones. Printing reads debug information, which
/// takes milliseconds, and has the short form of [`std::backtrace::Backtrace`].
///
/// RMM calls it `rmm::detail::stack_trace`, which has 64 frames and no lines.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, mr::TrackingAdaptor};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let tracking = TrackingAdaptor::builder(CudaResource::new(&device)).capture_backtraces(true);
/// let tracking = tracking.build();
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, tracking.clone())?;
/// let outstanding = tracking.outstanding();
/// let stack = outstanding[0].backtrace().unwrap();
/// assert!(stack.addresses().len() > 1);
/// println!("{stack}");
/// # drop(vec);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CallStack {
    addresses: Arc<[usize]>,
}

impl CallStack {
    /// Walks the calling thread's stack. Reads no debug information.
    pub(super) fn capture() -> Self {
        let (mut found, mut count) = ([0; MAX_FRAMES], 0);
        let each = |frame: &Frame| match found.get_mut(count) {
            // Null marks the end of some stacks.
            Some(place) if !frame.ip().is_null() => {
                (*place, count) = (frame.ip() as usize, count + 1);
                true
            }
            _ => false,
        };
        // Not `trace`: a panic during a lookup would poison its lock for good.
        #[cfg(unix)]
        // SAFETY: the lock is for Windows' unwinder alone; the system's here is thread-safe.
        unsafe {
            backtrace::trace_unsynchronized(each);
        }
        #[cfg(not(unix))]
        backtrace::trace(each);
        Self { addresses: found.iter().take(count).copied().collect() }
    }

    /// The functions of all frames, the innermost first. Reads debug information frame by frame.
    pub(super) fn functions(&self) -> impl Iterator<Item = FrameFunction> {
        self.addresses.iter().flat_map(|address| look_up(*address as *mut c_void))
    }

    /// The return address of each frame, the innermost first.
    pub fn addresses(&self) -> &[usize] {
        &self.addresses
    }
}

/// A function around an address, as debug information has it.
pub(super) struct FrameFunction {
    pub(super) name: Option<Vec<u8>>,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
    pub(super) column: Option<u32>,
}

/// The functions around an address, inlined ones too. The result is a copy, since the lookup holds a
/// lock. The formatter may run any code, so it must not be called under that lock.
fn look_up(address: *mut c_void) -> Vec<FrameFunction> {
    let mut functions = Vec::new();
    backtrace::resolve(address, |symbol| {
        functions.push(FrameFunction {
            name: symbol.name().map(|name| name.as_bytes().to_vec()),
            file: symbol.filename().map(|file| file.to_string_lossy().into_owned()),
            line: symbol.lineno(),
            column: symbol.colno(),
        });
    });
    functions
}

/// The path of a file, from `folder` on if it lies below.
pub(super) fn short_path(file: &Path, folder: Option<&Path>) -> String {
    match folder.and_then(|folder| file.strip_prefix(folder).ok()) {
        Some(below) => format!("./{}", below.display()),
        None => file.display().to_string(),
    }
}

/// Each function, and its line if the program has debug information.
impl fmt::Display for CallStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = env::current_dir().ok();
        let mut path = move |f: &mut fmt::Formatter<'_>, file: BytesOrWideString<'_>| {
            f.write_str(&short_path(&file.into_path_buf(), folder.as_deref()))
        };
        let mut text = BacktraceFmt::new(f, PrintFmt::Short, &mut path);
        text.add_context()?;
        for address in &*self.addresses {
            let address = *address as *mut c_void;
            let mut frame = text.frame();
            let functions = look_up(address);
            for FrameFunction { name, file, line, column } in &functions {
                let name = name.as_deref().map(SymbolName::new);
                let file = file.as_deref().map(|file| BytesOrWideString::Bytes(file.as_bytes()));
                frame.print_raw_with_column(address, name, file, *line, *column)?;
            }
            if functions.is_empty() {
                frame.print_raw(address, None, None, None)?;
            }
        }
        text.finish()
    }
}

debug_struct!(CallStack { addresses });
