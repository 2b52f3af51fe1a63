//! A tracking adaptor knows what is out: RMM's `tracking_mr_tests`, and what RMM does not ask.

use crate::{log, support};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind,
    PoolResource, Result, Stream, mr::TrackingAdaptor,
};
use log::Log;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::free;
use tracing::Level;

const TEN_MIB: usize = 10 << 20;

fn take(resource: &dyn DeviceResource, stream: &Stream) -> DeviceBlock {
    resource.allocate(stream, DeviceLayout::new(TEN_MIB).unwrap()).unwrap()
}

fn resized(block: &DeviceBlock, bytes: usize) -> DeviceBlock {
    DeviceBlock::new(block.address(), bytes, block.token())
}

fn tracking(device: &Device) -> TrackingAdaptor<CudaResource> {
    TrackingAdaptor::new(CudaResource::new(device))
}

fn counts<U>(tracking: &TrackingAdaptor<U>) -> (usize, usize) {
    (tracking.outstanding().len(), tracking.allocated_bytes())
}

#[test]
fn a_new_one_is_empty() {
    let device = support::device();
    let tracking = tracking(&device);
    assert_eq!(counts(&tracking), (0, 0));
    assert!(tracking.report().starts_with("Outstanding Allocations: 0 blocks, 0 bytes in all"));
}

#[test]
fn nothing_is_left_when_all_is_freed() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let tracking = tracking(&device);
    let blocks: Vec<_> = (0..10).map(|_| take(&tracking, &stream)).collect();
    assert_eq!(counts(&tracking), (10, 10 * TEN_MIB));
    for block in blocks {
        free(&tracking, &stream, block);
    }
    assert_eq!(counts(&tracking), (0, 0));
    let (_, log) = Log::of(|| drop(tracking));
    assert!(log.lines().is_empty(), "{:?}", log.lines());
}

#[test]
fn half_is_left_when_every_other_block_is_freed() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for backtraces in [false, true] {
        let tracking = TrackingAdaptor::builder(CudaResource::new(&device));
        let tracking = tracking.capture_backtraces(backtraces).build();
        let blocks: Vec<_> = (0..10).map(|_| take(&tracking, &stream)).collect();
        let (even, odd): (Vec<_>, Vec<_>) =
            blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        for (_, block) in even {
            free(&tracking, &stream, block);
        }
        assert_eq!(counts(&tracking), (5, 5 * TEN_MIB));
        let left = tracking.outstanding();
        for ((number, block), allocation) in odd.iter().zip(&left) {
            assert_eq!(allocation.number(), *number as u64, "oldest first");
            assert_eq!(allocation.address(), block.address());
            assert_eq!(allocation.bytes(), TEN_MIB);
            assert_eq!(allocation.stream_id(), stream.id());
            assert_eq!(allocation.thread_id(), std::thread::current().id());
            assert_eq!(allocation.backtrace().is_some(), backtraces);
            assert_eq!(allocation.origin().is_some(), backtraces);
        }
        assert!(left.is_sorted_by_key(|allocation| allocation.after()));
        let report = tracking.report();
        assert!(
            report.starts_with("Outstanding Allocations: 5 blocks, 52428800 bytes in all"),
            "{report}"
        );
        assert_eq!(report.lines().count(), 6, "{report}");
        assert_eq!(report.matches("tests/it/tracking.rs:").count(), if backtraces { 5 } else { 0 });
        for (_, block) in odd {
            free(&tracking, &stream, block);
        }
    }
}

#[test]
fn the_report_names_the_very_line_that_leaked() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let tracking = TrackingAdaptor::builder(CudaResource::new(&device));
    let tracking = tracking.capture_backtraces(true).build();
    let erased: Arc<dyn DeviceResource> = Arc::new(tracking.clone());
    let line = line!() + 1;
    let vec = DeviceVec::<u32>::zeroed_in(&stream, 1000, erased.clone()).unwrap();
    let place = format!("tests/it/tracking.rs:{line}:");
    assert!(tracking.report().contains(&place), "{} has no {place}", tracking.report());
    // A forgotten vector holds its resource for good, and the report can be asked all the same.
    std::mem::forget(vec);
    drop(erased);
    assert_eq!(counts(&tracking), (1, 4000));
    assert!(tracking.report().contains(&place));
    let (_, log) = Log::of(|| tracking.log_outstanding());
    assert_eq!(log.count(Level::WARN, &place), 1, "{:?}", log.lines());
    assert_eq!(log.count(Level::WARN, "Outstanding Allocations"), 1);
}

/// A pool over it allocates in the name of the program's line, too.
#[test]
fn the_report_names_the_line_that_a_pool_grew_for() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let tracking = TrackingAdaptor::builder(CudaResource::new(&device));
    let tracking = tracking.capture_backtraces(true).build();
    let pool = aquifer::PoolResource::new(tracking.clone()).unwrap();
    let line = line!() + 1;
    let vec = DeviceVec::<u32>::zeroed_in(&stream, 1000, pool).unwrap();
    let place = format!("tests/it/tracking.rs:{line}:");
    assert!(tracking.report().contains(&place), "{} has no {place}", tracking.report());
    drop(vec);
}

#[inline(never)]
fn takes_after(calls: u32, resource: &dyn DeviceResource, stream: &Stream) -> DeviceBlock {
    let block =
        if calls == 0 { take(resource, stream) } else { takes_after(calls - 1, resource, stream) };
    std::hint::black_box(block)
}

#[test]
fn a_backtrace_names_functions_and_lines_and_has_an_end() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let tracking = TrackingAdaptor::builder(CudaResource::new(&device));
    let tracking = tracking.capture_backtraces(true).build();
    let line = line!() + 1;
    let blocks: Vec<_> = [0, 3, 500].map(|calls| takes_after(calls, &tracking, &stream)).into();
    let list = tracking.outstanding();
    let [shallow, deeper, deep] = [0, 1, 2].map(|nth| list[nth].backtrace().unwrap());
    assert_eq!(shallow.addresses().len() + 3, deeper.addresses().len());
    assert_eq!(deep.addresses().len(), 128, "the innermost ones");
    for (stack, times) in [(shallow, 1), (deeper, 4)] {
        let text = stack.to_string();
        assert_eq!(text.matches("takes_after").count(), times, "{text}");
        assert!(text.contains(&format!("tests/it/tracking.rs:{line}:")), "{text}");
        assert!(text.contains("a_backtrace_names_functions_and_lines_and_has_an_end"), "{text}");
    }
    assert!(list.iter().all(|one| one.origin().unwrap().contains("tests/it/tracking.rs:")));
    for block in blocks {
        free(&tracking, &stream, block);
    }
}

#[test]
fn stacked_ones_count_what_passes_through_each() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let below = tracking(&device);
    let mut vecs = Vec::new();
    let mut fill = |count: usize, resource: Arc<dyn DeviceResource>| {
        vecs.extend(
            (0..count)
                .map(|_| DeviceVec::<u8>::zeroed_in(&stream, TEN_MIB, resource.clone()).unwrap()),
        );
    };
    fill(10, Arc::new(below.clone()));
    assert_eq!(counts(&below), (10, 10 * TEN_MIB));
    let above = TrackingAdaptor::new(below.clone());
    fill(5, Arc::new(above.clone()));
    assert_eq!(counts(&below), (15, 15 * TEN_MIB));
    assert_eq!(counts(&above), (5, 5 * TEN_MIB));
    vecs.clear();
    assert_eq!((counts(&below), counts(&above)), ((0, 0), (0, 0)));
    assert_eq!(*above.upstream(), below);
}

/// All goes back through the upper one, which does not know what the lower one handed out.
#[test]
fn frees_through_a_stacked_one_leave_both_empty() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let below = tracking(&device);
    let above = TrackingAdaptor::new(below.clone());
    let mut blocks: Vec<_> = (0..10).map(|_| take(&below, &stream)).collect();
    blocks.extend((0..5).map(|_| take(&above, &stream)));
    let (_, log) = Log::of(|| {
        for block in blocks {
            free(&above, &stream, block);
        }
    });
    assert_eq!((counts(&below), counts(&above)), ((0, 0), (0, 0)));
    assert_eq!((above.unknown_frees(), below.unknown_frees()), (10, 0));
    assert_eq!(log.count(Level::WARN, "does not know"), 1, "warned once: {:?}", log.lines());
    assert_eq!(log.count(Level::WARN, "address=0x"), 1, "{:?}", log.lines());
    assert!(above.report().contains("not handed out here: 10"), "{}", above.report());
}

#[test]
fn an_unknown_free_does_not_underflow() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let tracking = tracking(&device);
    let foreign = take(tracking.upstream(), &stream);
    free(&tracking, &stream, foreign);
    assert_eq!(counts(&tracking), (0, 0));
    let block = take(&tracking, &stream);
    assert_eq!(counts(&tracking), (1, TEN_MIB));
    free(&tracking, &stream, block);
    assert_eq!((counts(&tracking), tracking.unknown_frees()), ((0, 0), 1));
}

/// Notes the sizes that come back.
#[derive(Debug)]
struct Sizes {
    upstream: CudaResource,
    freed: Mutex<Vec<usize>>,
}

// SAFETY: forwards unchanged.
unsafe impl DeviceResource for Sizes {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.upstream.allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.freed.lock().unwrap().push(block.bytes());
        // SAFETY: the caller's promise.
        unsafe { self.upstream.deallocate(stream, block) }
    }
}

#[test]
fn a_wrong_size_leaves_nothing_and_upstream_gets_the_right_one() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let sizes = Arc::new(Sizes { upstream: CudaResource::new(&device), freed: Mutex::default() });
    let tracking = TrackingAdaptor::new(sizes.clone());
    let blocks: Vec<_> = (0..10).map(|_| take(&tracking, &stream)).collect();
    let (_, log) = Log::of(|| {
        for (block, wrong) in
            blocks.iter().zip([TEN_MIB / 2, 2 * TEN_MIB, usize::MAX, 0].iter().cycle())
        {
            free(&tracking, &stream, resized(block, *wrong));
        }
    });
    assert_eq!(counts(&tracking), (0, 0));
    assert_eq!((tracking.wrong_size_frees(), tracking.unknown_frees()), (10, 0));
    assert_eq!(log.count(Level::WARN, "not its own"), 1, "{:?}", log.lines());
    assert_eq!(*sizes.freed.lock().unwrap(), [TEN_MIB; 10]);
}

#[test]
fn a_block_freed_past_the_adaptor_is_replaced_when_it_comes_again() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let slot = Arc::new(OneSlot::new(&device));
    let tracking = TrackingAdaptor::new(slot.clone());
    let block = take(&tracking, &stream);
    free(&*slot, &stream, block);
    assert_eq!(counts(&tracking), (1, TEN_MIB));
    let block = take(&tracking, &stream);
    assert_eq!((counts(&tracking), tracking.bypassing_frees()), ((1, TEN_MIB), 1));
    free(&tracking, &stream, block);
    assert_eq!(counts(&tracking), (0, 0));
}

#[test]
fn the_last_handle_says_what_it_leaves_and_only_the_last() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let tracking = tracking(&device);
    let kept = tracking.upstream().clone();
    let block = take(&tracking, &stream);
    let clone = tracking.clone();
    assert_eq!(clone, tracking);
    assert_eq!(clone.identity(), tracking.identity());
    let (_, log) = Log::of(|| drop(clone));
    assert!(log.lines().is_empty());
    let (_, log) = Log::of(|| drop(tracking));
    assert_eq!(
        log.count(Level::WARN, "Outstanding Allocations: 1 block, 10485760 bytes in all"),
        1
    );
    free(&kept, &stream, block);
}

/// A program that leaks all it has must still come to its end.
#[test]
fn a_log_names_the_oldest_of_many_and_a_report_names_all() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let tracking = TrackingAdaptor::new(PoolResource::new(CudaResource::new(&device)).unwrap());
    let kept = tracking.upstream().clone();
    let small = DeviceLayout::new(256).unwrap();
    let blocks: Vec<_> = (0..107).map(|_| tracking.allocate(&stream, small).unwrap()).collect();
    let newest = format!("{:#x},", blocks[106].address());
    assert_eq!(tracking.report().lines().count(), 108);
    assert!(tracking.report().contains(&newest));
    let (_, asked) = Log::of(|| tracking.log_outstanding());
    let (_, last) = Log::of(|| drop(tracking));
    for log in [asked, last] {
        let lines = log.lines();
        let [(Level::WARN, text)] = &*lines else { panic!("{lines:?}") };
        assert!(
            text.contains("107 blocks, 27392 bytes in all") && text.contains("and 7 more"),
            "{text}"
        );
        assert!(!text.contains(&newest), "{text}");
    }
    for block in blocks {
        free(&kept, &stream, block);
    }
}

#[test]
fn failures_and_empty_blocks_are_not_listed() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let tracking = tracking(&device);
    let huge = DeviceLayout::new(1 << 50).unwrap();
    assert_eq!(tracking.allocate(&stream, huge).unwrap_err().kind(), ErrorKind::OutOfMemory);
    let empty = tracking.allocate(&stream, DeviceLayout::new(0).unwrap()).unwrap();
    assert_eq!(counts(&tracking), (0, 0));
    free(&tracking, &stream, empty);
    assert_eq!(tracking.unknown_frees(), 0);
}

/// One block, handed out again the moment it is back; then the free waits to be let go.
#[derive(Debug)]
struct OneSlot {
    upstream: CudaResource,
    slot: Mutex<Option<DeviceBlock>>,
    pause: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    overtaken: AtomicBool,
}

impl OneSlot {
    fn new(device: &Device) -> Self {
        let upstream = CudaResource::new(device);
        let (slot, pause) = (Mutex::default(), Mutex::default());
        Self { upstream, slot, pause, overtaken: AtomicBool::new(false) }
    }
}

// SAFETY: the one block is in one hand at a time; no work uses it.
unsafe impl DeviceResource for OneSlot {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        match self.slot.lock().unwrap().take() {
            Some(block) => Ok(block),
            None => self.upstream.allocate(stream, layout),
        }
    }

    unsafe fn deallocate(&self, _stream: &Stream, block: DeviceBlock) {
        *self.slot.lock().unwrap() = Some(block);
        let pause = self.pause.lock().unwrap().take();
        if let Some((back, go)) = pause {
            back.send(()).unwrap();
            let overtaken = go.recv_timeout(Duration::from_secs(20)).is_ok();
            self.overtaken.store(overtaken, Ordering::Relaxed);
        }
    }
}

impl Drop for OneSlot {
    fn drop(&mut self) {
        if let Some(block) = self.slot.get_mut().unwrap().take() {
            let stream = self.upstream.device().default_stream();
            free(&self.upstream, &stream, block);
        }
    }
}

/// Another thread gets the address while the first is still in upstream's free: its entry must not be
/// the one that goes (RMM's issue 2304).
#[test]
fn an_address_that_comes_again_during_its_free_stays_listed() {
    let device = support::device();
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let slot = Arc::new(OneSlot::new(&device));
    let tracking = TrackingAdaptor::new(slot.clone());
    let block = take(&tracking, &first);
    let address = block.address();
    let (back, is_back) = channel();
    let (go, may_go) = channel();
    *slot.pause.lock().unwrap() = Some((back, may_go));
    let again = std::thread::scope(|scope| {
        scope.spawn(|| free(&tracking, &first, block));
        is_back.recv_timeout(Duration::from_secs(20)).unwrap();
        let again = take(&tracking, &second);
        go.send(()).unwrap();
        again
    });
    assert!(slot.overtaken.load(Ordering::Relaxed), "the second thread waited for the first");
    assert_eq!(again.address(), address);
    assert_eq!(counts(&tracking), (1, TEN_MIB));
    assert_eq!(tracking.outstanding()[0].stream_id(), second.id());
    assert_eq!(tracking.bypassing_frees(), 0);
    free(&tracking, &second, again);
    assert_eq!((counts(&tracking), tracking.unknown_frees()), ((0, 0), 0));
}

#[test]
fn many_threads_leave_exact_sums() {
    let device = support::device();
    let tracking = tracking(&device);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                let resource: Arc<dyn DeviceResource> = Arc::new(tracking.clone());
                for round in 0..100 {
                    let vec = || DeviceVec::<u8>::zeroed_in(&stream, 100 + round, resource.clone());
                    let held = [vec().unwrap(), vec().unwrap()];
                    assert!(tracking.allocated_bytes() >= 2 * (100 + round));
                    drop(held);
                }
            });
        }
    });
    assert_eq!(counts(&tracking), (0, 0));
    assert_eq!((tracking.unknown_frees(), tracking.bypassing_frees()), (0, 0));
}
