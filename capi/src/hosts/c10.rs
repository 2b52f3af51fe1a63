//! PyTorch's own exception for memory that is not there, `c10::OutOfMemoryError`, which Python gets as
//! `torch.OutOfMemoryError`.
//!
//! Its class is `class OutOfMemoryError : public Error { using Error::Error; }`, so an object of it is made by the
//! constructor of `c10::Error(SourceLocation, std::string)`, and has a table of functions of its own. All of it is found in
//! the libraries that PyTorch has loaded, by C++'s names of them. Where one is not found, as in another version of PyTorch,
//! nothing is thrown here.

#[cfg(target_os = "linux")]
use libloading::os::unix::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

/// `c10::SourceLocation`.
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `std::string` of libstdc++: 32 bytes.
#[repr(C, align(8))]
struct CppString([u8; 32]);

type AllocateException = unsafe extern "C" fn(usize) -> *mut c_void;
type FreeException = unsafe extern "C" fn(*mut c_void);
type Destructor = unsafe extern "C" fn(*mut c_void);
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, Destructor) -> !;
type MakeString = unsafe extern "C" fn(*mut CppString, *const c_char, *const u8);
type EndString = unsafe extern "C" fn(*mut CppString);
type MakeError = unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut CppString);

/// More than `c10::Error` has: 96 bytes in PyTorch 2.11.
const ROOM: usize = 512;

/// What an exception is made of.
#[derive(Clone, Copy)]
struct Symbols {
    allocate: AllocateException,
    free: FreeException,
    throw: Throw,
    make_string: MakeString,
    end_string: EndString,
    make_error: MakeError,
    type_info: *const c_void,
    /// The table of functions, past the two words before them.
    functions: *const c_void,
}

// SAFETY: addresses in libraries that stay loaded.
unsafe impl Send for Symbols {}
// SAFETY: as above.
unsafe impl Sync for Symbols {}

#[cfg(target_os = "linux")]
fn find() -> Option<Symbols> {
    let flags: c_int = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: a library that is loaded already runs no initialiser.
    let torch = unsafe { Library::open(Some("libc10_cuda.so"), flags) }.ok()?;
    // SAFETY: the types are those of these functions and objects. A symbol that is data is looked up as the address of it.
    let found = unsafe {
        let functions =
            *torch.get::<*const *const c_void>(b"_ZTVN3c1016OutOfMemoryErrorE\0").ok()?;
        Symbols {
            allocate: *torch.get(b"__cxa_allocate_exception\0").ok()?,
            free: *torch.get(b"__cxa_free_exception\0").ok()?,
            throw: *torch.get(b"__cxa_throw\0").ok()?,
            make_string: *torch
                .get(b"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_\0")
                .ok()?,
            end_string: *torch
                .get(b"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev\0")
                .ok()?,
            make_error: *torch
                .get(
                    b"_ZN3c105ErrorC2ENS_14SourceLocationE\
                      NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\0",
                )
                .ok()?,
            type_info: *torch.get(b"_ZTIN3c1016OutOfMemoryErrorE\0").ok()?,
            functions: functions.add(2).cast(),
        }
    };
    // It stays loaded: the functions are called later.
    std::mem::forget(torch);
    Some(found)
}

#[cfg(not(target_os = "linux"))]
fn find() -> Option<Symbols> {
    None
}

/// Ends an exception by its own table: the first of the functions is its destructor.
unsafe extern "C" fn end(object: *mut c_void) {
    // SAFETY: C++'s runtime ends an exception of `Exception::new` once; a class with a virtual destructor and no other
    // function before has that first.
    unsafe {
        let functions = *object.cast::<*const Destructor>();
        (*functions)(object);
    }
}

/// An exception that is made, and not thrown.
pub(super) struct Exception {
    object: *mut c_void,
    symbols: Symbols,
}

impl Exception {
    /// An exception with a text. `None` where PyTorch's libraries are not there, or have another shape.
    pub(super) fn new(text: &str) -> Option<Self> {
        static FOUND: OnceLock<Option<Symbols>> = OnceLock::new();
        let symbols = (*FOUND.get_or_init(find))?;
        let text = CString::new(text.replace('\0', "\\0")).ok()?;
        let location =
            SourceLocation { function: c"aquifer".as_ptr(), file: c"aquifer".as_ptr(), line: 0 };
        let (mut message, allocator) = (CppString([0; 32]), 0);
        // SAFETY: room for an exception; a string that is made, moved from and ended; the constructor of the base class, in
        // room that is larger than the class, whose table is then the derived one's.
        unsafe {
            let object = (symbols.allocate)(ROOM);
            if object.is_null() {
                return None;
            }
            object.cast::<u8>().write_bytes(0, ROOM);
            (symbols.make_string)(&raw mut message, text.as_ptr(), &raw const allocator);
            (symbols.make_error)(object, location, &raw mut message);
            (symbols.end_string)(&raw mut message);
            object.cast::<*const c_void>().write(symbols.functions);
            Some(Self { object, symbols })
        }
    }

    /// Throws it at a caller in C++. No lock is held, and no value of this crate needs a drop.
    ///
    /// # Safety
    ///
    /// The caller's caller is C++ code that an exception may pass.
    pub(super) unsafe fn throw(self) -> ! {
        let Self { object, symbols: Symbols { throw, type_info, .. } } =
            &*std::mem::ManuallyDrop::new(self);
        // SAFETY: the caller's promise; an exception of `new`, thrown once.
        unsafe { throw(*object, *type_info, end) }
    }
}

impl Drop for Exception {
    fn drop(&mut self) {
        // SAFETY: it was not thrown.
        unsafe {
            end(self.object);
            (self.symbols.free)(self.object);
        }
    }
}
