//! A counted handle on a data handler.

use super::functions::{HandlerFunctions, MALLOC_ALIGNMENT};
use super::raw::{RawDataHandler, check_name};
use super::shared::SharedHandler;
use super::with_header::WithHeader;
use crate::error::{Result, ensure};
use crate::impls::debug_struct;
use crate::sync::Arc;
use allocator_api2::alloc::Allocator;
use std::ptr::NonNull;

/// A named, versioned handler of host memory, as NumPy's NEP 49 has it. It has four functions,
/// `malloc`, `calloc`, `realloc` and `free`, over one context.
///
/// Clones are the same handler, which ends with the last of them and of the containers that were
/// made with it. [`set_data_handler`](crate::nep49::set_data_handler) makes it the current one of a
/// thread or of a task. [`DataAlloc`](crate::nep49::DataAlloc) allocates with it.
/// [`as_raw`](Self::as_raw) shows its table of 168 bytes to a C program, such as NumPy, whose
/// `PyDataMem_SetHandler` takes a capsule of it.
///
/// | handler | memory |
/// |---|---|
/// | [`default`](Self::default) | the system's heap |
/// | [`pinned`](Self::pinned) | page-locked, of the current pinned resource |
/// | [`aligned`](Self::aligned) | the heap, at an alignment of your own |
/// | [`huge_pages`](Self::huge_pages) | huge pages of Linux |
/// | [`numa`](Self::numa) | of one NUMA node |
/// | [`new`](Self::new) | any allocator of Rust |
/// | [`from_functions`](Self::from_functions) | what four functions in Rust return |
/// | [`from_raw`](Self::from_raw) | what four functions in C return |
///
/// ```
/// use allocator_api2::alloc::Global;
/// use allocator_api2::vec::Vec;
/// use aquifer::nep49::{DataAlloc, DataHandler, set_data_handler};
///
/// let before = set_data_handler(Some(DataHandler::new("mine", Global)?));
/// let mut vec: Vec<u32, _> = Vec::new_in(DataAlloc::current());
/// vec.extend(0..100);
/// set_data_handler(Some(before));
/// vec.push(100); // by its own handler still
/// assert_eq!(vec.allocator().handler_name(), "mine");
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct DataHandler {
    counted: Arc<CountedHandler>,
}

/// A thread's, a scope's or a task's reference to a handler.
///
/// An `Arc` of this has a reference count of its own. If all containers of all threads wrote the count
/// of the handler itself, that would take longer than a small allocation.
struct CountedHandler {
    shared: Arc<SharedHandler>,
}

impl DataHandler {
    /// A handler over an allocator. It keeps a header of 16 bytes before each block. A block of 1
    /// KiB or more has a header of 64 bytes, and is aligned to 64 bytes. So the handler finds a
    /// block whatever size `free` is given.
    ///
    /// ```
    /// use aquifer::{Device, nep49::DataHandler, pinned::{PinnedPool, PinnedResource}};
    ///
    /// let pool = PinnedPool::new(PinnedResource::new(&Device::detect_or_simulate()?)?)?;
    /// let handler = DataHandler::new("pool_of_mine", pool)?;
    /// assert_eq!((handler.name(), handler.version()), ("pool_of_mine", 1));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name has more than 126 bytes, or a
    /// zero byte.
    pub fn new(
        name: impl Into<String>,
        allocator: impl Allocator + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::from_functions(name, WithHeader::new(allocator))
    }

    /// A handler of four functions in Rust.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name has more than 126 bytes, or a
    /// zero byte.
    pub fn from_functions(
        name: impl Into<String>,
        functions: impl HandlerFunctions,
    ) -> Result<Self> {
        let name = name.into();
        check_name(&name)?;
        Ok(Self::of_known(name, functions, MALLOC_ALIGNMENT))
    }

    /// A handler whose name is known to be right, and whose blocks have this alignment.
    pub(super) fn of_known(
        name: String,
        functions: impl HandlerFunctions,
        alignment: usize,
    ) -> Self {
        Self::of_shared(SharedHandler::of_rust(name, Box::new(functions), alignment))
    }

    /// The handler of a C program, such as NumPy's own. `owner` is dropped when no handle and no
    /// container uses the functions any more. Give a value that keeps the context and the library
    /// alive, or `()` if they are there for good. It is dropped with a table that is refused, too.
    /// NumPy says that its handlers must be immortal. Here they need not be.
    ///
    /// ```
    /// use aquifer::{ErrorKind, nep49::{DataAlloc, DataHandler, RawDataHandler}};
    /// use allocator_api2::vec::Vec;
    ///
    /// // Stands for the table of a C program.
    /// let theirs = DataHandler::aligned(64)?;
    /// let raw: RawDataHandler = *theirs.as_raw();
    /// // SAFETY: the functions are Aquifer's own, and the owner keeps them alive.
    /// let handler = unsafe { DataHandler::from_raw(raw, theirs)? };
    /// let vec: Vec<u8, _> = Vec::with_capacity_in(100, DataAlloc::new(handler));
    /// assert_eq!(vec.allocator().handler_name(), "aquifer_aligned_64");
    ///
    /// let mut without_free = raw;
    /// without_free.allocator.free = None;
    /// // SAFETY: it is refused.
    /// let refused = unsafe { DataHandler::from_raw(without_free, ()) };
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the version is another than 1.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if one of the functions is
    ///   null, or if the name has no zero byte at its end or is not UTF-8.
    ///
    /// # Safety
    ///
    /// As long as `owner` lives:
    ///
    /// - The functions may be called with `ctx`, on any thread, by several at once. They return to their
    ///   caller, and do not unwind.
    /// - They keep the contract of [`HandlerFunctions`], where a null pointer stands for an error.
    /// - `malloc`, `calloc` and `realloc` return null or a block of its own. It is aligned to two
    ///   pointers and holds the bytes asked.
    /// - `realloc` keeps the content of the block, and `free` frees the block.
    pub unsafe fn from_raw(raw: RawDataHandler, owner: impl Send + 'static) -> Result<Self> {
        let name = raw.name_text()?.to_owned();
        ensure!(
            raw.version == RawDataHandler::VERSION,
            Unsupported,
            "make it of version 1, whose fields stay where they are in a later one",
            "the data handler {name:?} has version {}, where version {} is known",
            raw.version,
            RawDataHandler::VERSION
        );
        // SAFETY: the caller's promise.
        let shared = unsafe { SharedHandler::of_c(raw, name, MALLOC_ALIGNMENT, Box::new(owner)) }?;
        Ok(Self::of_shared(shared))
    }

    fn of_shared(shared: Arc<SharedHandler>) -> Self {
        Self { counted: Arc::new(CountedHandler { shared }) }
    }

    /// Another handle on the handler, whose clones count by themselves.
    pub(super) fn with_own_count(&self) -> Self {
        Self::of_shared(self.counted.shared.clone())
    }

    /// The name, of 126 bytes at most.
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// The version of the table, which is 1.
    pub fn version(&self) -> u8 {
        self.shared().raw.version
    }

    /// The table for a C program, which is NumPy's `PyDataMem_Handler`, in 168 bytes
    /// where pointers have 8. The table stays in place as long as a handle or a
    /// container of the handler lives. [`into_raw`](Self::into_raw) gives a C
    /// program a handle of its own.
    ///
    /// A C program that calls the functions of a handler made in Rust relies on these rules:
    ///
    /// - It calls them while a handle lives, from any thread. Its blocks are freed before the last handle goes.
    /// - `malloc(0)`, and `realloc` to 0 bytes, return a block that is to be freed, never null but for
    ///   an error. `realloc(null)` is `malloc`, and `free(null)` does nothing.
    /// - `free` takes any size, since the ready handlers and those of an allocator
    ///   find the block by its address.
    /// - `calloc` returns null where the product overflows, and zeroed memory otherwise.
    /// - An error is null, and [`last_error`](crate::pinned::last_error) on the same thread has its text. Nothing unwinds.
    /// - Blocks that [`DataAlloc`](crate::nep49::DataAlloc) made with the handler at an alignment of up to 16 bytes, and
    ///   blocks of these functions, are one kind.
    ///
    /// ```
    /// use aquifer::nep49::DataHandler;
    ///
    /// let handler = DataHandler::default();
    /// let functions = handler.as_raw().allocator;
    /// let (malloc, free) = (functions.malloc.unwrap(), functions.free.unwrap());
    /// // SAFETY: a block that is freed once, while the handle lives.
    /// unsafe {
    ///     let block = malloc(functions.ctx, 0);
    ///     assert!(!block.is_null());
    ///     free(functions.ctx, block, 12345);
    ///     free(functions.ctx, std::ptr::null_mut(), 0);
    /// }
    /// ```
    pub fn as_raw(&self) -> &RawDataHandler {
        &self.shared().raw
    }

    /// The table with the handle in it, for a C program that keeps it. An example is a capsule of
    /// NumPy's, whose destructor calls [`from_raw_handle`](Self::from_raw_handle).
    ///
    /// ```
    /// use aquifer::nep49::DataHandler;
    ///
    /// let table = DataHandler::default().into_raw();
    /// // SAFETY: the table stays until the handle is taken back.
    /// assert_eq!(unsafe { table.as_ref() }.version, 1);
    /// // SAFETY: taken back once.
    /// assert_eq!(unsafe { DataHandler::from_raw_handle(table) }, DataHandler::default());
    /// ```
    pub fn into_raw(self) -> NonNull<RawDataHandler> {
        let shared = Arc::into_raw(self.counted.shared.clone()).cast_mut();
        // SAFETY: `Arc::into_raw` is not null.
        unsafe { NonNull::new_unchecked(shared) }.cast()
    }

    /// The handle that [`into_raw`](Self::into_raw) put into a table.
    ///
    /// # Safety
    ///
    /// `table` came from `into_raw`, and its handle was not taken back before.
    pub unsafe fn from_raw_handle(table: NonNull<RawDataHandler>) -> Self {
        // SAFETY: the caller's promise; the table is the first field.
        Self::of_shared(unsafe { Arc::from_raw(table.cast::<SharedHandler>().as_ptr()) })
    }

    pub(super) fn shared(&self) -> &SharedHandler {
        &self.counted.shared
    }
}

/// Whether they are handles on one handler.
impl PartialEq for DataHandler {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.counted.shared, &other.counted.shared)
    }
}

impl Eq for DataHandler {}

debug_struct!(DataHandler { name(), version(), .. });
