//! The child of a fork: allocations from a pool are errors, frees leak, no inherited lock is taken.

use super::fixture::{Fixture, UNIT, try_vec, vec};
use super::support;
use aquifer::{DeviceLayout, DeviceResource, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Forks that are made under busy locks; each must be answered.
const FORKS: usize = 20;

#[test]
fn a_child_gets_nothing_from_a_pool_and_does_not_hang() {
    if support::in_own_process(module_path!(), "a_child_gets_nothing_from_a_pool_and_does_not_hang")
    {
        forks();
    }
}

fn forks() {
    let fixture = Fixture::new(0);
    let pool = fixture.pool(64 * UNIT);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Whoever forks finds the pool's locks taken, with nobody to release them.
        for thread in 0..3_usize {
            let (fixture, pool, stop) = (&fixture, &pool, &stop);
            scope.spawn(move || {
                let stream = fixture.stream();
                let mut round = thread;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let bytes = [300, UNIT, 20 * UNIT, 40 * UNIT][round % 4];
                    let _ = try_vec(pool, &stream, bytes, 1);
                    if round % 16 == 0 {
                        let _ = (pool.wait_and_trim(0), pool.statistics());
                    }
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = pool.statistics();
            }
        });
        let failed = (0..FORKS).map(|_| fork(&fixture, &pool)).find(|code| *code != 0);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failed, None, "a step of the child went wrong, or a signal ended it");
    });
    // The parent goes on.
    assert_eq!(pool.statistics().live_blocks, 0);
    drop(vec(&pool, &fixture.stream(), 64 * UNIT, 9));
    drop(pool);
    fixture.all_is_back();
}

/// The code with which the child ended; negative for a signal.
fn fork(fixture: &Fixture, pool: &super::fixture::Pool) -> i32 {
    let stream = fixture.stream();
    let held = [vec(pool, &stream, 500, 1), vec(pool, &stream, UNIT, 2)];
    let raw = pool.allocate(&stream, DeviceLayout::new(700).unwrap()).unwrap();
    let (address, bytes, token) = (raw.address(), raw.bytes(), raw.token());
    // SAFETY: the child runs what is below, which is what it is about, and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(20) };
        let body = std::panic::AssertUnwindSafe(|| in_child(fixture, pool, &stream, held, raw));
        let code = std::panic::catch_unwind(body).unwrap_or(200);
        if code == 0 {
            // SAFETY: ends the child, and nothing of the parent's. This thread's destructors run, of
            // which one gives its blocks back to a pool.
            unsafe { libc::exit(code) };
        }
        // SAFETY: as above, without them.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0, "no child");
    let mut status = 0;
    // SAFETY: waits for the child above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    drop(held);
    let raw = aquifer::DeviceBlock::new(address, bytes, token);
    // SAFETY: the block is the pool's, freed here alone, and no work uses it.
    unsafe { pool.deallocate(&stream, raw) };
    if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// The number of the first step that goes wrong; 0 if none does.
fn in_child(
    fixture: &Fixture,
    pool: &super::fixture::Pool,
    stream: &aquifer::Stream,
    held: [aquifer::DeviceVec<u8>; 2],
    raw: aquifer::DeviceBlock,
) -> i32 {
    let is_forked = |error: aquifer::Error| error.kind() == ErrorKind::Forked;
    let layout = DeviceLayout::new(500).unwrap();
    let large = DeviceLayout::new(30 * UNIT).unwrap();
    let steps = [
        pool.allocate(stream, layout).is_err_and(is_forked),
        pool.allocate(stream, large).is_err_and(is_forked),
        try_vec(pool, stream, 500, 1).is_err_and(is_forked),
        pool.wait_and_trim(0).is_err_and(is_forked),
        fixture.options(UNIT).build().is_err_and(is_forked),
        fixture.options(UNIT).initial_size(UNIT).build().is_err_and(is_forked),
        held[0].to_vec().is_err_and(is_forked),
    ];
    if let Some(wrong) = steps.iter().position(|right| !right) {
        return 1 + wrong as i32;
    }
    let _ = (pool.statistics(), format!("{pool:?}"));
    // All of it leaks, and nobody is asked.
    // SAFETY: the block is the pool's, and no work of this process uses it.
    unsafe { pool.deallocate(stream, raw) };
    drop(held);
    drop((pool.clone(), stream.clone()));
    0
}
