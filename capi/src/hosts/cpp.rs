//! C++'s exception for memory that is not there: what hosts expect that do not look at null.

use std::sync::OnceLock;

/// `std::__throw_bad_alloc()` of libstdc++.
const SYMBOL: &[u8] = b"_ZSt17__throw_bad_allocv\0";

type Throw = unsafe extern "C-unwind" fn();

fn find() -> Option<Throw> {
    static FOUND: OnceLock<Option<Throw>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: a host that catches C++'s exceptions has the library already, whose initialisers have run; else they
        // make the library's own streams.
        let library = unsafe { libloading::Library::new("libstdc++.so.6") }.ok()?;
        // SAFETY: the type is that of this function.
        let throw = *unsafe { library.get::<Throw>(SYMBOL) }.ok()?;
        // It stays loaded: the function is called later.
        std::mem::forget(library);
        Some(throw)
    })
}

/// Throws `std::bad_alloc` at a caller in C++. No lock is held, and no value of this crate needs a drop.
///
/// # Safety
///
/// The caller's caller is C++ code that an exception may pass.
pub(super) unsafe fn throw_bad_alloc() {
    if let Some(throw) = find() {
        // SAFETY: the caller's promise.
        unsafe { throw() }
    }
    // A host that takes null for memory would write there.
    eprintln!(
        "aquifer: out of memory, and the process has no C++ runtime whose exception would say so"
    );
    std::process::abort();
}
