//! A pool where the system interrupts no threads for us: the warm way ends at the magazine's door,
//! and a real fence goes on.

#![cfg(target_os = "linux")]

mod support;

use aquifer::{CudaResource, DeviceLayout, DeviceResource, PoolResource, Stream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

const CHILD: &str = "AQUIFER_TEST_NO_MEMBARRIER";
const SIZES: [usize; 3] = [256, 4096, 1 << 20];

/// Lets every `membarrier` of this thread, and of those that it starts, fail with `ENOSYS`, as under
/// filters of containers. Says whether it does: where no filter may be set, one may be there already.
fn forbid_membarrier() -> bool {
    filter_membarrier(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32)
}

/// Answers every `membarrier` of this thread, and of those that it starts, with `refuse`. Says whether
/// it fails.
fn filter_membarrier(refuse: u32) -> bool {
    let code = |code: u32, value: u32, yes: u8, no: u8| libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k: value,
    };
    let number = libc::SYS_membarrier as u32;
    let mut program = [
        // The number of the call is the first word of what a filter sees.
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
        code(libc::BPF_RET | libc::BPF_K, refuse, 0, 0),
        code(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter and its program outlive the calls, which copy them.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter);
        libc::syscall(libc::SYS_membarrier, 0, 0, 0) == -1
    }
}

/// Runs one test of this file in a process of its own.
fn run(name: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap()
}

/// Runs one test of this file in a process of its own, where `membarrier` is forbidden.
fn in_child(name: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        if !forbid_membarrier() {
            println!("no filter");
            return;
        }
        body();
        println!("ran to its end");
        return;
    }
    passed(name, &run(name));
}

/// Asserts that a child ran to its end, unless the system takes no filter.
fn passed(name: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complaint}");
    if said.contains("no filter") {
        return support::skipped(name, "the system takes no filter of calls");
    }
    assert!(said.contains("ran to its end"), "{said}{complaint}");
}

fn pair(pool: &PoolResource, stream: &Stream, bytes: usize) {
    let block = pool.allocate(stream, DeviceLayout::new(bytes).unwrap()).unwrap();
    // SAFETY: the pool's, and nothing uses it.
    unsafe { pool.deallocate(stream, block) };
}

/// Whoever went on would share what is the owners'.
#[test]
fn a_filter_that_comes_after_the_first_pool_ends_the_process() {
    let name = "a_filter_that_comes_after_the_first_pool_ends_the_process";
    if std::env::var_os(CHILD).is_some() {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        (0..8).for_each(|_| pair(&pool, &stream, 256));
        if forbid_membarrier() {
            let _ = pool.wait_and_trim(0);
        } else {
            println!("no filter");
        }
        println!("went on");
        return;
    }
    let output = run(name);
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("no filter") {
        return support::skipped(name, "the system takes no filter of calls");
    }
    assert!(!said.contains("went on"), "{output:?}");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("membarrier was forbidden"), "{complaint}");
}

/// A kernel that has lost the registration of this process, as after checkpoint and restore: the commands
/// that it is given, and what it answers.
#[cfg(target_arch = "x86_64")]
mod lost {
    use super::*;
    use std::sync::Mutex;

    const EXPEDITED: i64 = 1 << 3;
    const REGISTER: i64 = 1 << 4;

    static COMMANDS: Mutex<Vec<i64>> = Mutex::new(Vec::new());

    /// In place of the call. The calling thread alone uses pools, so there is nothing to interrupt.
    extern "C" fn answer(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the third argument of a handler with `SA_SIGINFO`, which no other code has.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        let registers = &mut context.uc_mcontext.gregs;
        let command = registers[libc::REG_RDI as usize];
        // The signal comes from the call itself, so this thread is not inside of the lock.
        let mut commands = COMMANDS.lock().unwrap();
        registers[libc::REG_RAX as usize] = match command {
            REGISTER => 0,
            EXPEDITED if commands.contains(&REGISTER) => 0,
            _ => -i64::from(libc::EPERM),
        };
        commands.push(command);
    }

    #[test]
    fn a_registration_that_the_kernel_lost_is_made_again() {
        let name = "lost::a_registration_that_the_kernel_lost_is_made_again";
        if std::env::var_os(CHILD).is_none() {
            return passed(name, &run(name));
        }
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        (0..8).for_each(|_| pair(&pool, &stream, 256));
        assert!(pool.statistics().cached > 0, "the test is about this");
        // SAFETY: a handler of this type, which changes the registers of the call that it stands for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = answer as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
        }
        if !filter_membarrier(libc::SECCOMP_RET_TRAP) {
            println!("no filter");
            return;
        }
        COMMANDS.lock().unwrap().clear();
        assert!(pool.wait_and_trim(0).unwrap() > 0);
        assert_eq!(*COMMANDS.lock().unwrap(), [EXPEDITED, REGISTER, EXPEDITED]);
        pair(&pool, &stream, 256);
        drop(pool);
        assert!(!COMMANDS.lock().unwrap()[3..].contains(&REGISTER), "once is enough");
        println!("ran to its end");
    }
}

#[test]
fn a_pool_without_magazines_needs_no_barrier() {
    let name = "a_pool_without_magazines_needs_no_barrier";
    if std::env::var_os(CHILD).is_some() {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let first = PoolResource::new(CudaResource::new(&device)).unwrap();
        (0..8).for_each(|_| pair(&first, &stream, 256));
        if !forbid_membarrier() {
            println!("no filter");
        }
        // Its magazines cannot be taken from their threads any more.
        std::mem::forget(first);
        drop(PoolResource::new(CudaResource::new(&device)).unwrap());
        println!("ran to its end");
        return;
    }
    passed(name, &run(name));
}

#[test]
fn warm_pairs_stay_in_the_magazine() {
    in_child("warm_pairs_stay_in_the_magazine", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        for _ in 0..8 {
            SIZES.iter().for_each(|bytes| pair(&pool, &stream, *bytes));
        }
        // Everything lies in the magazine between pairs, so nothing else has a pair's block to give.
        let warm = pool.statistics();
        assert_eq!(warm.cached, SIZES.iter().sum::<usize>(), "{warm:?}");
        for _ in 0..1000 {
            SIZES.iter().for_each(|bytes| pair(&pool, &stream, *bytes));
        }
        let after = pool.statistics();
        assert_eq!(
            (after.cached, after.misses, after.growths, after.live),
            (warm.cached, warm.misses, warm.growths, 0)
        );
    });
}

#[test]
fn whoever_reclaims_and_the_owner_keep_apart() {
    in_child("whoever_reclaims_and_the_owner_keep_apart", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 0..3000 {
                        let layout = DeviceLayout::new(SIZES[round % SIZES.len()]).unwrap();
                        let mut blocks: Vec<_> =
                            (0..4).map(|_| pool.allocate(&stream, layout).unwrap()).collect();
                        blocks.sort_by_key(|block| block.address());
                        for two in blocks.windows(2) {
                            let end = two[0].address() + two[0].bytes() as u64;
                            assert!(end <= two[1].address(), "two blocks overlap: {two:?}");
                        }
                        for block in blocks {
                            // SAFETY: the pool's, freed once; nothing uses it.
                            unsafe { pool.deallocate(&stream, block) };
                        }
                    }
                    done.store(true, Ordering::Relaxed);
                });
            }
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    pool.wait_and_trim(0).unwrap();
                    std::thread::yield_now();
                }
            });
        });
        assert_eq!(pool.statistics().live, 0);
        pool.wait_and_trim(0).unwrap();
        assert_eq!(pool.statistics().reserved, 0);
    });
}
