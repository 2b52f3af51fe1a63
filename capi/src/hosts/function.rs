//! C++'s `std::function<bool(cudaStream_t)>` of libstdc++, which PyTorch gives by value.
//!
//! Such an argument is a temporary of the caller's, which destroys it after the call (Itanium C++ ABI, 3.1.2.3: a class
//! with a destructor is passed by its address). The call may change it, so it is moved out of there, as C++'s own
//! `std::move` does. What is left is empty, and its destructor does nothing. So the target is destroyed once, here.
//!
//! | field of libstdc++ | bytes | what it is |
//! |---|---|---|
//! | `_M_functor` | 0 to 15 | the target, where it is small and trivially copied; else its address: a move copies it |
//! | `_M_manager` | 16 | `bool (*)(_Any_data &, const _Any_data &, _Manager_operation)`; null of an empty one |
//! | `_M_invoker` | 24 | `bool (*)(const _Any_data &, cudaStream_t &&)` |
//!
//! That is a part of libstdc++'s ABI, the same in each release that PyTorch can be built with. Another C++ library has
//! another layout, which cannot be told apart here.

use crate::scope::Filter;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// `_Any_data`. A small target may leave bytes of it without a value.
type Functor = [MaybeUninit<*mut c_void>; 2];

/// `C-unwind`: an exception ends the process in the callers below, and not before as undefined behaviour.
type Manager = unsafe extern "C-unwind" fn(*mut Functor, *const Functor, c_int) -> bool;
type Invoker = unsafe extern "C-unwind" fn(*const Functor, *mut *mut c_void) -> bool;

/// `__destroy_functor` of `_Manager_operation`.
const DESTROY: c_int = 3;

/// The argument of PyTorch's hook.
#[repr(C)]
pub(super) struct Argument {
    functor: Functor,
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

const _: () = assert!(size_of::<Argument>() == 32 && align_of::<Argument>() == 8);

impl Argument {
    /// Moves the function out of an argument. `None` of an empty one.
    pub(super) fn take(&mut self) -> Option<Filter> {
        let (Some(manager), Some(invoker)) = (self.manager.take(), self.invoker.take()) else {
            return None;
        };
        let function = Function { functor: self.functor, manager, invoker };
        Some(Box::new(move |stream| function.call(stream)))
    }
}

/// A function that was moved, with its target.
struct Function {
    functor: Functor,
    manager: Manager,
    invoker: Invoker,
}

// SAFETY: PyTorch, which gives it, has its own allocator call and destroy it on any thread.
unsafe impl Send for Function {}
// SAFETY: by the contract of the hook threads may call it at once. PyTorch's filters read, and change nothing.
unsafe impl Sync for Function {}

impl Function {
    /// `extern "C"`, so that an exception ends the process here: none of C++ may pass Rust's frames.
    extern "C" fn call(&self, stream: u64) -> bool {
        let mut stream: *mut c_void = std::ptr::with_exposed_provenance_mut(stream as usize);
        // SAFETY: the target and its own function, which live as long as this; it takes a reference to a handle.
        unsafe { (self.invoker)(&raw const self.functor, &raw mut stream) }
    }

    /// `extern "C"` as above.
    extern "C" fn destroy(&mut self) {
        let functor = &raw mut self.functor;
        // SAFETY: the target and its own manager, called for its end once, by `drop`.
        unsafe { (self.manager)(functor, functor, DESTROY) };
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        self.destroy();
    }
}
