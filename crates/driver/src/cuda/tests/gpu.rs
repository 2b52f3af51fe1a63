//! The backend on a GPU. Where there is none, the tests say that they did nothing.

use super::*;
use crate::sync::Arc;
use crate::{Access, CaptureStatus, FillWord, Kernel, LaunchConfig, RawArg, RawFill, RawLaunch};

static DOUBLE: Kernel = Kernel::new(
    "double",
    r"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry double(.param .u64 data, .param .u32 n) {
        .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %rd<3>;
        ld.param.u64 %rd1, [data];
        ld.param.u32 %r1, [n];
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
        mad.lo.u32 %r2, %r2, %r3, %r4;
        setp.ge.u32 %p, %r2, %r1;
        @%p bra done;
        cvta.to.global.u64 %rd1, %rd1;
        mul.wide.u32 %rd2, %r2, 4;
        add.u64 %rd1, %rd1, %rd2;
        ld.global.u32 %r3, [%rd1];
        shl.b32 %r3, %r3, 1;
        st.global.u32 [%rd1], %r3;
    done:
        ret;
    }",
    |_, _| Ok(()),
);
static REFUSED: Kernel = Kernel::new("refused", "this is no PTX", |_, _| Ok(()));

fn gpu() -> Option<Arc<CudaDriver>> {
    match device_count() {
        Ok(_) => Some(open()),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

#[test]
fn work_runs_on_a_gpu() {
    let Some(driver) = gpu() else { return };
    println!("{driver:?} {:?}", driver.properties());
    assert_eq!(now(), 0, "opening bound nothing to this thread");
    let stream = driver.stream_create().unwrap();
    let raw = stream.raw;
    let event = driver.event_create().unwrap();
    assert!(driver.event_query(event).unwrap(), "never recorded");
    let count = 1000;
    let bytes = count * 4;
    let host =
        driver.host_alloc(bytes, HostFlags { portable: true, ..Default::default() }).unwrap();
    // SAFETY: the block holds `count` words, is written here first, and is read again only after
    // the stream was synchronised; all device ranges lie in blocks of their size.
    unsafe {
        let words = std::slice::from_raw_parts_mut(host.as_ptr().cast::<u32>(), count);
        words.iter_mut().zip(0..).for_each(|(word, index)| *word = index);
        let block = driver.mem_alloc(bytes).unwrap();
        driver
            .copy_to_device(RawCopy { target: block, source: host.as_ptr(), bytes }, raw)
            .unwrap();
        let arguments = [
            RawArg::Buffer { address: block, bytes, access: Access::ReadWrite },
            RawArg::scalar(count as u32).unwrap(),
        ];
        driver
            .launch(
                RawLaunch {
                    kernel: &DOUBLE,
                    config: &LaunchConfig::for_elements(count),
                    arguments: &arguments,
                },
                raw,
            )
            .unwrap();
        // Every third word from the second on.
        driver
            .fill(
                RawFill { target: block + 4, stride: 12, word: FillWord::U32(7), count: 333 },
                raw,
            )
            .unwrap();
        driver.copy_to_host(RawCopy { target: host.as_ptr(), source: block, bytes }, raw).unwrap();
        driver.event_record(event, raw).unwrap();
        assert_eq!(driver.capture_status(raw).unwrap(), CaptureStatus::None);
        driver.event_synchronize(event).unwrap();
        assert!(driver.event_query(event).unwrap());
        for (index, word) in (0..).zip(words.iter()) {
            assert_eq!(*word, if index % 3 == 1 { 7 } else { index * 2 }, "word {index}");
        }
        let refused = driver.launch(
            RawLaunch { kernel: &REFUSED, config: &LaunchConfig::for_elements(1), arguments: &[] },
            raw,
        );
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(": error"), "the compiler's reason: {refused}");

        if driver.properties().memory_pools {
            let pool = driver.pool_create(crate::PoolSpec::keeping(1 << 30)).unwrap();
            let pooled = driver.mem_alloc_async(pool, bytes, raw).unwrap();
            driver
                .fill(
                    RawFill { target: pooled, stride: 1, word: FillWord::U8(1), count: bytes },
                    raw,
                )
                .unwrap();
            driver.mem_free_async(pooled, raw).unwrap();
            driver.stream_synchronize(raw).unwrap();
            driver.pool_trim(pool, 0).unwrap();
            driver.pool_destroy(pool).unwrap();
        }
        if driver.properties().context_events {
            driver.context_record(event).unwrap();
            driver.event_synchronize(event).unwrap();
        }
        driver.mem_free(block).unwrap();
        driver.host_free(host).unwrap();
        driver.event_destroy(event).unwrap();
    }
    driver.stream_destroy(raw, stream.keep);
    driver.context_synchronize().unwrap();
    let memory = driver.memory_info().unwrap();
    assert!(memory.free <= memory.total);
    assert_eq!(now(), 0, "nothing is left bound");
}

#[test]
fn graphs_run_on_a_gpu() {
    let Some(driver) = gpu() else { return };
    let (stream, other) = (driver.stream_create().unwrap(), driver.stream_create().unwrap());
    let (a, b) = (stream.raw, other.raw);
    let (count, bytes) = (1000_usize, 4000_usize);
    let (fork, join) = (driver.event_create().unwrap(), driver.event_create().unwrap());
    let mut back = vec![0_u32; count];
    // SAFETY: all ranges lie in `block`, which is freed at the end, after a synchronisation; `back`
    // is pageable, so its copies are complete when they return.
    unsafe {
        let block = driver.mem_alloc(bytes).unwrap();
        let arguments = [
            RawArg::Buffer { address: block, bytes, access: Access::ReadWrite },
            RawArg::scalar(count as u32).unwrap(),
        ];
        let double = |on| {
            driver.launch(
                RawLaunch {
                    kernel: &DOUBLE,
                    config: &LaunchConfig::for_elements(count),
                    arguments: &arguments,
                },
                on,
            )
        };
        driver
            .fill(RawFill { target: block, stride: 4, word: FillWord::U32(1), count }, a)
            .unwrap();
        driver.stream_begin_capture(a).unwrap();
        assert_eq!(driver.stream_begin_capture(a).unwrap_err().code(), 401);
        // Loads its module and allocates in the middle of the capture.
        double(a).unwrap();
        let meanwhile = driver.mem_alloc(64).unwrap();
        driver.mem_free(meanwhile).unwrap();
        driver.event_record(fork, a).unwrap();
        driver.stream_wait_event(b, fork).unwrap();
        double(b).unwrap();
        driver.event_record(join, b).unwrap();
        driver.stream_wait_event(a, join).unwrap();
        assert_eq!(driver.capture_status(b).unwrap(), CaptureStatus::Active);
        let graph = driver.stream_end_capture(a).unwrap();
        assert_eq!(driver.capture_status(b).unwrap(), CaptureStatus::None);
        driver
            .copy_to_host(RawCopy { target: back.as_mut_ptr().cast(), source: block, bytes }, a)
            .unwrap();
        assert_eq!(back, vec![1; count], "a capture runs nothing");
        driver.graph_launch(graph, a).unwrap();
        driver.graph_launch(graph, b).unwrap();
        driver.graph_launch(graph, a).unwrap();
        driver.graph_destroy(graph).unwrap();
        driver
            .copy_to_host(RawCopy { target: back.as_mut_ptr().cast(), source: block, bytes }, a)
            .unwrap();
        assert_eq!(back, vec![64; count], "three launches in order, on two streams");

        // Invalidated, forked and not joined, abandoned: with or without an error, the stream works.
        let works = || {
            driver
                .fill(RawFill { target: block, stride: 4, word: FillWord::U32(1), count }, a)
                .is_ok()
        };
        driver.stream_begin_capture(a).unwrap();
        assert_eq!(driver.stream_synchronize(a).unwrap_err().code(), 900);
        assert_eq!(driver.stream_end_capture(a).unwrap_err().code(), 901);
        assert!(works());
        driver.stream_begin_capture(a).unwrap();
        driver.event_record(fork, a).unwrap();
        driver.stream_wait_event(b, fork).unwrap();
        double(b).unwrap();
        assert_eq!(driver.stream_end_capture(a).unwrap_err().code(), 904);
        assert_eq!(driver.capture_status(b).unwrap(), CaptureStatus::None);
        assert!(works());
        driver.stream_begin_capture(a).unwrap();
        double(a).unwrap();
        driver.stream_abandon_capture(a).unwrap();
        assert!(works());
        driver.stream_synchronize(a).unwrap();
        driver.mem_free(block).unwrap();
        driver.event_destroy(fork).unwrap();
        driver.event_destroy(join).unwrap();
    }
    driver.stream_destroy(a, stream.keep);
    driver.stream_destroy(b, other.keep);
    driver.context_synchronize().unwrap();
}

#[test]
fn a_reopened_context_has_another_id() {
    let Some(driver) = gpu() else { return };
    let context_id = driver.context_id();
    drop(driver);
    // Other tests may hold the context meanwhile; then it is the same one.
    let again = open();
    println!("{context_id} and then {}", again.context_id());
    assert!(again.memory_info().is_ok());
    assert_eq!(now(), 0);
}
