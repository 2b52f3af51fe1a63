//! A tracking adaptor's list is exact while one thread has it for its own, while others look, and when
//! more come.

use crate::support;
use aquifer::{
    CudaResource, DeviceBlock, DeviceLayout, DeviceResource, PoolResource, Stream,
    mr::TrackingAdaptor,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use support::free;

type Tracking = TrackingAdaptor<PoolResource<CudaResource>>;

fn tracking(stream: &Stream) -> Tracking {
    TrackingAdaptor::new(PoolResource::new(CudaResource::new(stream.device())).unwrap())
}

fn take(tracking: &Tracking, stream: &Stream, bytes: usize) -> DeviceBlock {
    tracking.allocate(stream, DeviceLayout::new(bytes).unwrap()).unwrap()
}

fn stream() -> Stream {
    support::device().new_stream().unwrap()
}

fn odd(tracking: &Tracking) -> [u64; 3] {
    [tracking.unknown_frees(), tracking.wrong_size_frees(), tracking.bypassing_frees()]
}

/// The second block is out only while the first one is.
#[test]
fn who_looks_sees_one_moment_of_a_thread_that_works() {
    let stream = stream();
    let tracking = tracking(&stream);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let outer = take(&tracking, &stream, 512);
                let inner = take(&tracking, &stream, 256);
                free(&tracking, &stream, inner);
                free(&tracking, &stream, outer);
            }
        });
        let began = Instant::now();
        let (mut seen, mut looks) = (HashSet::new(), 0);
        // Every state, and often enough to come in between: at least for as long, and until then.
        while (seen.len() < 3 || looks < 2000) && began.elapsed() < Duration::from_secs(30) {
            let list = tracking.outstanding();
            let sizes: Vec<_> = list.iter().map(|allocation| allocation.bytes()).collect();
            assert!([&[][..], &[512], &[512, 256]].contains(&&*sizes), "{sizes:?}");
            assert!([0, 512, 768].contains(&tracking.allocated_bytes()));
            assert!(list.is_sorted_by(|one, other| one.number() + 1 == other.number()));
            seen.insert(sizes.len());
            looks += 1;
        }
        done.store(true, Ordering::Relaxed);
        assert!(looks >= 2000 && seen.len() > 1, "{looks} looks saw {seen:?}");
    });
    assert_eq!((tracking.outstanding().len(), odd(&tracking)), (0, [0; 3]));
}

/// What the first thread had for its own is there for the second, which comes while it works.
#[test]
fn the_second_thread_finds_all_that_the_first_one_has() {
    let stream = stream();
    for held in [0, 1, 31, 32, 33, 1000] {
        let tracking = tracking(&stream);
        let kept: Vec<_> = (0..held).map(|_| take(&tracking, &stream, 256)).collect();
        let (give, come) = channel();
        let second = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                second.store(true, Ordering::Relaxed);
                for block in kept {
                    free(&tracking, &stream, block);
                }
                for block in come {
                    free(&tracking, &stream, block);
                }
            });
            let mut given = 0;
            while given < 200 {
                // Not yet the second thread: the list is this one's own at first.
                given += u32::from(second.load(Ordering::Relaxed));
                give.send(take(&tracking, &stream, 1024)).unwrap();
                let block = take(&tracking, &stream, 512);
                free(&tracking, &stream, block);
            }
            drop(give);
        });
        assert_eq!((tracking.outstanding().len(), tracking.allocated_bytes()), (0, 0), "{held}");
        assert_eq!(odd(&tracking), [0; 3], "{held}");
    }
}

/// Every number once, in the order of each thread, whoever the list belongs to.
#[test]
fn numbers_go_on_from_one_thread_to_many() {
    const EACH: usize = 500;
    let stream = stream();
    let tracking = tracking(&stream);
    let mut blocks: Vec<_> = (0..EACH).map(|_| take(&tracking, &stream, 256)).collect();
    let (give, come) = sync_channel(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            let (give, tracking, stream) = (give.clone(), &tracking, &stream);
            scope.spawn(move || {
                let blocks: Vec<_> = (0..EACH).map(|_| take(tracking, stream, 256)).collect();
                give.send(blocks).unwrap();
            });
        }
        drop(give);
        blocks.extend(come.into_iter().flatten());
    });
    let list = tracking.outstanding();
    assert!(list.iter().map(|allocation| allocation.number()).eq(0..4 * EACH as u64));
    let threads: HashSet<_> = list.iter().map(|allocation| allocation.thread_id()).collect();
    assert_eq!(threads.len(), 4);
    let mine = thread::current().id();
    assert!(list[..EACH].iter().all(|allocation| allocation.thread_id() == mine));
    assert_eq!(tracking.allocated_bytes(), 4 * EACH * 256);
    blocks.into_iter().for_each(|block| free(&tracking, &stream, block));
    assert_eq!((tracking.outstanding().len(), odd(&tracking)), (0, [0; 3]));
}

/// A thread that ends leaves its list to the next one, which may have its number.
#[test]
fn a_thread_that_is_gone_leaves_its_list() {
    let stream = stream();
    let tracking = tracking(&stream);
    for round in 0..20 {
        let block = thread::scope(|scope| {
            scope.spawn(|| take(&tracking, &stream, 256 * (round + 1))).join().unwrap()
        });
        let list = tracking.outstanding();
        assert_eq!((list.len(), list[0].bytes()), (1, 256 * (round + 1)));
        assert_ne!(list[0].thread_id(), thread::current().id());
        thread::scope(|scope| scope.spawn(|| free(&tracking, &stream, block)).join().unwrap());
        assert_eq!((tracking.outstanding().len(), odd(&tracking)), (0, [0; 3]));
    }
}

/// Many times the time that it takes to read a clock.
#[test]
fn the_time_of_each_is_between_the_times_around_it() {
    const OFF: Duration = Duration::from_millis(5);
    let stream = stream();
    let start = Instant::now();
    let tracking = tracking(&stream);
    let made = Instant::now();
    // The adaptor was made in between.
    let off = OFF + (made - start);
    let mut around = Vec::new();
    let blocks: Vec<_> = (0..5)
        .map(|_| {
            thread::sleep(Duration::from_millis(15));
            let before = made.elapsed();
            let block = take(&tracking, &stream, 256);
            around.push((before, made.elapsed()));
            block
        })
        .collect();
    let list = tracking.outstanding();
    for (allocation, (before, after)) in list.iter().zip(around) {
        let time = allocation.after();
        assert!(before <= time + off && time <= after + off, "{before:?} {time:?} {after:?}");
    }
    blocks.into_iter().for_each(|block| free(&tracking, &stream, block));
}
