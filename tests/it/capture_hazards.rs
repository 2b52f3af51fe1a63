//! What once broke captures: memory that came back too early, streams that were taken for members, a
//! capture that nobody was told of and that spread, devices and drivers that fail on the way.

use crate::{kernels, support};
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, PoolResource, Stream,
    mr::{AsyncResource, ManagedResource, SystemResource},
    pinned::PinnedResource,
};
use kernels::{add_one, kind};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WORDS: usize = 1 << 10;
const SEEDS: u64 = 10;

type Pool = PoolResource<CudaResource>;

fn pool_on(device: &Device) -> Pool {
    PoolResource::new(CudaResource::new(device)).unwrap()
}

fn seeded(seed: u64) -> (Device, Simulator) {
    support::simulated(SimConfig::default().seed(seed))
}

fn streams<const N: usize>(device: &Device) -> [Stream; N] {
    [(); N].map(|()| device.new_stream().unwrap())
}

/// Each kind of resource that stands on the driver alone.
fn on_each_resource(body: impl Fn(&Device, &Simulator, Arc<dyn DeviceResource>)) {
    type Make = fn(&Device) -> Arc<dyn DeviceResource>;
    let kinds: [Make; 4] = [
        |device| Arc::new(CudaResource::new(device)),
        |device| Arc::new(AsyncResource::new(device).unwrap()),
        |device| Arc::new(ManagedResource::new(device).unwrap()),
        |device| Arc::new(SystemResource::new(device).unwrap()),
    ];
    for make in kinds {
        for seed in 0..SEEDS {
            let (device, simulator) = seeded(seed);
            body(&device, &simulator, make(&device));
            simulator.check().unwrap();
        }
    }
}

/// Gives what waits for its end a chance to be freed.
fn look(stream: &Stream) {
    (0..12).for_each(|_| stream.synchronize().unwrap());
}

fn work(stream: &Stream, vec: &mut DeviceVec<u32>) {
    (0..20).for_each(|_| add_one(stream, vec).unwrap());
}

#[test]
fn what_was_waited_for_in_a_graph_alone_is_freed_behind_the_real_work() {
    for on_another_thread in [false, true] {
        on_each_resource(|device, _, resource| {
            let [home, other, third] = streams(device);
            let pool = pool_on(device);
            let mut vec = DeviceVec::<u32>::zeroed_in(&home, WORDS, resource).unwrap();
            home.synchronize().unwrap();
            work(&other, &mut vec);
            home.capture(&pool, |home| {
                other.wait_for(home)?;
                vec.fill(9)?;
                let free = || {
                    drop(vec);
                    look(&third);
                };
                match on_another_thread {
                    true => std::thread::scope(|threads| threads.spawn(free).join().unwrap()),
                    false => free(),
                }
                home.wait_for(&other)
            })
            .unwrap();
        });
    }
}

#[test]
fn a_stream_that_did_not_join_is_nobodys_but_its_own() {
    on_each_resource(|device, simulator, resource| {
        let [home, other, elsewhere, third] = streams(device);
        let pool = pool_on(device);
        let mut lent = DeviceVec::<u32>::zeroed_in(&home, WORDS, Arc::new(pool.clone())).unwrap();
        add_one(&elsewhere, &mut lent).unwrap();
        let mut vec = DeviceVec::<u32>::zeroed_in(&other, WORDS, resource).unwrap();
        other.synchronize().unwrap();
        home.capture(&pool, |home| {
            // The driver refuses the event of a stream that uses it, and a wait.
            simulator.fail_call("cuEventRecord", 1, 999)?;
            assert_eq!(kind(add_one(&other, &mut lent)), ErrorKind::Driver);
            assert!(!other.is_capturing()?);
            simulator.fail_call("cuStreamWaitEvent", 1, 999)?;
            assert_eq!(kind(other.wait_for(home)), ErrorKind::Driver);
            assert!(!other.is_capturing()?);
            work(&other, &mut vec);
            drop(vec);
            look(&third);
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn memory_is_safe_where_the_driver_was_told_to_end_the_capture() {
    on_each_resource(|device, simulator, resource| {
        let [home, third] = streams(device);
        let pool = pool_on(device);
        let mut vec = DeviceVec::<u32>::zeroed_in(&home, WORDS, resource).unwrap();
        home.synchronize().unwrap();
        let captured = home.capture(&pool, |home| {
            assert!(simulator.stop_capture(home), "as cudarc could");
            work(home, &mut vec);
            drop(vec);
            look(&third);
            Ok(())
        });
        assert!(captured.is_err());
        home.synchronize().unwrap();
    });
}

#[test]
fn a_stream_that_joins_a_capture_of_others_is_asked_for_it() {
    let (device, simulator) = seeded(0);
    let [begins, joins, joins_it] = streams(&device);
    let vec = DeviceVec::from_slice(&joins_it, &[5_u32; WORDS]).unwrap();
    let mut host = allocator_api2::vec::Vec::new_in(PinnedResource::new(&device).unwrap());
    host.resize(WORDS, 7_u32);
    simulator.start_capture(&begins).unwrap();
    joins.wait_for(&begins).unwrap();
    joins_it.wait_for(&joins).unwrap();
    assert!(joins.is_capturing().unwrap() && joins_it.is_capturing().unwrap());
    assert_eq!(kind(vec.copy_to_slice(&mut host)), ErrorKind::Capture);
    assert_eq!(kind(joins_it.scope(|s| s.download(&vec, &mut host))), ErrorKind::Capture);
    begins.wait_for(&joins_it).unwrap();
    begins.wait_for(&joins).unwrap();
    assert!(simulator.stop_capture(&begins), "not disturbed");
    assert_eq!(host[..], [7; WORDS]);
    simulator.check().unwrap();
}

#[test]
fn streams_on_another_device_than_the_one_that_is_lost_are_used_no_more() {
    let ((lost, simulator), (device, _)) = (seeded(0), seeded(1));
    let [origin] = streams(&lost);
    let [home, other] = streams(&device);
    let pool = pool_on(&lost);
    let mut vec = DeviceVec::<u32>::zeroed(&home, WORDS).unwrap();
    work(&other, &mut vec);
    let captured = origin.capture(&pool, |origin| {
        home.wait_for(origin)?;
        other.wait_for(origin)?;
        vec.fill(9)?;
        simulator.lose_context();
        Ok(())
    });
    assert!(captured.is_err());
    // The driver has them in a capture that nobody can end.
    assert_eq!(kind(vec.fill(3)), ErrorKind::Capture);
    assert_eq!(kind(vec.to_vec()), ErrorKind::Capture);
}

/// Runs `others` on two threads while `body` runs for a while; ends the process if that hangs.
fn for_a_while(others: impl Fn() + Sync, mut body: impl FnMut()) {
    let (stop, over) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let done = over.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(60));
        if !done.load(Ordering::SeqCst) {
            eprintln!("it hangs");
            std::process::abort();
        }
    });
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    others();
                }
            });
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            body();
        }
        stop.store(true, Ordering::Relaxed);
    });
    over.store(true, Ordering::SeqCst);
}

#[test]
fn a_wait_for_a_device_beside_captures_costs_none_of_them() {
    let (device, _) = seeded(0);
    let [stream] = streams(&device);
    let pool = pool_on(&device);
    for_a_while(
        || match device.synchronize() {
            Ok(()) => drop(device.new_stream().unwrap()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Capture),
        },
        || {
            let captured = stream.capture(&pool, |_| {
                std::thread::yield_now();
                Ok(())
            });
            drop(captured.unwrap());
        },
    );
}

#[test]
fn home_waits_for_a_user_whose_captures_come_and_go() {
    let (device, simulator) = seeded(0);
    let [home, elsewhere] = streams(&device);
    let pool = pool_on(&device);
    let mut vec = DeviceVec::<u32>::zeroed_in(&home, WORDS, Arc::new(pool.clone())).unwrap();
    for_a_while(
        || drop(elsewhere.capture(&pool, |_| Ok(()))),
        || {
            if add_one(&elsewhere, &mut vec).is_ok() {
                vec.fill(1).unwrap();
            }
        },
    );
    simulator.check().unwrap();
}

/// A thread that waits for a stream whose capture is about to begin is in the way of no other capture.
#[test]
fn vectors_move_and_are_copied_where_home_and_user_are_captured_in_turn() {
    let (device, simulator) = seeded(0);
    let [home, elsewhere, third] = streams(&device);
    let pool = pool_on(&device);
    let memory = || Arc::new(pool.clone());
    let mut vec = DeviceVec::<u32>::zeroed_in(&home, WORDS, memory()).unwrap();
    let mut copy = DeviceVec::<u32>::zeroed_in(&third, WORDS, memory()).unwrap();
    for_a_while(
        || {
            for stream in [&home, &elsewhere, &third] {
                drop(stream.capture(&pool, |_| Ok(())));
            }
        },
        || {
            drop(add_one(&elsewhere, &mut vec));
            drop(add_one(&elsewhere, &mut copy));
            drop(copy.copy_from(&vec));
            drop(vec.set_stream(&third));
            drop(add_one(&elsewhere, &mut vec));
            drop(vec.set_stream(&home));
        },
    );
    simulator.check().unwrap();
}

/// The simulated device tells of what it finds in the very call, and a subscriber may capture.
#[test]
fn a_subscriber_that_captures_on_the_stream_it_is_told_of() {
    thread_local!(static ON: RefCell<Option<(Stream, Pool)>> = const { RefCell::new(None) });
    struct Captures;
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Captures {
        fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            if let Some((stream, pool)) = ON.with(|on| on.borrow_mut().take()) {
                stream.capture(&pool, |_| Ok(())).unwrap();
            }
        }
    }
    use tracing_subscriber::layer::SubscriberExt;
    let (device, simulator) = seeded(0);
    let [stream] = streams(&device);
    let pool = pool_on(&device);
    let memory = || Arc::new(pool.clone());
    let captured = stream.capture(&pool, |on| DeviceVec::<u32>::zeroed_in(on, 64, memory()));
    let (_graph, mut unwritten) = captured.unwrap();
    ON.with(|on| *on.borrow_mut() = Some((stream.clone(), pool.clone())));
    let subscriber = tracing_subscriber::registry().with(Captures);
    tracing::subscriber::with_default(subscriber, || add_one(&stream, &mut unwritten).unwrap());
    assert!(ON.with(|on| on.borrow().is_none()), "it was told");
    assert_eq!(simulator.take_reports().len(), 1);
}

#[cfg(unix)]
#[test]
fn a_child_that_is_forked_in_a_capture_leaves_it() {
    if !support::in_own_process(module_path!(), "a_child_that_is_forked_in_a_capture_leaves_it") {
        return;
    }
    let (device, _) = seeded(0);
    let [stream] = streams(&device);
    let pool = pool_on(&device);
    for_a_while(
        || {
            drop(device.new_stream().unwrap().capture(&pool, |_| Ok(())));
            drop(device.synchronize());
        },
        || {
            let mut child = -1;
            let captured = stream.capture(&pool, |_| {
                // SAFETY: the child takes no lock of another thread's, and leaves through `_exit`;
                // if it hangs, the system ends it.
                child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: a clock of the child's own.
                    unsafe { libc::alarm(20) };
                }
                Ok(())
            });
            if child == 0 {
                // SAFETY: ends the child, and nothing of the parent's.
                unsafe { libc::_exit(i32::from(captured.is_ok())) };
            }
            captured.unwrap();
            let mut status = 0;
            // SAFETY: a child of this process, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "refused, and not hung");
        },
    );
}

/// Moved in the graph alone, the elements would be lost where the graph is never launched.
#[test]
fn a_vector_keeps_its_elements_where_a_capture_would_have_to_move_them() {
    let (device, simulator) = seeded(1);
    let [home] = streams(&device);
    let pool = pool_on(&device);
    let memory: Arc<dyn DeviceResource> = Arc::new(pool.clone());
    type Grow = fn(&mut DeviceVec<u32>) -> aquifer::Result<()>;
    let grows: [Grow; 5] = [
        |vec| vec.reserve(1000),
        |vec| vec.reserve_exact(1000),
        |vec| vec.push(9),
        |vec| vec.resize(1000, 9),
        |vec| vec.extend_from_slice(&[9; 1000]),
    ];
    let calls = grows
        .map(|grow| (false, grow))
        .into_iter()
        .chain([(true, DeviceVec::shrink_to_fit as Grow)]);
    for (has_room, call) in calls {
        let mut vec = DeviceVec::from_slice_in(&home, &[1, 2, 3_u32], memory.clone()).unwrap();
        if has_room {
            vec.reserve(1000).unwrap();
        } else {
            vec.resize(vec.capacity(), 3).unwrap();
        }
        let before = (vec.to_vec().unwrap(), vec.capacity());
        let (_graph, ()) = home
            .capture(&pool, |_| {
                assert_eq!(kind(call(&mut vec)), ErrorKind::Capture);
                // A block of its own costs no element.
                DeviceVec::new_in(&home, memory.clone())?.resize(100, 1_u32)
            })
            .unwrap();
        assert_eq!((vec.to_vec().unwrap(), vec.capacity()), before);
    }
    simulator.check().unwrap();
}

/// A wait for what lies outside of a capture would cost the capture: the launches make it, and the streams after it.
#[test]
fn a_vector_that_is_read_elsewhere_is_written_in_a_capture() {
    for seed in 0..SEEDS {
        let (device, simulator) = seeded(seed);
        let [home, other, third] = streams(&device);
        let pool = pool_on(&device);
        let memory = || Arc::new(pool.clone());
        let mut vec = DeviceVec::from_slice_in(&home, &[1; WORDS], memory()).unwrap();
        let mut copy = DeviceVec::<u32>::zeroed_in(&other, WORDS, memory()).unwrap();
        (0..10).for_each(|_| copy.copy_from(&vec).unwrap());
        let (graph, ()) = home.capture(&pool, |_| vec.fill(2)).unwrap();
        // The first launch comes after the reads, on whatever stream it is.
        third.wait_for(&home).unwrap();
        // SAFETY: `vec` is there, and nothing else uses it.
        unsafe { graph.launch(&third) }.unwrap();
        home.wait_for(&third).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [2; WORDS], "seed {seed}");
        assert_eq!(copy.to_vec().unwrap(), [1; WORDS], "seed {seed}");
        simulator.check().unwrap();
    }
}

#[test]
fn a_capture_that_waits_for_others_leaves_its_streams_behind_them() {
    for seed in 0..SEEDS {
        let (device, simulator) = seeded(seed);
        let [home, joined, other] = streams(&device);
        let pool = pool_on(&device);
        let memory = || Arc::new(pool.clone());
        let mut vec = DeviceVec::from_slice_in(&home, &[1; WORDS], memory()).unwrap();
        let mut copy = DeviceVec::<u32>::zeroed_in(&other, WORDS, memory()).unwrap();
        (0..10).for_each(|_| copy.copy_from(&vec).unwrap());
        let given = seed % 2 == 0;
        let captured = home.capture(&pool, |home| {
            joined.wait_for(home)?;
            joined.wait_for(&other)?;
            // What home waits for now it waits for no more when the capture is over.
            vec.fill(2)?;
            home.wait_for(&joined)?;
            // No graph, by an error of the body's.
            if given { Ok(()) } else { DeviceVec::<u8>::zeroed(&other, usize::MAX).map(drop) }
        });
        assert_eq!(captured.is_ok(), given);
        drop(captured);
        add_one(&joined, &mut vec).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [2; WORDS], "seed {seed}");
        assert_eq!(copy.to_vec().unwrap(), [1; WORDS], "seed {seed}");
        simulator.check().unwrap();
    }
}

/// Another stream reads it still, so it cannot be freed in the capture; and the graph reads it at each
/// launch, so it must not be freed before the graph is gone either.
#[test]
fn a_vector_that_is_dropped_in_a_capture_with_a_reader_outside_stays_for_the_graph() {
    for seed in 0..SEEDS {
        let (device, simulator) = seeded(seed);
        let [home, reader] = streams(&device);
        let pool = pool_on(&device);
        let memory = || Arc::new(pool.clone());
        let vec = DeviceVec::from_slice_in(&home, &[1; WORDS], memory()).unwrap();
        let mut target = DeviceVec::<u32>::zeroed_in(&home, WORDS, memory()).unwrap();
        let mut read = DeviceVec::<u32>::zeroed_in(&reader, WORDS, memory()).unwrap();
        (0..20).for_each(|_| read.copy_from(&vec).unwrap());
        let (graph, ()) = home
            .capture(&pool, |_| {
                target.copy_from(&vec)?;
                drop(vec);
                Ok(())
            })
            .unwrap();
        for launched in 2..4 {
            look(&reader);
            let other = DeviceVec::from_slice_in(&home, &[launched; WORDS], memory()).unwrap();
            // SAFETY: `target` is there, and nothing else uses it; the graph keeps the other vector.
            unsafe { graph.launch(&home) }.unwrap();
            assert_eq!(target.to_vec().unwrap(), [1; WORDS]);
            assert_eq!(other.to_vec().unwrap(), [launched; WORDS]);
        }
        drop(graph);
        look(&home);
        let live = pool.statistics().live;
        assert_eq!(live, 2 * WORDS * 4, "the graph's memory came back");
        simulator.check().unwrap();
    }
}
