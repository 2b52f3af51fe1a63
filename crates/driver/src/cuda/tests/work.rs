//! Memory, copies, fills and launches.

use super::*;
use crate::{
    Access, CaptureStatus, DeviceRange, FillWord, Kernel, LaunchConfig, MemoryLocation, PoolSpec,
    PreferredLocation, RawArg, RawFill, RawLaunch,
};
use std::borrow::Cow;
use std::ptr::NonNull;
use std::slice;

const STREAM: RawStream = RawStream(0);

#[test]
fn memory_of_every_kind_is_allocated_and_freed() {
    alone("work::memory_of_every_kind_is_allocated_and_freed", Installed::StandIn, &[], |log| {
        let driver = open();
        let info = driver.memory_info().unwrap();
        assert_eq!((info.free, info.total), (1 << 30, 2 << 30));
        let pool = driver.pool_create(PoolSpec::keeping(u64::MAX)).unwrap();
        assert!(log.take().contains(&format!("# value={}", u64::MAX)));
        let flags =
            HostFlags { portable: true, mapped: true, write_combined: true, read_only: false };
        let mapped = HostFlags { mapped: true, ..HostFlags::default() };
        // SAFETY: each block is freed once, by the function for its kind, and not used.
        unsafe {
            let plain = driver.mem_alloc(300).unwrap();
            assert_eq!(plain % 256, 0);
            let managed = driver.mem_alloc_managed(300).unwrap();
            let pooled = driver.mem_alloc_async(pool, 300, STREAM).unwrap();
            let host = driver.host_alloc(300, flags).unwrap();
            assert_eq!(host.as_ptr() as usize % 4096, 0);
            assert_eq!(driver.host_device_address(host).unwrap(), host.as_ptr() as usize as u64);
            let calls = log.changes();
            assert!(
                calls
                    .iter()
                    .any(|line| line.starts_with("cuMemHostAlloc ctx=0x1000 bytes=300 flags=7"))
            );
            assert!(
                calls.iter().any(|line| line.ends_with("bytes=300 flags=1")),
                "managed, global"
            );
            driver.host_register(NonNull::slice_from_raw_parts(host, 300), mapped).unwrap();
            assert!(log.changes().iter().any(|line| line.ends_with("bytes=300 flags=2")));
            assert_eq!(
                driver
                    .host_register(NonNull::slice_from_raw_parts(host, 300), flags)
                    .unwrap_err()
                    .code(),
                801
            );
            driver.host_unregister(host).unwrap();
            driver.host_free(host).unwrap();
            driver.mem_free_async(pooled, STREAM).unwrap();
            driver.mem_free(managed).unwrap();
            driver.mem_free(plain).unwrap();
            assert_eq!(driver.mem_free(plain).unwrap_err().code(), 1);
            driver.pool_trim(pool, 0).unwrap();
            driver.pool_destroy(pool).unwrap();
        }
        assert_eq!(alive(), 0);
        capture(1);
        assert_eq!(driver.capture_status(STREAM).unwrap(), CaptureStatus::Active);
        capture(2);
        assert_eq!(driver.capture_status(STREAM).unwrap(), CaptureStatus::Invalidated);
        fail("cuStreamIsCapturing", 1, 906);
        assert_eq!(driver.capture_status(STREAM).unwrap(), CaptureStatus::Active);
        capture(0);
        assert_eq!(driver.capture_status(STREAM).unwrap(), CaptureStatus::None);
    });
}

#[test]
fn copies_and_fills_write_what_they_say() {
    alone("work::copies_and_fills_write_what_they_say", Installed::StandIn, &[], |log| {
        let (driver, peer) = (open(), CudaDriver::open(1).unwrap());
        let bytes: Vec<u8> = (0..64).collect();
        let mut back = vec![0_u8; 64];
        // SAFETY: all blocks hold 64 bytes and live to the end; the stand-in copies at once.
        unsafe {
            let (a, b) = (driver.mem_alloc(64).unwrap(), driver.mem_alloc(64).unwrap());
            let far = peer.mem_alloc(64).unwrap();
            peer.copy_to_device(RawCopy { target: far, source: bytes.as_ptr(), bytes: 64 }, STREAM)
                .unwrap();
            driver
                .copy_from_peer(RawCopy { target: a, source: far, bytes: 64 }, &*peer, STREAM)
                .unwrap();
            assert!(
                log.take()
                    .iter()
                    .any(|line| line.contains("to=0x1000") && line.contains("from=0x2000"))
            );
            driver.copy_on_device(RawCopy { target: b, source: a, bytes: 64 }, STREAM).unwrap();
            driver
                .copy_to_host(RawCopy { target: back.as_mut_ptr(), source: b, bytes: 64 }, STREAM)
                .unwrap();
            assert_eq!(back, bytes);

            let memory = slice::from_raw_parts(a as usize as *const u8, 64);
            let zero = || {
                driver
                    .fill(
                        RawFill { target: a, stride: 1, word: FillWord::U8(0), count: 64 },
                        STREAM,
                    )
                    .unwrap()
            };
            for (word, pattern) in [
                (FillWord::U8(7), &[7_u8][..]),
                (FillWord::U16(0x0201), &[1, 2][..]),
                (FillWord::U32(0x0403_0201), &[1, 2, 3, 4][..]),
            ] {
                let width = pattern.len();
                for stride in [width, width * 2, width * 3] {
                    zero();
                    let count = 60 / stride;
                    driver.fill(RawFill { target: a, stride, word, count }, STREAM).unwrap();
                    let mut expected = vec![0_u8; 64];
                    for row in 0..count {
                        expected[row * stride..][..width].copy_from_slice(pattern);
                    }
                    assert_eq!(memory, expected, "{word:?} every {stride}");
                }
            }
            log.take();
            driver
                .fill(RawFill { target: a, stride: 8, word: FillWord::U32(0), count: 0 }, STREAM)
                .unwrap();
            assert_eq!(log.take(), Vec::<String>::new(), "nothing to fill");
            driver
                .fill(RawFill { target: a, stride: 8, word: FillWord::U32(0), count: 1 }, STREAM)
                .unwrap();
            assert!(log.take().iter().any(|line| line.starts_with("cuMemsetD32Async")));
        }
    });
}

static GOOD: Kernel = Kernel::new("good", ".version 6.4 .entry good", |_, _| Ok(()));
static BAD: Kernel = Kernel::new("bad", "this is no PTX", |_, _| Ok(()));
static CUT: Kernel = Kernel::new("cut", ".version 6.4\0 .entry cut", |_, _| Ok(()));
static ABSENT: Kernel = Kernel::new("absent", ".version 6.4 .entry other", |_, _| Ok(()));

const CUBIN: &[u8] = include_bytes!("../../../../../docs/kernels/add_one.sm_90.cubin");
static CUT_CUBIN: Kernel =
    Kernel::from_cubin("add_one", Cow::Borrowed(CUBIN.split_at(6000).0), |_, _| Ok(()));
static WHOLE_CUBIN: Kernel = Kernel::from_cubin("add_one", Cow::Borrowed(CUBIN), |_, _| Ok(()));

#[test]
fn kernels_are_loaded_once_and_get_their_arguments() {
    alone(
        "work::kernels_are_loaded_once_and_get_their_arguments",
        Installed::StandIn,
        &[],
        |log| {
            let driver = open();
            stand_on_second();
            let config = LaunchConfig { grid: (1, 2, 3), block: (4, 5, 6), shared_bytes: 7 };
            let buffer = RawArg::Buffer { address: 0xabc0, bytes: 8, access: Access::Read };
            // SAFETY: the stand-in runs no kernel.
            let launch = |kernel, arguments: &[_]| unsafe {
                driver.launch(RawLaunch { kernel, config: &config, arguments }, STREAM)
            };
            log.take();
            launch(&GOOD, &[buffer.clone(), RawArg::scalar(5_u8).unwrap()]).unwrap();
            launch(&GOOD, &[RawArg::scalar(5_u64).unwrap()]).unwrap();
            launch(&GOOD, &[]).unwrap();
            launch(&GOOD, &vec![buffer; 40]).unwrap();
            let calls = log.changes();
            let count = |start: &str| calls.iter().filter(|line| line.starts_with(start)).count();
            assert_eq!((count("cuModuleLoadDataEx"), count("cuLaunchKernel")), (1, 4));
            assert_eq!(count("# first parameter=0xabc0"), 2);
            assert_eq!(count("# first parameter=0x5"), 1);
            assert!(calls.iter().any(|line| line.contains("grid=1,2,3 block=4,5,6 shared=7")));

            let before = alive();
            for (kernel, call, code) in [
                (&BAD, "cuModuleLoadDataEx", 218),
                (&CUT, "cuModuleLoadDataEx", 1),
                (&ABSENT, "cuModuleGetFunction", 500),
            ] {
                let error = launch(kernel, &[]).unwrap_err();
                assert_eq!((error.call(), error.code()), (call, code));
            }
            let refused = launch(&BAD, &[]).unwrap_err().to_string();
            assert!(refused.ends_with("line 1: no .version"), "the compiler's reason: {refused}");
            assert_eq!(alive(), before, "no module is left");
            log.take();
            let refused = launch(&CUT_CUBIN, &[]).unwrap_err();
            assert_eq!((refused.call(), refused.code()), ("cuModuleLoadDataEx", 200));
            let is_load = |line: &String| line.starts_with("cuModuleLoadDataEx");
            assert!(!log.changes().iter().any(is_load), "the driver would read past its end");
            // The stand-in knows PTX alone.
            assert_eq!(launch(&WHOLE_CUBIN, &[]).unwrap_err().code(), 218);
            assert!(log.changes().iter().any(is_load));
            assert_eq!(now(), SECOND);
        },
    );
}

#[test]
fn advice_and_prefetches_name_the_device_or_the_host() {
    let name = "work::advice_and_prefetches_name_the_device_or_the_host";
    alone(name, Installed::StandIn, &[], |log| {
        let driver = CudaDriver::open(1).unwrap();
        let managed = driver.mem_alloc_managed(300).unwrap();
        log.take();
        // SAFETY: the block is live, and freed once.
        unsafe {
            let all = DeviceRange { address: managed, bytes: 300 };
            driver.prefetch(all, MemoryLocation::Device, STREAM).unwrap();
            driver.prefetch(all, MemoryLocation::Host, STREAM).unwrap();
            for home in [PreferredLocation::Device, PreferredLocation::Host, PreferredLocation::Any]
            {
                driver.advise(DeviceRange { address: managed, bytes: 300 }, home).unwrap();
            }
            assert_eq!(
                driver
                    .prefetch(
                        DeviceRange { address: 0x10, bytes: 300 },
                        MemoryLocation::Device,
                        STREAM
                    )
                    .unwrap_err()
                    .code(),
                1
            );
            driver.mem_free(managed).unwrap();
        }
        let calls = log.changes();
        let ends = |call: &str| -> Vec<String> {
            let made = calls.iter().filter(|line| line.starts_with(call));
            made.map(|line| line.split_once("bytes=").unwrap().1.to_owned()).collect()
        };
        let advice = ["300 advice=3 device=1", "300 advice=3 device=-1", "300 advice=4 device=1"];
        assert_eq!(ends("cuMemAdvise ctx=0x2000"), advice);
        let (moved, back) = ("300 device=1 stream=0x0", "300 device=-1 stream=0x0");
        assert_eq!(ends("cuMemPrefetchAsync ctx=0x2000"), [moved, back, moved]);
    });
}
