//! Stands in for Nsight: takes the NVTX functions of a program over, and writes what it is called
//! with to the file that `STAND_IN_NVTX_LOG` names. With `STAND_IN_NVTX_NO_RANGES` it takes none. With
//! `STAND_IN_NVTX_MEMORY` it takes those of the memory extension, too, as compute-sanitizer does, and with
//! `STAND_IN_NVTX_NO_HEAPS` besides it refuses each heap.

mod memory;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

const CORE2: c_int = 5;
const RANGE_PUSH: usize = 4;
const RANGE_POP: usize = 5;
const DOMAIN_CREATE: usize = 12;
/// What a domain of this tool looks like.
pub(crate) const DOMAIN: usize = 0x5eed;

/// Whether the first entry was called, in this library as it was loaded.
pub(crate) static SEEN: AtomicBool = AtomicBool::new(false);

type ExportTable = unsafe extern "C" fn(u32) -> *const c_void;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    table: unsafe extern "C" fn(c_int, *mut *mut *mut usize, *mut c_uint) -> c_int,
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

pub(crate) fn say(line: &str) {
    let Some(path) = std::env::var_os("STAND_IN_NVTX_LOG") else { return };
    if let Ok(mut file) = std::fs::File::options().create(true).append(true).open(path) {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

unsafe extern "C" fn domain_create(name: *const c_char) -> usize {
    // SAFETY: NVTX's contract: a string that ends with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    say(&format!("domain {}", name.to_string_lossy()));
    DOMAIN
}

unsafe extern "C" fn range_push(domain: usize, attributes: *const Attributes) -> c_int {
    // SAFETY: NVTX's contract: attributes that live for the call.
    let it = unsafe { &*attributes };
    let whole = it.version == 3 && usize::from(it.size) == size_of::<Attributes>();
    if domain != DOMAIN || !whole || it.message_type != 1 {
        say("wrong attributes");
        return -1;
    }
    // SAFETY: the message is a string that ends with a zero, by its type.
    let message = unsafe { CStr::from_ptr(it.message) };
    say(&format!("push {}", message.to_string_lossy()));
    0
}

unsafe extern "C" fn range_pop(domain: usize) -> c_int {
    say(if domain == DOMAIN { "pop" } else { "wrong domain" });
    0
}

/// The entry that NVTX looks for in the library of a tool.
///
/// # Safety
///
/// `export` is NVTX's `getExportTable`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(export: ExportTable) -> c_int {
    // SAFETY: the caller's promise; 1 is the table of callbacks.
    let callbacks = unsafe { export(1) }.cast::<Callbacks>();
    // SAFETY: null, or a table that lives as long as the program.
    let Some(callbacks) = (unsafe { callbacks.as_ref() }) else { return 0 };
    if callbacks.size < size_of::<Callbacks>() {
        return 0;
    }
    SEEN.store(true, Ordering::Relaxed);
    if std::env::var_os("STAND_IN_NVTX_NO_RANGES").is_some() {
        return 1;
    }
    let (mut table, mut last) = (std::ptr::null_mut(), 0);
    // SAFETY: both places live for the call.
    if unsafe { (callbacks.table)(CORE2, &raw mut table, &raw mut last) } == 0 || last < 15 {
        return 0;
    }
    let functions = [
        (RANGE_PUSH, range_push as *const () as usize),
        (RANGE_POP, range_pop as *const () as usize),
        (DOMAIN_CREATE, domain_create as *const () as usize),
    ];
    for (id, function) in functions {
        // SAFETY: the table has a pointer to a slot for each number up to its last.
        unsafe { **table.add(id) = function };
    }
    1
}
