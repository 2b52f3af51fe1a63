//! Functions that a stream calls on the host: their order, what they may do, what they drop, and their panics.

use crate::kernels::add_one;
use crate::support;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::mr::{StatisticsAdaptor, VirtualResource};
use aquifer::pinned::{PinnedPool, PinnedResource};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PinnedAlloc,
    PoolResource, Stream,
};
use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// Waits for what a deferred drop brings. Another test's thread may be the one that drops it.
fn eventually(stream: &Stream, what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < LONG, "it never came");
        stream.synchronize().unwrap();
    }
}

/// The result of `body` inside of a host function.
fn inside<R: Send + 'static>(stream: &Stream, body: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = channel();
    stream
        .launch_host_fn(move || {
            let _ = sender.send(body());
        })
        .unwrap();
    stream.synchronize().unwrap();
    receiver.recv_timeout(LONG).unwrap()
}

#[test]
fn functions_come_in_the_order_of_the_stream() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    for number in 0..1000 {
        let seen = seen.clone();
        stream.launch_host_fn(move || seen.lock().unwrap().push(number)).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(*seen.lock().unwrap(), (0..1000).collect::<Vec<_>>());
    device.finish().unwrap();
}

#[test]
fn a_function_comes_after_the_work_and_before_what_follows() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 1000).unwrap();
    add_one(&stream, &mut vec).unwrap();
    let mut host: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    host.resize(1000, 7);
    let download = stream.download(vec, host).unwrap();
    let (is_over, over) = (Arc::new(AtomicBool::new(false)), sync_channel(1));
    let flag = is_over.clone();
    let started = over.0;
    stream
        .launch_host_fn(move || {
            let _ = started.send(());
            std::thread::sleep(Duration::from_millis(20));
            flag.store(true, Ordering::SeqCst);
        })
        .unwrap();
    let behind = stream.record().unwrap();
    behind.synchronize().unwrap();
    assert!(is_over.load(Ordering::SeqCst), "what follows waits for the end of the function");
    over.1.recv_timeout(LONG).unwrap();
    let (host, _vec) = download.wait().unwrap();
    assert!(host.iter().all(|number| *number == 1));
    device.finish().unwrap();
}

#[test]
fn what_a_function_says_is_behind_the_work_for_other_streams_too() {
    let device = support::device();
    let (one, two) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let vec = DeviceVec::<u32>::zeroed(&one, 1000).unwrap();
    let (sender, receiver) = channel();
    one.launch_host_fn(move || sender.send(()).unwrap()).unwrap();
    // A thread drives the simulated device, as a GPU drives itself.
    std::thread::scope(|scope| {
        scope.spawn(|| one.synchronize().unwrap());
        receiver.recv_timeout(LONG).unwrap();
        // No stream is ordered: the host knows.
        vec.on(&two).unwrap();
    });
    drop((vec, one, two));
    device.finish().unwrap();
}

#[test]
fn a_waiting_function_holds_up_its_stream_alone() {
    let device = support::device();
    let (held, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let (go, wait) = channel::<()>();
    held.launch_host_fn(move || _ = wait.recv_timeout(LONG)).unwrap();
    let behind = held.record().unwrap();
    let vec = DeviceVec::from_slice(&other, &[1_u8, 2, 3]).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
    assert!(!behind.is_complete().unwrap());
    go.send(()).unwrap();
    held.synchronize().unwrap();
    assert!(behind.is_complete().unwrap());
    device.finish().unwrap();
}

#[test]
fn a_function_wakes_a_thread_that_waits_for_no_device() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (sender, receiver) = channel();
    let waits = std::thread::spawn(move || receiver.recv_timeout(LONG));
    stream.launch_host_fn(move || sender.send(42).unwrap()).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(waits.join().unwrap(), Ok(42));
    device.finish().unwrap();
}

#[test]
fn calls_that_would_reach_the_driver_are_refused_inside() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let mut vec = DeviceVec::<u32>::zeroed_in(&other, 1000, pool.clone()).unwrap();
    let event = other.record().unwrap();
    let transfer =
        other.download(DeviceVec::<u8>::zeroed(&other, 10).unwrap(), vec![0; 10]).unwrap();
    other.synchronize().unwrap();
    let (own, plain, same) = (device.clone(), CudaResource::new(&device), stream.clone());
    let kinds = inside(&stream, move || {
        let layout = DeviceLayout::new(100).unwrap();
        let error =
            |error: Option<aquifer::Error>| error.map(|error| (error.kind(), error.to_string()));
        let asked = vec![
            ("launch", error(same.launch_host_fn(|| ()).err().map(Into::into))),
            ("launch elsewhere", error(other.launch_host_fn(|| ()).err().map(Into::into))),
            ("synchronize", error(same.synchronize().err())),
            ("synchronize another", error(other.synchronize().err())),
            ("synchronize the device", error(own.synchronize().err())),
            ("record", error(other.record().err())),
            ("wait", error(other.wait(&event).err())),
            ("wait for", error(other.wait_for(&same).err())),
            ("query", error(event.is_complete().err())),
            ("block", error(event.synchronize().err())),
            ("a stream", error(own.new_stream().err())),
            ("memory info", error(own.memory_info().err())),
            ("detect", error(Device::detect().err())),
            ("capture", error(other.capture(&pool, |_| Ok(())).err())),
            ("is capturing", error(other.is_capturing().err())),
            ("fill", error(vec.fill(1).err())),
            ("push", error(vec.push(1).err())),
            ("read", error(vec.to_vec().err())),
            ("get", error(vec.get(0).err())),
            ("use elsewhere", error(vec.on(&same).err())),
            ("allocate", error(pool.allocate(&other, layout).err())),
            ("allocate from the driver", error(plain.allocate(&other, layout).err())),
            ("a vector", error(DeviceVec::<u8>::zeroed_in(&other, 9, pool.clone()).err())),
            ("upload", error(other.upload_new(vec![0_u8; 9]).err().map(Into::into))),
            ("trim", error(pool.wait_and_trim(0).err())),
            ("a pool", error(PoolResource::new(plain.clone()).err())),
            ("a graph pool", error(pool.graph_pool().err())),
            ("page-locked memory", error(PinnedResource::new(&own).err())),
            ("a transfer", error(transfer.wait().err().map(Into::into))),
            ("scope", error(other.scope(|scope| scope.upload(&[1_u32; 1000], &mut vec)).err())),
        ];
        assert_eq!(pool.statistics().live, 0, "zero, whatever is live");
        // The handles and the vector go here, too.
        asked
    });
    for (name, refused) in kinds {
        let (kind, text) = refused.unwrap_or_else(|| panic!("{name} was not refused"));
        assert_eq!(kind, ErrorKind::NotPermitted, "{name}: {text}");
        assert!(text.contains("thread"), "{name} says what to do: {text}");
    }
    device.finish().unwrap();
}

#[test]
fn vectors_that_a_function_drops_are_freed_later() {
    let device = support::device();
    let (stream, home) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let vec = DeviceVec::<u32>::zeroed_in(&home, 1000, pool.clone()).unwrap();
    // It is in use on a third stream, for which home waits before the free.
    let third = device.new_stream().unwrap();
    vec.on(&third).unwrap();
    let owned = DeviceVec::<u32>::zeroed_in(&home, 1000, pool.clone()).unwrap();
    let other = device.clone();
    let chunks =
        DeviceVec::<u32>::zeroed_in(&home, 1000, pool.clone()).unwrap().into_chunks(300).unwrap();
    stream
        .launch_host_fn(move || {
            drop(vec);
            drop(chunks);
            drop(other);
            // This one goes with the function.
            let _ = &owned;
        })
        .unwrap();
    drop((third, home));
    eventually(&stream, || pool.statistics().live == 0);
    pool.wait_and_trim(0).unwrap();
    assert_eq!(pool.statistics().reserved, 0);
    device.finish().unwrap();
}

#[test]
fn the_last_handles_may_go_inside() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let scratch = device.new_stream().unwrap();
    let statistics = StatisticsAdaptor::new(CudaResource::new(&device));
    let pool = PoolResource::new(statistics.clone()).unwrap();
    let vec = DeviceVec::<u8>::zeroed_in(&scratch, 1 << 20, pool.clone()).unwrap();
    let graph = {
        let mut kept = DeviceVec::<u32>::zeroed_in(&scratch, 100, pool.clone()).unwrap();
        let (graph, ()) = scratch.capture(&pool, |stream| add_one(stream, &mut kept)).unwrap();
        // SAFETY: `kept` is alive, and nothing else uses it.
        unsafe { graph.launch(&scratch) }.unwrap();
        scratch.synchronize().unwrap();
        graph
    };
    let graph_pool = pool.graph_pool().unwrap();
    let transfer = scratch
        .upload(vec![3_u8; 64], DeviceVec::zeroed_in(&scratch, 64, pool.clone()).unwrap())
        .unwrap();
    let event = scratch.record().unwrap();
    let pinned = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    let mut block = AllocVec::<u8, PinnedPool>::new_in(pinned.clone());
    block.resize(5 << 20, 1);
    let single = device.new_stream().unwrap();
    stream
        .launch_host_fn(move || {
            drop((graph, graph_pool, transfer, event, vec, block, pinned, single, pool, scratch))
        })
        .unwrap();
    eventually(&stream, || statistics.counters().bytes.current == 0);
    device.finish().unwrap();
}

#[test]
fn a_device_may_end_inside() {
    if support::on_gpu() {
        return support::skipped("a_device_may_end_inside", "a GPU stays open");
    }
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let other = Device::simulated(SimConfig::default());
    let work = other.new_stream().unwrap();
    let vec = DeviceVec::<u8>::zeroed(&work, 100).unwrap();
    let (sender, receiver) = channel();
    // Of its own device, too: the function is what keeps the second one alive.
    work.launch_host_fn({
        let (own, other_work) = (other.clone(), work.clone());
        move || {
            drop((own, other_work));
            sender.send(()).unwrap();
        }
    })
    .unwrap();
    work.synchronize().unwrap();
    receiver.recv_timeout(LONG).unwrap();
    stream.launch_host_fn(move || drop((vec, work, other))).unwrap();
    stream.synchronize().unwrap();
    device.finish().unwrap();
}

#[test]
fn page_locked_memory_is_served_and_freed_inside() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    let mut kept: AllocVec<u32, PinnedPool> = AllocVec::with_capacity_in(1000, pool.clone());
    kept.extend(0..1000);
    let mut common: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    common.extend(0..1000);
    let own = pool.clone();
    let (grown, refused) = inside(&stream, move || {
        // It moves to ordinary memory, and the old block waits for a thread of the program.
        common.extend(1000..2_000_000);
        let mut fresh: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
        fresh.extend(0..100_000);
        assert!(fresh.iter().copied().eq(0..100_000));
        drop(fresh);
        let mut large: AllocVec<u8, PinnedPool> = AllocVec::new_in(own);
        let refused = large.try_reserve(64 << 20).is_err();
        drop(kept);
        (common, refused)
    });
    assert!(refused, "a pool has no other memory to give");
    assert!(grown.iter().copied().eq(0..2_000_000));
    let vec = DeviceVec::<u32>::zeroed(&stream, grown.len()).unwrap();
    let (grown, vec) = stream.upload(grown, vec).unwrap().wait().unwrap();
    assert_eq!(vec.get(1_999_999).unwrap(), 1_999_999);
    drop(grown);
    eventually(&stream, || pool.statistics().live == 0);
    device.finish().unwrap();
}

#[test]
fn a_panic_is_told_by_the_next_wait() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    stream.launch_host_fn(|| panic!("number {}", 7)).unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let flag = ran.clone();
    stream.launch_host_fn(move || flag.store(true, Ordering::SeqCst)).unwrap();
    other.synchronize().unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Panicked);
    assert!(error.to_string().contains("number 7"), "{error}");
    assert!(ran.load(Ordering::SeqCst), "the stream goes on");
    stream.synchronize().unwrap();

    stream.launch_host_fn(|| panic!("for the device")).unwrap();
    assert_eq!(device.synchronize().unwrap_err().kind(), ErrorKind::Panicked);
    device.synchronize().unwrap();

    stream.launch_host_fn(|| panic!("for a task")).unwrap();
    let mut waited = Box::pin(stream.synchronize_async());
    let mut poll = || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        waited.as_mut().poll(&mut context)
    };
    let first = loop {
        match poll() {
            std::task::Poll::Ready(result) => break result.unwrap_err(),
            std::task::Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(first.kind(), ErrorKind::Panicked);
    assert!(
        matches!(poll(), std::task::Poll::Ready(Err(error)) if error.kind() == ErrorKind::Panicked)
    );
    device.finish().unwrap();
}

/// Its drop panics, wherever that is.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a bomb went off");
    }
}

#[test]
fn no_panic_reaches_the_driver() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    stream.launch_host_fn(|| panic_any(Bomb)).unwrap();
    assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::Panicked);
    let bomb = Bomb;
    stream.launch_host_fn(move || drop(bomb)).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(error.to_string().contains("a bomb went off"), "{error}");
    let bomb = Bomb;
    // The function never touches it, and its end drops it.
    stream
        .launch_host_fn(move || {
            let _ = &bomb;
        })
        .unwrap();
    assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::Panicked);
    for _ in 0..100 {
        stream.launch_host_fn(|| panic!("again")).unwrap();
    }
    let error = stream.synchronize().unwrap_err();
    assert!(error.to_string().contains("and 99 more"), "{error}");
    device.finish().unwrap();
}

#[test]
fn a_stream_may_go_before_its_function_runs() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (sender, receiver) = channel();
    stream.launch_host_fn(move || sender.send(1).unwrap()).unwrap();
    drop(stream);
    device.synchronize().unwrap();
    assert_eq!(receiver.recv_timeout(LONG), Ok(1));
    device.finish().unwrap();
}

#[test]
fn a_capture_refuses_functions_and_gives_them_back() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let mut vec = DeviceVec::<u32>::zeroed_in(&stream, 100, pool.clone()).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counts = calls.clone();
    let captured = stream.capture(&pool, |stream| {
        let count = move || {
            counts.fetch_add(1, Ordering::SeqCst);
        };
        let refused = stream.launch_host_fn(count).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::Capture);
        (refused.value)();
        add_one(stream, &mut vec)
    });
    let (graph, ()) = captured.expect("the capture is not disturbed");
    // SAFETY: the vector is alive, and nothing else uses it.
    unsafe { graph.launch(&stream) }.unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1; 100]);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    drop(graph);
    device.finish().unwrap();
}

#[test]
fn a_function_may_be_launched_inside_of_a_scope() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 4).unwrap();
    let (sender, receiver) = channel();
    stream
        .scope(|scope| {
            scope.upload(&[1, 2, 3, 4], &mut vec)?;
            stream.launch_host_fn(move || sender.send(()).unwrap())?;
            Ok(())
        })
        .unwrap();
    stream.synchronize().unwrap();
    receiver.recv_timeout(LONG).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3, 4]);
    device.finish().unwrap();
}

#[test]
fn a_function_may_run_while_a_pool_sleeps() {
    let device = support::device();
    let (stream, home) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let Ok(resource) = VirtualResource::new(&device) else {
        return support::skipped("a_function_may_run_while_a_pool_sleeps", "no virtual memory");
    };
    let pool = PoolResource::new(resource).unwrap();
    let kept = DeviceVec::from_slice_in(&home, &[5_u32; 1000], pool.clone()).unwrap();
    let dropped = DeviceVec::from_slice_in(&home, &[6_u32; 1000], pool.clone()).unwrap();
    // SAFETY: this test has no other pointers.
    unsafe { pool.sleep(aquifer::mr::Keep::PageLocked) }.unwrap();
    let (own, layout) = (pool.clone(), DeviceLayout::new(100).unwrap());
    let error = inside(&stream, move || {
        drop(dropped);
        let asked = own.allocate(&home, layout).map(drop).unwrap_err();
        (asked.kind(), own.wake().map(drop).unwrap_err().kind())
    });
    assert_eq!(error, (ErrorKind::NotPermitted, ErrorKind::NotPermitted));
    assert!(pool.is_asleep());
    stream.synchronize().unwrap();
    pool.wake().unwrap();
    assert_eq!(kept.to_vec().unwrap(), [5; 1000]);
    drop(kept);
    eventually(&stream, || pool.statistics().live == 0);
    device.finish().unwrap();
}

#[test]
fn a_lost_device_drops_what_it_does_not_call() {
    if support::on_gpu() {
        return support::skipped(
            "a_lost_device_drops_what_it_does_not_call",
            "host_functions_on_gpu has it",
        );
    }
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::<u8>::zeroed(&stream, 10).unwrap();
    let (sender, receiver) = channel::<()>();
    simulator.stall(&stream).unwrap();
    stream
        .launch_host_fn(move || {
            sender.send(()).unwrap();
            drop(vec);
        })
        .unwrap();
    assert_eq!(receiver.recv_timeout(Duration::from_millis(20)), Err(RecvTimeoutError::Timeout));
    simulator.lose_context();
    // Without a call of this thread.
    assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
    assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::ContextLost);
    let (sender, receiver) = channel();
    let refused = stream.launch_host_fn(move || sender.send(5).unwrap()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::ContextLost);
    (refused.value)();
    assert_eq!(receiver.recv(), Ok(5));
}

#[test]
fn a_driver_that_fails_the_launch_gives_the_function_back() {
    if support::on_gpu() {
        return support::skipped(
            "a_driver_that_fails_the_launch_gives_the_function_back",
            "a GPU's driver does not fail",
        );
    }
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    simulator.fail_call("cuStreamAddCallback", 1, 2).unwrap();
    let text = String::from("mine");
    let refused = stream.launch_host_fn(move || drop(text)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::OutOfMemory);
    stream.launch_host_fn(refused.value).unwrap();
    stream.synchronize().unwrap();
    simulator.check().unwrap();
}

#[test]
fn a_child_of_a_fork_is_refused() {
    if !support::in_own_process(module_path!(), "a_child_of_a_fork_is_refused") {
        return;
    }
    let device = support::device();
    let stream = device.new_stream().unwrap();
    inside(&stream, || ());
    let vec = DeviceVec::<u8>::zeroed(&stream, 10).unwrap();
    // SAFETY: the child runs what is below, and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused =
            stream.launch_host_fn(move || drop(vec)).map_err(|refused| refused.error.kind());
        let code = i32::from(refused != Err(ErrorKind::Forked));
        // SAFETY: ends the child, and runs nothing of the parent's.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child of above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    drop(vec);
    device.finish().unwrap();
}

#[test]
fn many_threads_launch_functions_that_drop() {
    let device = support::device();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (stream, home) = (device.new_stream().unwrap(), device.new_stream().unwrap());
                for round in 0..50 {
                    let vec =
                        DeviceVec::<u8>::zeroed_in(&home, 1 + round * 100, pool.clone()).unwrap();
                    let calls = calls.clone();
                    stream
                        .launch_host_fn(move || {
                            drop(vec);
                            calls.fetch_add(1, Ordering::SeqCst);
                        })
                        .unwrap();
                }
                stream.synchronize().unwrap();
            });
        }
    });
    assert_eq!(calls.load(Ordering::SeqCst), 200);
    let stream = device.new_stream().unwrap();
    eventually(&stream, || pool.statistics().live == 0);
    device.finish().unwrap();
}

/// Has `drops` run inside, and waits without a call that looks for what was dropped.
fn dropped_inside(stream: &Stream, drops: impl FnOnce() + Send + 'static) {
    stream.launch_host_fn(drops).unwrap();
    let behind = stream.record().unwrap();
    let begun = Instant::now();
    while !behind.is_complete().unwrap() {
        assert!(begun.elapsed() < LONG);
        std::thread::yield_now();
    }
}

#[test]
fn what_is_dropped_inside_waits_for_a_call_of_the_program() {
    let name = "what_is_dropped_inside_waits_for_a_call_of_the_program";
    // No other test's thread looks for it there.
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    let (device, simulator) = support::simulated(SimConfig::default());
    let (stream, home) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let calls = |call| simulator.call_count(call);

    let vec = DeviceVec::<u8>::zeroed_in(&home, 1000, pool.clone()).unwrap();
    dropped_inside(&stream, move || drop(vec));
    assert!(pool.statistics().live > 0, "a vector");
    stream.synchronize().unwrap();
    assert_eq!(pool.statistics().live, 0);

    // By hand, too.
    let block = pool.allocate(&home, DeviceLayout::new(1000).unwrap()).unwrap();
    let (own, on) = (pool.clone(), home.clone());
    // SAFETY: allocated above, with no work.
    dropped_inside(&stream, move || unsafe { own.deallocate(&on, block) });
    assert!(pool.statistics().live > 0, "a block");
    stream.synchronize().unwrap();
    assert_eq!(pool.statistics().live, 0);

    let pinned = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    let mut block = AllocVec::<u8, PinnedPool>::new_in(pinned.clone());
    block.resize(5000, 1);
    dropped_inside(&stream, move || drop(block));
    assert!(pinned.statistics().live > 0, "page-locked memory of a pool");
    stream.synchronize().unwrap();
    assert_eq!(pinned.statistics().live, 0);

    let mut kept = DeviceVec::<u32>::zeroed_in(&home, 100, pool.clone()).unwrap();
    let (graph, ()) = home.capture(&pool, |stream| add_one(stream, &mut kept)).unwrap();
    let before = calls("cuGraphExecDestroy");
    dropped_inside(&stream, move || drop(graph));
    assert_eq!(calls("cuGraphExecDestroy"), before, "a graph");
    stream.synchronize().unwrap();
    assert_eq!(calls("cuGraphExecDestroy"), before + 1);

    let (before, single) = (calls("cuStreamDestroy"), device.new_stream().unwrap());
    dropped_inside(&stream, move || drop(single));
    assert_eq!(calls("cuStreamDestroy"), before, "a stream");
    stream.synchronize().unwrap();
    assert_eq!(calls("cuStreamDestroy"), before + 1);

    let events: Vec<_> = (0..2000).map(|_| home.record().unwrap()).collect();
    let before = calls("cuEventCreate");
    dropped_inside(&stream, move || drop(events));
    let again: Vec<_> = (0..2000).map(|_| home.record().unwrap()).collect();
    assert_eq!(calls("cuEventCreate") - before, 1, "the event behind the function");
    drop(again);

    let before = calls("cuMemPoolDestroy");
    let driver_pool = aquifer::mr::AsyncResource::new(&device).unwrap();
    dropped_inside(&stream, move || drop(driver_pool));
    assert_eq!(calls("cuMemPoolDestroy"), before, "a driver pool");
    stream.synchronize().unwrap();
    assert_eq!(calls("cuMemPoolDestroy"), before + 1);

    drop(kept);
    let reserved = simulator.live_bytes();
    dropped_inside(&stream, move || drop(pool));
    assert_eq!(simulator.live_bytes(), reserved, "a pool");
    stream.synchronize().unwrap();
    assert!(simulator.live_bytes() < reserved);
    simulator.check().unwrap();
}

#[test]
fn an_undeclared_capture_refuses_functions_and_goes_on() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    simulator.start_capture(&stream).unwrap();
    let refused = stream.launch_host_fn(|| ()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Capture);
    assert!(simulator.stop_capture(&stream), "nothing invalidated it");
    stream.launch_host_fn(refused.value).unwrap();
    stream.synchronize().unwrap();
    simulator.check().unwrap();
}
