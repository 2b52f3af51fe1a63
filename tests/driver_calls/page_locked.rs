//! Page-locked memory: what its fences ask, and who waits for whom.

use super::child::{Installed, StandIn, alone};
use allocator_api2::alloc::Allocator;
use aquifer::cudarc::driver::result;
use aquifer::cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
use aquifer::{
    Device, Stream,
    pinned::{PinnedPool, PinnedResource},
};
use std::alloc::Layout;

const GET: &str = "cuCtxGetCurrent";
const PUSH: &str = "cuCtxPushCurrent_v2";
const POP: &str = "cuCtxPopCurrent_v2";
const ASK: &str = "cuStreamIsCapturing";
const RECORD: &str = "cuCtxRecordEvent";
const QUERY: &str = "cuEventQuery";

/// Frees of one full batch, and what they asked the driver.
fn batch(driver: &StandIn, pool: &PinnedPool) -> Vec<String> {
    let layout = Layout::from_size_align(256, 8).unwrap();
    driver.take();
    for _ in 0..64 {
        let block = pool.allocate(layout).unwrap();
        // SAFETY: allocated above.
        unsafe { pool.deallocate(block.cast(), layout) };
    }
    driver.all_names()
}

fn count(names: &[String], wanted: &str) -> usize {
    names.iter().filter(|name| *name == wanted).count()
}

#[test]
fn a_fence_asks_only_streams_whose_handles_others_have() {
    let name = "page_locked::a_fence_asks_only_streams_whose_handles_others_have";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let streams: Vec<Stream> = (0..64).map(|_| device.new_stream().unwrap()).collect();
        let pool = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
        (0..8).for_each(|_| drop(batch(driver, &pool)));
        let asked = batch(driver, &pool);
        assert_eq!((count(&asked, ASK), count(&asked, RECORD)), (0, 1), "{asked:?}");
        assert!(asked.join(" ").contains(&[GET, PUSH, RECORD, POP].join(" ")), "{asked:?}");
        assert!(asked.len() <= 4 + 6 * count(&asked, QUERY), "{asked:?}");

        // Each of those is asked, all under one look at the context.
        let handles: Vec<_> = streams[..2].iter().map(|it| it.cuda_stream().unwrap()).collect();
        let asked = batch(driver, &pool);
        assert_eq!((count(&asked, ASK), count(&asked, RECORD)), (2, 1), "{asked:?}");
        let fence = [GET, PUSH, ASK, ASK, RECORD, POP].join(" ");
        assert!(asked.join(" ").contains(&fence), "{asked:?}");

        // In a capture of another library's nothing is recorded, and nothing is lost.
        handles[1].begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let asked = batch(driver, &pool);
        assert_eq!(count(&asked, RECORD), 0, "{asked:?}");
        assert!(streams[1].is_capturing().unwrap() && pool.statistics().waiting > 0);
        // SAFETY: the stream lives, and the capture began on it.
        assert!(unsafe { result::stream::end_capture(handles[1].cu_stream()) }.is_ok());
        assert!(count(&batch(driver, &pool), RECORD) > 0);

        // A stream that is gone is asked no more; one that cudarc made is asked from the first.
        drop(streams);
        assert_eq!(count(&batch(driver, &pool), ASK), 0);
        let theirs = device.cuda_context().unwrap().new_stream().unwrap();
        let known = Stream::from_cudarc(&theirs).unwrap();
        assert_eq!(count(&batch(driver, &pool), ASK), 1);
        drop(known);
    });
}

/// The processor time of the calling thread.
fn used() -> std::time::Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable for the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) }, 0);
    std::time::Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[test]
fn a_thread_sleeps_while_another_grows_a_pool_to_its_maximum() {
    let name = "page_locked::a_thread_sleeps_while_another_grows_a_pool_to_its_maximum";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let upstream = PinnedResource::new(&device).unwrap();
        let pool = PinnedPool::builder(upstream).maximum_size(1 << 20).build().unwrap();
        let layout = Layout::from_size_align(4096, 8).unwrap();
        driver.delay("cuMemHostAlloc", 2000);
        std::thread::scope(|threads| {
            let grower = threads.spawn(|| pool.allocate(layout).map(|_| ()).unwrap());
            while !driver.names().contains(&"cuMemHostAlloc".to_owned()) {
                std::thread::yield_now();
            }
            let waiter = threads.spawn(|| {
                let before = used();
                // There is no room but in the slab that the other thread is asking for.
                let block = pool.allocate(layout);
                (block.is_ok(), used() - before)
            });
            let (served, time) = waiter.join().unwrap();
            assert!(served);
            assert!(time.as_millis() < 1000, "{time:?} of two seconds");
            grower.join().unwrap();
        });
    });
}
