//! A tool's library, as NVIDIA's header loads it in a C program: `NVTX_INJECTION64_PATH` names it, and it
//! writes the addresses of its functions to the program's *function slots*, as the header calls them. An empty
//! one is a no-op.

use aquifer_sync::trusted::{AtomicUsize, Ordering};
use libloading::Library;

/// `NVTX_VERSION`.
pub(super) const VERSION: u16 = 3;

/// `NVTX_MESSAGE_TYPE_ASCII`.
pub(super) const ASCII: i32 = 1;

/// What a tool may write to a slot that it has no function for.
const NO_FUNCTION: usize = 1;

/// Loads the tool's library, if there is one. Forget it once it has seen a slot: from then on the
/// library must stay.
pub(super) fn library() -> Option<Library> {
    let path = std::env::var_os("NVTX_INJECTION64_PATH").filter(|path| !path.is_empty())?;
    // SAFETY: the user, who sets the variable, vouches for the library, as for each NVTX program.
    unsafe { Library::new(path) }.ok()
}

/// The function in a slot.
///
/// # Safety
///
/// `F` is the type of a function pointer, which NVTX documents for this slot.
pub(super) unsafe fn function<F>(slot: &AtomicUsize) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*const ()>()) };
    match slot.load(Ordering::Acquire) {
        0 | NO_FUNCTION => None,
        // SAFETY: the tool put a function of this type here, and its library stays.
        address => Some(unsafe { std::mem::transmute_copy(&(address as *const ())) }),
    }
}
