//! The functions of a handler in Rust, and how they are called.

use super::inside::Inside;
use crate::debug_log::deferred_event;
use crate::error::{Error, ErrorKind, Result, catch_panic_text};
use crate::impls::Count;
use std::ptr::NonNull;

/// The alignment of every block, which is that of C's `malloc`, 16 bytes where pointers have 8.
pub(super) const MALLOC_ALIGNMENT: usize = 2 * size_of::<usize>();

/// The words in place of the text of a panic.
const NO_TEXT: &str = "it threw no text";

/// The functions of a data handler, as NEP 49 has them, for a handler that needs to see each call. Where an
/// allocator is at hand, [`DataHandler::new`](crate::nep49::DataHandler::new) makes the functions.
///
/// Any thread may call them, several at once. While one runs, the default handler is current on its thread.
/// So a function that allocates from the current handler does not come back to itself. A function must
/// not wait for a lock under which its own program allocates from the handler. A panic in a function
/// is stopped. The allocation then fails, or the block that was to be freed is leaked.
///
/// This is the sample of NEP 49. It keeps the size of each block in a header of 64 bytes, and
/// checks the size that `free` is given:
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{
///     Error, ErrorKind, nep49::{DataAlloc, DataHandler, HandlerFunctions, set_data_handler},
/// };
/// use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
/// use std::ptr::NonNull;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
///
/// const HEADER: usize = 64;
///
/// /// Counts blocks that were freed with a size other than theirs.
/// #[derive(Default)]
/// struct Shift {
///     unmatched: Arc<AtomicUsize>,
/// }
///
/// fn layout(bytes: usize) -> aquifer::Result<Layout> {
///     let whole = bytes.checked_add(HEADER);
///     let layout = whole.and_then(|whole| Layout::from_size_align(whole, HEADER).ok());
///     layout.ok_or_else(|| Error::new(ErrorKind::OutOfMemory, format!("{bytes} bytes were asked")))
/// }
///
/// /// Writes the size into the header of a new block, and returns what is behind the header.
/// unsafe fn past_header(real: *mut u8, bytes: usize) -> aquifer::Result<NonNull<u8>> {
///     let full = || Error::new(ErrorKind::OutOfMemory, format!("{bytes} bytes were asked"));
///     let real = NonNull::new(real).ok_or_else(full)?;
///     // SAFETY: the block begins with the header.
///     unsafe { real.cast::<usize>().write(bytes) };
///     // SAFETY: as above.
///     Ok(unsafe { real.add(HEADER) })
/// }
///
/// /// The start of a block, and the size in its header.
/// unsafe fn header(block: NonNull<u8>) -> (NonNull<u8>, usize) {
///     // SAFETY: a block of `past_header`.
///     let real = unsafe { block.sub(HEADER) };
///     // SAFETY: as above.
///     (real, unsafe { real.cast::<usize>().read() })
/// }
///
/// // SAFETY: the blocks are those of Rust's heap, 64 bytes further on. The sizes that the heap is given
/// // back come from the headers.
/// unsafe impl HandlerFunctions for Shift {
///     fn malloc(&self, bytes: usize) -> aquifer::Result<NonNull<u8>> {
///         // SAFETY: a layout with the header has a size.
///         unsafe { past_header(alloc(layout(bytes)?), bytes) }
///     }
///
///     fn calloc(&self, count: usize, bytes: usize) -> aquifer::Result<NonNull<u8>> {
///         let bytes = count.saturating_mul(bytes);
///         // SAFETY: as above.
///         unsafe { past_header(alloc_zeroed(layout(bytes)?), bytes) }
///     }
///
///     unsafe fn realloc(&self, block: NonNull<u8>, bytes: usize) -> aquifer::Result<NonNull<u8>> {
///         // SAFETY: the caller's block.
///         let (real, old) = unsafe { header(block) };
///         let (old, new) = (layout(old)?, layout(bytes)?);
///         // SAFETY: it was allocated with this layout.
///         unsafe { past_header(realloc(real.as_ptr(), old, new.size()), bytes) }
///     }
///
///     unsafe fn free(&self, block: NonNull<u8>, bytes: usize) {
///         // SAFETY: the caller's block.
///         let (real, allocated) = unsafe { header(block) };
///         if allocated != bytes {
///             // NumPy does this where a shape has a zero.
///             self.unmatched.fetch_add(1, Relaxed);
///         }
///         if let Ok(layout) = layout(allocated) {
///             // SAFETY: it was allocated with this layout.
///             unsafe { dealloc(real.as_ptr(), layout) }
///         }
///     }
/// }
///
/// let shift = Shift::default();
/// let unmatched = shift.unmatched.clone();
/// let handler = DataHandler::from_functions("secret_data_allocator", shift)?;
///
/// set_data_handler(Some(handler.clone()));
/// let mut vec = Vec::new_in(DataAlloc::current());
/// vec.extend(0..1000_u64);
/// assert_eq!(vec.allocator().handler_name(), "secret_data_allocator");
/// set_data_handler(None);
/// drop(vec); // by its own handler
/// assert_eq!(unmatched.load(Relaxed), 0);
///
/// // As a C program calls it, which is wrong about the size.
/// let functions = handler.as_raw().allocator;
/// let (malloc, free) = (functions.malloc.unwrap(), functions.free.unwrap());
/// // SAFETY: a block that is freed once, while the handle lives.
/// unsafe { free(functions.ctx, malloc(functions.ctx, 1000), 10) };
/// assert_eq!(unmatched.load(Relaxed), 1);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// # Safety
///
/// - `malloc`, `calloc` and `realloc` return the start of a block that is aligned as C's `malloc`
///   aligns, to two pointers (16 bytes on 64-bit systems). The block holds the bytes asked, which may
///   be none, and overlaps no other block. It stays valid, for every thread, until it is given to
///   `free` or moved by `realloc`, as long as the handler lives.
/// - A block of `calloc` is zero. A block of `realloc` begins with the old block's bytes, up to the lesser
///   of both sizes. Where `realloc` fails or panics, the old block is as it was.
/// - `realloc` and `free` rely on nothing that their callers do not promise. The size that
///   `free` gets may be any number.
pub unsafe trait HandlerFunctions: Send + Sync + 'static {
    /// A block of `bytes` bytes. No bytes get a block of their own, too.
    ///
    /// # Errors
    ///
    /// Any error that keeps it from having a block, such as [`ErrorKind::OutOfMemory`] where there
    /// is no room. A C program gets a null pointer, and [`last_error`](crate::pinned::last_error)
    /// on the same thread has the error.
    fn malloc(&self, bytes: usize) -> Result<NonNull<u8>>;

    /// A block of `count` elements of `bytes` bytes each, all zero. The default implementation fills
    /// a block of `malloc` with zeros.
    ///
    /// # Errors
    ///
    /// The errors of [`malloc`](Self::malloc), and an error where the product overflows.
    fn calloc(&self, count: usize, bytes: usize) -> Result<NonNull<u8>> {
        let all = product(count, bytes)?;
        let block = self.malloc(all)?;
        // SAFETY: a new block that holds so many bytes, by the contract of `malloc`.
        unsafe { block.write_bytes(0, all) };
        Ok(block)
    }

    /// The block with a new size, which may be 0. It may move.
    ///
    /// # Errors
    ///
    /// The errors of [`malloc`](Self::malloc). The block then is as it was.
    ///
    /// # Safety
    ///
    /// `block` came from this handler and was not freed since. After a success, the caller uses
    /// the returned block in its place.
    unsafe fn realloc(&self, block: NonNull<u8>, bytes: usize) -> Result<NonNull<u8>>;

    /// Frees the block. Its size is `bytes` where the caller is Rust. A C program may be wrong.
    ///
    /// # Safety
    ///
    /// `block` came from this handler and was not freed since. The caller gives it up.
    unsafe fn free(&self, block: NonNull<u8>, bytes: usize);
}

/// The bytes of `count` elements of `bytes` bytes each.
pub(super) fn product(count: usize, bytes: usize) -> Result<usize> {
    count.checked_mul(bytes).ok_or_else(|| {
        let what =
            format!("no address space holds {count} elements of {} each", Count(bytes, "byte"));
        Error::new(ErrorKind::InvalidArgument, what).with_advice("ask for less")
    })
}

/// Runs a function of a handler. Its panic is an error, and the default handler is current inside.
pub(super) fn call<T>(name: &'static str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let _inside = Inside::enter();
    catch_panic_text(body).unwrap_or_else(|text| {
        let what = text.unwrap_or_else(|| NO_TEXT.into());
        let what = format!("its function {name} panicked: {what}");
        Err(Error::new(ErrorKind::Unsupported, what)
            .with_advice("return an error from it where there is no block"))
    })
}

/// Runs the function `free` of a handler, whose panic leaks the block.
pub(super) fn call_free(handler: &str, body: impl FnOnce()) {
    let done = call("free", || {
        body();
        Ok(())
    });
    if let Err(error) = done {
        let (handler, error) = (handler.to_owned(), error.message().to_owned());
        deferred_event!(error, handler, error, "leaked host memory of a data handler");
    }
}
