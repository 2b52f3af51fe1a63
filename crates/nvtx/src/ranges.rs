//! NVTX's domains and ranges.

use super::injection::{ASCII, VERSION, function, library};
use aquifer_sync::LazyLock;
use aquifer_sync::trusted::{AtomicUsize, Ordering};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The number of functions of each `NvtxCallbackModule`. Those for domains are in `CORE2`, 5.
const MODULES: [usize; 7] = [0, 15, 8, 14, 6, 15, 6];
const CORE2: usize = 5;
const RANGE_PUSH: usize = 4;
const RANGE_POP: usize = 5;
const DOMAIN_CREATE: usize = 12;

/// A table's functions have numbers from 1, and a null follows the last one.
const TABLE_LENGTH: usize = 17;

/// The slots that the tool writes the addresses of its functions to.
static FUNCTIONS: [[AtomicUsize; TABLE_LENGTH]; 7] =
    [const { [const { AtomicUsize::new(0) }; TABLE_LENGTH] }; 7];
/// The addresses of the slots, which the tool reads.
static PLACES: [[AtomicUsize; TABLE_LENGTH]; 7] =
    [const { [const { AtomicUsize::new(0) }; TABLE_LENGTH] }; 7];

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    table: unsafe extern "C" fn(c_int, *mut *mut *mut usize, *mut c_uint) -> c_int,
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), table: module_table };

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: unsafe extern "C" fn(u32),
}

static VERSION_INFO: VersionInfo = VersionInfo {
    size: size_of::<VersionInfo>(),
    version: VERSION as u32,
    reserved: 0,
    set_tool_version: ignore,
};

unsafe extern "C" fn ignore(_version: u32) {}

unsafe extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

unsafe extern "C" fn module_table(
    module: c_int,
    table: *mut *mut *mut usize,
    last: *mut c_uint,
) -> c_int {
    let number = usize::try_from(module).unwrap_or(0);
    let (Some(places), Some(functions)) = (PLACES.get(number), MODULES.get(number)) else {
        return 0;
    };
    if *functions == 0 {
        return 0;
    }
    // SAFETY: the tool gives two places to write to, by NVTX's contract; either may be null.
    unsafe {
        if let Some(table) = table.as_mut() {
            *table = (&raw const *places).cast_mut().cast();
        }
        if let Some(last) = last.as_mut() {
            *last = *functions as c_uint + 1;
        }
    }
    1
}

/// `nvtxEventAttributes_v2`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

const _: () = assert!(size_of::<Attributes>() == 48);

type DomainCreate = unsafe extern "C" fn(*const c_char) -> usize;
type RangePush = unsafe extern "C" fn(usize, *const Attributes) -> c_int;
type RangePop = unsafe extern "C" fn(usize) -> c_int;

/// A tool: the domain `aquifer`, and the functions for ranges if the tool has any.
struct RangeTool {
    domain: usize,
    ranges: Option<(RangePush, RangePop)>,
}

/// Loaded at the first use. Without a tool, a range costs a look at this.
static TOOL: LazyLock<Option<RangeTool>> = LazyLock::new(load);

/// Fills in the addresses of each table's slots. Those past its last function stay null.
fn fill() {
    for ((functions, places), count) in FUNCTIONS.iter().zip(&PLACES).zip(MODULES) {
        for (function, place) in functions.iter().zip(places).skip(1).take(count) {
            place.store(function.as_ptr() as usize, Ordering::Relaxed);
        }
    }
}

fn load() -> Option<RangeTool> {
    fill();
    let library = library()?;
    type Initialize = unsafe extern "C" fn(unsafe extern "C" fn(u32) -> *const c_void) -> c_int;
    // SAFETY: the name and type of the entry, by NVTX's contract.
    let initialize = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") }.ok()?;
    // SAFETY: the function hands out tables that live as long as the program.
    if unsafe { initialize(export_table) } == 0 {
        return None;
    }
    // From here on the tool may have threads, and functions in tables.
    std::mem::forget(library);
    let core2 = &FUNCTIONS[CORE2];
    // SAFETY: the types of these functions, by NVTX's contract.
    let (create, push, pop) = unsafe {
        let create = function::<DomainCreate>(&core2[DOMAIN_CREATE])?;
        let push = function::<RangePush>(&core2[RANGE_PUSH]);
        (create, push, function::<RangePop>(&core2[RANGE_POP]))
    };
    // SAFETY: a string that ends with a zero.
    let domain = unsafe { create(c"aquifer".as_ptr()) };
    Some(RangeTool { domain, ranges: push.zip(pop) })
}

/// The domain `aquifer`. 0, which is no domain, if the tool has none.
pub(super) fn domain() -> usize {
    TOOL.as_ref().map_or(0, |tool| tool.domain)
}

/// A range of the calling thread, in the tool's domain, which ends when this is dropped.
pub struct Range(Option<(usize, RangePop)>);

/// Begins a range in the domain `aquifer`, if there is a tool. Its payload is `bytes`.
pub fn range(name: &'static CStr, bytes: usize) -> Range {
    const UNSIGNED: i32 = 1;
    let Some(&RangeTool { domain, ranges: Some((push, pop)) }) = TOOL.as_ref() else {
        return Range(None);
    };
    let attributes = Attributes {
        version: VERSION,
        size: size_of::<Attributes>() as u16,
        category: 0,
        color_type: 0,
        color: 0,
        payload_type: UNSIGNED,
        reserved: 0,
        payload: bytes as u64,
        message_type: ASCII,
        message: name.as_ptr(),
    };
    // SAFETY: attributes of the version that they name, which live for the call.
    unsafe { push(domain, &raw const attributes) };
    Range(Some((domain, pop)))
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some((domain, pop)) = self.0 {
            // SAFETY: the tool's own domain; the range was begun on this thread.
            unsafe { pop(domain) };
        }
    }
}

#[cfg(test)]
mod tests;
