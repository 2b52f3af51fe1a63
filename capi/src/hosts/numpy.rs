//! NumPy: a table for `PyDataMem_SetHandler`, in a capsule of the name "mem_handler".
//!
//! | trap of the host | what is done |
//! |---|---|
//! | the sizes that it frees by are not always those that it asked for | each block knows its own |
//! | millions of small allocations | those of less than 4 KiB stay on the heap, for `pinned` |
//! | the table and its name have to live as long as arrays do | they stay for good: one for each kind |

use crate::status::{Failure, Result, aquifer_status};
use crate::table::call;
use aquifer_rs::nep49::{DataHandler, RawDataHandler};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::LazyLock;

/// NumPy's `PyDataMem_Handler`: 168 bytes.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aquifer_numpy_handler {
    /// The handler's name.
    pub name: [c_char; 127],
    /// 1.
    pub version: u8,
    /// What the functions are called with.
    pub ctx: *mut c_void,
    /// As C's.
    pub malloc: Option<unsafe extern "C" fn(ctx: *mut c_void, size: usize) -> *mut c_void>,
    /// As C's.
    pub calloc:
        Option<unsafe extern "C" fn(ctx: *mut c_void, count: usize, size: usize) -> *mut c_void>,
    /// As C's.
    pub realloc: Option<
        unsafe extern "C" fn(ctx: *mut c_void, block: *mut c_void, size: usize) -> *mut c_void,
    >,
    /// As C's, with a size.
    pub free: Option<unsafe extern "C" fn(ctx: *mut c_void, block: *mut c_void, size: usize)>,
}

const _: () = assert!(size_of::<aquifer_numpy_handler>() == size_of::<RawDataHandler>());

/// The handlers that were asked for, by kind: arrays may use them for as long as the process lives.
static MADE: LazyLock<Mutex<HashMap<String, usize>>> = LazyLock::new(Mutex::default);

fn make(kind: &str) -> Result<DataHandler> {
    let number = |text: &str| text.parse::<usize>().ok();
    let made = match kind.split_once(':').map_or((kind, None), |(kind, of)| (kind, number(of))) {
        ("default", None) => DataHandler::default(),
        ("pinned", None) => DataHandler::pinned(),
        ("pinned", Some(bytes)) => DataHandler::pinned_from(bytes),
        ("aligned", Some(alignment)) => DataHandler::aligned(alignment)?,
        ("huge_pages", None) => DataHandler::huge_pages()?,
        ("numa", Some(node)) => DataHandler::numa(u32::try_from(node).unwrap_or(u32::MAX))?,
        _ => {
            let message = format!(
                "{kind:?} is no kind of handler (give default, pinned, pinned:BYTES, aligned:BYTES, huge_pages or \
                 numa:NODE)"
            );
            return Err(Failure::new(aquifer_status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
        }
    };
    Ok(made)
}

/// Fills a handler of a kind: `default`, `pinned`, `pinned:BYTES` (smaller blocks stay on the heap), `aligned:BYTES`,
/// `huge_pages` or `numa:NODE`.
///
/// # Safety
///
/// `kind` is null or a text that ends in a zero; `handler` is null or a place for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_numpy_data_handler(
    kind: *const c_char,
    handler: *mut aquifer_numpy_handler,
) -> aquifer_status {
    call(|| {
        if kind.is_null() || handler.is_null() {
            return Err(Failure::null("the kind or the handler"));
        }
        // SAFETY: the caller's promise.
        let kind = unsafe { CStr::from_ptr(kind) }.to_string_lossy().into_owned();
        let known = MADE.lock().get(&kind).copied();
        let table = match known {
            Some(table) => table,
            None => {
                let made = make(&kind)?.into_raw().as_ptr().expose_provenance();
                *MADE.lock().entry(kind).or_insert(made)
            }
        };
        let table = std::ptr::with_exposed_provenance::<aquifer_numpy_handler>(table);
        // SAFETY: a table of `into_raw`, which stays for good, and has the layout of NumPy's; the caller's place.
        unsafe { handler.write(table.read()) };
        Ok(())
    })
}
