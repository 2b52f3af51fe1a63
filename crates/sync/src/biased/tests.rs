use super::*;
use std::time::Duration;

/// The processor time of the calling thread.
#[cfg(target_os = "linux")]
fn used() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable for the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) }, 0);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(target_os = "linux")]
#[test]
fn a_revoker_sleeps_while_the_owner_is_kept_inside() {
    const OWNER: u64 = 20;
    let cell = Biased::with_owner(OWNER, 0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let inside = |value: &mut i32| {
                std::thread::sleep(Duration::from_secs(1));
                *value += 1;
            };
            // SAFETY: this thread is the one owner.
            unsafe { cell.try_with(OWNER, inside) }
        });
        while cell.owner_inside.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let before = used();
        // SAFETY: no other thread revokes, and this one is not inside.
        unsafe {
            cell.revoke();
            assert!(used() - before < Duration::from_millis(500), "{:?}", used() - before);
            assert_eq!(cell.with_unchecked(|value| *value), 1);
            cell.restore();
        }
    });
}
