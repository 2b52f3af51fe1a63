//! What a statistics adaptor counts, of all threads and of one.

use crate::support;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind,
    PoolResource, Result, Stream,
    mr::{LimitingAdaptor, StatisticsAdaptor},
};
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use support::{free, layout};

const UNIT: usize = 10 * 1024;

fn take(resource: &dyn DeviceResource, stream: &Stream) -> DeviceBlock {
    resource.allocate(stream, layout(UNIT)).unwrap()
}

/// Current, peak and total, in units, of bytes that are whole units each.
fn units(counters: aquifer::mr::Counters) -> [i64; 3] {
    let (bytes, blocks) = (counters.bytes, counters.allocations);
    let all = [bytes.current, bytes.peak, bytes.total];
    assert_eq!(all.map(|bytes| bytes % UNIT as i64), [0; 3]);
    let units = all.map(|bytes| bytes / UNIT as i64);
    assert_eq!(units, [blocks.current, blocks.peak, blocks.total], "one block a unit");
    units
}

/// Addresses without memory: what it costs is the adaptor's alone.
#[derive(Debug)]
struct Nothing {
    memory: CudaResource,
    /// Bytes that the next request is refused from on.
    most: usize,
}

impl Nothing {
    fn new(device: &Device) -> Self {
        Self { memory: CudaResource::new(device), most: usize::MAX }
    }
}

// SAFETY: it keeps no promise about memory; nobody in these tests works on its blocks.
unsafe impl DeviceResource for Nothing {
    fn device(&self) -> &Device {
        self.memory.device()
    }

    fn allocate(&self, _: &Stream, asked: DeviceLayout) -> Result<DeviceBlock> {
        if asked.bytes() >= self.most {
            return Err(Error::new(ErrorKind::OutOfMemory, "ordered by the test"));
        }
        Ok(DeviceBlock::new(asked.alignment() as u64, asked.bytes(), 0))
    }

    unsafe fn deallocate(&self, _: &Stream, _: DeviceBlock) {}
}

#[test]
fn what_is_empty_or_freed_or_refused_is_zero() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(CudaResource::new(&device));
    assert_eq!(units(counted.counters()), [0, 0, 0]);
    let empty = counted.allocate(&stream, layout(0)).unwrap();
    assert_eq!(units(counted.counters()), [0, 0, 0], "an empty block is none");
    free(&counted, &stream, empty);
    for _ in 0..10 {
        let block = take(&counted, &stream);
        free(&counted, &stream, block);
    }
    assert_eq!(units(counted.counters()), [0, 1, 10]);
    let counted = StatisticsAdaptor::new(LimitingAdaptor::new(CudaResource::new(&device), 100));
    assert!(counted.allocate(&stream, layout(UNIT)).is_err());
    assert_eq!(units(counted.counters()), [0, 0, 0]);
}

#[test]
fn peaks_and_totals_are_exact() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(CudaResource::new(&device));
    let mut blocks: Vec<_> = (0..10).map(|_| take(&counted, &stream)).collect();
    for at in (0..5).rev() {
        free(&counted, &stream, blocks.remove(2 * at));
    }
    assert_eq!(units(counted.counters()), [5, 10, 10]);
    blocks.extend((0..10).map(|_| take(&counted, &stream)));
    assert_eq!(units(counted.counters()), [15, 15, 20]);
    for block in blocks {
        free(&counted, &stream, block);
    }
    assert_eq!(units(counted.counters()), [0, 15, 20]);
}

#[test]
fn adaptors_count_what_passes_through_each() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let inner = StatisticsAdaptor::new(CudaResource::new(&device));
    let outer = StatisticsAdaptor::new(inner.clone());
    let below: Vec<_> = (0..10).map(|_| take(&inner, &stream)).collect();
    let above: Vec<_> = (0..5).map(|_| take(&outer, &stream)).collect();
    assert_eq!(units(inner.counters()), [15, 15, 15]);
    assert_eq!(units(outer.counters()), [5, 5, 5]);
    assert_eq!(outer.upstream().counters(), inner.counters());
    // Freed through an adaptor that never saw them.
    for block in below {
        free(&outer, &stream, block);
    }
    assert_eq!(units(outer.counters()), [-5, 5, 5]);
    for block in above {
        free(&inner, &stream, block);
    }
    assert_eq!(units(inner.counters()), [0, 15, 15]);

    let late = StatisticsAdaptor::new(CudaResource::new(&device));
    for _ in 0..10 {
        let block = take(late.upstream(), &stream);
        free(&late, &stream, block);
    }
    assert_eq!(units(late.counters()), [-10, 0, 0], "-100 KiB in 10 blocks");
    let block = take(&late, &stream);
    assert_eq!(units(late.counters()), [-9, 0, 1]);
    free(&late, &stream, block);
}

#[test]
fn scopes_nest_and_fold() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(CudaResource::new(&device));
    assert_eq!(counted.scope_counters(), None);
    let error = counted.pop_counters().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfBounds);
    assert!(error.to_string().contains("push_counters"), "{error}");

    let before = take(&counted, &stream);
    counted.push_counters().unwrap();
    assert_eq!(units(counted.scope_counters().unwrap()), [0, 0, 0]);
    let mut blocks: Vec<_> = (0..10).map(|_| take(&counted, &stream)).collect();
    assert_eq!(units(counted.scope_counters().unwrap()), [10, 10, 10]);
    {
        counted.push_counters().unwrap();
        blocks.push(take(&counted, &stream));
        {
            counted.push_counters().unwrap();
            blocks.push(take(&counted, &stream));
            assert_eq!(units(counted.pop_counters().unwrap()), [1, 1, 1]);
        }
        assert_eq!(units(counted.scope_counters().unwrap()), [2, 2, 2]);
        free(&counted, &stream, blocks.remove(0));
        free(&counted, &stream, blocks.remove(0));
        assert_eq!(units(counted.pop_counters().unwrap()), [0, 2, 2]);
    }
    assert_eq!(units(counted.scope_counters().unwrap()), [10, 12, 12]);
    {
        counted.push_counters().unwrap();
        free(&counted, &stream, blocks.remove(0));
        assert_eq!(units(counted.pop_counters().unwrap()), [-1, 0, 0]);
    }
    blocks.push(take(&counted, &stream));
    assert_eq!(units(counted.pop_counters().unwrap()), [10, 12, 13]);
    assert_eq!(counted.pop_counters().unwrap_err().kind(), ErrorKind::OutOfBounds);
    assert_eq!(units(counted.counters()), [11, 13, 14], "all that was counted, scopes or not");
    blocks.push(before);
    for block in blocks {
        free(&counted, &stream, block);
    }
}

#[test]
fn a_peak_of_a_scope_counts_from_where_it_began() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(CudaResource::new(&device));
    counted.push_counters().unwrap();
    let blocks: Vec<_> = (0..5).map(|_| take(&counted, &stream)).collect();
    for block in blocks {
        free(&counted, &stream, block);
    }
    let kept = take(&counted, &stream);
    counted.push_counters().unwrap();
    let blocks: Vec<_> = (0..3).map(|_| take(&counted, &stream)).collect();
    for block in blocks {
        free(&counted, &stream, block);
    }
    assert_eq!(units(counted.pop_counters().unwrap()), [0, 3, 3]);
    assert_eq!(
        units(counted.pop_counters().unwrap()),
        [1, 5, 9],
        "one and three are less than five"
    );
    free(&counted, &stream, kept);
}

#[test]
fn scopes_of_threads_and_of_adaptors_do_not_mix() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(CudaResource::new(&device));
    let other = StatisticsAdaptor::new(CudaResource::new(&device));
    counted.push_counters().unwrap();
    other.push_counters().unwrap();
    let block = take(&counted, &stream);
    let there = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let stream = device.new_stream().unwrap();
            assert_eq!(counted.pop_counters().unwrap_err().kind(), ErrorKind::OutOfBounds);
            let unseen = take(&counted, &stream);
            counted.push_counters().unwrap();
            let seen = take(&counted, &stream);
            free(&counted, &stream, unseen);
            let scope = counted.pop_counters().unwrap();
            free(&counted, &stream, seen);
            // Left open: it ends with the thread.
            counted.push_counters().unwrap();
            scope
        });
        thread.join().unwrap()
    });
    assert_eq!(units(there), [0, 1, 1]);
    free(&counted, &stream, block);
    assert_eq!(units(counted.pop_counters().unwrap()), [0, 1, 1]);
    assert_eq!(units(other.pop_counters().unwrap()), [0, 0, 0]);
    assert_eq!(units(counted.counters()), [0, 3, 3]);
    assert!(counted.pop_counters().is_err());
    // A scope of an adaptor that is gone is in nobody's way.
    other.push_counters().unwrap();
    drop(other);
    let next = StatisticsAdaptor::new(CudaResource::new(&device));
    assert_eq!(next.scope_counters(), None);
    next.push_counters().unwrap();
    assert_eq!(units(next.pop_counters().unwrap()), [0, 0, 0]);
}

#[test]
fn a_shared_scope_counts_all_threads() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(CudaResource::new(&device));
    assert_eq!(counted.shared_scope_counters(), None);
    let error = counted.pop_shared_counters().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfBounds);
    assert!(error.to_string().contains("push_shared_counters"), "{error}");

    let before = take(&counted, &stream);
    counted.push_counters().unwrap();
    assert_eq!(units(counted.push_shared_counters().unwrap()), [1, 1, 1]);
    assert_eq!(units(counted.shared_scope_counters().unwrap()), [0, 0, 0]);
    let first = take(&counted, &stream);
    // Another thread's scope is inside of this one's.
    let second = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            counted.push_shared_counters().unwrap();
            free(&counted, &stream, first);
            let block = take(&counted, &stream);
            free(&counted, &stream, take(&counted, &stream));
            block
        });
        thread.join().unwrap()
    });
    assert_eq!(units(counted.pop_shared_counters().unwrap()), [0, 1, 2]);
    assert_eq!(units(counted.shared_scope_counters().unwrap()), [1, 2, 3]);
    assert_eq!(units(counted.counters()), [2, 3, 4], "all that was counted, scopes or not");
    assert!(format!("{counted:?}").contains("current: 20480"), "{counted:?}");
    assert_eq!(units(counted.pop_shared_counters().unwrap()), [1, 2, 3]);
    assert_eq!(counted.pop_shared_counters().unwrap_err().kind(), ErrorKind::OutOfBounds);
    assert_eq!(units(counted.pop_counters().unwrap()), [1, 1, 1], "the thread's own calls");
    assert_eq!(units(counted.counters()), [2, 3, 4]);
    free(&counted, &stream, before);
    free(&counted, &stream, second);
}

#[test]
fn nothing_is_lost_while_shared_scopes_open_and_end() {
    const THREADS: i64 = 3;
    const PAIRS: i64 = 20_000;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(Nothing::new(&device));
    let working = AtomicUsize::new(THREADS as usize);
    let mut scopes = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..PAIRS {
                    let block = take(&counted, &stream);
                    free(&counted, &stream, block);
                }
                let _held = take(&counted, &stream);
                working.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while working.load(Ordering::Relaxed) > 0 {
            counted.push_shared_counters().unwrap();
            counted.push_shared_counters().unwrap();
            let inner = units(counted.pop_shared_counters().unwrap());
            let outer = units(counted.pop_shared_counters().unwrap());
            assert!(inner[2] <= outer[2], "{inner:?} is inside of {outer:?}");
            let all = units(counted.counters());
            assert!(all[0] >= 0 && all[0] <= all[1] && all[1] <= THREADS, "{all:?}");
            scopes.push(outer);
        }
    });
    assert_eq!(units(counted.counters()), [THREADS, THREADS, THREADS * (PAIRS + 1)]);
    assert!(scopes.iter().all(|[current, peak, _]| current <= peak && *peak <= THREADS));
    assert!(scopes.iter().map(|scope| scope[2]).sum::<i64>() <= THREADS * (PAIRS + 1));
}

/// The first thread counts alone; the others take that away while it counts.
#[test]
fn nothing_is_lost_when_a_second_thread_comes() {
    const THREADS: usize = 3;
    const PAIRS: i64 = 400;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for round in 0..300 {
        let counted = StatisticsAdaptor::new(Nothing::new(&device));
        let started = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (counted, started, stream) = (&counted, &started, &stream);
                scope.spawn(move || {
                    // The others come while the first is under way, each round at another point.
                    while thread > 0 && started.load(Ordering::Relaxed) <= round % 200 {
                        std::hint::spin_loop();
                        if started.load(Ordering::Relaxed) == PAIRS as usize {
                            break;
                        }
                    }
                    for _ in 0..PAIRS {
                        let block = take(counted, stream);
                        if thread == 0 {
                            started.fetch_add(1, Ordering::Relaxed);
                        }
                        free(counted, stream, block);
                    }
                    let _held = take(counted, stream);
                });
            }
        });
        let [current, peak, total] = units(counted.counters());
        let threads = THREADS as i64;
        assert_eq!((current, total), (threads, threads * (PAIRS + 1)), "round {round}");
        assert_eq!(peak, threads, "no thread held two, and all held one at the end");
    }
}

#[test]
fn the_peak_of_many_threads_is_what_they_held_at_once() {
    const THREADS: usize = 6;
    let device = support::device();
    let counted = StatisticsAdaptor::new(PoolResource::new(CudaResource::new(&device)).unwrap());
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                for _ in 0..50 {
                    let block = take(&counted, &stream);
                    barrier.wait();
                    free(&counted, &stream, block);
                    barrier.wait();
                }
            });
        }
    });
    let threads = THREADS as i64;
    assert_eq!(counted.counters().allocations.current, 0);
    assert_eq!(counted.counters().bytes.current, 0);
    assert_eq!(counted.counters().allocations.peak, threads);
    assert_eq!(counted.counters().allocations.total, threads * 50);
}

/// Long enough in turn for each to reuse what it freed, and never more than one block.
#[test]
fn what_threads_reuse_is_in_no_peak() {
    const PAIRS: i64 = 5000;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(Nothing::new(&device));
    let turns = Barrier::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (counted, stream, turns) = (&counted, &stream, &turns);
            scope.spawn(move || {
                for turn in 0..6 {
                    if turn % 2 == thread {
                        for _ in 0..PAIRS {
                            let block = take(counted, stream);
                            free(counted, stream, block);
                        }
                    }
                    turns.wait();
                    assert_eq!(units(counted.counters()), [0, 1, (turn + 1) * PAIRS]);
                    turns.wait();
                }
            });
        }
    });
}

/// Whoever counts has his account; then all hold a block at once, and a reader sees no other numbers
/// than there were.
#[test]
fn more_threads_than_have_accounts() {
    const THREADS: usize = 80;
    const PAIRS: i64 = 300;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(Nothing::new(&device));
    let all = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..PAIRS {
                    let block = take(&counted, &stream);
                    free(&counted, &stream, block);
                }
                let block = take(&counted, &stream);
                all.wait();
                free(&counted, &stream, block);
            });
        }
        let mut before = [0; 3];
        while before[2] < THREADS as i64 * (PAIRS + 1) {
            let now = units(counted.counters());
            assert!(0 <= now[0] && now[0] <= now[1] && now[1] <= THREADS as i64, "{now:?}");
            assert!(before[1] <= now[1] && before[2] <= now[2], "{before:?}, then {now:?}");
            before = now;
        }
    });
    let threads = THREADS as i64;
    assert_eq!(units(counted.counters()), [0, threads, threads * (PAIRS + 1)]);
}

#[test]
fn a_thread_goes_on_where_one_that_ended_left_off() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(CudaResource::new(&device));
    let block = std::thread::scope(|scope| scope.spawn(|| take(&counted, &stream)).join().unwrap());
    assert_eq!(units(counted.counters()), [1, 1, 1]);
    free(&counted, &stream, block);
    assert_eq!(units(counted.counters()), [0, 1, 1]);
}

#[test]
fn large_numbers_are_exact_too() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(Nothing { most: usize::MAX / 4, ..Nothing::new(&device) });
    let sizes = [1_usize << 60, (1 << 44) + 1, (1 << 33) - 1, 7];
    let most = sizes.iter().sum::<usize>() as i64;
    let blocks: Vec<_> =
        sizes.iter().map(|bytes| counted.allocate(&stream, layout(*bytes)).unwrap()).collect();
    assert!(counted.allocate(&stream, layout(usize::MAX / 3)).is_err());
    let all = counted.counters();
    assert_eq!((all.bytes.current, all.bytes.peak, all.bytes.total), (most, most, most));
    for block in blocks {
        free(&counted, &stream, block);
    }
    let all = counted.counters();
    assert_eq!((all.bytes.current, all.bytes.peak, all.bytes.total), (0, most, most));
    assert_eq!((all.allocations.current, all.allocations.total), (0, 4));
}

/// Takes memory back at once, and returns late.
#[derive(Debug)]
struct Late(PoolResource, AtomicUsize);

// SAFETY: every block is the pool's.
unsafe impl DeviceResource for Late {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn allocate(&self, stream: &Stream, asked: DeviceLayout) -> Result<DeviceBlock> {
        self.0.allocate(stream, asked)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise.
        unsafe { self.0.deallocate(stream, block) }
        self.1.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn memory_that_is_handed_out_before_its_free_returns_is_counted_once() {
    let device = support::device();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let counted = StatisticsAdaptor::new(Late(pool, AtomicUsize::new(0)));
    let stream = device.new_stream().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let block = take(&counted, &stream);
            free(&counted, &stream, block);
        });
        scope.spawn(|| {
            while counted.upstream().1.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let all = counted.counters().allocations;
            assert_eq!((all.current, all.total), (0, 1), "uncounted before the free returns");
            let block = take(&counted, &stream);
            free(&counted, &stream, block);
        });
    });
    let all = counted.counters().allocations;
    assert_eq!((all.current, all.peak, all.total), (0, 1, 2));
    assert_eq!(counted.counters().bytes.current, 0);
}

#[test]
fn clones_share_their_counters_and_vectors_are_counted() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(CudaResource::new(&device));
    let erased: Arc<dyn DeviceResource> = Arc::new(counted.clone());
    let vec = DeviceVec::<u8>::zeroed_in(&stream, UNIT, erased.clone()).unwrap();
    assert_eq!(units(counted.counters()), [1, 1, 1]);
    drop(vec);
    assert_eq!(units(counted.clone().counters()), [0, 1, 1]);
    let other = StatisticsAdaptor::new(CudaResource::new(&device));
    assert!(counted == counted.clone() && counted != other);
    assert_eq!(*erased, *(Arc::new(counted) as Arc<dyn DeviceResource>));
    assert_ne!(*erased, *(Arc::new(other) as Arc<dyn DeviceResource>));
}

/// What a thread does in destructors of its thread locals, when the counters are all threads'.
#[test]
fn a_thread_counts_as_it_ends() {
    struct Last {
        counted: StatisticsAdaptor<Nothing>,
        stream: Stream,
        kept: Option<DeviceBlock>,
    }

    impl Drop for Last {
        fn drop(&mut self) {
            let other = take(&self.counted, &self.stream);
            for block in self.kept.take().into_iter().chain([other]) {
                free(&self.counted, &self.stream, block);
            }
        }
    }

    thread_local! {
        static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    const THREADS: i64 = 200;
    const AT_ONCE: i64 = 4;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let counted = StatisticsAdaptor::new(Nothing::new(&device));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                for _ in 0..THREADS {
                    let (counted, stream) = (counted.clone(), stream.clone());
                    let ends = move || {
                        let last = Last { counted, stream, kept: None };
                        // Known to the thread before its number is, so that it goes after it.
                        LAST.with(|here| {
                            let mut here = here.borrow_mut();
                            let last = here.insert(last);
                            for _ in 0..20 {
                                free(
                                    &last.counted,
                                    &last.stream,
                                    take(&last.counted, &last.stream),
                                );
                            }
                            last.kept = Some(take(&last.counted, &last.stream));
                        });
                    };
                    std::thread::spawn(ends).join().unwrap();
                }
            });
        }
    });
    let [current, peak, total] = units(counted.counters());
    assert_eq!((current, total), (0, AT_ONCE * THREADS * 22));
    assert!((2..=2 * AT_ONCE).contains(&peak), "{peak}");
}

/// The parent's threads are not there, whatever they were in the middle of.
#[cfg(target_os = "linux")]
#[test]
fn the_child_of_a_fork_counts_without_waiting() {
    if !support::in_own_process(module_path!(), "the_child_of_a_fork_counts_without_waiting") {
        return;
    }
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let done = AtomicUsize::new(0);
    let counted = StatisticsAdaptor::new(Nothing::new(&device));
    let failed = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) == 0 {
                    let blocks = [(); 3].map(|()| take(&counted, &stream));
                    blocks.into_iter().for_each(|block| free(&counted, &stream, block));
                    let _ = counted.counters();
                }
            });
        }
        let forks = (0..100).filter(|_| {
            free(&counted, &stream, take(&counted, &stream));
            // SAFETY: the child counts, asks, and ends without a destructor.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a timer of this process.
                unsafe { libc::alarm(10) };
                for _ in 0..100 {
                    let blocks = [(); 3].map(|()| DeviceBlock::new(256, UNIT, 0));
                    for block in blocks {
                        let _ = counted.allocate(&stream, layout(UNIT));
                        free(&counted, &stream, block);
                    }
                    let _ = counted.counters();
                }
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: a child of this process, and a place for its status.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            child < 0 || status != 0
        });
        let failed = forks.count();
        done.store(1, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, 0, "children that hung");
    assert_eq!(units(counted.counters())[0], 0);
}
