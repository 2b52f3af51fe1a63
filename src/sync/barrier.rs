//! A pair of fences of which one side costs nothing.
//!
//! [`light`] and [`heavy`] order a store before a later load as two sequentially consistent fences
//! do. Where the system can interrupt every thread of the process (`membarrier` on Linux), the light
//! one is a fence for the compiler alone; elsewhere both are real fences.

#[cfg(not(all(target_os = "linux", not(aquifer_loom))))]
mod sides {
    #[cfg(aquifer_loom)]
    use loom::sync::atomic::{Ordering, fence};
    #[cfg(not(aquifer_loom))]
    use std::sync::atomic::{Ordering, fence};

    /// Nothing to prepare.
    pub(crate) fn prepare() {}

    /// The side that runs often.
    #[inline(always)]
    pub(crate) fn light() {
        #[cfg(not(aquifer_fault = "no_light_barrier"))]
        fence(Ordering::SeqCst);
    }

    /// The side that runs seldom.
    pub(crate) fn heavy() {
        #[cfg(not(aquifer_fault = "no_heavy_barrier"))]
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(target_os = "linux", not(aquifer_loom)))]
mod sides {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    /// Whether the process is registered for `membarrier`. Written before the first [`heavy`], and
    /// false until then, so a light fence that misses the news is a real one.
    static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

    const REGISTER: libc::c_int = 1 << 4;
    const EXPEDITED: libc::c_int = 1 << 3;

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes three integers, touches no memory of ours, and fails with a code
        // where the kernel does not know it.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Asks the system for its part, once. Until it has answered, both fences are real.
    pub(crate) fn prepare() {
        static PREPARED: OnceLock<()> = OnceLock::new();
        PREPARED.get_or_init(|| {
            // The first command fails where a filter of system calls lets only the other pass.
            let works = membarrier(REGISTER) && membarrier(EXPEDITED);
            ASYMMETRIC.store(works, Ordering::Relaxed);
        });
    }

    /// The side that runs often.
    #[inline(always)]
    pub(crate) fn light() {
        if ASYMMETRIC.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The side that runs seldom: a system call of about a microsecond.
    pub(crate) fn heavy() {
        prepare();
        fence(Ordering::SeqCst);
        // A registered process is not refused; should it be, there is no light side to rely on.
        if ASYMMETRIC.load(Ordering::Relaxed) && !membarrier(EXPEDITED) {
            ASYMMETRIC.store(false, Ordering::SeqCst);
            tracing::error!("membarrier failed after it was registered");
        }
    }
}

pub(crate) use sides::*;
