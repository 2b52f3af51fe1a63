//! The part that the handles on one handler share, and C functions over the functions of a handler in Rust.

use super::functions::{HandlerFunctions, call, call_free};
use super::inside::Inside;
use super::raw::{RawDataAllocator, RawDataHandler};
use crate::error::{Error, ErrorKind, Result, catch_panic};
use crate::impls::Count;
use crate::inside::allocator::catch_panic_and_error;
use crate::sync::{Arc, Weak};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};

/// A handler. `raw` is first, so that a pointer to it is one to the whole.
///
/// INV-1: `raw` has the functions below, and the address of this as their context, or those of `CFunctions`,
/// and their own context.
#[repr(C)]
pub(super) struct SharedHandler {
    pub(super) raw: RawDataHandler,
    pub(super) name: String,
    /// The alignment of every block.
    pub(super) alignment: usize,
    functions: ManuallyDrop<Functions>,
}

enum Functions {
    Rust(Box<dyn HandlerFunctions>),
    C(CFunctions),
}

/// The functions of a table that has all of them.
struct CFunctions {
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
    /// The owner is only dropped.
    _owner: Box<dyn Send>,
}

// SAFETY: `HandlerFunctions` are Send and Sync; a table of C functions is by the promise of `of_c`, and its
// owner, which is Send, is not touched until it is dropped.
unsafe impl Send for SharedHandler {}
// SAFETY: as above.
unsafe impl Sync for SharedHandler {}

impl Drop for SharedHandler {
    fn drop(&mut self) {
        // The code of others: its panic would leave a destructor of a container.
        // SAFETY: dropped here alone.
        let _ = catch_panic(|| unsafe { ManuallyDrop::drop(&mut self.functions) });
    }
}

impl SharedHandler {
    /// A handler of functions in Rust. The name is known to be right.
    pub(super) fn of_rust(
        name: String,
        functions: Box<dyn HandlerFunctions>,
        alignment: usize,
    ) -> Arc<Self> {
        let functions = ManuallyDrop::new(Functions::Rust(functions));
        Arc::new_cyclic(|this: &Weak<Self>| {
            let table = RawDataAllocator {
                ctx: this.as_ptr().cast_mut().cast(),
                malloc: Some(malloc),
                calloc: Some(calloc),
                realloc: Some(realloc),
                free: Some(free),
            };
            Self { raw: RawDataHandler::of_known(&name, table), name, alignment, functions }
        })
    }

    /// The handler of a C program.
    ///
    /// # Safety
    ///
    /// The conditions of [`DataHandler::from_raw`](crate::nep49::DataHandler::from_raw) hold,
    /// and the name is that of `raw`.
    pub(super) unsafe fn of_c(
        raw: RawDataHandler,
        name: String,
        alignment: usize,
        owner: Box<dyn Send>,
    ) -> Result<Arc<Self>> {
        let RawDataAllocator { malloc, calloc, realloc, free, .. } = raw.allocator;
        let functions = CFunctions {
            malloc: malloc.ok_or_else(|| missing(&name, "malloc"))?,
            calloc: calloc.ok_or_else(|| missing(&name, "calloc"))?,
            realloc: realloc.ok_or_else(|| missing(&name, "realloc"))?,
            free: free.ok_or_else(|| missing(&name, "free"))?,
            _owner: owner,
        };
        let functions = ManuallyDrop::new(Functions::C(functions));
        Ok(Arc::new(Self { raw, name, alignment, functions }))
    }

    /// A block of `bytes` bytes.
    pub(super) fn malloc(&self, bytes: usize) -> Result<NonNull<u8>> {
        match &*self.functions {
            Functions::Rust(functions) => self.call("malloc", || functions.malloc(bytes)),
            Functions::C(c) => {
                let _inside = Inside::enter();
                // SAFETY: the promise of `of_c`, whose owner lives.
                let block = unsafe { (c.malloc)(self.ctx(), bytes) };
                self.or_error(block, "malloc", bytes)
            }
        }
    }

    /// A block of `count` elements of `bytes` bytes each, all zero.
    pub(super) fn calloc(&self, count: usize, bytes: usize) -> Result<NonNull<u8>> {
        match &*self.functions {
            Functions::Rust(functions) => self.call("calloc", || functions.calloc(count, bytes)),
            Functions::C(c) => {
                let _inside = Inside::enter();
                // SAFETY: as in `malloc`.
                let block = unsafe { (c.calloc)(self.ctx(), count, bytes) };
                self.or_error(block, "calloc", count.saturating_mul(bytes))
            }
        }
    }

    /// # Safety
    ///
    /// The conditions of [`HandlerFunctions::realloc`] hold.
    pub(super) unsafe fn realloc(&self, block: NonNull<u8>, bytes: usize) -> Result<NonNull<u8>> {
        match &*self.functions {
            Functions::Rust(functions) => {
                // SAFETY: the caller's promise.
                self.call("realloc", || unsafe { functions.realloc(block, bytes) })
            }
            Functions::C(c) => {
                let _inside = Inside::enter();
                // SAFETY: as in `malloc`, and the caller's promise.
                let block = unsafe { (c.realloc)(self.ctx(), block.as_ptr().cast(), bytes) };
                self.or_error(block, "realloc", bytes)
            }
        }
    }

    /// # Safety
    ///
    /// The conditions of [`HandlerFunctions::free`] hold.
    pub(super) unsafe fn free(&self, block: NonNull<u8>, bytes: usize) {
        match &*self.functions {
            Functions::Rust(functions) => {
                // SAFETY: the caller's promise.
                call_free(&self.name, || unsafe { functions.free(block, bytes) });
            }
            Functions::C(c) => {
                let _inside = Inside::enter();
                // SAFETY: as in `malloc`, and the caller's promise.
                unsafe { (c.free)(self.ctx(), block.as_ptr().cast(), bytes) };
            }
        }
    }

    fn ctx(&self) -> *mut c_void {
        self.raw.allocator.ctx
    }

    fn call<T>(&self, function: &'static str, body: impl FnOnce() -> Result<T>) -> Result<T> {
        call(function, body)
            .map_err(|error| error.within(format_args!("the data handler {:?}", self.name)))
    }

    fn or_error(
        &self,
        block: *mut c_void,
        function: &'static str,
        bytes: usize,
    ) -> Result<NonNull<u8>> {
        NonNull::new(block.cast()).ok_or_else(|| {
            let (name, bytes) = (&self.name, Count(bytes, "byte"));
            let what = format!("{function} of the data handler {name:?} returned null for {bytes}");
            Error::new(ErrorKind::OutOfMemory, what).with_advice("ask for less, or free memory")
        })
    }
}

fn missing(name: &str, function: &'static str) -> Error {
    let what = format!("the data handler {name:?} has a null pointer for {function}");
    Error::new(ErrorKind::InvalidArgument, what)
        .with_advice("give all four functions: malloc, calloc, realloc and free")
}

/// The result for C, which is null where there is an error.
/// [`last_error`](crate::pinned::last_error) has the error then.
fn or_null(body: impl FnOnce() -> Result<NonNull<u8>>) -> *mut c_void {
    catch_panic_and_error(body).map_or(null_mut(), |block| block.as_ptr().cast())
}

/// # Safety
///
/// `ctx` is that of a table of `of_rust` (INV-1), of which a handle lives. That is the promise of
/// [`DataHandler::as_raw`](crate::nep49::DataHandler::as_raw).
unsafe fn of_ctx<'a>(ctx: *mut c_void) -> &'a SharedHandler {
    // SAFETY: the caller's promise. It is only ever shared.
    unsafe { &*ctx.cast() }
}

unsafe extern "C" fn malloc(ctx: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let handler = unsafe { of_ctx(ctx) };
    or_null(|| handler.malloc(size))
}

unsafe extern "C" fn calloc(ctx: *mut c_void, nelem: usize, elsize: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let handler = unsafe { of_ctx(ctx) };
    or_null(|| handler.calloc(nelem, elsize))
}

unsafe extern "C" fn realloc(ctx: *mut c_void, ptr: *mut c_void, new_size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let handler = unsafe { of_ctx(ctx) };
    or_null(|| match NonNull::new(ptr.cast()) {
        // SAFETY: a live block of this handler, by the same promise.
        Some(block) => unsafe { handler.realloc(block, new_size) },
        None => handler.malloc(new_size),
    })
}

unsafe extern "C" fn free(ctx: *mut c_void, ptr: *mut c_void, size: usize) {
    let Some(block) = NonNull::new(ptr.cast()) else { return };
    // SAFETY: the caller's promise.
    let handler = unsafe { of_ctx(ctx) };
    // SAFETY: a live block of this handler that the caller gives up, by the same promise.
    unsafe { handler.free(block, size) }
}
