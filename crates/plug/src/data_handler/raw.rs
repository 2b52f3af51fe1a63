//! A handler as C has it, by the structures of NumPy's `ndarraytypes.h`, to the byte.

use crate::error::{Error, ErrorKind, Result, ensure};
use std::ffi::{c_char, c_void};
use std::fmt;
use std::mem::offset_of;

/// A table of a handler's C functions, which is NumPy's `PyDataMemAllocator`.
///
/// `ctx` is the first argument of each function. The functions follow C's. `malloc` and `calloc`
/// return null where there is no room, `realloc` then leaves the block as it was, and `free` takes
/// null. The size that `free` is given is a guess, as [`RawDataHandler`] says.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawDataAllocator {
    /// The first argument of the functions.
    pub ctx: *mut c_void,
    /// A block of `size` bytes.
    pub malloc: Option<unsafe extern "C" fn(ctx: *mut c_void, size: usize) -> *mut c_void>,
    /// A block of `nelem` times `elsize` bytes, all zero.
    pub calloc:
        Option<unsafe extern "C" fn(ctx: *mut c_void, nelem: usize, elsize: usize) -> *mut c_void>,
    /// The block at `ptr` with a new size, which may have moved. A block from `malloc` where `ptr` is null.
    pub realloc: Option<
        unsafe extern "C" fn(ctx: *mut c_void, ptr: *mut c_void, new_size: usize) -> *mut c_void,
    >,
    /// Frees the block at `ptr`, of about `size` bytes.
    pub free: Option<unsafe extern "C" fn(ctx: *mut c_void, ptr: *mut c_void, size: usize)>,
}

/// A named, versioned handler as C has it, which is NumPy's `PyDataMem_Handler`, of 168
/// bytes where pointers have 8.
///
/// [`DataHandler::as_raw`](crate::nep49::DataHandler::as_raw) shows one to a C program, and
/// [`DataHandler::from_raw`](crate::nep49::DataHandler::from_raw) takes one from it. NumPy gives `free` a size other
/// than the block's where the shape of an array has a zero, so a handler finds a block by its address.
///
/// ```
/// use aquifer::nep49::{DataHandler, RawDataHandler};
/// use std::mem::offset_of;
///
/// # #[cfg(target_pointer_width = "64")]
/// assert_eq!((size_of::<RawDataHandler>(), offset_of!(RawDataHandler, allocator)), (168, 128));
/// let handler = DataHandler::aligned(64)?;
/// let raw = handler.as_raw();
/// assert_eq!((raw.name_text()?, raw.version), ("aquifer_aligned_64", RawDataHandler::VERSION));
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawDataHandler {
    /// The name, up to the first zero byte.
    pub name: [c_char; 127],
    /// The version of the table, which is [`VERSION`](Self::VERSION). A later one adds fields at the end.
    pub version: u8,
    /// The functions.
    pub allocator: RawDataAllocator,
}

const _: () = {
    const POINTER: usize = size_of::<usize>();
    assert!(offset_of!(RawDataHandler, version) == 127);
    assert!(offset_of!(RawDataHandler, allocator) == 128);
    assert!(offset_of!(RawDataAllocator, ctx) == 0);
    assert!(offset_of!(RawDataAllocator, malloc) == POINTER);
    assert!(offset_of!(RawDataAllocator, calloc) == 2 * POINTER);
    assert!(offset_of!(RawDataAllocator, realloc) == 3 * POINTER);
    assert!(offset_of!(RawDataAllocator, free) == 4 * POINTER);
    assert!(size_of::<RawDataHandler>() == 128 + 5 * POINTER);
};

impl RawDataHandler {
    /// The version of NEP 49, the only one that there is.
    pub const VERSION: u8 = 1;

    /// The longest name, in bytes. A zero byte follows it.
    pub const NAME_BYTES: usize = 126;

    /// A handler of version [`VERSION`](Self::VERSION).
    ///
    /// ```
    /// use aquifer::nep49::{DataHandler, RawDataHandler};
    ///
    /// let functions = DataHandler::default().as_raw().allocator;
    /// let renamed = RawDataHandler::new("renamed", functions)?;
    /// assert_eq!(renamed.name_text()?, "renamed");
    /// assert!(RawDataHandler::new(&"x".repeat(127), functions).is_err());
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the name has more than [`NAME_BYTES`](Self::NAME_BYTES) bytes, or a
    /// zero byte.
    pub fn new(name: &str, allocator: RawDataAllocator) -> Result<Self> {
        check_name(name)?;
        Ok(Self::of_known(name, allocator))
    }

    /// A handler as of [`new`](Self::new), for a name that was checked.
    pub(super) fn of_known(name: &str, allocator: RawDataAllocator) -> Self {
        let mut bytes = [0; 127];
        for (to, from) in bytes.iter_mut().zip(name.bytes().take(Self::NAME_BYTES)) {
            *to = from as c_char;
        }
        Self { name: bytes, version: Self::VERSION, allocator }
    }

    /// The name as text.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if none of its bytes is zero, or if it is not UTF-8.
    pub fn name_text(&self) -> Result<&str> {
        // SAFETY: bytes may be read as unsigned ones.
        let bytes: &[u8; 127] = unsafe { &*(&raw const self.name).cast() };
        let end = bytes.iter().position(|byte| *byte == 0).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                "the name of a data handler has no end: none of its 127 bytes is zero",
            )
            .with_advice("give a name of 126 bytes at most, and a zero byte after it")
        })?;
        std::str::from_utf8(&bytes[..end]).map_err(|_| {
            let shown = String::from_utf8_lossy(&bytes[..end]);
            let what = format!("the name {shown:?} of a data handler is not UTF-8");
            Error::new(ErrorKind::InvalidArgument, what).with_advice("give a name in UTF-8")
        })
    }
}

/// Refuses a name that C would not read as it is.
pub(super) fn check_name(name: &str) -> Result<()> {
    ensure!(
        name.len() <= RawDataHandler::NAME_BYTES,
        InvalidArgument,
        "give a shorter name",
        "a data handler was to have a name of {} bytes, where {} fit",
        name.len(),
        RawDataHandler::NAME_BYTES
    );
    ensure!(
        !name.contains('\0'),
        InvalidArgument,
        "leave the zero byte out: for C, the name ends there",
        "a data handler was to have the name {name:?}, with a zero byte inside"
    );
    Ok(())
}

impl fmt::Debug for RawDataAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawDataAllocator").field("ctx", &self.ctx).finish_non_exhaustive()
    }
}

impl fmt::Debug for RawDataHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawDataHandler")
            .field("name", &self.name_text().unwrap_or("(no text)"))
            .field("version", &self.version)
            .field("allocator", &self.allocator)
            .finish()
    }
}
