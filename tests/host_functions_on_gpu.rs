//! Host functions on a GPU's own thread: their order behind kernels and copies, what they may do there, and a lost context.
//!
//! `AQUIFER_BACKEND=cuda cargo test --features sim --test host_functions_on_gpu -- --test-threads=1` runs them. The tests of
//! `tests/it/host_functions.rs` run on a GPU, too.

#![cfg(feature = "cuda")]

#[path = "support/kernels.rs"]
mod kernels;
mod support;

use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    CudaResource, Device, DeviceVec, ErrorKind, Kernel, LaunchConfig, PinnedAlloc, PoolResource,
};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// Waits about 50 ms, then traps where its argument is not 0.
static WAIT: Kernel = Kernel::new(
    "wait_and_trap",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry wait_and_trap(.param .u32 traps) {
        .reg .pred %p; .reg .u32 %r; .reg .u64 %rd<4>;
        ld.param.u32 %r, [traps];
        mov.u64 %rd1, %globaltimer;
    again:
        mov.u64 %rd2, %globaltimer;
        sub.u64 %rd3, %rd2, %rd1;
        setp.lt.u64 %p, %rd3, 50000000;
        @%p bra again;
        setp.eq.u32 %p, %r, 0;
        @%p bra done;
        trap;
    done:
        ret;
    }"#,
    |_, _| Ok(()),
);

/// Runs `body` in a process of its own, whose context it may break.
fn alone(name: &str, body: impl FnOnce(Device)) {
    const CHILD: &str = "AQUIFER_TEST_HOST_FUNCTIONS";
    if !support::on_gpu() {
        return support::skipped(name, "no GPU");
    }
    if std::env::var_os(CHILD).is_some() {
        return body(Device::open(0).unwrap());
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", output.status);
    print!("{out}");
}

fn wait(stream: &aquifer::Stream, traps: u32) {
    let launch = stream.launch(&WAIT).scalar(traps).unwrap();
    // SAFETY: the kernel touches no memory.
    unsafe { launch.launch(LaunchConfig::for_elements(1)) }.unwrap();
}

#[test]
fn a_function_comes_behind_a_kernel_on_a_thread_of_the_drivers() {
    alone("a_function_comes_behind_a_kernel_on_a_thread_of_the_drivers", |device| {
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let mut host: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
        host.resize(1 << 20, 0);
        for _ in 0..100 {
            let mut vec = DeviceVec::<u32>::zeroed_in(&stream, 1 << 20, pool.clone()).unwrap();
            kernels::add_one(&stream, &mut vec).unwrap();
            wait(&stream, 0);
            let download = stream.download(vec, host).unwrap();
            let (sender, receiver) = channel();
            let here = std::thread::current().id();
            let begun = Instant::now();
            stream
                .launch_host_fn(move || {
                    sender.send((Instant::now(), std::thread::current().id())).unwrap();
                })
                .unwrap();
            // No call of the driver's: the message alone says that the copy is done.
            let (at, thread) = receiver.recv_timeout(LONG).unwrap();
            assert_ne!(thread, here);
            assert!(at - begun > Duration::from_millis(20), "behind the kernel");
            let (back, _vec) = download.wait().unwrap();
            host = back;
            assert!(host.iter().all(|number| *number == 1));
        }
    });
}

#[test]
fn a_message_costs_some_microseconds() {
    alone("a_message_costs_some_microseconds", |device| {
        let stream = device.new_stream().unwrap();
        let mut times: Vec<Duration> = (0..1000)
            .map(|_| {
                let (sender, receiver) = channel();
                let begun = Instant::now();
                stream.launch_host_fn(move || sender.send(()).unwrap()).unwrap();
                receiver.recv_timeout(LONG).unwrap();
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("a host function from its launch to its message: {:?} in the middle", times[500]);
        stream.synchronize().unwrap();
    });
}

#[test]
fn a_lost_context_drops_what_it_does_not_call() {
    alone("a_lost_context_drops_what_it_does_not_call", |device| {
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let vec = DeviceVec::<u8>::zeroed(&other, 1000).unwrap();
        other.synchronize().unwrap();
        let (sender, receiver) = channel::<()>();
        wait(&stream, 1);
        let mut pinned: AllocVec<u8, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
        pinned.resize(1 << 20, 0);
        stream
            .launch_host_fn(move || {
                let _ = sender.send(());
                drop((vec, pinned));
            })
            .unwrap();
        // Without a call of this thread: the driver tells, and the channel's other end hears.
        assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::ContextLost);
        let (sender, receiver) = channel();
        let refused = stream.launch_host_fn(move || sender.send(5).unwrap()).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::ContextLost, "{refused}");
        (refused.value)();
        assert_eq!(receiver.recv(), Ok(5));
    });
}

#[test]
fn a_panic_does_not_reach_the_driver() {
    alone("a_panic_does_not_reach_the_driver", |device| {
        let stream = device.new_stream().unwrap();
        for round in 0..10 {
            stream.launch_host_fn(move || panic!("round {round}")).unwrap();
            let error = stream.synchronize().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Panicked);
            assert!(error.to_string().contains(&format!("round {round}")), "{error}");
        }
    });
}
