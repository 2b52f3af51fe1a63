//! NumPy's data handler (NEP 49): large arrays in page-locked memory, small ones where NumPy has them anyway.
//!
//! | trap of the host | what is done |
//! |---|---|
//! | it frees by sizes that are not always those that it asked for | `BLOCKS` knows the page-locked ones by address |
//! | millions of small allocations | they go to NumPy's own handler, with its cache |
//! | arrays use the handler for as long as they live, and interpreters end before | a handler stays for good, one for each kind |
//!
//! | word | what it guards or says | who writes it |
//! | --- | --- | --- |
//! | `BLOCKS` | the page-locked blocks, by address, in parts with a lock each | threads that allocate and free them |
//! | `LOWEST`, `HIGHEST` | addresses between which all of them lie, and ever lay | threads that allocate them |

use crate::error::{Raised, Result};
use aquifer_rs::PinnedAlloc;
use aquifer_rs::allocator_api2::alloc::{Allocator, Layout};
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The name that a capsule of a handler has.
const CAPSULE: &CStr = c"mem_handler";

/// Numbers in NumPy's table of functions, `_ARRAY_API`.
const SET_HANDLER: usize = 304;
const DEFAULT_HANDLER: usize = 306;

/// NumPy's arrays are at home in vectors' alignment.
const ALIGNMENT: usize = 64;

/// `PyDataMemAllocator`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Functions {
    ctx: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// `PyDataMem_Handler`.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    functions: Functions,
}

/// What a handler's functions are called with.
struct Context {
    /// NumPy's own.
    small: Functions,
    /// The size from which memory is page-locked.
    from: usize,
}

const PARTS: usize = 64;

static BLOCKS: LazyLock<[Mutex<HashMap<usize, usize>>; PARTS]> =
    LazyLock::new(|| std::array::from_fn(|_| Mutex::default()));

static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

fn part(address: usize) -> &'static Mutex<HashMap<usize, usize>> {
    &BLOCKS[(address >> 16) % PARTS]
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGNMENT).ok()
}

/// A page-locked block. Null where there is none, which NumPy takes for a `MemoryError`.
fn allocate(bytes: usize) -> *mut c_void {
    let allocated = catch_unwind(|| PinnedAlloc.allocate(layout(bytes)?).ok()).ok().flatten();
    let Some(block) = allocated else { return std::ptr::null_mut() };
    let block = block.cast::<u8>();
    let address = block.as_ptr().addr();
    LOWEST.fetch_min(address, Ordering::Relaxed);
    HIGHEST.fetch_max(address, Ordering::Relaxed);
    part(address).lock().insert(address, bytes);
    block.as_ptr().cast()
}

/// The size of a page-locked block, which is one no more. `None` of any other pointer.
fn take(block: *mut c_void) -> Option<usize> {
    let address = block.addr();
    // Relaxed: whoever has the block was told of it after these were written.
    let may_be =
        LOWEST.load(Ordering::Relaxed) <= address && address <= HIGHEST.load(Ordering::Relaxed);
    if may_be { part(address).lock().remove(&address) } else { None }
}

/// # Safety
///
/// A block of [`allocate`] of this size, which [`take`] gave.
unsafe fn free_taken(block: *mut c_void, bytes: usize) {
    let free = || {
        if let (Some(block), Some(layout)) = (NonNull::new(block.cast()), layout(bytes)) {
            // SAFETY: the caller's promise.
            unsafe { PinnedAlloc.deallocate(block, layout) }
        }
    };
    let _ = catch_unwind(AssertUnwindSafe(free));
}

/// # Safety
///
/// Of a handler's functions: the pointer is that of its [`Context`], which stays for good.
unsafe fn context<'a>(ctx: *mut c_void) -> &'a Context {
    // SAFETY: the caller's promise.
    unsafe { &*ctx.cast::<Context>() }
}

unsafe extern "C" fn malloc(ctx: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: NumPy calls with the handler's own pointers.
    unsafe {
        let context = context(ctx);
        match bytes < context.from {
            true => (context.small.malloc)(context.small.ctx, bytes),
            false => allocate(bytes),
        }
    }
}

unsafe extern "C" fn calloc(ctx: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // SAFETY: as `malloc`.
    let context = unsafe { context(ctx) };
    let Some(bytes) = count.checked_mul(size) else { return std::ptr::null_mut() };
    if bytes < context.from {
        // SAFETY: as `malloc`.
        return unsafe { (context.small.calloc)(context.small.ctx, count, size) };
    }
    let block = allocate(bytes);
    if !block.is_null() {
        // SAFETY: a new block of so many bytes.
        unsafe { block.cast::<u8>().write_bytes(0, bytes) };
    }
    block
}

unsafe extern "C" fn realloc(ctx: *mut c_void, block: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: as `malloc`.
    let context = unsafe { context(ctx) };
    let address = block.addr();
    let known = (!block.is_null()).then(|| part(address).lock().get(&address).copied()).flatten();
    let Some(before) = known else {
        // NumPy's own, which stays there, whatever its size becomes.
        // SAFETY: as `malloc`.
        return unsafe { (context.small.realloc)(context.small.ctx, block, bytes) };
    };
    // SAFETY: as `malloc`.
    let moved = unsafe { malloc(ctx, bytes) };
    if !moved.is_null() {
        // SAFETY: both hold as many bytes, and do not overlap; the old block is NumPy's no more.
        unsafe {
            moved.cast::<u8>().copy_from_nonoverlapping(block.cast(), before.min(bytes));
            free(ctx, block, before);
        }
    }
    moved
}

unsafe extern "C" fn free(ctx: *mut c_void, block: *mut c_void, bytes: usize) {
    // SAFETY: as `malloc`; a block of this handler or of NumPy's own.
    unsafe {
        match take(block) {
            Some(bytes) => free_taken(block, bytes),
            None => {
                let context = context(ctx);
                (context.small.free)(context.small.ctx, block, bytes)
            }
        }
    }
}

/// The handlers that were asked for, by the size from which they page-lock.
static MADE: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

/// NumPy's table of functions.
fn array_api(py: Python<'_>) -> Result<*const *const c_void> {
    let module = py
        .import("numpy._core._multiarray_umath")
        .or_else(|_| py.import("numpy.core._multiarray_umath"))?;
    let capsule = module.getattr("_ARRAY_API")?;
    // SAFETY: a capsule without a name; the thread is attached.
    let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
    if table.is_null() {
        return Err(PyErr::fetch(py).into());
    }
    Ok(table.cast())
}

/// A capsule of the handler that page-locks arrays of `from` bytes and more.
#[pyfunction]
#[pyo3(signature = (from_bytes))]
pub(crate) fn numpy_data_handler(py: Python<'_>, from_bytes: usize) -> PyResult<Py<PyAny>> {
    let table = array_api(py)?;
    // SAFETY: NumPy's table has at this number the capsule of its own handler.
    let own = unsafe {
        let own = (*table.add(DEFAULT_HANDLER)).cast_mut().cast::<*mut ffi::PyObject>();
        ffi::PyCapsule_GetPointer(*own, CAPSULE.as_ptr()).cast::<Handler>()
    };
    if own.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a handler of NumPy's, which stays for good.
    let own = unsafe { &*own };
    if own.version != 1 {
        let message = format!("NumPy's handlers have version {}, and 1 is known", own.version);
        return Err(PyRuntimeError::new_err(message));
    }
    if from_bytes == 0 {
        return Err(PyValueError::new_err(
            "arrays of 0 bytes cannot be page-locked (give 1 or more)",
        ));
    }
    let made = *MADE.lock().entry(from_bytes).or_insert_with(|| {
        let context = Box::new(Context { small: own.functions, from: from_bytes });
        let ctx = Box::into_raw(context).cast();
        let functions = Functions { ctx, malloc, calloc, realloc, free };
        let mut name = [0; 127];
        for (to, from) in name.iter_mut().zip(b"aquifer_pinned") {
            *to = *from as c_char;
        }
        Box::into_raw(Box::new(Handler { name, version: 1, functions })).expose_provenance()
    });
    let made = std::ptr::with_exposed_provenance_mut(made);
    // SAFETY: a handler that stays for good, under a name that does; the thread is attached.
    let capsule = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(made, CAPSULE.as_ptr(), None))
    };
    Ok(capsule?.unbind())
}

/// Sets the handler of the context by a capsule, and returns the one before. None sets NumPy's own.
#[pyfunction]
#[pyo3(signature = (handler))]
pub(crate) fn numpy_set_handler(
    py: Python<'_>,
    handler: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    type Set = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
    let table = array_api(py)?;
    let handler = handler.map_or(std::ptr::null_mut(), Bound::as_ptr);
    // SAFETY: NumPy's table has this function at this number; it refuses what is no such capsule. The thread is attached.
    let before = unsafe {
        let set = std::mem::transmute::<*const c_void, Set>(*table.add(SET_HANDLER));
        Bound::from_owned_ptr_or_err(py, set(handler))
    };
    Ok(before.map_err(Raised::from)?.unbind())
}

/// How many page-locked blocks arrays have, and their bytes.
#[pyfunction]
pub(crate) fn numpy_page_locked_blocks() -> (usize, usize) {
    BLOCKS.iter().fold((0, 0), |(blocks, bytes), part| {
        let part = part.lock();
        (blocks + part.len(), bytes + part.values().sum::<usize>())
    })
}
