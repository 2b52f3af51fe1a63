//! The child of a fork, and the end of a thread, with pools that sleep.

use super::{MIB, Pool, asleep, assert_numbers, numbers, pool};
use crate::support;
use aquifer::mr::Keep;
use aquifer::sim::SimConfig;
use aquifer::{Device, DeviceVec, ErrorKind, Stream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const FORKS: usize = 20;

type Held = Vec<(Pool, DeviceVec<u32>)>;

#[test]
fn a_child_drops_a_pool_that_sleeps_and_takes_no_inherited_lock() {
    let name = "a_child_drops_a_pool_that_sleeps_and_takes_no_inherited_lock";
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The child finds the locks of sleeping pools taken, and no thread there releases them.
        for _ in 0..2 {
            scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                let pool = pool(&device);
                let vec = numbers(&stream, &pool, 1000, 4);
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: this test has no other pointers.
                    unsafe { asleep(&pool, Keep::PageLocked) };
                    vec.get(0).unwrap_err();
                    pool.wake().unwrap();
                }
                assert_numbers(&vec, 4);
            });
        }
        let all = || (0..FORKS).map(|_| fork(&device, &stream)).collect::<Vec<i32>>();
        let codes = catch_unwind(AssertUnwindSafe(all));
        stop.store(true, Ordering::Relaxed);
        let codes = codes.unwrap_or_else(|panic| resume_unwind(panic));
        assert_eq!(codes, [0; FORKS], "a step of the child went wrong, or a signal ended it");
    });
    drop(stream);
    simulator.check().unwrap();
}

fn small_keeps() -> [Keep; 3] {
    let buffer = Box::new(vec![0_u8; 4 * MIB]);
    [Keep::PageLocked, Keep::File(std::env::temp_dir()), Keep::Buffer(buffer)]
}

/// The code with which a child ended that has pools which sleep; negative for a signal.
fn fork(device: &Device, stream: &Stream) -> i32 {
    let mut held: Held = Vec::new();
    for keep in small_keeps() {
        let pool = pool(device);
        let vec = numbers(stream, &pool, 1000, 4);
        // SAFETY: this test has no other pointers.
        unsafe { asleep(&pool, keep) };
        held.push((pool, vec));
    }
    // SAFETY: the child runs what is below, which is what it is about, and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(20) };
        let code = catch_unwind(AssertUnwindSafe(|| in_child(stream, held))).unwrap_or(200);
        // SAFETY: ends the child, with its destructors if all was right.
        unsafe { if code == 0 { libc::exit(code) } else { libc::_exit(code) } }
    }
    assert!(child > 0, "no child");
    let mut status = 0;
    // SAFETY: waits for the child above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    // The parent goes on.
    for (pool, vec) in &held {
        pool.wake().unwrap();
        assert_numbers(vec, 4);
    }
    assert_eq!(files_without_a_name(), 0);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

fn in_child(stream: &Stream, held: Held) -> i32 {
    if files_without_a_name() != 1 {
        return 1;
    }
    for (number, (pool, vec)) in held.into_iter().enumerate() {
        // SAFETY: it is refused.
        let slept = unsafe { pool.sleep(Keep::Nothing) }.map(drop);
        let refused = [
            slept,
            pool.wake().map(drop),
            vec.get(0).map(drop),
            DeviceVec::<u8>::zeroed_in(stream, 9, pool.clone()).map(drop),
        ];
        if refused
            .iter()
            .any(|it| it.as_ref().map_err(aquifer::Error::kind) != Err(ErrorKind::Forked))
        {
            return 2;
        }
        if !pool.is_asleep() {
            return 3;
        }
        let _ = (pool.statistics(), format!("{pool:?} {vec:?}"));
        match number % 2 {
            0 => drop((vec, pool)),
            _ => drop((pool, vec)),
        }
    }
    // The parent's disk has its room back when it wakes.
    if files_without_a_name() == 0 { 0 } else { 4 }
}

/// The descriptors of this process that are of such files, each of which another program does not get.
fn files_without_a_name() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_one = |path: &Path| {
        let is_of = |to: &Path| to.starts_with(std::env::temp_dir());
        let has_none = |to: &Path| to.to_string_lossy().ends_with("(deleted)");
        std::fs::read_link(path).is_ok_and(|to| is_of(&to) && has_none(&to))
    };
    let paths = descriptors.map(|entry| entry.unwrap().path());
    let number =
        |path: &Path| -> i32 { path.file_name().unwrap().to_string_lossy().parse().unwrap() };
    let mut count = 0;
    for descriptor in paths.filter(|path| is_one(path)).map(|path| number(&path)) {
        // SAFETY: flags alone are read.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        count += 1;
    }
    count
}

std::thread_local! {
    static KEPT: std::cell::RefCell<Held> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Destructors of a thread run when much of the crate's own is gone.
#[test]
fn a_thread_ends_with_pools_that_sleep() {
    let (device, simulator) = support::simulated(SimConfig::default());
    for first in [false, true] {
        let end = || {
            if first {
                // Its destructor runs after those of the crate, which the thread meets later.
                KEPT.with_borrow_mut(Vec::clear);
            }
            let stream = device.new_stream().unwrap();
            for keep in small_keeps() {
                let pool = pool(&device);
                let vec = numbers(&stream, &pool, 300_000, 4);
                // SAFETY: this test has no other pointers.
                unsafe { asleep(&pool, keep) };
                KEPT.with_borrow_mut(|held| held.push((pool, vec)));
            }
        };
        std::thread::scope(|scope| scope.spawn(end).join().unwrap());
        assert_eq!(simulator.live_bytes(), 0);
        let info = device.memory_info().unwrap();
        assert_eq!(info.free, info.total);
    }
    simulator.check().unwrap();
}
