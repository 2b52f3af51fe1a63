//! What happens to blocks that were freed while the device may use them.

use super::{Current, alone, not_ready, pinned_vec, support};
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{Schedule, SimConfig};
use aquifer::{
    DeviceVec, ErrorKind, PinnedAlloc,
    pinned::{
        PinnedResource, current_pinned_resource, last_error, reset_current_pinned_resource,
        set_current_pinned_resource,
    },
};
use std::alloc::Layout;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

const LENGTH: usize = 1000;

#[test]
fn a_block_is_not_unpinned_while_a_copy_reads_it() {
    let _alone = alone();
    for seed in 0..20 {
        let config = SimConfig::default().seed(seed);
        for config in [config.clone(), config.without_context_events()] {
            let (device, simulator) = support::simulated(config);
            let stream = device.new_stream().unwrap();
            let pinned = PinnedResource::new(&device).unwrap();
            let mut target = DeviceVec::<u32>::zeroed(&stream, LENGTH).unwrap();
            let host = pinned_vec(&pinned, LENGTH);
            // SAFETY: dropped below, and then nobody touches the block before the copy has run,
            // since freed blocks wait for the device.
            unsafe { target.copy_from_slice_async(&host).unwrap() };
            drop(host);
            assert_eq!(simulator.host_blocks(), 1, "unpinned by the drop");
            not_ready(&simulator);
            let others = [10, 20, 30].map(|length| pinned_vec(&pinned, length));
            assert!(target.to_vec().unwrap().into_iter().eq(0..LENGTH as u32), "seed {seed}");
            pinned.trim().unwrap();
            assert_eq!(simulator.host_blocks(), 3);
            drop(others);
            pinned.trim().unwrap();
            assert_eq!(simulator.host_blocks(), 0);
            simulator.check().unwrap();
        }
    }
}

#[test]
fn blocks_freed_under_running_streams_are_never_unpinned_early() {
    let _alone = alone();
    let config = SimConfig::default().schedule(Schedule::Background);
    let (device, simulator) = support::simulated(config);
    let pinned = PinnedResource::new(&device).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                let mut target = DeviceVec::<u32>::zeroed(&stream, LENGTH).unwrap();
                for _ in 0..50 {
                    let host = pinned_vec(&pinned, LENGTH);
                    // SAFETY: as above.
                    unsafe { target.copy_from_slice_async(&host).unwrap() };
                }
                assert!(target.to_vec().unwrap().into_iter().eq(0..LENGTH as u32));
            });
        }
    });
    pinned.trim().unwrap();
    simulator.check().unwrap();
    assert_eq!(simulator.host_blocks(), 0);
}

#[test]
fn later_allocations_drain_what_the_device_has_passed() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = PinnedResource::new(&device).unwrap();
    for _ in 0..100 {
        drop(pinned_vec(&pinned, LENGTH));
        assert!(simulator.host_blocks() <= 2);
    }
    // Of another resource, even.
    let other = PinnedResource::builder(&device).mapped(false).build().unwrap();
    let _block = pinned_vec(&other, LENGTH);
    assert_eq!(simulator.host_blocks(), 1);
}

#[test]
fn one_fence_covers_all_that_came_in_before() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = PinnedResource::new(&device).unwrap();
    drop([(); 20].map(|()| pinned_vec(&pinned, 10)));
    pinned.trim().unwrap();
    // The other is the one that the host waits for.
    assert_eq!(simulator.call_count("cuCtxRecordEvent"), 2);
    assert_eq!(simulator.call_count("cuMemFreeHost"), 20);
}

#[test]
fn trim_unpins_everything_on_a_device_that_is_slow_to_answer() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = PinnedResource::new(&device).unwrap();
    drop(pinned_vec(&pinned, LENGTH));
    // An event that was just recorded is not complete: the fence has to go before the wait.
    not_ready(&simulator);
    pinned.trim().unwrap();
    assert_eq!(simulator.host_blocks(), 0);
}

#[test]
fn trim_unpins_everything_on_any_device() {
    let _alone = alone();
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    for _ in 0..10 {
        drop(pinned_vec(&pinned, LENGTH));
        pinned.trim().unwrap();
        // Nothing is left, so nothing has to be waited for, in capture or not.
        pinned.trim().unwrap();
    }
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.host_blocks(), 0);
    }
}

#[test]
fn a_capture_is_not_disturbed_and_blocks_wait_for_its_end() {
    let _alone = alone();
    for config in [SimConfig::default(), SimConfig::default().without_context_events()] {
        let (device, simulator) = support::simulated(config);
        let [captured, _idle] = [(); 2].map(|()| device.new_stream().unwrap());
        let pinned = PinnedResource::new(&device).unwrap();
        simulator.start_capture(&captured).unwrap();
        let fences = || {
            ["cuCtxRecordEvent", "cuEventQuery", "cuCtxSynchronize"]
                .map(|call| simulator.call_count(call))
        };
        let before = fences();
        for _ in 0..3 {
            drop(pinned_vec(&pinned, LENGTH));
        }
        let error = pinned.trim().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capture);
        assert_eq!(fences(), before, "a fence in a capture");
        assert_eq!(simulator.host_blocks(), 3, "the blocks wait");
        assert!(simulator.stop_capture(&captured), "the capture was invalidated");
        pinned.trim().unwrap();
        assert_eq!(simulator.host_blocks(), 0);
    }
}

#[test]
fn a_capture_that_begins_after_the_fence_is_not_disturbed() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pinned = PinnedResource::new(&device).unwrap();
    drop(pinned_vec(&pinned, LENGTH));
    not_ready(&simulator);
    drop(pinned_vec(&pinned, LENGTH));
    assert_eq!(simulator.call_count("cuCtxRecordEvent"), 1);
    simulator.start_capture(&stream).unwrap();
    // The fence of the first block may be asked after; the second one gets none.
    drop(pinned_vec(&pinned, LENGTH));
    assert_eq!(simulator.call_count("cuCtxRecordEvent"), 1);
    assert!(simulator.host_blocks() >= 2);
    assert!(simulator.stop_capture(&stream));
    pinned.trim().unwrap();
    assert_eq!(simulator.host_blocks(), 0);
}

#[test]
fn out_of_memory_in_a_capture_is_out_of_memory() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pinned = PinnedResource::new(&device).unwrap();
    drop(pinned_vec(&pinned, LENGTH));
    simulator.start_capture(&stream).unwrap();
    for nth in [1, 2] {
        simulator.fail_call("cuMemHostAlloc", nth, 2).unwrap();
    }
    assert!(pinned.allocate(Layout::new::<u64>()).is_err());
    assert_eq!(last_error().unwrap().kind(), ErrorKind::OutOfMemory);
    assert!(simulator.stop_capture(&stream));
}

/// The events that reach a subscriber of this thread while `body` runs.
pub(super) fn logged(body: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let subscriber = tracing_subscriber::util::SubscriberInitExt::set_default(subscriber);
    body();
    drop(subscriber);
    let text = log.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    String::from_utf8(text).unwrap()
}

#[test]
fn a_lost_context_leaks_what_waits_and_says_so() {
    let _alone = alone();
    for fenced in [false, true] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let pinned = PinnedResource::new(&device).unwrap();
        let mut live = pinned_vec(&pinned, LENGTH);
        drop(pinned_vec(&pinned, LENGTH));
        if fenced {
            not_ready(&simulator);
            live.reserve(100 * LENGTH);
            assert_eq!(simulator.call_count("cuCtxRecordEvent"), 1);
        }
        simulator.lose_context();
        let lost = || assert_eq!(pinned.trim().unwrap_err().kind(), ErrorKind::ContextLost);
        let text = logged(lost);
        assert!(text.contains("ERROR") && text.contains("leaked page-locked memory"), "{text}");
        assert!(text.contains("bytes=4096"), "{text}");
        // Memory that lives goes on to live, and is leaked in its turn.
        assert!(live.iter().copied().eq(0..LENGTH as u32));
        drop(live);
        assert!(logged(lost).contains("leaked"));
        assert!(stream.synchronize().is_err());
        assert_eq!(simulator.call_count("cuMemFreeHost"), 0);
    }
}

#[test]
fn blocks_outlive_the_resource_the_stream_and_the_device() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = PinnedResource::new(&device).unwrap();
    let mut vec: AllocVec<u32, PinnedResource> = AllocVec::new_in(pinned);
    vec.extend(0..10);
    drop(device);
    vec.extend(10..10_000);
    assert!(vec.iter().copied().eq(0..10_000));
    let block = vec.into_boxed_slice();
    drop(block);
    // Nobody else holds the device now: any allocation of the process drains it.
    let elsewhere = support::device();
    drop(pinned_vec(&PinnedResource::new(&elsewhere).unwrap(), 1));
    assert_eq!(simulator.host_blocks(), 0);
    simulator.check().unwrap();
}

#[test]
fn blocks_go_back_to_where_they_came_from_whatever_is_current() {
    let _alone = alone();
    let (one, of_one) = support::simulated(SimConfig::default());
    let (two, of_two) = support::simulated(SimConfig::default());
    let [one, two] = [one, two].map(|device| PinnedResource::new(&device).unwrap());
    let restore = Current::set(&one);
    assert_eq!(current_pinned_resource().unwrap(), one);
    let mut vec: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    vec.extend(0..1000);
    let kept = vec.clone();
    assert_eq!((of_one.host_blocks(), of_two.host_blocks()), (2, 0));

    assert_eq!(set_current_pinned_resource(two.clone()), Some(one.clone().into()));
    // In place as long as there is room, then to where new blocks come from.
    vec.shrink_to_fit();
    assert_eq!((of_one.host_blocks(), of_two.host_blocks()), (2, 0));
    vec.extend(1000..10_000);
    assert_eq!(of_two.host_blocks(), 1);
    one.trim().unwrap();
    assert_eq!(of_one.host_blocks(), 1);

    assert_eq!(reset_current_pinned_resource(), Some(two.clone().into()));
    assert_eq!(reset_current_pinned_resource(), None);
    assert!(vec.iter().copied().eq(0..10_000) && kept.iter().copied().eq(0..1000));
    drop((vec, kept));
    one.trim().unwrap();
    two.trim().unwrap();
    assert_eq!((of_one.host_blocks(), of_two.host_blocks()), (0, 0));
    drop(restore);
}

#[test]
fn resources_are_equal_by_device_and_options() {
    let (device, _) = support::simulated(SimConfig::default());
    let (other, _) = support::simulated(SimConfig::default());
    let pinned = PinnedResource::new(&device).unwrap();
    assert_eq!(pinned, PinnedResource::builder(&device).portable(true).build().unwrap());
    assert_ne!(pinned, PinnedResource::builder(&device).mapped(false).build().unwrap());
    assert_ne!(pinned, PinnedResource::new(&other).unwrap());
    let text = format!("{pinned:?}");
    assert!(text.contains("simulated device") && text.contains("write_combined: false"), "{text}");
}
