//! NumPy's data handler (NEP 49): large arrays in page-locked memory, small ones where NumPy has them anyway.
//!
//! | trap of the host | what is done |
//! |---|---|
//! | it frees by sizes that are not always those that it asked for | `page_locked` knows the page-locked ones by address |
//! | millions of small allocations | they go to NumPy's own handler, with its cache |
//! | a block grows without a word of its old size | one of NumPy's own grows there, and moves then |
//! | arrays use the handler for as long as they live, and interpreters end before | a handler stays for good, one for each kind |
//! | a worker process is a fork, where no device is | its new arrays are NumPy's own |

use crate::error::{Raised, Result};
use crate::interpreter::{argument, detach, guard_thread};
use crate::page_locked;
use aquifer_capi::{aquifer_status, embedded};
use aquifer_rs::allocator_api2::alloc::{Allocator, Layout};
use aquifer_rs::{ErrorKind, pinned::PinnedPool};
use parking_lot::Mutex;
use pyo3::exceptions::{PyModuleNotFoundError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};

/// The name that a capsule of a handler has.
const CAPSULE: &CStr = c"mem_handler";

/// Numbers in NumPy's table of functions, `_ARRAY_API`.
const FEATURE_VERSION: usize = 211;
const SET_HANDLER: usize = 304;
const DEFAULT_HANDLER: usize = 306;

/// `NPY_1_22_API_VERSION`: the first table that has the handlers.
const WITH_HANDLERS: c_uint = 0xf;

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
    /// The size from which zeros are NumPy's own: of those the system gives a page when it is first touched.
    zeros_from: usize,
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGNMENT).ok()
}

/// Where arrays come from: known with the first handler.
static POOL: OnceLock<&'static PinnedPool> = OnceLock::new();

fn make_pool(py: Python<'_>) -> Result<()> {
    if POOL.get().is_none() {
        match detach(py, embedded::host_pool) {
            // In the child of a fork arrays are NumPy's own.
            Err(failure) if failure.status() == aquifer_status::AQUIFER_ERROR_FORKED => {}
            pool => {
                let _ = POOL.set(pool?);
            }
        }
    }
    Ok(())
}

/// A block of page-locked memory, if there is room.
fn allocate(bytes: usize) -> Option<*mut c_void> {
    let allocated = catch_unwind(|| POOL.get()?.allocate(layout(bytes)?).ok());
    let block = allocated.ok().flatten()?.cast::<u8>().as_ptr();
    page_locked::insert(block.addr(), bytes);
    Some(block.cast())
}

/// Whether [`allocate`] has refused since the process is a fork of one that had a device.
static IS_FORK: AtomicBool = AtomicBool::new(false);

/// Whether the thread's last [`allocate`] refused for that.
#[cold]
fn is_fork() -> bool {
    let error = catch_unwind(aquifer_rs::pinned::last_error).ok().flatten();
    let is_fork = error.is_some_and(|error| error.kind() == ErrorKind::Forked);
    IS_FORK.fetch_or(is_fork, Ordering::Relaxed);
    is_fork
}

impl Context {
    /// Whether memory of so many bytes is to be page-locked.
    fn page_locks(&self, bytes: usize) -> bool {
        bytes >= self.from && !IS_FORK.load(Ordering::Relaxed) && POOL.get().is_some()
    }
}

/// # Safety
///
/// A block of [`allocate`] of this size, which `page_locked` has no more.
unsafe fn free_taken(block: *mut c_void, bytes: usize) {
    let free = || {
        let parts = (POOL.get(), NonNull::new(block.cast()), layout(bytes));
        if let (Some(pool), Some(block), Some(layout)) = parts {
            // SAFETY: the caller's promise.
            unsafe { pool.deallocate(block, layout) }
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

// Null is what NumPy takes for a `MemoryError`.

unsafe extern "C" fn malloc(ctx: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: NumPy calls with the handler's own pointers.
    let context = unsafe { context(ctx) };
    if context.page_locks(bytes) {
        match allocate(bytes) {
            Some(block) => return block,
            None if !is_fork() => return std::ptr::null_mut(),
            None => {}
        }
    }
    // SAFETY: as above.
    unsafe { (context.small.malloc)(context.small.ctx, bytes) }
}

unsafe extern "C" fn calloc(ctx: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // SAFETY: as `malloc`.
    let context = unsafe { context(ctx) };
    let Some(bytes) = count.checked_mul(size) else { return std::ptr::null_mut() };
    if bytes < context.zeros_from && context.page_locks(bytes) {
        match allocate(bytes) {
            Some(block) => {
                // SAFETY: a new block of so many bytes.
                unsafe { block.cast::<u8>().write_bytes(0, bytes) };
                return block;
            }
            None if !is_fork() => return std::ptr::null_mut(),
            None => {}
        }
    }
    // SAFETY: as `malloc`.
    unsafe { (context.small.calloc)(context.small.ctx, count, size) }
}

/// Null leaves the old block as it was.
unsafe extern "C" fn realloc(ctx: *mut c_void, block: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: as `malloc`.
    let context = unsafe { context(ctx) };
    let Some(before) = page_locked::size(block.addr()) else {
        // SAFETY: as `malloc`; not page-locked, so NumPy's own.
        return unsafe { grow_small(context, block, bytes) };
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

/// Of a block of NumPy's own, whose size nobody tells: it grows where it is, and moves if it has grown to the size from
/// which memory is page-locked.
///
/// # Safety
///
/// Of [`realloc`], for what is not page-locked.
unsafe fn grow_small(context: &Context, block: *mut c_void, bytes: usize) -> *mut c_void {
    let small = &context.small;
    // First, as a block that has grown cannot be as it was.
    let target = match context.page_locks(bytes).then(|| allocate(bytes)) {
        Some(None) if !is_fork() => return std::ptr::null_mut(),
        target => target.flatten(),
    };
    // SAFETY: the caller's promise.
    let grown = unsafe { (small.realloc)(small.ctx, block, bytes) };
    let Some(target) = target else { return grown };
    if grown.is_null() {
        if let Some(bytes) = page_locked::remove(target.addr()) {
            // SAFETY: allocated above, and taken now.
            unsafe { free_taken(target, bytes) };
        }
        return std::ptr::null_mut();
    }
    // SAFETY: both hold so many bytes, and do not overlap; the grown block is this function's alone.
    unsafe {
        target.cast::<u8>().copy_from_nonoverlapping(grown.cast(), bytes);
        (small.free)(small.ctx, grown, bytes);
    }
    target
}

unsafe extern "C" fn free(ctx: *mut c_void, block: *mut c_void, bytes: usize) {
    // SAFETY: as `malloc`; a block of this handler or of NumPy's own.
    unsafe {
        match page_locked::remove(block.addr()) {
            Some(bytes) => free_taken(block, bytes),
            None => {
                let small = &context(ctx).small;
                (small.free)(small.ctx, block, bytes)
            }
        }
    }
}

/// The handlers that were asked for, by the sizes from which they page-lock, and from which they do not lock zeros.
static MADE: LazyLock<Mutex<HashMap<(usize, usize), usize>>> = LazyLock::new(Mutex::default);

/// NumPy, which need not be installed. The error without it says what wants it, and the extra that brings it.
pub(crate) fn import<'py>(py: Python<'py>, wanted_by: &str) -> PyResult<Bound<'py, PyModule>> {
    guard_thread();
    py.import("numpy").map_err(|error| {
        let names_numpy = |it: Bound<'_, PyAny>| it.extract().is_ok_and(|name: &str| name == "numpy");
        let is_missing = error.is_instance_of::<PyModuleNotFoundError>(py)
            && error.value(py).getattr("name").is_ok_and(names_numpy);
        // One that is there and fails says why itself.
        if !is_missing {
            return error;
        }
        let message = format!(
            "{wanted_by} needs NumPy, which is not installed (run pip install 'aquifer-cuda[numpy]')"
        );
        let made = PyModuleNotFoundError::new_err(message);
        // As the import's own error has it.
        match made.value(py).setattr("name", "numpy") {
            Ok(()) => made,
            Err(failed) => failed,
        }
    })
}

type FeatureVersion = unsafe extern "C" fn() -> c_uint;

/// NumPy's table of functions, which has those of handlers.
fn array_api(py: Python<'_>) -> Result<*const *const c_void> {
    import(py, "numpy_handler()")?;
    let module = py
        .import("numpy._core._multiarray_umath")
        .or_else(|_| py.import("numpy.core._multiarray_umath"))?;
    let capsule = module.getattr("_ARRAY_API")?;
    // SAFETY: a capsule without a name; the thread is attached.
    let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
    if table.is_null() {
        return Err(PyErr::fetch(py).into());
    }
    let table = table.cast::<*const c_void>();
    // SAFETY: all tables since version 1.4 have this function at this number.
    let version = unsafe {
        let version =
            std::mem::transmute::<*const c_void, FeatureVersion>(*table.add(FEATURE_VERSION));
        version()
    };
    if version < WITH_HANDLERS {
        let message = "this NumPy has no handlers of memory (install version 1.22 or later)";
        return Err(PyRuntimeError::new_err(message).into());
    }
    Ok(table)
}

/// A capsule of the handler that page-locks arrays of `from_bytes` and more, but for zeros of `zeros_from` and more.
#[pyfunction]
#[pyo3(signature = (from_bytes, zeros_from))]
pub(crate) fn numpy_data_handler(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] from_bytes: usize,
    #[pyo3(from_py_with = argument)] zeros_from: usize,
) -> PyResult<Py<PyAny>> {
    let table = array_api(py)?;
    make_pool(py)?;
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
    let made = *MADE.lock().entry((from_bytes, zeros_from)).or_insert_with(|| {
        let context = Box::new(Context { small: own.functions, from: from_bytes, zeros_from });
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
    // SAFETY: an object; the thread is attached.
    let is_one = |it: &Bound<'_, PyAny>| unsafe {
        ffi::PyCapsule_IsValid(it.as_ptr(), CAPSULE.as_ptr()) != 0
    };
    // NumPy 1.26 takes any object.
    if handler.is_some_and(|handler| !is_one(handler)) {
        return Err(PyValueError::new_err("a capsule of a handler of NumPy was expected"));
    }
    let handler = handler.map_or(std::ptr::null_mut(), Bound::as_ptr);
    // SAFETY: NumPy's table has this function at this number. The thread is attached.
    let before = unsafe {
        let set = std::mem::transmute::<*const c_void, Set>(*table.add(SET_HANDLER));
        Bound::from_owned_ptr_or_err(py, set(handler))
    };
    Ok(before.map_err(Raised::from)?.unbind())
}

/// How many page-locked blocks arrays have, and their bytes.
#[pyfunction]
pub(crate) fn numpy_page_locked_blocks() -> (usize, usize) {
    guard_thread();
    page_locked::blocks_and_bytes()
}
