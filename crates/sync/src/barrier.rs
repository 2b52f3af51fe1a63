//! A pair of fences of which one side costs nothing.
//!
//! [`full_fence`] and [`heavy`] order a store before a later load as two sequentially consistent fences
//! do. Where the system can interrupt every thread of the process (`membarrier` on Linux), the light
//! one may be left to the compiler: [`compiler`].

#[cfg(aquifer_loom)]
use loom::sync::atomic::{Ordering, fence};
#[cfg(not(aquifer_loom))]
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// The side that runs often, where [`is_asymmetric`] is false.
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// The side that runs often, where [`is_asymmetric`] is true: nothing but an order of instructions.
/// Where it is false, an early look that [`full_fence`] and a second one have to follow.
#[inline(always)]
pub fn compiler() {
    #[cfg(not(aquifer_loom))]
    compiler_fence(Ordering::SeqCst);
}

/// The side that runs often, either way.
#[inline(always)]
pub fn light() {
    if is_asymmetric() { compiler() } else { full_fence() }
}

/// The side that runs seldom: a system call of about a microsecond.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if is_asymmetric() {
        sides::process_barrier();
    }
}

/// Whether [`is_asymmetric`] can be true on this system.
pub const MAY_BE_ASYMMETRIC: bool = cfg!(all(target_os = "linux", not(aquifer_loom)));

pub use sides::is_asymmetric;

#[cfg(not(all(target_os = "linux", not(aquifer_loom))))]
mod sides {
    pub fn is_asymmetric() -> bool {
        false
    }

    pub(super) fn process_barrier() {}
}

#[cfg(all(target_os = "linux", not(aquifer_loom)))]
mod sides {
    use std::io::Write;
    use std::sync::OnceLock;

    const LOST: &[u8] =
        b"aquifer: membarrier was forbidden after the first pool was made, and no pool can do \
without it any more; let a filter of system calls allow it, or set the filter before\n";

    const EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER: libc::c_int = 1 << 4;

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes three integers, touches no memory of ours, and fails with a code
        // where the kernel does not know it.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Whether the system interrupts all threads for us. Asked once, with the registration that it
    /// wants.
    pub fn is_asymmetric() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        // The second command may be filtered where the first is not.
        *ANSWER.get_or_init(|| membarrier(REGISTER) && membarrier(EXPEDITED))
    }

    pub(super) fn process_barrier() {
        // A process that is registered is not refused, by the kernel's manual. Checkpoint and restore lose
        // the registration, which can be made again: no barrier was missed before this one. Else a filter
        // of system calls came later; the owners rely on the barrier, and a revoker that went on
        // would share what is theirs.
        if !(membarrier(EXPEDITED) || membarrier(REGISTER) && membarrier(EXPEDITED)) {
            let _ = std::io::stderr().write_all(LOST);
            std::process::abort();
        }
    }
}
