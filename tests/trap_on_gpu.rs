//! A kernel that faults on a GPU: errors from there on, no panic, and no abort but the documented one.

mod support;

use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    Device, DeviceVec, ErrorKind, Kernel, LaunchConfig, PinnedAlloc, Stream, pinned::PinnedResource,
};
use std::process::Command;

/// Waits about 20 ms, so that what comes after is enqueued before the fault, then traps.
static TRAP: Kernel = Kernel::new(
    "late_trap",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry late_trap() {
        .reg .pred %p; .reg .u64 %rd<4>;
        mov.u64 %rd1, %globaltimer;
    again:
        mov.u64 %rd2, %globaltimer;
        sub.u64 %rd3, %rd2, %rd1;
        setp.lt.u64 %p, %rd3, 20000000;
        @%p bra again;
        trap;
        ret;
    }"#,
    |_, _| Ok(()),
);

fn trap(stream: &Stream) {
    // SAFETY: the kernel touches no memory.
    unsafe { stream.launch(&TRAP).launch(LaunchConfig::for_elements(1)) }.unwrap();
}

/// Runs `body` in a process of its own, whose context it may break.
fn alone(name: &str, body: impl FnOnce(Device)) {
    const CHILD: &str = "AQUIFER_TEST_TRAP";
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
}

#[test]
fn a_blocking_copy_behind_a_fault_is_an_error() {
    alone("a_blocking_copy_behind_a_fault_is_an_error", |device| {
        let stream = device.new_stream().unwrap();
        let vec = DeviceVec::from_slice(&stream, &[1_u32; 1000]).unwrap();
        trap(&stream);
        let error = vec.to_vec().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ContextLost, "{error}");
        assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::ContextLost);
        assert_eq!(DeviceVec::<u8>::zeroed(&stream, 1).unwrap_err().kind(), ErrorKind::ContextLost);
        assert!(vec.try_clone().is_err() && vec.on(&device.default_stream()).is_err());
        println!("{vec:?} {stream:?} {error:?}");
    });
}

#[test]
fn a_transfer_beside_a_fault_gives_its_buffers_back_or_leaks_them() {
    alone("a_transfer_beside_a_fault_gives_its_buffers_back_or_leaks_them", |device| {
        let (faulty, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let pinned = || {
            let mut vec: AllocVec<u8, PinnedAlloc> =
                AllocVec::with_capacity_in(64 << 20, PinnedAlloc);
            vec.resize(64 << 20, 1);
            vec
        };
        let vec = || DeviceVec::<u8>::zeroed(&other, 64 << 20).unwrap();
        let (up, down) = ((pinned(), vec()), (pinned(), vec()));
        let behind = (pinned(), DeviceVec::<u8>::zeroed(&faulty, 64 << 20).unwrap());
        device.synchronize().unwrap();
        trap(&faulty);
        let behind = faulty.download(behind.1, behind.0).unwrap();
        let down = other.download(down.1, down.0).unwrap();
        let up = other.upload(up.0, up.1).unwrap();
        let failed = behind.wait().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::ContextLost, "{failed}");
        assert!(failed.buffers.is_none(), "nobody can say that the device stopped");
        // The other stream's may have been complete, and known so, before the fault was.
        let ended = [down.wait().map(drop), up.wait().map(drop)];
        for failed in ended.into_iter().filter_map(Result::err) {
            assert_eq!(failed.error.kind(), ErrorKind::ContextLost);
        }
        // What the pool has is still the host's; the driver gives no more.
        let mut more = AllocVec::<u8, _>::new_in(PinnedResource::new(&device).unwrap());
        assert!(more.try_reserve(1).is_err(), "no memory of a broken context");
    });
}
