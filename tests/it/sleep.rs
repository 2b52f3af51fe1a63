//! Pools that sleep and wake: what comes back, and what is refused meanwhile.

use crate::kernels::DOUBLE;
use crate::support;
use aquifer::mr::{
    CheckedAdaptor, CudaResource, Handles, Keep, SleepOptions, StackText, VirtualResource,
};
use aquifer::pinned::{HostBuffer, PinnedPool, PinnedResource};
use aquifer::sim::SimConfig;
use aquifer::{
    Device, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, LaunchConfig, PoolResource, Stream,
};
use std::sync::Arc;

mod captures;
mod failures;
#[cfg(target_os = "linux")]
mod forked;
mod lost;

const MIB: usize = 1 << 20;

type Pool = PoolResource<VirtualResource>;

fn pool(device: &Device) -> Pool {
    PoolResource::new(VirtualResource::new(device).unwrap()).unwrap()
}

fn numbers(stream: &Stream, pool: &Pool, count: u32, first: u32) -> DeviceVec<u32> {
    let all: Vec<u32> = (first..first + count).collect();
    DeviceVec::from_slice_in(stream, &all, pool.clone()).unwrap()
}

fn assert_numbers(vec: &DeviceVec<u32>, first: u32) {
    // Again, where a failure that was injected is left.
    let found = vec.to_vec().or_else(|_| vec.to_vec()).unwrap();
    assert!(found.iter().zip(first..).all(|(found, wanted)| *found == wanted), "from {first}");
}

/// # Safety
///
/// That of [`PoolResource::sleep`].
unsafe fn asleep(pool: &Pool, keep: Keep) -> usize {
    // SAFETY: the caller's promise.
    let report = unsafe { pool.sleep(keep) }.unwrap();
    assert!(report.used <= report.bytes);
    assert!(pool.is_asleep());
    assert_eq!(pool.statistics().asleep, report.bytes);
    report.bytes
}

type Way = (&'static str, fn() -> Keep);

fn keeps() -> Vec<Way> {
    vec![
        ("page-locked", || Keep::PageLocked),
        ("a file", || Keep::File(std::env::temp_dir())),
        ("a vector", || Keep::Buffer(Box::new(vec![7_u8; 64 * MIB]))),
    ]
}

#[test]
fn all_comes_back_to_its_addresses() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let other = device.new_stream().unwrap();
    for (name, keep) in keeps() {
        let pool = pool(&device);
        let vecs: Vec<_> = [(3, 0), (1000, 5), (700_000, 9), (5_000_000, 77), (64, 1)]
            .into_iter()
            .map(|(count, first)| (numbers(&stream, &pool, count, first), first))
            .collect();
        let others = numbers(&other, &pool, 100_000, 3);
        drop(numbers(&stream, &pool, 2_000_000, 0));
        let addresses: Vec<u64> = vecs.iter().map(|(vec, _)| vec.as_device_ptr()).collect();
        for _ in 0..3 {
            let before = device.memory_info().unwrap().free;
            // SAFETY: this test has no other pointers.
            let bytes = unsafe { asleep(&pool, keep()) };
            assert!(bytes >= 24 * MIB, "{name}: {bytes}");
            assert!(device.memory_info().unwrap().free >= before + bytes);
            let woken = pool.wake().unwrap();
            assert!(!pool.is_asleep() && woken.copied > 20 * MIB, "{name}: {woken:?}");
            assert_eq!(woken.buffer.is_some(), name == "a vector");
            assert_eq!(pool.statistics().asleep, 0);
            for ((vec, first), address) in vecs.iter().zip(&addresses) {
                assert_eq!(vec.as_device_ptr(), *address);
                assert_numbers(vec, *first);
            }
            assert_numbers(&others, 3);
            // It serves as before.
            drop(numbers(&stream, &pool, 100_000, 0));
        }
    }
}

#[test]
fn every_safe_use_is_an_error_while_it_sleeps_and_vectors_may_be_dropped() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool(&device);
    let mut vec = numbers(&stream, &pool, 100_000, 1);
    let mut kept = numbers(&stream, &pool, 1_000_000, 8);
    let dropped = numbers(&stream, &pool, 3_000_000, 8);
    let mut awake =
        DeviceVec::<u32>::zeroed_in(&stream, 100_000, CudaResource::new(&device)).unwrap();
    // SAFETY: this test has no other pointers.
    let bytes = unsafe { asleep(&pool, Keep::PageLocked) };
    let mut host = vec![0_u32; 100_000];
    let refused: Vec<aquifer::Error> = vec![
        vec.get(0).unwrap_err(),
        vec.set(0, 1).unwrap_err(),
        vec.to_vec().unwrap_err(),
        vec.fill(1).unwrap_err(),
        vec.copy_from_slice(&host).unwrap_err(),
        vec.copy_to_slice(&mut host).unwrap_err(),
        awake.copy_from(&vec).unwrap_err(),
        vec.copy_from(&awake).unwrap_err(),
        vec.push(3).unwrap_err(),
        vec.reserve(10_000_000).unwrap_err(),
        vec.set_stream(&other).unwrap_err(),
        vec.on(&other).map(drop).unwrap_err(),
        vec.try_clone().unwrap_err(),
        DeviceVec::<u8>::zeroed_in(&stream, 10, pool.clone()).unwrap_err(),
        DeviceVec::<u8>::zeroed_in(&other, 10 * MIB, pool.clone()).unwrap_err(),
        stream.capture(&pool, |_| Ok(())).map(drop).unwrap_err(),
        pool.wait_and_trim(0).unwrap_err(),
        pool.allocate(&stream, DeviceLayout::new(100).unwrap()).unwrap_err(),
        // SAFETY: as above.
        unsafe { pool.sleep(Keep::Nothing) }.unwrap_err(),
    ];
    for (number, error) in refused.iter().enumerate() {
        assert_eq!(error.kind(), ErrorKind::Asleep, "{number}: {error}");
        assert!(error.to_string().contains("has been asleep for "), "{number}: {error}");
    }
    assert_eq!(pool.trim(0).unwrap(), 0);
    let free = device.memory_info().unwrap().free;
    drop(dropped);
    assert_eq!(device.memory_info().unwrap().free, free);
    pool.wake().unwrap();
    // What was dropped meanwhile is not mapped again.
    let now = device.memory_info().unwrap().free;
    assert!(free - now <= (bytes - 10 * MIB), "{} of {bytes}", free - now);
    assert_numbers(&vec, 1);
    assert_numbers(&kept, 8);
    awake.copy_from(&vec).unwrap();
    kept.fill(5).unwrap();
    assert_eq!(kept.get(999_999).unwrap(), 5);
}

/// Between the order of an argument and the launch.
#[test]
fn a_launch_that_was_begun_before_the_sleep_is_refused() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let mut vec = numbers(&stream, &pool, 1000, 4);
    let read = numbers(&stream, &pool, 1000, 4);
    for is_read in [false, true] {
        let launch = stream.launch(&DOUBLE);
        let launch = match is_read {
            true => launch.input(&read).unwrap(),
            false => launch.in_out(&mut vec).unwrap(),
        };
        let launch = launch.scalar(1000_u32).unwrap();
        // SAFETY: this test has no other pointers.
        unsafe { asleep(&pool, Keep::PageLocked) };
        // SAFETY: it is refused.
        let error = unsafe { launch.launch(LaunchConfig::for_elements(1000)) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Asleep, "{error}");
        pool.wake().unwrap();
    }
    assert_numbers(&vec, 4);
}

#[test]
fn what_is_dropped_comes_back_as_zeros() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let vec = numbers(&stream, &pool, 1_000_000, 1);
    // SAFETY: this test has no other pointers.
    unsafe { asleep(&pool, Keep::Nothing) };
    assert_eq!(pool.wake().unwrap().copied, 0);
    assert!(vec.to_vec().unwrap().iter().all(|number| *number == 0));
}

#[test]
fn an_allocation_wakes_it_if_that_was_asked() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let vec = numbers(&stream, &pool, 1_000, 1);
    let options = SleepOptions::new(Keep::PageLocked).wakes_on_allocation(true);
    // SAFETY: this test has no other pointers.
    unsafe { pool.sleep(options) }.unwrap();
    assert_eq!(vec.get(0).unwrap_err().kind(), ErrorKind::Asleep);
    let more = numbers(&stream, &pool, 1_000, 2);
    assert!(!pool.is_asleep());
    assert_numbers(&vec, 1);
    assert_numbers(&more, 2);
    let error = pool.wake().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn a_pool_of_blocks_says_which_stack_can() {
    let device = support::device();
    let pool =
        PoolResource::builder(CudaResource::new(&device)).handles(Handles::Off).build().unwrap();
    // SAFETY: it has no memory.
    let error = unsafe { pool.sleep(Keep::Nothing) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("handles=on") && error.to_string().contains("cuIpcGetMemHandle"),
        "{error}"
    );
    let pool =
        PoolResource::builder(CudaResource::new(&device)).handles(Handles::On).build().unwrap();
    // SAFETY: it has no memory.
    assert_eq!(unsafe { pool.sleep(Keep::Nothing) }.unwrap().bytes, 0);
    pool.wake().unwrap();
}

#[test]
fn a_buffer_of_the_programs_serves_round_after_round() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pinned = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    let mut memory = allocator_api2::vec::Vec::<u8, PinnedPool>::new_in(pinned);
    memory.resize(16 * MIB, 0);
    let pool = pool(&device);
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    let mut buffer: Box<dyn HostBuffer<Item = u8>> = Box::new(memory);
    for _ in 0..5 {
        // SAFETY: this test has no other pointers.
        unsafe { asleep(&pool, Keep::Buffer(buffer)) };
        buffer = pool.wake().unwrap().buffer.unwrap();
        assert_numbers(&vec, 4);
    }
}

#[test]
fn a_pool_that_ends_asleep_leaves_nothing() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let before = device.memory_info().unwrap().free;
    for keep in keeps() {
        let pool = pool(&device);
        let vec = numbers(&stream, &pool, 1_000_000, 4);
        let small = numbers(&stream, &pool, 10, 4);
        // SAFETY: this test has no other pointers.
        unsafe { asleep(&pool, keep.1()) };
        drop(vec);
        drop(pool);
        drop(small);
        stream.synchronize().unwrap();
        assert_eq!(device.memory_info().unwrap().free, before, "{}", keep.0);
    }
    simulator.check().unwrap();
    assert_eq!(simulator.live_bytes(), 0);
    // Others sleep at their addresses, or not at all.
    let vec = numbers(&stream, &self::pool(&device), 1_000_000, 4);
    assert_numbers(&vec, 4);
}

#[test]
fn a_graph_finds_its_memory_where_it_was() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let memory = Arc::new(pool.clone());
    let mut sums = DeviceVec::<f32>::zeroed_in(&stream, 300_000, memory.clone()).unwrap();
    let input = DeviceVec::from_slice_in(&stream, &vec![2.5_f32; 300_000], memory.clone()).unwrap();
    let (graph, ()) = stream
        .capture(&pool, |stream| {
            let mut scratch = DeviceVec::<f32>::zeroed_in(stream, 300_000, memory.clone())?;
            scratch.copy_from(&input)?;
            sums.copy_from(&scratch)
        })
        .unwrap();
    assert!(pool.statistics().held > 0);
    for _ in 0..20 {
        sums.fill(0.0).unwrap();
        // SAFETY: no graph runs or is launched while it sleeps.
        unsafe { asleep(&pool, Keep::PageLocked) };
        // SAFETY: it is refused.
        let error = unsafe { graph.launch(&stream) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Asleep, "{error}");
        pool.wake().unwrap();
        // SAFETY: all vectors are alive, and nothing else uses them.
        unsafe { graph.launch(&stream).unwrap() };
        assert!(sums.to_vec().unwrap().iter().all(|sum| *sum == 2.5));
    }
    drop(graph);
}

#[test]
fn a_capture_is_not_disturbed() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (pool, other) = (pool(&device), pool(&device));
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    let (_, ()) = stream
        .capture(&pool, |_| {
            for pool in [&pool, &other] {
                // SAFETY: this test has no other pointers.
                let error = unsafe { pool.sleep(Keep::Nothing) }.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Capture, "{error}");
                assert!(!pool.is_asleep());
            }
            Ok(())
        })
        .unwrap();
    assert_numbers(&vec, 4);
    // SAFETY: as above.
    unsafe { asleep(&pool, Keep::PageLocked) };
    pool.wake().unwrap();
    assert_numbers(&vec, 4);
}

/// A free waits for uses elsewhere, and touches nothing: no block is leaked, and none is filled.
#[test]
fn what_is_dropped_asleep_is_free_when_it_wakes() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool(&device);
    let checked = CheckedAdaptor::builder(pool.clone()).poison(Some(0xcd)).build();
    let mut used = numbers(&stream, &pool, 1_000_000, 4);
    let poisoned = DeviceVec::<u8>::zeroed_in(&stream, 3 * MIB, checked).unwrap();
    let mut target = numbers(&other, &pool, 1_000_000, 0);
    // A use on another stream, which home has not waited for.
    target.copy_from(&used).unwrap();
    used.fill(7).unwrap();
    target.copy_from(&used).unwrap();
    // SAFETY: this test has no other pointers.
    unsafe { asleep(&pool, Keep::PageLocked) };
    drop((used, poisoned));
    pool.wake().unwrap();
    assert_eq!(target.get(999_999).unwrap(), 7);
    drop(target);
    stream.synchronize().unwrap();
    other.synchronize().unwrap();
    pool.wait_and_trim(0).unwrap();
    let statistics = pool.statistics();
    assert_eq!((statistics.live, statistics.reserved), (0, 0));
}

/// It has addresses, and nothing in them.
#[test]
fn an_empty_pool_that_ends_asleep_is_off_the_list() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    drop(numbers(&stream, &pool, 1_000_000, 4));
    // SAFETY: this test has no other pointers.
    assert_eq!(unsafe { asleep(&pool, Keep::PageLocked) }, 0);
    drop(pool);
    let vec = DeviceVec::<u8>::zeroed_in(&stream, 1000, CudaResource::new(&device)).unwrap();
    assert_eq!(vec.get(7).unwrap(), 0);
}

/// A block has memory whose former addresses still map it.
#[test]
fn memory_that_has_just_moved_goes_with_all_its_addresses() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let options = PoolResource::builder(VirtualResource::new(&device).unwrap());
    let pool = options.maximum_size(32 * MIB).build().unwrap();
    let vecs: Vec<_> = (0..8).map(|first| numbers(&stream, &pool, MIB as u32, first)).collect();
    device.synchronize().unwrap();
    simulator.stall(&stream).unwrap();
    let kept: Vec<_> = vecs.into_iter().step_by(2).collect();
    let moved = DeviceVec::<u8>::zeroed_in(&stream, 16 * MIB, pool.clone()).unwrap();
    assert!(simulator.call_count("cuMemUnmap") == 0 && simulator.call_count("cuMemMap") > 8);
    simulator.resume(&stream).unwrap();
    // SAFETY: this test has no other pointers.
    assert_eq!(unsafe { asleep(&pool, Keep::PageLocked) }, 32 * MIB);
    let info = device.memory_info().unwrap();
    assert_eq!((info.free, simulator.live_bytes()), (info.total, 0));
    pool.wake().unwrap();
    kept.iter().zip([0, 2, 4, 6]).for_each(|(vec, first)| assert_numbers(vec, first));
    assert!(moved.to_vec().unwrap().iter().all(|byte| *byte == 0));
}

/// What keeps memory above would hand it out.
#[test]
fn a_stack_with_two_that_keep_memory_does_not_sleep() {
    let device = support::device();
    for text in ["pool(pool(virtual))", "fixed_size(pool(virtual))", "virtual"] {
        let stack = text.parse::<StackText>().unwrap().build(&device).unwrap();
        // SAFETY: it has no memory.
        let error = unsafe { stack.sleep(Keep::Nothing) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}: {error}");
    }
    let stack = "pool(virtual) | statistics".parse::<StackText>().unwrap().build(&device).unwrap();
    // SAFETY: it has no memory.
    unsafe { stack.sleep(Keep::Nothing) }.unwrap();
    assert!(stack.is_asleep());
    stack.wake().unwrap();
}

/// A thread's magazine that is made meanwhile keeps no block, and gives none.
#[test]
fn a_thread_that_comes_while_it_sleeps_is_given_nothing() {
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let vecs: Vec<_> = (0..8).map(|first| numbers(&stream, &pool, 1000, first)).collect();
    // SAFETY: this test has no other pointers.
    unsafe { asleep(&pool, Keep::PageLocked) };
    std::thread::scope(|scope| {
        let use_it = || {
            for vec in vecs {
                for _ in 0..3 {
                    let layout = DeviceLayout::new(4000).unwrap();
                    let error = pool.allocate(&stream, layout).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Asleep, "{error}");
                }
                drop(vec);
            }
        };
        scope.spawn(use_it).join().unwrap();
    });
    pool.wake().unwrap();
    assert_numbers(&numbers(&stream, &pool, 1000, 7), 7);
}

/// Another process may have the memory for as long as it wants.
#[cfg(target_os = "linux")]
#[test]
fn memory_that_was_sent_keeps_its_pool_awake() {
    use aquifer::ipc::IpcExport;
    use std::os::unix::net::UnixStream;

    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let (other, pool) = (pool(&device), pool(&device));
    let of_other = numbers(&stream, &other, 1_000_000, 4);
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    let (here, _there) = UnixStream::pair().unwrap();
    for vec in [&of_other, &vec, &vec] {
        vec.send_to(&here).unwrap();
    }
    for pool in [&other, &pool] {
        // SAFETY: this test has no other pointers.
        let error = unsafe { pool.sleep(Keep::PageLocked) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("was sent to another process"), "{error}");
    }
    assert_numbers(&vec, 4);
    drop(vec);
    pool.wait_and_trim(0).unwrap();
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    // SAFETY: as above.
    unsafe { asleep(&pool, Keep::PageLocked) };
    let error = vec.send_to(&here).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Asleep, "{error}");
    pool.wake().unwrap();
    assert_numbers(&vec, 4);
}

#[test]
fn memory_that_is_registered_with_nccl_keeps_its_pool_awake() {
    use aquifer::collective::RegisteringAdaptor;

    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let registering = RegisteringAdaptor::new(pool.clone());
    let vec = DeviceVec::<u8>::zeroed_in(&stream, 1000, registering).unwrap();
    // SAFETY: this test has no other pointers.
    let error = unsafe { pool.sleep(Keep::PageLocked) }.unwrap_err();
    assert!(error.to_string().contains("is registered with NCCL"), "{error}");
    drop(vec);
    // SAFETY: as above.
    unsafe { asleep(&pool, Keep::PageLocked) };
    pool.wake().unwrap();
}

/// The graph is another pool's, which is awake, so the crate does not see what it uses.
#[test]
fn work_by_addresses_is_a_report_while_the_pool_sleeps() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let (pool, other) = (pool(&device), pool(&device));
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    let mut target = numbers(&stream, &other, 1_000_000, 0);
    let (graph, ()) = stream.capture(&other, |_| target.copy_from(&vec)).unwrap();
    // SAFETY: the graph is launched all the same: that is the fault.
    unsafe { asleep(&pool, Keep::PageLocked) };
    // SAFETY: none.
    let launched = unsafe { graph.launch(&stream) };
    let reports = simulator.take_reports();
    let is_of_memory_that_is_gone =
        |it: &aquifer::sim::Report| it.kind() == aquifer::sim::Violation::UseAfterFree;
    assert!(reports.iter().any(is_of_memory_that_is_gone), "{launched:?}: {reports:?}");
    assert!(reports[0].to_string().contains("cuMemUnmap"), "{}", reports[0]);
}

#[test]
fn two_pools_sleep_one_without_the_other() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (weights, cache) = (pool(&device), pool(&device));
    let kept = numbers(&stream, &weights, 1_000_000, 4);
    let lost = numbers(&stream, &cache, 1_000_000, 4);
    // SAFETY: this test has no other pointers.
    unsafe {
        asleep(&weights, Keep::PageLocked);
        asleep(&cache, Keep::Nothing);
    }
    weights.wake().unwrap();
    assert_numbers(&kept, 4);
    assert_eq!(lost.get(0).unwrap_err().kind(), ErrorKind::Asleep);
    cache.wake().unwrap();
    assert_eq!(lost.get(5).unwrap(), 0);
}

#[test]
fn threads_that_use_and_allocate_meanwhile_see_awake_or_asleep() {
    let device = support::device();
    let pool = pool(&device);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            let (device, pool, stop) = (&device, &pool, &stop);
            scope.spawn(move || {
                let stream = device.new_stream().unwrap();
                let is_asleep = |error: &aquifer::Error| error.kind() == ErrorKind::Asleep;
                let kept = loop {
                    let all: Vec<u32> = (thread..thread + 100_000).collect();
                    match DeviceVec::from_slice_in(&stream, &all, pool.clone()) {
                        Ok(kept) => break kept,
                        Err(error) => assert!(is_asleep(&error), "{error}"),
                    }
                };
                let mut rounds = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) || rounds < 20 {
                    rounds += 1;
                    let bytes = 1000 * (1 + rounds % 900);
                    match DeviceVec::<u8>::zeroed_in(&stream, bytes, pool.clone()) {
                        Ok(vec) => match vec.to_vec() {
                            Ok(vec) => assert!(vec.iter().all(|byte| *byte == 0)),
                            Err(error) => assert!(is_asleep(&error), "{error}"),
                        },
                        Err(error) => assert!(is_asleep(&error), "{error}"),
                    }
                    match kept.get(rounds % 100_000) {
                        Ok(number) => assert_eq!(number, thread + (rounds % 100_000) as u32),
                        Err(error) => assert!(is_asleep(&error), "{error}"),
                    }
                }
                loop {
                    match kept.to_vec() {
                        Ok(all) => break assert!(all.iter().zip(thread..).all(|(a, b)| *a == b)),
                        Err(error) => assert!(is_asleep(&error), "{error}"),
                    }
                }
            });
        }
        for _ in 0..30 {
            // SAFETY: this test has no other pointers.
            unsafe { asleep(&pool, Keep::PageLocked) };
            pool.wake().unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
