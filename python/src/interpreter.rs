//! The gate that all calls into the interpreter pass.
//!
//! CPython before 3.14 ends a daemon thread by `pthread_exit` when the thread takes the interpreter while that is ending: as
//! it comes, as it returns, and in the middle of a function of Python. glibc unwinds the stack then, which aborts the
//! process at the first frame of Rust. A thread that has passed the gate stops for good instead, as CPython 3.14 has it.
//!
//! The gate gives the C library a handler for the thread's end. glibc calls the handlers of a frame before it unwinds that
//! frame, and tells by the address of a handler's buffer which frame it is of. A buffer outside of the stack is of the
//! innermost one: its handler runs before any frame is unwound, whoever called the interpreter. musl unwinds nothing, and
//! calls the handlers first, too.

use pyo3::prelude::*;
use std::ops::Deref;

#[cfg(target_os = "linux")]
mod handler {
    use libc::{Dl_info, pthread_key_t};
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::ptr::{null, null_mut};
    use std::sync::OnceLock;

    /// `_pthread_cleanup_buffer` of glibc, and `__ptcb` of musl, which is smaller.
    type Buffer = [MaybeUninit<usize>; 4];

    type Visit = extern "C" fn(*mut c_void, *mut Walk) -> c_int;

    unsafe extern "C" {
        fn _pthread_cleanup_push(
            buffer: *mut Buffer,
            handler: extern "C" fn(*mut c_void),
            argument: *mut c_void,
        );
        fn _pthread_cleanup_pop(buffer: *mut Buffer, is_run: c_int);
        fn _Unwind_Backtrace(visit: Visit, walk: *mut Walk) -> c_int;
        fn _Unwind_GetIP(frame: *mut c_void) -> usize;
    }

    /// The buffer of each thread that has a handler. Its end comes after those of the thread's other values, which may call
    /// the interpreter. `None` in a process that has no room for a key.
    static KEY: OnceLock<Option<pthread_key_t>> = OnceLock::new();

    fn key() -> Option<pthread_key_t> {
        *KEY.get_or_init(|| {
            let mut key = 0;
            // SAFETY: a place for a key, and a function that takes the key's values.
            let made = unsafe { libc::pthread_key_create(&raw mut key, Some(take)) };
            (made == 0).then_some(key)
        })
    }

    /// Gives the thread its handler, unless it has one.
    #[inline]
    pub(super) fn set() {
        let Some(key) = key() else { return };
        // SAFETY: a key of this file.
        if unsafe { libc::pthread_getspecific(key) }.is_null() {
            set_first(key);
        }
    }

    #[cold]
    fn set_first(key: pthread_key_t) {
        // Not on the stack, and not in the thread's static data, which glibc has above the stack: see the file's head.
        let buffer = Box::into_raw(Box::new([MaybeUninit::uninit(); 4]));
        // SAFETY: the buffer stays until `take`, which takes it from the C library's list.
        unsafe {
            if libc::pthread_setspecific(key, buffer.cast()) == 0 {
                _pthread_cleanup_push(buffer, at_exit, null_mut());
            } else {
                drop(Box::from_raw(buffer));
            }
        }
    }

    /// Of a thread's end, whose frames are gone.
    unsafe extern "C" fn take(buffer: *mut c_void) {
        let buffer = buffer.cast::<Buffer>();
        // SAFETY: a buffer of `set_first`. It is the last of the list, or the list is empty: the thread has no frames of others.
        unsafe {
            _pthread_cleanup_pop(buffer, 0);
            drop(Box::from_raw(buffer));
        }
    }

    /// Stops the thread, if it has frames of this library. Otherwise it goes on to its end.
    extern "C" fn at_exit(_: *mut c_void) {
        let mut walk =
            Walk { library: library_of(at_exit as *const ()), has_left: false, found: false };
        // SAFETY: the walk lives as long as the call.
        unsafe { _Unwind_Backtrace(visit, &raw mut walk) };
        if walk.found {
            loop {
                // SAFETY: it waits for a signal.
                unsafe { libc::pause() };
            }
        }
    }

    #[repr(C)]
    struct Walk {
        library: *mut c_void,
        /// It is past this file's own frames.
        has_left: bool,
        found: bool,
    }

    extern "C" fn visit(frame: *mut c_void, walk: *mut Walk) -> c_int {
        // SAFETY: the frame and the walk of `_Unwind_Backtrace`.
        let (walk, address) = unsafe { (&mut *walk, _Unwind_GetIP(frame)) };
        let is_own = library_of(std::ptr::without_provenance(address)) == walk.library;
        walk.found = is_own && walk.has_left;
        walk.has_left |= !is_own;
        // Any code but 0 ends the walk.
        c_int::from(walk.found)
    }

    /// Where the library begins that has an address. Null without one.
    fn library_of(address: *const ()) -> *mut c_void {
        let mut found = Dl_info {
            dli_fname: null(),
            dli_fbase: null_mut(),
            dli_sname: null(),
            dli_saddr: null_mut(),
        };
        // SAFETY: any address may be asked for; a place for the answer.
        unsafe { libc::dladdr(address.cast(), &raw mut found) };
        found.dli_fbase
    }
}

/// Has the thread stop for good where it would be unwound through frames of this library. For functions that call the
/// interpreter before they pass the gate otherwise; making a container is such a call, as it may collect garbage.
#[inline]
pub(crate) fn guard_thread() {
    #[cfg(target_os = "linux")]
    handler::set();
}

/// Calls with the interpreter. `None` without one, and when it is ending.
#[allow(clippy::disallowed_methods)]
pub(crate) fn try_attach<T>(call: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    guard_thread();
    Python::try_attach(call)
}

/// Calls without the interpreter.
#[allow(clippy::disallowed_methods)]
pub(crate) fn detach<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    guard_thread();
    py.detach(call)
}

/// An object whose end, which may call a function of Python, is on the thread that ends it. PyO3 leaves the end of one without
/// the interpreter to the next thread that calls, before that thread can pass the gate. No lock that an attached thread takes
/// is held where it ends.
pub(crate) struct Attached<T>(Option<Py<T>>);

impl<T> Attached<T> {
    pub(crate) fn new(object: Py<T>) -> Self {
        Self(Some(object))
    }
}

impl<T> Deref for Attached<T> {
    type Target = Py<T>;

    fn deref(&self) -> &Py<T> {
        self.0.as_ref().unwrap_or_else(|| unreachable!("it is there until its drop"))
    }
}

impl<T> Drop for Attached<T> {
    fn drop(&mut self) {
        let object = self.0.take();
        // Without an interpreter it is left to PyO3.
        try_attach(|_| drop(object));
    }
}

/// The value of an argument whose object may have a method for that.
pub(crate) fn argument<'py, T>(object: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    guard_thread();
    object.extract().map_err(Into::into)
}
