//! Who called: addresses that were noted, and looked up when somebody asks.

use crate::sync::Arc;
use backtrace::{BacktraceFmt, BytesOrWideString, Frame, PrintFmt, SymbolName};
use std::ffi::c_void;
use std::{env, fmt};

/// Frames that are noted, the innermost ones.
const MOST: usize = 128;

/// The functions that were on the stack when a block was allocated, as
/// [`Allocation::backtrace`](crate::Allocation::backtrace) has it.
///
/// Addresses alone, of 128 frames at most, the innermost ones: to print it reads debug information,
/// which takes milliseconds. The printed form is the short one of [`std::backtrace::Backtrace`].
///
/// RMM: `rmm::detail::stack_trace`, of 64 frames, without lines.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, TrackingAdaptor};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let tracking = TrackingAdaptor::builder(CudaResource::new(&device)).capture_backtraces(true);
/// let tracking = tracking.build();
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, Arc::new(tracking.clone()))?;
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
    /// That of the calling thread now. Looks nothing up.
    pub(super) fn capture() -> Self {
        let (mut found, mut count) = ([0; MOST], 0);
        let each = |frame: &Frame| match found.get_mut(count) {
            // The outermost may be followed by nothing.
            Some(place) if !frame.ip().is_null() => {
                (*place, count) = (frame.ip() as usize, count + 1);
                true
            }
            _ => false,
        };
        // The lock of `trace` is poisoned for good by whoever panics while a stack is looked up.
        #[cfg(unix)]
        // SAFETY: Windows' unwinder alone wants the lock; the system's here takes threads as they come.
        unsafe {
            backtrace::trace_unsynchronized(each);
        }
        #[cfg(not(unix))]
        backtrace::trace(each);
        Self { addresses: found.iter().take(count).copied().collect() }
    }

    /// Where each function goes on when the one before it returns, the innermost first.
    pub fn addresses(&self) -> &[usize] {
        &self.addresses
    }
}

/// What debug information has of a function that an address is in.
struct Function {
    name: Option<Vec<u8>>,
    file: Option<String>,
    line: Option<u32>,
    column: Option<u32>,
}

/// The functions that an address is in, those that were inlined too. Copies: they are found under a
/// lock, where nobody else's code may run, and whoever writes them down may run any.
fn look_up(address: *mut c_void) -> Vec<Function> {
    let mut functions = Vec::new();
    backtrace::resolve(address, |symbol| {
        functions.push(Function {
            name: symbol.name().map(|name| name.as_bytes().to_vec()),
            file: symbol.filename().map(|file| file.to_string_lossy().into_owned()),
            line: symbol.lineno(),
            column: symbol.colno(),
        });
    });
    functions
}

/// Each function, and the line in it where the program has debug information.
impl fmt::Display for CallStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = env::current_dir().ok();
        let mut path = move |f: &mut fmt::Formatter<'_>, file: BytesOrWideString<'_>| {
            let file = file.into_path_buf();
            match folder.as_ref().and_then(|folder| file.strip_prefix(folder).ok()) {
                Some(below) => write!(f, "./{}", below.display()),
                None => write!(f, "{}", file.display()),
            }
        };
        let mut text = BacktraceFmt::new(f, PrintFmt::Short, &mut path);
        text.add_context()?;
        for address in &*self.addresses {
            let address = *address as *mut c_void;
            let mut frame = text.frame();
            let functions = look_up(address);
            for Function { name, file, line, column } in &functions {
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

impl fmt::Debug for CallStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallStack").field("addresses", &self.addresses).finish()
    }
}
